"""Optional C kernels for training, compiled once by the system's C compiler if there is one."""
