"""Time by graph replay: launches that rotate over buffers, between two events."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.driver import checked


class Stopwatch:
    """Two events on a stream, and the microseconds between them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._begin = checked(driver.cuEventCreate(0))
        self._end = checked(driver.cuEventCreate(0))

    def time_us(self, work: Callable[[], None]) -> float:
        """Microseconds on the GPU from before to after what `work` puts on the stream."""
        checked(driver.cuEventRecord(self._begin, self._stream))
        work()
        checked(driver.cuEventRecord(self._end, self._stream))
        checked(driver.cuEventSynchronize(self._end))
        return float(checked(driver.cuEventElapsedTime(self._begin, self._end))) * 1e3


class LaunchGraph:
    """`count` launches as one CUDA graph: replayed, no launch waits for the host.

    `enqueue(i)` puts launch `i` on the stream; it picks the buffers that launch uses. `prepare`
    is put on the stream before each sample, outside what is timed.
    """

    def __init__(
        self,
        stream: Any,
        count: int,
        enqueue: Callable[[int], None],
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.count = count
        self._prepare = prepare
        self._stream = stream
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamBeginCapture(stream, mode))
        try:
            for index in range(count):
                enqueue(index)
        finally:
            graph = driver.cuStreamEndCapture(stream)
        self._graph = checked(graph)
        self._executable = checked(driver.cuGraphInstantiate(self._graph, 0))
        checked(driver.cuGraphUpload(self._executable, stream))

    def replay(self) -> None:
        """Put all launches on the stream."""
        checked(driver.cuGraphLaunch(self._executable, self._stream))

    def sample_us(self, stopwatch: Stopwatch) -> float:
        """Microseconds a launch, over one replay."""
        if self._prepare is not None:
            self._prepare()
        return stopwatch.time_us(self.replay) / self.count

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
        driver.cuGraphDestroy(self._graph)
