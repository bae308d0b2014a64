"""Studies: sweeps of trainings whose results fill a table and a figure.

The folder of a study holds `study.yaml` (its settings), `cells/NAME` (one run per training, with its evaluation.json)
and the results. A cell with an evaluation.json is finished; the next call trains, or resumes, the others.
"""
