"""One architecture's compiler: a variant's source in, a kernel out, through the cache."""

from explorer.compile.cache import KernelCache
from explorer.compile.headers import include_dir
from explorer.compile.kernel import Kernel
from explorer.compile.nvrtc import compile_source, nvrtc_version
from explorer.compile.resources import kernel_resources


class CompileFailure(Exception):  # an outcome of a variant, not an error of the user's
    """NVRTC or ptxas refused the source; the message is the log's first error."""

    def __init__(self, log: str) -> None:
        self.log = log
        lines = [line for line in log.splitlines() if "error" in line] or log.splitlines()
        super().__init__(lines[0].strip() if lines else "no log")


class Compiler:
    """Compiles for `arch`, such as sm_90. Safe to use from several threads.

    For a virtual one, such as compute_90, nothing is assembled: kernels are PTX alone.
    `line_info` adds the source line of each instruction to the PTX: for checks, never for timing.
    """

    def __init__(
        self, arch: str, cache: KernelCache | None = None, *, line_info: bool = False
    ) -> None:
        self.arch = arch
        self.cache = cache or KernelCache()
        include = include_dir()
        self.options = (
            f"--gpu-architecture={arch}",
            "--std=c++17",
            "--ptxas-options=-v",
            *(("--generate-line-info",) if line_info else ()),
            *((f"--include-path={include}",) if include else ()),
        )

    def compile(self, source: str) -> Kernel:
        """The kernel of `source`; raises CompileFailure with the log."""
        key = self.cache.key(source, self._cache_options(), nvrtc_version())
        kernel = self.cache.load(key)
        if kernel is None:
            result = compile_source(source, self.options)
            if not result.succeeded:
                raise CompileFailure(result.log)
            resources = kernel_resources(result.log, result.cubin)
            kernel = Kernel(result.cubin, result.ptx, result.log, resources)
            self.cache.store(key, kernel)
        return kernel

    def _cache_options(self) -> tuple[str, ...]:
        """The options that decide the code: not where the headers happen to lie."""
        return tuple(option for option in self.options if "include-path" not in option)
