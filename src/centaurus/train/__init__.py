"""Training: losses, learning-rate schedule, data order, the loop, run folders and validation."""
