"""The bench of a problem: how launches of kernels and of the limit are timed, at which clocks."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.buffers import RotatingBuffers
from explorer.devices.cuda.limits import Enqueue, Limits
from explorer.devices.cuda.program import checked
from explorer.devices.cuda.tools import Tools
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem

# ------------------------------------------------------------------ clocks


_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that slow a kernel down."""

_SM_CLOCK, _MEMORY_CLOCK = 1, 2


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks in MHz at one moment, 0 if unknown, and the reasons for lowered ones."""

    sm_mhz: int = 0
    memory_mhz: int = 0
    throttle_reasons: str = ""

    @staticmethod
    def lowest(readings: "Sequence[Clocks]") -> "Clocks":
        """Return the lowest clocks of several readings, and the reasons of all."""
        reasons = dict.fromkeys(r for clocks in readings for r in clocks.reasons())
        return Clocks(
            sm_mhz=min((clocks.sm_mhz for clocks in readings), default=0),
            memory_mhz=min((clocks.memory_mhz for clocks in readings), default=0),
            throttle_reasons=", ".join(reasons),
        )

    def reasons(self) -> list[str]:
        """Return the reasons one by one."""
        return self.throttle_reasons.split(", ") if self.throttle_reasons else []


class ClockReader:
    """Reads a GPU's clocks by NVML; without NVML all readings are empty."""

    def __init__(self, device: Any) -> None:
        self._nvml: Any = None
        try:
            from cuda.bindings import nvml

            nvml.init_v2()
            bus_id = checked(driver.cuDeviceGetPCIBusId(32, device)).rstrip(b"\0").decode()
            self._handle = nvml.device_get_handle_by_pci_bus_id_v2(bus_id)
            self._nvml = nvml
        except Exception:  # NVML is optional, and containers lack it in many ways
            self._nvml = None

    def read(self) -> Clocks:
        """Return the current clocks."""
        if self._nvml is None:
            return Clocks()
        try:
            bits = int(self._nvml.device_get_current_clocks_event_reasons(self._handle))
            reasons = [name for bit, name in _REASONS.items() if bits & bit]
            return Clocks(
                sm_mhz=int(self._nvml.device_get_clock_info(self._handle, _SM_CLOCK)),
                memory_mhz=int(self._nvml.device_get_clock_info(self._handle, _MEMORY_CLOCK)),
                throttle_reasons=", ".join(reasons),
            )
        except Exception:  # as above
            return Clocks()

    def driver_version(self) -> str:
        """Return the driver's version, such as 580.159.03, or empty."""
        try:
            return str(self._nvml.system_get_driver_version()) if self._nvml else ""
        except Exception:  # as above
            return ""


# ------------------------------------------------------------------ timing


class Lap:
    """Two events on a stream, around one replay of a graph."""

    def __init__(self, stream: Any, graph: "LaunchGraph") -> None:
        self._graph = graph
        self._begin = checked(driver.cuEventCreate(0))
        self._end = checked(driver.cuEventCreate(0))
        checked(driver.cuEventRecord(self._begin, stream))
        graph.replay()
        checked(driver.cuEventRecord(self._end, stream))

    def sample_us(self) -> float:
        """Wait for the replay, and return its microseconds a launch."""
        checked(driver.cuEventSynchronize(self._end))
        elapsed_ms = float(checked(driver.cuEventElapsedTime(self._begin, self._end)))
        checked(driver.cuEventDestroy(self._begin))
        checked(driver.cuEventDestroy(self._end))
        return elapsed_ms * 1e3 / self._graph.count


class LaunchGraph:
    """`count` launches as one CUDA graph, so that no launch waits for the host.

    A graph that is not `owned` belongs to the library that captured it, and is not destroyed here.
    """

    def __init__(self, stream: Any, count: int, graph: Any, *, owned: bool = True) -> None:
        self.count = count
        self._stream = stream
        self._graph = graph
        self._owned = owned
        self._executable = checked(driver.cuGraphInstantiate(graph, 0))
        checked(driver.cuGraphUpload(self._executable, stream))

    @classmethod
    def captured(cls, stream: Any, count: int, enqueue: Callable[[int], None]) -> "LaunchGraph":
        """Return the graph of `count` launches, which `enqueue(i)` puts on the stream."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamBeginCapture(stream, mode))
        try:
            for index in range(count):
                enqueue(index)
        finally:
            graph = driver.cuStreamEndCapture(stream)
        return cls(stream, count, checked(graph))

    def replay(self) -> None:
        """Put all launches on the stream."""
        checked(driver.cuGraphLaunch(self._executable, self._stream))

    def lap(self) -> Lap:
        """Put a timed replay on the stream, behind other work.

        That work keeps the GPU busy while the host records the first event and launches the graph,
        so that neither is timed.
        """
        return Lap(self._stream, self)

    def __enter__(self) -> "LaunchGraph":
        return self

    def __exit__(self, *_: object) -> None:
        driver.cuGraphExecDestroy(self._executable)  # unchecked: after a fault the context is gone
        if self._owned:
            driver.cuGraphDestroy(self._graph)


# ------------------------------------------------------------------ bench


SAMPLE_US = 400.0
"""About the length of a sample at the limit's speed: an event is exact to half a microsecond."""

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
        self.limits = limits.fastest(self.samples_us)
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
