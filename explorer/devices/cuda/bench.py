"""The bench of a problem: buffers and a stream on which kernels and the limit are timed."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.buffers import RotatingBuffers
from explorer.devices.cuda.limits import Enqueue, Limits
from explorer.devices.cuda.program import checked
from explorer.devices.cuda.timing import ClockReader, Clocks, Lap, LaunchGraph
from explorer.devices.cuda.tools import Tools
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem

SAMPLE_US = 400.0
"""About the length of a sample at the speed of copy: an event is exact to half a microsecond."""

SLOW_SAMPLE_US = 100_000.0
"""A slow kernel's sample gets fewer launches, so that it takes no longer than this."""

CHECKED_SETS = 2
"""Number of outputs of the timed launches that are checked afterwards."""

ROUGH_SAMPLES = 3


class Bench:
    """Buffers of a problem on a stream. Raises InvalidInput if they do not fit the GPU."""

    def __init__(
        self, problem: Problem, timing: str, gpu: GpuSpec, stream: Any, tools: Tools, seed: int
    ) -> None:
        self.problem = problem
        self.sets = RotatingBuffers(problem, gpu.l2_bytes, timing)
        self.launches = self.sets.count
        self._stream = stream
        self._scratch: Any = None
        self._flush = self._cache_flush(gpu) if timing == "cold" else None
        self._rotates = timing == "warm" or self.sets.exceed_cache
        self._fill = partial(self.sets.fill, tools, seed)
        self._fill()
        limits = Limits(tools, self.sets)
        rough_us = min(self.samples_us(limits.rough, ROUGH_SAMPLES))
        self.launches *= max(1, round(SAMPLE_US / (rough_us * self.sets.count)))
        self.copies = limits.fastest(self.samples_us)
        self.restore_inputs()

    def restore_inputs(self) -> None:
        """Fill the inputs again after the limits were timed, which overwrite them in place."""
        if self.problem.in_place:
            self._fill()

    def _cache_flush(self, gpu: GpuSpec) -> Callable[[], None]:
        """Return a function that evicts everything from the L2 cache."""
        size = 4 * gpu.l2_bytes
        scratch = self._scratch = checked(driver.cuMemAlloc(size))
        return lambda: checked(driver.cuMemsetD8Async(scratch, 0, size, self._stream))

    def free(self) -> None:
        """Give all memory back."""
        self.sets.free()
        if self._scratch is not None:
            checked(driver.cuMemFree(self._scratch))

    def graph(self, enqueue: Enqueue, launches: int | None = None) -> LaunchGraph:
        """Return the launches of one sample."""
        return LaunchGraph.captured(self._stream, launches or self.launches, enqueue)

    def graph_of(self, handle: int, launches: int) -> LaunchGraph:
        """Return the graph of `launches` at address `handle`, which a peer's library owns."""
        return LaunchGraph(self._stream, launches, driver.CUgraph(handle), owned=False)

    def samples_us(self, enqueue: Enqueue, count: int) -> list[float]:
        """Return `count` samples of the launches of `enqueue`, in microseconds a launch."""
        with self.graph(enqueue) as graph:
            return self.laps_us(graph, count)

    def laps_us(self, graph: LaunchGraph, count: int) -> list[float]:
        """Return `count` samples of a graph, in microseconds a launch."""
        laps = [self._lap(graph) for _ in range(count)]
        return [lap.sample_us() for lap in laps]

    def _lap(self, graph: LaunchGraph) -> Lap:
        """Return a timed replay, before which the cache does not depend on earlier kernels.

        First the cache is flushed. A replay of the graph alone would not do: after QuACK's kernels,
        kernels with an evict-first cache policy took 2 to 6 % more time on an H200, replay after
        replay. Then the graph is replayed once, so that the cache is as its own launches leave it.
        If each launch of a sample has buffers of its own, there is no such replay: the timed launch
        is then the first to touch them.
        """
        if self._flush is not None:
            self._flush()
        if self._rotates:
            graph.replay()
        return graph.lap()

    def interleaved_us(
        self, graphs: Sequence[LaunchGraph], rounds: int, seed: int, clocks: ClockReader
    ) -> tuple[list[list[float]], Clocks]:
        """Return a row of samples for each graph: each round times all of them, in random order.

        The clocks are read in each round while the GPU works. The lowest are returned, with all
        reasons that lowered them.
        """
        order = list(range(len(graphs)))
        rng = random.Random(seed)
        samples: list[list[float]] = [[] for _ in graphs]
        readings = []
        for _ in range(rounds):
            rng.shuffle(order)
            laps = [(index, self._lap(graphs[index])) for index in order]
            readings.append(clocks.read())
            for index, lap in laps:
                samples[index].append(lap.sample_us())
        return samples, Clocks.lowest(readings)
