"""The limit: the fastest plain device-to-device copy of the same bytes."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.buffers import RotatingPairs
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.tools import COPY_SHAPES, CopyShape, Tools

Enqueue = Callable[[int], None]
Sampler = Callable[[Enqueue, int], list[float]]
"""Times launches: (what enqueues one, how many samples) to microseconds a launch."""

FIRST_SAMPLES = 3
SAMPLES = 15
SEMIFINALISTS = 6


def copies(tools: Tools, pairs: RotatingPairs, size: int, stream: Any) -> dict[str, Enqueue]:
    """Every plain copy there is, by name: the driver's, and ours of many shapes."""

    def by_driver(index: int) -> None:
        checked(driver.cuMemcpyDtoDAsync(pairs.output(index), pairs.input(index), size, stream))

    def by_kernel(shape: CopyShape, index: int) -> None:
        tools.copy(shape, pairs.input(index), pairs.output(index), size)

    kernels = {str(shape): partial(by_kernel, shape) for shape in COPY_SHAPES}
    return {"cuMemcpyDtoDAsync": by_driver, **kernels}


def fastest_copy(candidates: dict[str, Enqueue], sample: Sampler) -> tuple[str, list[float]]:
    """Name and samples, in microseconds, of the copy with the smallest median.

    All are timed a few times, the fastest of them again: the limit is itself the winner of a
    search, as every softmax beside it is.
    """
    first = {name: median(sample(enqueue, FIRST_SAMPLES)) for name, enqueue in candidates.items()}
    names = sorted(first, key=lambda name: first[name])[:SEMIFINALISTS]
    again = {name: sample(candidates[name], SAMPLES) for name in names}
    best = min(again, key=lambda name: median(again[name]))
    return best, again[best]
