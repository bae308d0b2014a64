"""Pictures in, label maps out: the work behind `depict segment`.

`inputs` finds the files, `pipeline` reads them, runs the predictor and hands its labels to `outputs`; `summary` keeps
the record of a folder. None of them needs torch.
"""
