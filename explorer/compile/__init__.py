"""Source to kernel by NVRTC, cached on disk. Needs neither GPU nor driver."""

from explorer.compile.cache import KernelCache, cache_dir
from explorer.compile.compiler import CompileFailure, Compiler
from explorer.compile.kernel import Kernel
from explorer.compile.nvrtc import SOURCE_NAME, nvrtc_version
from explorer.compile.pool import CompilePool

__all__ = [
    "SOURCE_NAME",
    "CompileFailure",
    "CompilePool",
    "Compiler",
    "Kernel",
    "KernelCache",
    "cache_dir",
    "nvrtc_version",
]
