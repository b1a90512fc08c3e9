"""A process of its own has TPE propose: as here, and with all that it was told where it ends."""

import multiprocessing
import os
import signal
from contextlib import closing, contextmanager

import pytest
from fake_evaluator import GPU, FakeEvaluator

import explorer
from explorer.config import Config
from explorer.problem import Problem
from explorer.space import Space
from explorer.tuning import open_storage, run_search
from explorer.tuning.sampler_process import SamplerElsewhere, SamplerProcess
from explorer.tuning.surrogate import OptunaSampler

PROBLEM = Problem(64, 256)
VALUES = Space(PROBLEM, GPU).parameters


def told(config):
    return (config.threads / 32 + config.unroll,)


@pytest.fixture
def process():
    with closing(SamplerProcess()) as process:
        yield process


def test_it_proposes_what_tpe_would_here_one_outcome_behind(process):
    there, here = process.sampler(VALUES, 3, 1), OptunaSampler(VALUES, 3)
    waiting = here.ask()
    for number in range(40):
        config, following = there.ask(), here.ask()
        assert config == waiting
        waiting = following
        for sampler in (there, here):
            if number % 5 == 4:
                sampler.forget(config)
            else:
                sampler.tell(config, told(config))


@pytest.mark.parametrize("killed_after", [0, 12])
def test_where_it_is_killed_this_process_goes_on_with_what_it_was_told(process, killed_after):
    sampler = process.sampler(VALUES, 0, 1)
    for _ in range(killed_after):
        config = sampler.ask()
        sampler.tell(config, told(config))
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.join()
    for _ in range(8):
        config = sampler.ask()
        sampler.tell(config, told(config))
    sampler.forget(sampler.ask())
    assert len(sampler._told) == killed_after + 8
    assert len(sampler._study.trials) == killed_after + 9


def test_ctrl_c_is_left_to_the_search(process):
    sampler = process.sampler(VALUES, 0, 1)
    sampler.ask()
    os.kill(process._process.pid, signal.SIGINT)
    assert sampler.ask().threads in VALUES["threads"]
    assert sampler._is_elsewhere


def test_a_search_asks_it(process, monkeypatch):
    asked, ask = [], SamplerElsewhere.ask

    def noted(self):
        asked.append(ask(self))
        return asked[-1]

    monkeypatch.setattr(SamplerElsewhere, "ask", noted)
    evaluator = FakeEvaluator(PROBLEM, identity=Config.to_json)
    run_search(evaluator, open_storage("sqlite://"), trials=40, rounds=6, sampler_process=process)
    assert len(asked) > 5
    assert len(set(evaluator.evaluated)) == len(evaluator.evaluated) == 40


@pytest.mark.parametrize(
    ("device", "cores", "sampler", "expected"),
    [
        (0, 4, None, 1),
        (0, 3, None, 0),
        (0, 4, "optuna.samplers:RandomSampler", 0),
        ("", 4, None, 0),
    ],
)
def test_a_search_on_a_gpu_has_one_and_ends_it(monkeypatch, device, cores, sampler, expected):
    @contextmanager
    def for_search(problem, *_):
        yield FakeEvaluator(problem, identity=Config.to_json)

    started, start = [], SamplerProcess.__init__

    def noted(self):
        started.append(self)
        start(self)

    monkeypatch.setattr("explorer.devices.names.gpu_or_recording", lambda _: device)
    monkeypatch.setattr("explorer.api._for_search", for_search)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(SamplerProcess, "__init__", noted)
    others = set(multiprocessing.active_children())
    explorer.search(cols=256, rows=64, trials=8, storage="a.db", sampler=sampler, verify=False)
    assert len(started) == expected
    assert set(multiprocessing.active_children()) <= others


def test_a_search_goes_on_where_none_can_be_started(monkeypatch):
    def refused(self):
        raise OSError("no more processes")

    @contextmanager
    def for_search(problem, *_):
        yield FakeEvaluator(problem, identity=Config.to_json)

    monkeypatch.setattr("explorer.devices.names.gpu_or_recording", lambda _: 0)
    monkeypatch.setattr("explorer.api._for_search", for_search)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(SamplerProcess, "__init__", refused)
    assert explorer.search(cols=256, rows=64, trials=8, storage="a.db").measured >= 8
