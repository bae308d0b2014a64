"""Models in and out: the authors' checkpoints, ONNX, the hub."""
