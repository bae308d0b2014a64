"""Pictures in, label maps out: the work behind `depict segment`.

`inputs` finds the files, `pipeline` reads them, runs the predictor and hands its labels to `outputs`; `journal` notes
what was made from what, `summary` is the report on a folder. None of them needs torch.
"""
