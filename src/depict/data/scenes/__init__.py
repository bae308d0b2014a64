"""Painted scenes: a data set that needs no download."""
