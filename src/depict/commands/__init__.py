"""One module per command of the command line; each has a `main` whose signature is its options."""
