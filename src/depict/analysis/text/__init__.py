"""Report text: the results of each analysis: title, method, captions and findings."""
