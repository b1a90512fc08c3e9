"""Time by graph replay: launches that rotate over buffers, between events."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.driver import checked


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
        """Microseconds a launch, once the replay is done; waits for it."""
        checked(driver.cuEventSynchronize(self._end))
        elapsed_ms = float(checked(driver.cuEventElapsedTime(self._begin, self._end)))
        checked(driver.cuEventDestroy(self._begin))
        checked(driver.cuEventDestroy(self._end))
        return elapsed_ms * 1e3 / self._graph.count


class LaunchGraph:
    """`count` launches as one CUDA graph: replayed, no launch waits for the host.

    A graph that is not `owned` stays with whoever captured it, who keeps it alive meanwhile.
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
        """Of what `enqueue(i)` puts on the stream for launch `i`; it picks the buffers."""
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
        """Put a timed replay on the stream, behind work that is there already.

        The GPU is then busy while the host records the first event and launches the graph, so
        that neither is timed.
        """
        return Lap(self._stream, self)

    def __enter__(self) -> "LaunchGraph":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After a fault the context is gone and so are both: nothing to check.
        driver.cuGraphExecDestroy(self._executable)
        if self._owned:
            driver.cuGraphDestroy(self._graph)
