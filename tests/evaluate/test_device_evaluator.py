"""What the GPU's process is told of the kernel that comes next; no GPU is needed for that."""

from concurrent.futures import Future
from dataclasses import replace

import pytest

from explorer.devices.device import FAR_SLOWER, Facts
from explorer.evaluate import device_evaluator as live_module
from explorer.evaluate.device_evaluator import CLEARLY_SLOWER, DeviceEvaluator
from explorer.model.config import Config
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Measured, Rejected
from explorer.model.problem import Problem
from explorer.presets.published import find_preset
from explorer.space import Space

FIRST, SECOND = Config(threads=128, threads_per_row=128), Config(threads=256, threads_per_row=256)


class Device:
    """Stands in for a GPU: keeps what it is told, and times nothing."""

    gpu = known_gpu("NVIDIA H200")
    workers = None

    def __init__(self):
        self.told, self.fails = [], False

    def open(self, *_):
        return Facts("580.1", 60.0, "a limit", 8, 10)

    def begin(self, job):
        self.told.append(("begin", job))

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
    with DeviceEvaluator(Problem(8192, 4096), device) as evaluator:
        for config in (FIRST, SECOND):
            evaluator.submit(config)
            evaluator.compiling(config).result()
        yield evaluator


def told(live):
    return [kind for kind, _ in live.device.told]


def test_what_was_begun_is_what_is_asked_for(live):
    live.begin(FIRST)
    live.begin(SECOND)
    live.begin(SECOND)
    live.evaluate(FIRST)
    live.begin(SECOND)
    live.evaluate(SECOND)
    assert told(live) == ["begin", "begin", "evaluate", "evaluate"]
    jobs = [job for _, job in live.device.told]
    assert jobs[0] is jobs[2] and jobs[1] is jobs[3]


def test_what_is_known_is_not_begun(live):
    live.begin(FIRST)
    live.evaluate(FIRST)
    live.submit(FIRST)
    live.compiling(FIRST).result()
    live.begin(FIRST)
    assert live.evaluate(FIRST).samples_us
    assert told(live) == ["begin", "evaluate"]


def test_a_published_kernel_with_idle_threads_is_evaluated():
    """A search leaves it out, as a rule has it; a journey over narrow rows times it."""
    with DeviceEvaluator(Problem(64, 100), Device()) as live:
        wide = find_preset("shared-tree").config(live.problem, live.gpu)
        assert not Space(live.problem, live.gpu).is_legal(wide)
        assert isinstance(live.evaluate(wide), Measured)
        with_a_third = replace(wide, threads=96, threads_per_row=64)
        assert isinstance(live.evaluate(with_a_third), Rejected)


def test_what_is_not_compiled_is_not_begun(live):
    live.begin(Config(threads=512, threads_per_row=512))
    live._compiling[FIRST] = Future()
    live.begin(FIRST)
    assert told(live) == []


def test_code_that_may_not_fit_into_the_pipe_waits_until_it_is_asked_for(live, monkeypatch):
    monkeypatch.setattr(live_module, "MOST_BYTES_TO_FOLLOW", 100)
    live.begin(FIRST)
    live.begin(SECOND)
    assert [job.cubin for _, job in live.device.told] == [live.compiling(FIRST).result().cubin]


def test_after_an_error_nothing_is_under_way(live):
    live.device.fails = True
    live.begin(FIRST)
    with pytest.raises(RuntimeError, match="a bug"):
        live.evaluate(FIRST)
    assert told(live) == ["begin", "evaluate"] and not live._under_way


@pytest.mark.parametrize(
    ("limit_us", "buffers", "for_fastest", "known_best_us", "slower"),
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
    monkeypatch, limit_us, buffers, for_fastest, known_best_us, slower
):
    facts = Facts("580.1", limit_us, "a limit", buffers, 10)
    monkeypatch.setattr(Device, "open", lambda *_: facts)
    device = Device()
    with DeviceEvaluator(Problem(8192, 4096), device, for_fastest=for_fastest) as live:
        for config in (FIRST, SECOND):
            assert live.evaluate(config).time_us == 66.0
    (_, first), (_, second) = device.told
    assert first.best_us == 0.0 and second.best_us == known_best_us
    assert first.slower == second.slower == slower
