"""softmax-explorer: emit, verify and time CUDA softmax kernels; keep the fastest per problem."""

__version__ = "0.1.0"
