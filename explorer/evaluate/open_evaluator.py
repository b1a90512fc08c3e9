"""From a device's name to an evaluator."""

from collections.abc import Iterator
from contextlib import contextmanager

from explorer.accuracy import Accuracy
from explorer.devices.cuda import CudaDevice, device_index, driver_problem
from explorer.errors import InvalidInput
from explorer.evaluate.live import LiveEvaluator
from explorer.evaluate.replay import ReplayEvaluator
from explorer.evaluator import Evaluator
from explorer.problem import Problem

TIMINGS = ("cold", "warm")


@contextmanager
def open_evaluator(
    problem: Problem,
    device: str = "auto",
    timing: str = "cold",
    seed: int = 0,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Iterator[Evaluator]:
    """The evaluator of `auto`, `cuda:N` or `recorded:NAME` for a problem, closed at the end.

    `auto` is cuda:0 where a driver answers, else the recording of the problem. Raises
    InvalidInput for an unknown device or timing, a GPU that is not there or a problem that does
    not fit it, and NotFound where there is no recording.
    """
    if timing not in TIMINGS:
        raise InvalidInput(f"timing '{timing}' is not known; choose cold or warm")
    kind, _, name = device.partition(":")
    if kind == "auto" and not name:
        kind, name = ("cuda", "0") if driver_problem() is None else ("recorded", "")
    index = device_index(f"{kind}:{name}")
    if index is not None:
        with LiveEvaluator(problem, CudaDevice(index), timing, seed, accuracy) as live:
            yield live
    elif kind == "recorded":
        yield ReplayEvaluator.open(problem, name or None, accuracy)
    elif kind == "emulated":
        raise InvalidInput(
            "device 'emulated' checks kernels and times none: check them with explorer verify, or "
            "search on cuda:N or a recording"
        )
    else:
        raise InvalidInput(
            f"device '{device}' is not known; it is auto, cuda:N such as cuda:0, or recorded:NAME"
        )
