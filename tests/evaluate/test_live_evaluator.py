"""What the GPU's process is told of the kernel that comes next; no GPU is needed for that."""

import pytest

from explorer.devices.cuda.messages import FAR_SLOWER, SessionFacts
from explorer.evaluate import live as live_module
from explorer.evaluate.live import CLEARLY_SLOWER, LiveEvaluator
from explorer.model.config import Config
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Measured
from explorer.model.problem import Problem

FIRST, SECOND = Config(threads=128, threads_per_row=128), Config(threads=256, threads_per_row=256)


class Device:
    """Stands in for a GPU: keeps what it is told, and times nothing."""

    gpu = known_gpu("NVIDIA H200")

    def __init__(self):
        self.told, self.fails = [], False

    def open(self, *_):
        return SessionFacts("580.1", 60.0, "a copy", 8, 10)

    def start(self, job):
        self.told.append(("start", job))

    def follow(self, job):
        self.told.append(("follow", job))

    def evaluate(self, job):
        self.told.append(("evaluate", job))
        if self.fails:
            raise RuntimeError("a bug")
        return Measured((66.0,) * 9, error=1e-7, resources=job.resources, digest=job.digest)

    def close(self):
        pass


@pytest.fixture
def live():
    """An evaluator whose two kernels are compiled."""
    device = Device()
    with LiveEvaluator(Problem(8192, 4096), device) as evaluator:
        for config in (FIRST, SECOND):
            evaluator.submit(config)
            evaluator.compiling(config).result()
        yield evaluator


def told(live):
    return [kind for kind, _ in live._device.told]


def test_the_next_kernel_is_sent_once_the_first_is_started(live):
    live.follow(SECOND)  # nothing is under way
    live.start(FIRST)
    live.follow(SECOND)
    live.follow(SECOND)
    live.evaluate(FIRST)
    live.start(SECOND)
    live.evaluate(SECOND)
    assert told(live) == ["start", "follow", "evaluate", "start", "evaluate"]
    jobs = [job for _, job in live._device.told]
    assert jobs[0] is jobs[2] and jobs[1] is jobs[3] is jobs[4]


def test_what_is_known_is_neither_started_nor_sent(live):
    live.start(FIRST)
    live.evaluate(FIRST)
    live.submit(FIRST)
    live.compiling(FIRST).result()
    live.start(SECOND)
    live.follow(FIRST)
    live.evaluate(SECOND)
    live.start(FIRST)
    assert live.evaluate(FIRST).samples_us
    assert told(live) == ["start", "evaluate"] * 2


def test_code_that_may_not_fit_into_the_pipe_waits_until_it_is_asked_for(live, monkeypatch):
    monkeypatch.setattr(live_module, "MOST_BYTES_TO_FOLLOW", 100)
    live.start(FIRST)
    live.follow(SECOND)
    assert told(live) == ["start"]


def test_a_pipe_that_is_closed_meanwhile_costs_nothing(live, monkeypatch):
    def closed(job):
        raise TypeError("'NoneType' object cannot be interpreted as an integer")

    monkeypatch.setattr(live._device, "follow", closed)
    live.start(FIRST)
    live.follow(SECOND)
    live.evaluate(FIRST)
    assert live.evaluate(SECOND).samples_us


def test_after_an_error_nothing_is_under_way(live):
    live._device.fails = True
    live.start(FIRST)
    with pytest.raises(RuntimeError, match="a bug"):
        live.evaluate(FIRST)
    live._device.fails = False
    live.follow(SECOND)
    assert told(live) == ["start", "evaluate"] and not live._under_way


@pytest.mark.parametrize(
    ("copy_us", "buffers", "for_fastest", "known_best_us", "slower"),
    [
        (60.0, 8, True, 66.0, CLEARLY_SLOWER),
        (60.0, 8, False, 66.0, FAR_SLOWER),
        (1.6, 256, True, 66.0, CLEARLY_SLOWER),
        (1.6, 1, True, 71.0, CLEARLY_SLOWER),  # warm: a graph of one launch takes long to start
        (10.0, 4, True, 67.25, CLEARLY_SLOWER),
        (60.0, 1, True, 66.0, CLEARLY_SLOWER),
    ],
)
def test_a_kernel_is_compared_with_the_best_where_that_can_be_told(
    monkeypatch, copy_us, buffers, for_fastest, known_best_us, slower
):
    facts = SessionFacts("580.1", copy_us, "a copy", buffers, 10)
    monkeypatch.setattr(Device, "open", lambda *_: facts)
    device = Device()
    with LiveEvaluator(Problem(8192, 4096), device, for_fastest=for_fastest) as live:
        for config in (FIRST, SECOND):
            assert live.evaluate(config).time_us == 66.0
    (_, first), (_, second) = device.told
    assert first.best_us == 0.0 and second.best_us == known_best_us
    assert first.slower == second.slower == slower
