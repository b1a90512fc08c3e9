"""The limit: the fastest plain copy of the same bytes, or stream of as many."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.buffers import RotatingBuffers
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.tools import LIMIT_HINTS, LIMIT_SHAPES, LimitShape, Tools, is_plain_copy
from explorer.op import Mask

Enqueue = Callable[[int], None]
Sampler = Callable[[Enqueue, int], list[float]]
"""Times launches: (what enqueues one, how many samples) to microseconds a launch."""

FIRST_SAMPLES = 3
SAMPLES = 15
HINTED_SHAPES = 3
FINALISTS = 4
BY_DRIVER = "cuMemcpyDtoDAsync"
ROUGH_SHAPE = LimitShape(word_bytes=16, unroll=4, threads=256)
"""About as fast as any: for a first guess at how long a launch takes."""


class Limits:
    """What moves a problem's bytes and computes nothing, in many shapes.

    A plain copy, the driver's among them, where one matrix is read and as much is written; else a
    stream that reads and writes as many bytes as the problem does.
    """

    def __init__(self, tools: Tools, sets: RotatingBuffers, stream: Any) -> None:
        self._tools = tools
        self._sets = sets
        self._problem = sets.problem
        self._stream = stream
        self._is_copy = is_plain_copy(self._problem)

    def rough(self, index: int) -> None:
        """Enqueue some limit of set `index`."""
        self._by_kernel(ROUGH_SHAPE, index)

    def fastest(self, sample: Sampler) -> list[tuple[str, Enqueue, list[float]]]:
        """The fastest limits, best first, and the driver's copy: name, how to enqueue it, samples.

        The limit is itself the winner of a search, as every softmax beside it is: all shapes,
        then the best of them with every cache hint, then the best of those once more.
        """
        timed = {shape: self._median(shape, sample) for shape in LIMIT_SHAPES}
        for shape in sorted(timed, key=lambda s: timed[s])[:HINTED_SHAPES]:
            for load_hint, store_hint in LIMIT_HINTS:
                hinted = replace(shape, load_hint=load_hint, store_hint=store_hint)
                timed[hinted] = self._median(hinted, sample)
        best = sorted(timed, key=lambda s: timed[s])[:FINALISTS]
        kind = "" if self._is_copy else "stream, "
        named: dict[str, Enqueue] = {f"{kind}{s}": partial(self._by_kernel, s) for s in best}
        if self._is_copy:
            named[BY_DRIVER] = self._by_driver
        final = [(name, enqueue, sample(enqueue, SAMPLES)) for name, enqueue in named.items()]
        return sorted(final, key=lambda entry: median(entry[2]))

    def _by_driver(self, index: int) -> None:
        target, source = self._sets.output(index), self._sets.input(index)
        size = self._problem.written_bytes
        checked(driver.cuMemcpyDtoDAsync(target, source, size, self._stream))

    def _by_kernel(self, shape: LimitShape, index: int) -> None:
        problem, source, target = self._problem, self._sets.input(index), self._sets.output(index)
        written = problem.written_bytes
        if self._is_copy:
            self._tools.copy(shape, source, target, written)
            return
        seen = problem.visible * problem.dtype.itemsize
        second = (0, 0)
        if problem.op.is_backward:
            second = (self._sets.at(index)["grad"], seen)
        elif problem.mask is Mask.ADDITIVE:
            second = (self._sets.at(index)["mask"], problem.read_bytes - seen)
        self._tools.stream(shape, (source, seen), second, (target, written))

    def _median(self, shape: LimitShape, sample: Sampler) -> float:
        return median(sample(partial(self._by_kernel, shape), FIRST_SAMPLES))
