"""Settings: typed once, read from YAML and flags, resolved against the data set."""
