"""A GPU for the comparisons of many problems: one worker, which keeps the peers' libraries."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from explorer.accuracy import Accuracy
from explorer.devices.cuda import CudaDevice, device_index, driver_problem
from explorer.errors import ExplorerError, InvalidInput
from explorer.evaluate.live import LiveEvaluator
from explorer.evaluate.open_evaluator import TIMINGS
from explorer.peer import PeerBench
from explorer.problem import Problem


class PeerBenches:
    """Opens one problem after another on a GPU. Use as a context manager."""

    def __init__(self, index: int, timing: str, seed: int, accuracy: Accuracy) -> None:
        self._index = index
        self._timing = timing
        self._seed = seed
        self._accuracy = accuracy
        self._device: CudaDevice | None = None

    @contextmanager
    def on(self, problem: Problem) -> Iterator[PeerBench]:
        """The bench of a problem; raises InvalidInput where it does not fit, DeviceLost."""
        if self._device is None:
            self._device = CudaDevice(self._index)
        try:
            with LiveEvaluator(
                problem,
                self._device,
                self._timing,
                self._seed,
                self._accuracy,
                keep_device=True,
            ) as live:
                yield live
        except ExplorerError:
            self._give_up()  # the next problem gets a new worker, and all of the memory
            raise

    def _give_up(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def __enter__(self) -> "PeerBenches":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_up()


def open_peer_benches(
    device: str, timing: str, seed: int, accuracy: Accuracy = Accuracy.DEFAULT
) -> PeerBenches:
    """Of `auto` or `cuda:N`; kernels and peers must meet `accuracy`.

    Raises InvalidInput for what is no GPU, or where there is none.
    """
    if timing not in TIMINGS:
        raise InvalidInput(f"timing '{timing}' is not known; choose cold or warm")
    index = 0 if device == "auto" else device_index(device)
    if index is None:
        raise InvalidInput(
            f"device is '{device}'; peers are timed on a GPU: take auto or cuda:N such as cuda:0"
        )
    problem = driver_problem()
    if problem is not None:
        raise InvalidInput(
            f"a comparison needs a GPU, and there is none: {problem}; show one that was kept: "
            "--from FILE"
        )
    return PeerBenches(index, timing, seed, accuracy)
