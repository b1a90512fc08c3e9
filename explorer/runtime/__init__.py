"""Kernels in a running program: functions on arrays of PyTorch, CuPy and JAX."""
