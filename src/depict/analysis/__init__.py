"""See inside a trained model: one file per question, one pass over the images, one report."""
