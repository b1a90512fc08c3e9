"""An NVIDIA GPU: a worker process owns it, verifies kernels on it, then times them."""
