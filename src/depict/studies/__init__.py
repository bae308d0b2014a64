"""Studies: sweeps of trainings that fill a table and a picture, in one folder.

`study.yaml` says what was asked, `cells/NAME` is a run with its evaluation.json, the results stand beside them. A cell
with an evaluation is finished; any other is trained, or trained on, by the next call.
"""
