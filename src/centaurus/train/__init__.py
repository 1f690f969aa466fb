"""Training: losses, schedule, order of the data, one loop, run folders and evaluation."""
