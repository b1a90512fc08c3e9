"""Published kernels as named points of the space; what publications report of some."""
