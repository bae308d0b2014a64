"""What a trained model does inside: one measure per file, figures and text apart, one pass for all, one report."""
