"""Strategies in recorded spaces of which the best is known: ours is no worse than simple ones."""

import json
import math
from dataclasses import replace
from statistics import mean, median

import pytest
from replays import replay
from storages import Memory
from typer.testing import CliRunner

from explorer.cli import app
from explorer.devices.recording import load_recording
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Measured
from explorer.report.recordings import t4_data
from explorer.space import Space
from explorer.tuning.benchmark import (
    AHEAD,
    AHEAD_OF_COMPILING,
    AT,
    COMPILING,
    STRATEGIES,
    MeasuredSpace,
    score,
)
from explorer.tuning.proposer import Proposer
from explorer.tuning.search import run_search

pytestmark = pytest.mark.exhaustive


def run(*words):
    return CliRunner().invoke(app, list(words))


NAMES = ("h200-f32-1501", "h200-f32-32768")


@pytest.fixture(scope="module")
def truths():
    return [MeasuredSpace.of(load_recording(name)) for name in NAMES]


def test_a_truth_is_the_whole_sub_space(truths):
    for truth in truths:
        assert len(truth.times_us) > 0.9 * truth.space.legal_count().number
        assert all(truth.space.is_legal(config) for config in truth.times_us)
        best = min(truth.true_us, key=truth.true_us.get)
        fastest, slowest = (f(truth.times_us, key=truth.times_us.get) for f in (min, max))
        assert truth.regret(best) == 0 <= truth.regret(fastest) < 0.01 < 0.5 < truth.regret(slowest)


def test_a_search_is_judged_by_times_that_it_was_not_told(truths):
    """What it chose by its luck in one measurement is not called as good as it seemed."""
    for truth, recording in zip(truths, map(load_recording, NAMES), strict=True):
        rows = zip(recording.comparison.digests, recording.comparison.samples_us, strict=True)
        in_turn = {digest: median(row) for digest, row in rows}
        changes = []
        for config, true_us in truth.true_us.items():
            if (digest := truth.digests[config]) in in_turn:
                assert true_us == in_turn[digest]
            elif not math.isinf(true_us):
                changes.append(true_us / truth.times_us[config])
        assert max(changes) - min(changes) < 1e-9 and 0.99 < changes[0] < 1.01
    alone = MeasuredSpace.of(replace(load_recording(NAMES[0]), comparison=None))
    assert alone.true_us == alone.times_us


def test_a_recording_without_a_sub_space_tells_no_truth(truths):
    recording = load_recording(NAMES[0])
    object.__setattr__(recording.header, "sub_space", {})
    with pytest.raises(InvalidInput, match="no sub-space of which every config was measured"):
        MeasuredSpace.of(recording)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_tries_no_config_twice_and_repeats_itself(truths, name):
    def first(seed):
        tries = STRATEGIES[name](truths[0], seed)
        return [config for config, _ in zip(tries, range(60), strict=False)]

    once = first(0)
    assert len(set(once)) == 60 and set(once) <= set(truths[0].times_us)
    assert first(0) == once != first(1)


def test_the_benchmark_tries_what_a_search_tries(truths):
    """Proposals wait as long in both: each knows of the same evaluations."""
    truth, recording = truths[0], load_recording(NAMES[0])
    kernels = tuple(kernel for kernel in recording.kernels if kernel.config in truth.times_us)
    alone, storage = replay(replace(recording, kernels=kernels)), Memory()
    run_search(alone, storage, trials=60, seed=7, where=recording.header.sub_space)
    searched = [Config.from_dict(trial.params) for trial in storage.get_all_trials(0)]
    tries = STRATEGIES["explorer"](truth, 7)
    assert [config for config, _ in zip(tries, range(60), strict=False)] == searched


def test_a_kernel_that_compiles_is_told_of_later(truths, monkeypatch):
    """What was learnt when a kernel is proposed is of kernels that were proposed long before."""
    known, learnt, propose, learn = {}, [], Proposer.propose, Proposer.learn

    def proposed(self):
        proposal = propose(self)
        known[proposal.config] = len(learnt)
        return proposal

    def learned(self, config, digest, values):
        learnt.append(config)
        learn(self, config, digest, values)

    monkeypatch.setattr(Proposer, "propose", proposed)
    monkeypatch.setattr(Proposer, "learn", learned)
    for name, least in (("explorer-without-seeds", 1), ("explorer-while-compiling", COMPILING)):
        known.clear(), learnt.clear()
        tries = [c for c, _ in zip(STRATEGIES[name](truths[0], 3), range(60), strict=False)]
        waited = [number - known[config] for number, config in enumerate(tries)]
        assert min(waited[AHEAD_OF_COMPILING + 1 :]) >= least, name
        assert min(waited[AHEAD_OF_COMPILING + 1 :]) < least + AHEAD, name


SEEDS = range(4)


@pytest.fixture(scope="module")
def regrets(truths):
    """Mean regret after each of AT, by strategy, over all truths."""
    found = {name: [score(truth, name, SEEDS) for truth in truths] for name in STRATEGIES}
    return {
        name: [mean(one.mean_regret(number) for one in scores) for number in range(len(AT))]
        for name, scores in found.items()
    }


@pytest.mark.exhaustive
def test_the_search_is_no_worse_than_simple_ones(regrets):
    for other in ("hill-climb", "random", "tpe"):
        for ours, theirs in zip(regrets["explorer"], regrets[other], strict=True):
            assert ours <= theirs + 0.001, (other, regrets)  # a tenth of what is called the best


@pytest.mark.exhaustive
def test_without_seeds_it_is_no_worse_from_60_evaluations_on(regrets):
    for other in ("hill-climb", "random"):
        for number in (AT.index(60), AT.index(150)):
            ours, theirs = regrets["explorer-without-seeds"][number], regrets[other][number]
            assert ours <= theirs + 0.003, (other, regrets)


def test_one_seed_gives_one_search_on_any_number_of_cores(monkeypatch):
    def trials(cores):
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
        storage = Memory()
        evaluator = replay(load_recording(NAMES[0]))
        run_search(evaluator, storage, trials=40, seed=5)
        return [trial.params for trial in storage.get_all_trials(0)]

    assert trials(2) == trials(64)


def test_what_the_command_prints():
    done = run("benchmark", "--recording", NAMES[0], "--strategy", "random", "--seeds", "2")
    assert done.exit_code == 0 and "random" in done.stdout and "@150" in done.stdout
    done = run(
        "benchmark", "--recording", NAMES[0], "--strategy", "hill-climb", "--seeds", "2", "--json"
    )
    (told,) = json.loads(done.stdout)
    assert told["recording"] == NAMES[0] and told["seeds"] == 2
    assert set(told["mean_regret"]) == {str(number) for number in AT}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("benchmark", "--strategy", "best"), "strategy is 'best'; choose explorer, "),
        (("benchmark", "--recording", "none"), "recording 'none' does not exist"),
        (("benchmark", "--seeds", "0"), "seeds is '0'; it must be a whole"),
        (("recordings", "h200-f32-128"), "give a recording's name and --t4 FILE.json together"),
        (("recordings", "none", "--t4", "a.json"), "recording 'none' does not exist"),
    ],
)
def test_bad_input_gets_a_sentence(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_recordings_are_listed_and_written_as_t4(tmp_path):
    listed = {
        one["name"]: one for one in json.loads(run("recordings", "--json").stdout)["recordings"]
    }
    assert listed[NAMES[0]]["sub_space"]["exp"] == ["ex2.approx"]
    assert NAMES[0] in run("recordings").stdout
    path = tmp_path / "t4.json"
    assert run("recordings", NAMES[0], "--t4", str(path)).exit_code == 0
    written = json.loads(path.read_text())
    recording = load_recording(NAMES[0])
    assert written == json.loads(json.dumps(t4_data(recording)))
    assert len(written["results"]) == recording.header.kernel_count
    about = written["metadata"]  # so that the file stands by itself
    assert about["problem"]["name"] == str(recording.header.problem)
    assert about["circumstances"]["gpu"] == recording.header.gpu.name
    for result, kernel in zip(written["results"], recording.kernels, strict=True):
        right = isinstance(kernel.outcome, Measured)
        assert (result["invalidity"] == "correct") == right == bool(result["times"]["runtimes"])
        assert result["configuration"] == kernel.config.as_dict()
        if right:  # milliseconds
            first = kernel.outcome.samples_us[0]
            assert result["times"]["runtimes"][0] == pytest.approx(first / 1000, rel=1e-4)


def test_the_sub_space_holds_what_the_heuristic_chooses_or_its_like(truths):
    """So that what is said of first proposals is not said of a space without them."""
    from explorer.choose import promising

    for truth in truths:
        space: Space = truth.space
        assert space.is_legal(promising(space.problem, space.gpu))
