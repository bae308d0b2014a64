"""Training: the loop, the optimizer, the losses and the feature cache."""
