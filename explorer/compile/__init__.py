"""Source to kernel by NVRTC, cached on disk. Needs neither GPU nor driver."""

from explorer.compile.compiler import (
    SOURCE_NAME,
    CompileFailure,
    CompilePool,
    Compiler,
    Kernel,
    KernelCache,
    Mean,
    cache_dir,
    compile_in_time,
    nvrtc_version,
)

__all__ = [
    "SOURCE_NAME",
    "CompileFailure",
    "CompilePool",
    "Compiler",
    "Kernel",
    "KernelCache",
    "Mean",
    "cache_dir",
    "compile_in_time",
    "nvrtc_version",
]
