"""One module per command of the command line; the signature and docstring of its `main` are its flags and help.

`train` and `study` share the flags in `settings`.
"""
