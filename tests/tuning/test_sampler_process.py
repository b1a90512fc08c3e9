"""A process of its own has TPE propose: as here, and with all that it was told where it ends."""

import multiprocessing
import os
import random
import signal
import time
from contextlib import closing

import pytest
from fake_evaluator import GPU, FakeEvaluator, instead_of_a_gpu

import explorer
from explorer import api
from explorer.model.config import Config
from explorer.model.problem import Problem
from explorer.space import Space
from explorer.tuning import open_storage, run_search, sampler_process
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


def test_it_proposes_what_tpe_would_here(process):
    """Also after a study of many trials is resumed: what was told before it is asked counts."""
    there, here = process.sampler(VALUES, 3, 1), OptunaSampler(VALUES, 3)
    space, rng = Space(PROBLEM, GPU), random.Random(0)
    for _ in range(140):
        config = space.sample(rng)
        for sampler in (there, here):
            sampler.tell(config, told(config))
    for number in range(40):
        config = there.ask()
        assert config == here.ask()
        for sampler in (there, here):
            if number % 5 == 4:
                sampler.forget(config)
            else:
                sampler.tell(config, told(config))


def test_the_next_proposal_is_made_once_something_is_told(process):
    sampler = process.sampler(VALUES, 0, 1)
    assert not sampler._connection.poll(0)
    first, second = sampler.ask(), sampler.ask()
    assert not sampler._connection.poll(0.05)
    sampler.tell(first, told(first))
    assert sampler._connection.poll(5)
    sampler.forget(second)
    assert sampler.ask().as_dict().keys() == VALUES.keys()


@pytest.mark.parametrize("killed_after", [0, 12])
def test_where_it_is_killed_this_process_goes_on_with_what_it_was_told(process, killed_after):
    sampler = process.sampler(VALUES, 0, 1)
    for _ in range(killed_after):
        config = sampler.ask()
        sampler.tell(config, told(config))
    os.kill(process.pid, signal.SIGKILL)
    process._process.join()
    for _ in range(8):
        config = sampler.ask()
        sampler.tell(config, told(config))
    sampler.forget(sampler.ask())
    assert len(sampler._here._study.trials) == killed_after + 9


def test_where_it_does_not_answer_this_process_goes_on(process, monkeypatch):
    monkeypatch.setattr(sampler_process, "ANSWER_LIMIT_S", 0.1)
    sampler, space, rng = process.sampler(VALUES, 0, 1), Space(PROBLEM, GPU), random.Random(0)
    os.kill(process.pid, signal.SIGSTOP)
    for _ in range(1000):  # more than a pipe holds
        config = space.sample(rng)
        sampler.tell(config, told(config))
    assert sampler.ask().as_dict().keys() == VALUES.keys()
    assert sampler._here is not None


def test_ctrl_c_is_left_to_the_search(capfd):
    with closing(SamplerProcess()) as process:
        sampler = process.sampler(VALUES, 0, 1)
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            os.kill(process.pid, signal.SIGINT)
            time.sleep(0.01)
        sampler.ask()
        assert sampler._here is None
    assert "Traceback" not in capfd.readouterr().err


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
    started, start = [], SamplerProcess.__init__

    def noted(self):
        started.append(self)
        start(self)

    instead_of_a_gpu(monkeypatch, device)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(SamplerProcess, "__init__", noted)
    others = set(multiprocessing.active_children())
    explorer.search(cols=256, rows=64, trials=8, storage="a.db", sampler=sampler, verify=False)
    assert len(started) == expected
    assert set(multiprocessing.active_children()) <= others


def test_a_search_goes_on_where_none_can_be_started(monkeypatch):
    refusals = []

    def refused(self):
        refusals.append(self)
        raise OSError("no more processes")

    instead_of_a_gpu(monkeypatch)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(SamplerProcess, "__init__", refused)
    assert explorer.search(cols=256, rows=64, trials=8, storage="a.db").measured >= 8
    assert refusals


def test_none_is_started_once_the_search_has_ended(monkeypatch):
    """As by Ctrl-C, while a thread opens the storage."""
    instead_of_a_gpu(monkeypatch)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    others = set(multiprocessing.active_children())
    with api._opening("a.db", "cuda:0") as opening:
        opening.begin()
    opening.result()
    assert opening.sampler_process is None
    assert set(multiprocessing.active_children()) <= others
