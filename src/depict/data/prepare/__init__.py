"""Downloading, unpacking and converting the public data sets."""
