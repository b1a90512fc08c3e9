"""Kernels loaded on a GPU, and their launches with the least work for the host.

A launch by `cuda.core` takes 4.7 us of an H200's host. Here everything but addresses and stream is
stored once in the driver's own structures, so that a call writes two or three of their fields and
calls `cuLaunchKernelEx`.
"""

import ctypes
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from cuda.bindings import driver

from explorer.codegen.variant import Launch
from explorer.devices.cuda.program import (
    CudaError,
    Program,
    bound,
    checked,
    driver_problem,
    gpu_spec,
)
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem
from explorer.ops import Extent
from explorer.runtime.kernels import ReadyKernel

# ------------------------------------------------------------------ GPUs


class Gpu:
    """One GPU's primary context, which frameworks use too, and the kernels loaded in it."""

    def __init__(self, index: int) -> None:
        fault = driver_problem()
        if fault is not None:
            raise CudaError(fault)
        checked(driver.cuInit(0))
        self._device = checked(driver.cuDeviceGet(index))
        self.spec: GpuSpec = gpu_spec(self._device)
        self._context = checked(driver.cuDevicePrimaryCtxRetain(self._device))
        self._programs: dict[bytes, Program] = {}
        self._lock = threading.Lock()

    @property
    def context(self) -> int:
        """The context's address, which the driver's functions take."""
        return int(self._context)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU current for the thread's driver calls."""
        checked(driver.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            checked(driver.cuCtxPopCurrent())

    def ensure_current(self) -> None:
        """Make this context current if the thread has none, as is the case in a new thread."""
        if not int(checked(driver.cuCtxGetCurrent())):
            checked(driver.cuCtxSetCurrent(self._context))

    def load(self, problem: Problem, kernel: ReadyKernel) -> "LoadedKernel":
        """Load a kernel; equal machine code is loaded once. Raises CudaError."""
        # A function has one limit of shared memory: equal code with another limit is loaded again.
        shared = [launch.shared_bytes for launch in kernel.launches]
        digest = hashlib.sha256(kernel.cubin + repr(shared).encode()).digest()
        with self._lock, self.current(), _beside_captures():
            if digest not in self._programs:
                self._programs[digest] = Program(kernel.cubin)
            program = self._programs[digest]
            functions = [int(program.function(launch)) for launch in kernel.launches]
        # The driver has its own copy of the machine code.
        return LoadedKernel(problem, replace(kernel, cubin=b""), tuple(functions), self)


@contextmanager
def _beside_captures() -> Iterator[None]:
    """Allow calls, outside of the graph, that would end a capture by another thread."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        checked(driver.cuThreadExchangeStreamCaptureMode(before))


@cache
def gpu(index: int) -> Gpu:
    """Return GPU `index`, as frameworks count them. Raises CudaError if it does not exist."""
    return Gpu(index)


@dataclass(frozen=True, eq=False)
class LoadedKernel:
    """A problem's kernel on one GPU. Threads share it, but each has a `Plan` of its own."""

    problem: Problem
    kernel: ReadyKernel
    functions: tuple[int, ...]
    gpu: Gpu


# ------------------------------------------------------------------ the driver's structures


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h: an identifier, and 64 bytes from its eighth on."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16))


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


_OVERLAPS = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


@cache
def _launch_function() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx


def driver_functions() -> tuple[int, int]:
    """Return the addresses of the driver's cuLaunchKernelEx and cuCtxGetCurrent.

    Raises OSError without a driver.
    """
    library = ctypes.CDLL("libcuda.so.1")
    functions = library.cuLaunchKernelEx, library.cuCtxGetCurrent
    launch, context = (ctypes.cast(one, ctypes.c_void_p).value or 0 for one in functions)
    return launch, context


# ------------------------------------------------------------------ plans


@dataclass(frozen=True, slots=True)
class OnlyLaunch:
    """The single launch of a kernel, as plain numbers, for code that calls the driver itself."""

    function: int
    context: int
    grid: int
    block: int
    shared_bytes: int
    overlaps: bool
    """Whether it may begin before the previous launch has ended."""
    arguments: tuple[str | bytes, ...]
    """In order: the bytes of a number, or the name of an argument of each call."""


def vectors_of(problem: Problem) -> tuple[str, ...]:
    """Return the names of the arrays that kernels access by vectors; others by single elements."""
    writes_vectors = problem.fills_rows or problem.inner > 1 or problem.attends
    operands = problem.operator.operands
    wide = (name for name, extent in operands.items() if extent in _VECTORS)
    return (*wide, "mask", *(("output",) if writes_vectors else ()))


_VECTORS = (Extent.MATRIX, Extent.HEAD, Extent.CACHE)
"""The extents of arrays of which a kernel reads vectors."""


class Plan:
    """The launches of a loaded kernel, for one thread."""

    def __init__(self, loaded: LoadedKernel) -> None:
        self._loaded = loaded
        numbers = bound(loaded.problem, {})
        cells: dict[str, Any] = {name: kind(value) for name, (kind, value) in numbers.items()}
        self.kernel = loaded.kernel
        self.mask = loaded.kernel.alignment - 1
        """Bits that must be 0 in the address of each array of `aligned`."""
        self.aligned = vectors_of(loaded.problem)
        names = {name for launch in loaded.kernel.launches for name in launch.arguments}
        self._arrays = {name: ctypes.c_void_p() for name in names - set(cells)}
        self._source = next(iter(loaded.problem.operator.operands))
        self._scale = cells["scale"]
        cells |= self._arrays
        self._cells = cells
        self._alive: list[Any] = []
        self._launches = [
            self._prepared(launch, function, cells, loaded.gpu.spec.sm_count)
            for launch, function in zip(loaded.kernel.launches, loaded.functions, strict=True)
        ]
        self.launch_pair = self._pair()
        loaded.gpu.ensure_current()

    def launch(self, stream: int, input: int, output: int, **others: int) -> None:
        """Launch on arrays at these addresses; raises RuntimeError with the driver's code.

        `input` is the first array that the problem reads. `others` are all others that it has:
        `grad`, `mask`, `lengths`, `ids`, the results beside the output, and `scratch`; and numbers
        that are other ones than the problem's, such as `cols`, which stay for later launches.
        """
        for name, value in others.items():
            self._cells[name].value = value
        self.launch_pair(stream, input, output)

    def scale(self, value: float) -> None:
        """Set the factor of the inputs."""
        self._scale.value = value

    @property
    def scale_is_f64(self) -> bool:
        """Whether the kernel takes the scale in double precision instead of single."""
        return isinstance(self._scale, ctypes.c_double)

    def only_launch(self) -> OnlyLaunch | None:
        """Return the kernel's single launch on input and output; None if it is another kind."""
        on = self._loaded.gpu
        if len(self._launches) != 1 or set(self._arrays) != {"input", "output"}:
            return None
        (launch,), (function,) = self.kernel.launches, self._loaded.functions
        numbers = bound(self._loaded.problem, {})
        given = {"scale", *self._arrays}
        return OnlyLaunch(
            function,
            on.context,
            launch.grid_on(on.spec.sm_count),
            launch.block,
            launch.shared_bytes,
            launch.overlaps,
            tuple(
                name if name in given else bytes(numbers[name][0](numbers[name][1]))
                for name in launch.arguments
            ),
        )

    def _pair(self) -> Callable[[int, int, int], None]:
        """Return a function that launches on (stream, input, output), with all else unchanged.

        It reads no attribute, which saves one of a call's 4 us.
        """
        source, target = self._arrays[self._source], self._arrays["output"]
        launches, run = self._launches, _launch_function()

        def launch_pair(stream: int, input: int, output: int) -> None:
            source.value = input
            target.value = output
            for config, reference, function, parameters in launches:
                config.stream = stream
                status = run(reference, function, parameters, None)
                if status:
                    raise RuntimeError(f"the CUDA driver refused a launch with error {status}")

        return launch_pair

    def _prepared(
        self, launch: Launch, function: int, cells: dict[str, Any], sm_count: int
    ) -> tuple[_LaunchConfig, Any, Any, Any]:
        """Return a launch's configuration, its address, its function and its parameters."""
        config = _LaunchConfig()
        config.grid[:] = (launch.grid_on(sm_count), 1, 1)
        config.block[:] = (launch.block, 1, 1)
        config.shared_bytes = launch.shared_bytes
        if launch.overlaps:
            attribute = _Attribute(id=int(_OVERLAPS))
            attribute.value[0] = 1
            config.attributes = ctypes.pointer(attribute)
            config.attribute_count = 1
        taken = [cells[name] for name in launch.arguments]
        parameters = (ctypes.c_void_p * len(taken))(*(ctypes.addressof(cell) for cell in taken))
        self._alive += [taken, config, parameters]
        address = ctypes.c_void_p(ctypes.addressof(config))
        return (
            config,
            address,
            ctypes.c_void_p(function),
            ctypes.c_void_p(ctypes.addressof(parameters)),
        )


class _Threads(threading.local):
    """Each thread's plans, because two threads may launch one kernel with different addresses."""

    def __init__(self) -> None:
        self.plans: dict[LoadedKernel, Plan] = {}


_threads = _Threads()


def plan_of(loaded: LoadedKernel) -> Plan:
    """Return this thread's plan of a kernel."""
    plan = _threads.plans.get(loaded)
    if plan is None:
        plan = _threads.plans[loaded] = Plan(loaded)
    return plan
