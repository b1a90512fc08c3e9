"""Where launches are timed, beside the limit."""

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
"""A sample lasts about as long at copy's speed: an event is good to half a microsecond."""

SLOW_SAMPLE_US = 100_000.0
"""A kernel so slow that one launch on each pair of buffers takes longer gets fewer launches."""

CHECKED_SETS = 2
"""Outputs of the timed launches that are checked afterwards."""

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
        """After limits were timed: in place, they write where the inputs are kept."""
        if self.problem.in_place:
            self._fill()

    def _cache_flush(self, gpu: GpuSpec) -> Callable[[], None]:
        """What takes out of the L2 whatever others have left there."""
        size = 4 * gpu.l2_bytes
        scratch = self._scratch = checked(driver.cuMemAlloc(size))
        return lambda: checked(driver.cuMemsetD8Async(scratch, 0, size, self._stream))

    def free(self) -> None:
        """Give all memory back."""
        self.sets.free()
        if self._scratch is not None:
            checked(driver.cuMemFree(self._scratch))

    def graph(self, enqueue: Enqueue, launches: int | None = None) -> LaunchGraph:
        """The launches of one sample."""
        return LaunchGraph.captured(self._stream, launches or self.launches, enqueue)

    def graph_of(self, handle: int, launches: int) -> LaunchGraph:
        """Of `launches` that somebody else captured, who keeps the CUgraph at `handle`."""
        return LaunchGraph(self._stream, launches, driver.CUgraph(handle), owned=False)

    def samples_us(self, enqueue: Enqueue, count: int) -> list[float]:
        """`count` samples of what `enqueue` launches, in microseconds a launch."""
        with self.graph(enqueue) as graph:
            return self.laps_us(graph, count)

    def laps_us(self, graph: LaunchGraph, count: int) -> list[float]:
        """`count` samples of a graph, in microseconds a launch."""
        laps = [self._lap(graph) for _ in range(count)]
        return [lap.sample_us() for lap in laps]

    def _lap(self, graph: LaunchGraph) -> Lap:
        """A timed replay, before which the cache is the same whatever came before.

        A flush, which a replay of the graph itself does not make up for: where QuACK's kernels had
        run before, those whose loads and stores are evicted first took 2 to 6 % more time on an
        H200, replay after replay. Then one of the graph itself, which leaves the cache as its next
        launches would find it; but where each launch of a sample has buffers of its own, it is the
        first to touch them.
        """
        if self._flush is not None:
            self._flush()
        if self._rotates:
            graph.replay()
        return graph.lap()

    def interleaved_us(
        self, graphs: Sequence[LaunchGraph], rounds: int, seed: int, clocks: ClockReader
    ) -> tuple[list[list[float]], Clocks]:
        """A row of samples a graph, all timed once in each round, each round in another order.

        The clocks are read in each round while the GPU works: the lowest, and all that held
        them back.
        """
        order = list(range(len(graphs)))
        rng = random.Random(seed)
        samples: list[list[float]] = [[] for _ in graphs]
        seen = []
        for _ in range(rounds):
            rng.shuffle(order)
            laps = [(index, self._lap(graphs[index])) for index in order]
            seen.append(clocks.read())
            for index, lap in laps:
                samples[index].append(lap.sample_us())
        return samples, Clocks.lowest(seen)
