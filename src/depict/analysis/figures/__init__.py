"""Drawing the results of each analysis."""
