"""The limit: the fastest plain device-to-device copy of the same bytes."""

from collections.abc import Callable
from statistics import median
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.buffers import RotatingPairs
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.timing import LaunchGraph, Stopwatch
from explorer.devices.cuda.tools import COPY_UNROLLS, Tools

SAMPLES = 9
_COPY_THREADS = (256, 512, 1024)

Enqueue = Callable[[int], None]


def copies(tools: Tools, pairs: RotatingPairs, size: int, stream: Any) -> dict[str, Enqueue]:
    """Every plain copy there is, by name: the driver's, and ours with 1 to 8 words a thread."""

    def by_driver(index: int) -> None:
        checked(driver.cuMemcpyDtoDAsync(pairs.output(index), pairs.input(index), size, stream))

    def by_kernel(unroll: int, threads: int) -> Enqueue:
        return lambda i: tools.copy(unroll, threads, pairs.input(i), pairs.output(i), size)

    kernels = {
        f"{unroll} x 16 bytes a thread, {threads} threads": by_kernel(unroll, threads)
        for unroll in COPY_UNROLLS
        for threads in _COPY_THREADS
    }
    return {"cuMemcpyDtoDAsync": by_driver, **kernels}


def fastest_copy(
    candidates: dict[str, Enqueue], launches: int, stream: Any, stopwatch: Stopwatch
) -> tuple[str, list[float]]:
    """Name and samples, in microseconds, of the copy with the smallest median."""
    best: tuple[str, list[float]] | None = None
    for name, enqueue in candidates.items():
        with LaunchGraph(stream, launches, enqueue) as graph:
            graph.sample_us(stopwatch)
            samples = [graph.sample_us(stopwatch) for _ in range(SAMPLES)]
        if best is None or median(samples) < median(best[1]):
            best = name, samples
    assert best is not None
    return best
