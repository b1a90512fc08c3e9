"""The limit: the fastest plain device-to-device copy of the same bytes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.buffers import RotatingPairs
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.tools import COPY_HINTS, COPY_SHAPES, CopyShape, Tools

Enqueue = Callable[[int], None]
Sampler = Callable[[Enqueue, int], list[float]]
"""Times launches: (what enqueues one, how many samples) to microseconds a launch."""

FIRST_SAMPLES = 3
SAMPLES = 15
HINTED_SHAPES = 3
FINALISTS = 4
BY_DRIVER = "cuMemcpyDtoDAsync"


class Copies:
    """The plain copies of a problem's matrix: the driver's, and ours of many shapes."""

    def __init__(self, tools: Tools, pairs: RotatingPairs, size: int, stream: Any) -> None:
        self._tools = tools
        self._pairs = pairs
        self._size = size
        self._stream = stream

    def by_driver(self, index: int) -> None:
        """Enqueue the driver's copy of pair `index`."""
        target, source = self._pairs.output(index), self._pairs.input(index)
        checked(driver.cuMemcpyDtoDAsync(target, source, self._size, self._stream))

    def by_kernel(self, shape: CopyShape, index: int) -> None:
        """Enqueue a copy of pair `index` by one of our kernels."""
        self._tools.copy(shape, self._pairs.input(index), self._pairs.output(index), self._size)

    def fastest(self, sample: Sampler) -> list[tuple[str, Enqueue, list[float]]]:
        """The fastest copies, best first, and the driver's: name, how to enqueue it, samples.

        The limit is itself the winner of a search, as every softmax beside it is: all shapes,
        then the best of them with every cache hint, then the best of those once more.
        """
        timed = {shape: self._median(shape, sample) for shape in COPY_SHAPES}
        for shape in sorted(timed, key=lambda s: timed[s])[:HINTED_SHAPES]:
            for load_hint, store_hint in COPY_HINTS:
                hinted = replace(shape, load_hint=load_hint, store_hint=store_hint)
                timed[hinted] = self._median(hinted, sample)
        best = sorted(timed, key=lambda s: timed[s])[:FINALISTS]
        named: dict[str, Enqueue] = {str(shape): partial(self.by_kernel, shape) for shape in best}
        named[BY_DRIVER] = self.by_driver
        final = [(name, enqueue, sample(enqueue, SAMPLES)) for name, enqueue in named.items()]
        return sorted(final, key=lambda entry: median(entry[2]))

    def _median(self, shape: CopyShape, sample: Sampler) -> float:
        return median(sample(partial(self.by_kernel, shape), FIRST_SAMPLES))
