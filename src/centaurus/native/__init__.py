"""Optional C kernels of the training path: compiled once by the system's compiler, used when they are there."""
