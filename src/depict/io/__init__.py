"""Reading files safely and writing them atomically."""
