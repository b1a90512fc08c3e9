"""Times of launches by CUDA events, and the GPU's clocks meanwhile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.program import checked

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
