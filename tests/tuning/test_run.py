"""The search on a fake device with a known optimum."""

import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from statistics import median

import optuna
import pytest
from fake_evaluator import FakeEvaluator, RestsOnRegisters, as_replay, failure, model_us
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState
from storages import Memory

from explorer.model.config import Config
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.outcome import Rejected, Stage
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery
from explorer.report.text import search_command
from explorer.space import Space
from explorer.tuning.objective import LEAST_GAIN, Effort, Goal, Objectives
from explorer.tuning.proposer import Origin, Proposal, Proposer, SpaceCandidates
from explorer.tuning.samplers import sampler_of
from explorer.tuning.search import HANDED_OVER, run_search
from explorer.tuning.storage import open_storage
from explorer.tuning.study_attributes import finals_text, finals_to_attributes
from explorer.tuning.study_reader import load_history, load_trial
from explorer.tuning.study_writer import Ledger
from explorer.tuning.surrogate import MIRROR_LIMIT, OptunaSampler


def trials_of(storage, name):
    return storage.get_all_trials(storage.get_study_id_from_name(name))


@pytest.fixture(scope="module")
def optimum_us():
    """The least cost of the model: a climb from many legal points."""
    evaluator, rng = FakeEvaluator(), random.Random(0)
    space = Space(evaluator.problem, evaluator.gpu)
    return min(_climb(space, space.sample(rng)) for _ in range(6))


def _climb(space, config):
    while True:
        legal = [c for c in space.neighbours(config) if failure(c) is None]
        step = min(legal, key=model_us, default=config)
        if model_us(step) >= model_us(config):
            return model_us(config)
        config = step


@pytest.mark.exhaustive
def test_a_search_comes_near_the_optimum(optimum_us):
    evaluator = FakeEvaluator(seed=0)
    result = run_search(evaluator, Memory(), trials=150, seed=0, ahead=8)
    assert len(evaluator.evaluated) == 150
    assert model_us(result.finals.winner.trial.config) / optimum_us <= 1.03


@pytest.mark.exhaustive
def test_it_finds_the_optimum_within_one_percent(optimum_us):
    found = []
    for seed in range(6):
        evaluator = FakeEvaluator(seed=seed)
        result = run_search(evaluator, Memory(), trials=150, seed=seed, ahead=8)
        assert len(evaluator.evaluated) == 150
        found.append(model_us(result.finals.winner.trial.config) / optimum_us)
    assert median(found) <= 1.01
    assert max(found) <= 1.03


@pytest.mark.exhaustive
def test_it_beats_random_points():
    evaluator, rng = FakeEvaluator(), random.Random(1)
    space = Space(evaluator.problem, evaluator.gpu)
    drawn = [space.sample(rng) for _ in range(150)]
    best_random = min(model_us(config) for config in drawn if failure(config) is None)
    result = run_search(evaluator, Memory(), trials=60, ahead=8)
    assert model_us(result.finals.winner.trial.config) < best_random


@pytest.mark.exhaustive
def test_one_seed_gives_one_sequence_where_configs_are_of_a_recording():
    """On a GPU what is compiled, and what waits for the GPU, depends on the clock."""
    evaluated = []
    for _ in range(2):
        evaluator = as_replay(FakeEvaluator())
        run_search(evaluator, Memory(), trials=40, seed=3, ahead=8)
        evaluated.append(evaluator.evaluated)
    assert evaluated[0] == evaluated[1]


def test_the_first_proposals_are_the_hand_written_ones(storage, evaluator):
    run_search(evaluator, storage, trials=3)
    assert all(c.vector_bytes == 16 and c.cache == "registers" for c in evaluator.evaluated)


def test_everything_is_submitted_before_it_is_evaluated_and_ahead_of_it(storage):
    class Watching(FakeEvaluator):
        def __init__(self):
            super().__init__()
            self.depths = []

        def evaluate(self, config):
            assert config in self.submitted
            self.depths.append(len(self.submitted) - len(self.evaluated))
            time.sleep(0.06)  # longer than a proposal takes, also beside other work
            return super().evaluate(config)

    evaluator = Watching()
    run_search(evaluator, storage, trials=30, ahead=6)
    # Meanwhile others are proposed, at the same time as the depth is looked at. It is less for the
    # first one, while Optuna's sampler is asked for the first time, and at the end.
    assert max(evaluator.depths) in (6, 7)
    assert sum(depth >= 5 for depth in evaluator.depths) >= 20
    assert set(evaluator.evaluated) < set(evaluator.submitted)
    assert len(set(evaluator.evaluated)) == 30 and len(set(evaluator.submitted)) <= 30 + 7
    assert max(Counter(evaluator.submitted).values()) == 2  # the finals submit theirs once more


class CompilesInTurn(FakeEvaluator):
    """Its code is there when a test says so."""

    def __init__(self):
        super().__init__()
        self.codes = {}

    def submit(self, config):
        super().submit(config)
        self.codes[config] = Future()

    def compiling(self, config):
        return self.codes[config]

    def compile(self, *numbers):
        for number in numbers:
            code = self.codes[self.submitted[number]]
            if not code.done():
                code.set_result(None)


def test_what_is_compiled_is_evaluated_before_what_is_not():
    class Slow(CompilesInTurn):
        """Its first proposal compiles until ten others are evaluated."""

        def submit(self, config):
            super().submit(config)
            if len(self.submitted) > 1:
                self.compile(-1)

        def evaluate(self, config):
            if len(self.evaluated) == 10:
                self.compile(0)
            return super().evaluate(config)

    slow = Slow()
    run_search(slow, Memory(), trials=20, ahead=6)
    # The eleventh is evaluated meanwhile, and others were handed over before.
    assert slow.evaluated.index(slow.submitted[0]) - 10 in range(1, HANDED_OVER + 1)
    others = [config for config in slow.evaluated if config != slow.submitted[0]]
    assert len(set(others)) == 19 and set(others) <= set(slow.submitted)


def test_what_is_compiled_first_is_evaluated_where_nothing_was():
    class LastFirst(CompilesInTurn):
        """Compiles nothing until the first seven proposals are there, and then the last of them."""

        def submit(self, config):
            super().submit(config)
            if len(self.submitted) == 7:
                threading.Timer(0.2, self.compile, [6]).start()

        def evaluate(self, config):
            self.compile(*range(len(self.submitted)))
            return super().evaluate(config)

    evaluator = LastFirst()
    run_search(evaluator, Memory(), trials=7, ahead=6)
    assert evaluator.evaluated == [evaluator.submitted[6], *evaluator.submitted[:6]]


def test_the_gpu_has_the_next_kernel_before_the_outcome_of_the_one_before():
    class Told(FakeEvaluator):
        def __init__(self):
            super().__init__()
            self.begun, self.next = [], []

        def begin(self, config):
            self.begun.append(config)

        def evaluate(self, config):
            assert config == self.begun.pop(0)
            self.next.append(len(self.begun))
            return super().evaluate(config)

    evaluator = Told()
    run_search(evaluator, Memory(), trials=30, ahead=6)
    assert min(evaluator.next[: 1 - HANDED_OVER]) >= HANDED_OVER // 2
    assert evaluator.next[-1] == 0


def test_a_sampler_is_told_of_a_twin_once_its_code_was_evaluated(monkeypatch):
    """Until then the config of the same code is forgotten: nothing says that it is rejected."""
    told, forgotten = [], []
    monkeypatch.setattr(OptunaSampler, "tell", lambda self, *outcome: told.append(outcome))
    monkeypatch.setattr(OptunaSampler, "forget", lambda self, config: forgotten.append(config))
    space = Space(FakeEvaluator().problem, FakeEvaluator().gpu)
    seeds = [space.sample(random.Random(seed)) for seed in range(5)]
    codes = dict(zip(seeds, ("one", "one", "two", "one", "three"), strict=True))
    proposer = Proposer(SpaceCandidates(space), codes.__getitem__, seeds, 0, lambda *_: None)
    assert [proposer.propose().digest, proposer.propose().digest] == ["one", "two"]
    assert (told, forgotten, proposer.duplicates) == ([], [seeds[1]], 1)
    proposer.learn(seeds[0], "one", (5.0,))
    assert proposer.propose().digest == "three"
    assert (told, forgotten) == ([(seeds[0], (5.0,)), (seeds[3], (5.0,))], [seeds[1]])


def _proposer(origins):
    """One that has learnt that accesses of 16 bytes are fast; and proposals of these kinds."""
    rng = random.Random(0)
    space = Space(FakeEvaluator().problem, FakeEvaluator().gpu)
    proposer = Proposer(SpaceCandidates(space), Config.to_json, [], 0, lambda *_: None)
    for number in range(60):
        config = space.sample(rng)
        slow = 1.0 if config.vector_bytes == 16 else 3.0
        proposer.learn(config, str(number), (slow,))
    configs = [space.sample(rng) for _ in origins]
    return proposer, [Proposal(c, str(c), o) for c, o in zip(configs, origins, strict=True)]


@pytest.mark.parametrize("origin", [Origin.SEED, Origin.RANDOM, Origin.SAMPLER])
def test_seeds_random_configs_and_a_samplers_keep_their_order(origin):
    proposer, proposals = _proposer([Origin.STEP, Origin.TPE, origin, origin, Origin.STEP])
    assert proposer.most_promising(proposals) is proposals[2]


def test_of_others_the_most_promising_is_evaluated_next():
    proposer, proposals = _proposer([Origin.STEP, Origin.TPE] * 10)
    widths = [proposer.most_promising(proposals).config.vector_bytes for _ in range(20)]
    assert {one.config.vector_bytes for one in proposals} > {16}
    assert widths.count(16) >= 18


def refuse_first(monkeypatch, number):
    """Let another process have the first kernels RUNNING; return the digests that were wanted."""
    wanted, run = [], Ledger.run

    def refused(self, proposals):
        before = len(wanted)
        wanted.extend(one.digest for one in proposals)
        granted = run(self, proposals)
        return [ours and before + n >= number for n, ours in enumerate(granted)]

    monkeypatch.setattr(Ledger, "run", refused)
    return wanted


def test_a_search_goes_on_where_others_have_all_that_it_proposes_first(monkeypatch):
    refused = 7
    wanted = refuse_first(monkeypatch, refused)
    evaluator = FakeEvaluator(identity=Config.to_json)
    result = run_search(evaluator, Memory(), trials=10, ahead=6)
    found = [config.to_json() for config in evaluator.evaluated]
    assert len(found) == 10 and not set(found) & set(wanted[:refused])
    assert result.duplicates >= refused


def test_what_others_found_out_is_heard_of_before_much_more_is_claimed(monkeypatch):
    wanted, at_hearing = refuse_first(monkeypatch, 40), []

    def heard(self):
        at_hearing.append(len(wanted))
        return []

    monkeypatch.setattr(Ledger, "heard", heard)
    evaluator = FakeEvaluator()
    run_search(evaluator, Memory(), trials=10, ahead=6)
    assert len(evaluator.evaluated) == 10
    gaps = [after - before for before, after in itertools.pairwise([0, *at_hearing])]
    assert max(gaps) <= 12


@pytest.mark.exhaustive
def test_what_is_begun_ends_within_a_time_budget():
    class Slow(FakeEvaluator):
        def evaluate(self, config):
            time.sleep(0.5)
            return super().evaluate(config)

    result = run_search(Slow(), Memory(), budget_s=2.5)
    assert result.trials > 1 and result.elapsed_s < 2.7


def test_what_is_evaluated_is_stored_before_the_next_proposals_are_made(monkeypatch):
    """Else a search that is killed would lose more than what is measured."""
    stored, unstored, add = [], [], Ledger.add

    class SlowlyProposed(FakeEvaluator):
        """Proposals take longer than evaluations."""

        def identity(self, config):
            unstored.append(len(self.evaluated) - len(stored))
            time.sleep(0.02)
            return super().identity(config)

    def counted(self, proposal, outcome, started):
        stored.extend([proposal.config] if proposal.digest else [])
        return add(self, proposal, outcome, started)

    monkeypatch.setattr(Ledger, "add", counted)
    run_search(SlowlyProposed(), Memory(), trials=30, ahead=6)
    assert median(unstored) <= 1


def test_equal_code_is_evaluated_once():
    evaluator = FakeEvaluator(identity=lambda c: f"{c.threads_per_row} {c.exp} {c.cache}")
    result = run_search(evaluator, Memory(), trials=40)
    digests = [evaluator.identity(config) for config in evaluator.evaluated]
    assert len(set(digests)) == len(digests)
    assert result.duplicates > 0


# ------------------------------------------------------------------ residency


def _origins(storage, result):
    return Counter(trial.user_attrs["origin"] for trial in trials_of(storage, result.study))


def _states_the_fastest(evaluator, storage, result):
    """Whether the kernel of the least time was evaluated with bounds for its residency, if any."""
    done = [t for t in trials_of(storage, result.study) if t.state is TrialState.COMPLETE]
    fastest = Config.from_dict(min(done, key=lambda trial: trial.value).params)
    resources = evaluator.resources(fastest)
    stated = replace(fastest, min_blocks=resources.resident_blocks)
    return resources.is_stated(fastest) or stated in evaluator.evaluated


@pytest.mark.parametrize("seed", [0, 7])  # of 7 the last kernels have the best
def test_the_best_states_its_residency_and_was_tried_with_others(seed):
    evaluator, storage = RestsOnRegisters(), Memory()
    result = run_search(evaluator, storage, trials=40, seed=seed)
    best = result.finals.winner.trial
    resources = best.outcome.resources
    assert resources == evaluator.resources(best.config) and resources.is_stated(best.config)
    assert _states_the_fastest(evaluator, storage, result)
    assert _origins(storage, result)[Origin.RESIDENCY] >= 2
    trial = trials_of(storage, result.study)[best.number]
    assert trial.user_attrs["resident_blocks"] == resources.resident_blocks > 0
    kept = storage.get_study_system_attrs(storage.get_study_id_from_name(result.study))
    note = kept[f"dashboard:{trial._trial_id}:note_str:0"]
    assert resources.residency(best.config) in note.split("\n\n")


@pytest.mark.exhaustive
def test_a_replay_states_what_its_recording_has():
    """Its proposals are kernels of the recording alone."""
    evaluator = as_replay(RestsOnRegisters())
    run_search(evaluator, Memory(), trials=40, seed=3)
    assert {*evaluator.evaluated} <= {*evaluator.catalogue}


def test_where_min_blocks_is_fixed_no_residency_is_tried():
    evaluator, storage = RestsOnRegisters(), Memory()
    result = run_search(evaluator, storage, trials=30, where={"min_blocks": (1,)})
    assert {config.min_blocks for config in evaluator.evaluated} == {1}
    assert len(evaluator.evaluated) == 30 and not _origins(storage, result)[Origin.RESIDENCY]


def test_few_kernels_more_are_evaluated_than_were_asked_for():
    numbers = {}
    for trials in (1, 2, 3, 5, 8):
        evaluator, storage = RestsOnRegisters(), Memory()
        result = run_search(evaluator, storage, trials=trials, ahead=8)
        numbers[trials] = len(evaluator.evaluated)
        assert _states_the_fastest(evaluator, storage, result)
    assert numbers[1] == 2  # the first kernel, and the same with bounds
    assert all(trials <= number <= trials + 3 for trials, number in numbers.items())


def test_it_ends_when_everything_was_tried(storage, evaluator):
    fixed = {
        name: (value,)
        for name, value in Config().as_dict().items()
        if name not in ("exp", "normalise")
    }
    result = run_search(evaluator, storage, trials=100, where=fixed)
    assert result.measured == 8


def test_rejected_and_illegal_trials_are_pruned_with_stage_and_reason(storage, evaluator):
    result = run_search(evaluator, storage, trials=60)
    trials = trials_of(storage, result.study)
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    pruned = [trial for trial in trials if trial.state is TrialState.PRUNED]
    assert all(trial.user_attrs["stage"] and trial.user_attrs["reason"] for trial in pruned)
    space = Space(evaluator.problem, evaluator.gpu)
    for trial in pruned:
        config = Config.from_dict(trial.params)
        rule = space.broken_rule(config)
        expected = Rejected(Stage.INVALID, rule.reason(config)) if rule else failure(config)
        assert trial.user_attrs["stage"] == expected.stage
        assert trial.user_attrs["reason"] == expected.reason
    assert sum(result.rejected.values()) == len(pruned)
    assert Stage.INVALID in result.rejected


@pytest.mark.parametrize("trials", [10, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_the_same_command_goes_on(path, trials):
    first = FakeEvaluator()
    run_search(first, open_storage(str(path)), trials=trials)
    second = FakeEvaluator(seed=1)
    result = run_search(second, open_storage(str(path)), trials=trials)
    assert not set(first.evaluated) & set(second.evaluated)
    stored = trials_of(open_storage(str(path)), result.study)
    known = [trial for trial in stored if trial.user_attrs.get("stage") != "invalid"]
    assert len(known) == 2 * trials
    assert result.measured <= trials


@pytest.mark.parametrize("trials", [15, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_the_finals_choose_among_earlier_runs_too(path, trials):
    first = run_search(FakeEvaluator(), open_storage(str(path)), trials=trials)
    result = run_search(FakeEvaluator(seed=1), open_storage(str(path)), trials=1, seed=9)
    assert min(f.trial.number for f in result.finals.finalists) < first.trials


def test_an_interrupt_keeps_what_finished_and_leaves_nothing_running(storage):
    class Interrupted(FakeEvaluator):
        def evaluate(self, config):
            if len(self.evaluated) == 20:
                raise KeyboardInterrupt
            return super().evaluate(config)

    with pytest.raises(KeyboardInterrupt):
        run_search(Interrupted(), storage, trials=60)
    assert _finished(storage) == 20


def test_a_bug_keeps_what_finished_and_leaves_nothing_running(storage):
    class Buggy(FakeEvaluator):
        def evaluate(self, config):
            if len(self.evaluated) == 20:
                raise ZeroDivisionError
            return super().evaluate(config)

    with pytest.raises(ZeroDivisionError):
        run_search(Buggy(), storage, trials=60)
    assert _finished(storage) == 20


def _finished(storage, running=0):
    """How many trials evaluated a kernel; asserts that so many are left running."""
    (study,) = storage.get_all_studies()
    trials = trials_of(storage, study.study_name)
    assert sum(trial.state is TrialState.RUNNING for trial in trials) == running
    finished = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    return sum(trial.user_attrs.get("stage") != "invalid" for trial in finished)


def test_a_running_trial_of_another_program_is_left_to_it(storage, evaluator):
    name = run_search(evaluator, storage, trials=5).study
    study_id = storage.get_study_id_from_name(name)
    running = storage.create_new_trial(study_id)
    exp = CategoricalDistribution(_choices(evaluator, "exp"))
    storage.set_trial_param(running, "exp", 0.0, exp)
    run_search(evaluator, storage, trials=5)
    assert storage.get_trial(running).state is TrialState.RUNNING
    storage.set_trial_state_values(running, TrialState.COMPLETE, [1.0])
    view = load_history(storage, evaluator.problem).view
    assert view.best.number != storage.get_trial(running).number


def _choices(evaluator, name):
    return Space(evaluator.problem, evaluator.gpu).parameters[name]


_KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
from fake_evaluator import FakeEvaluator
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage

class Killed(FakeEvaluator):
    def evaluate(self, config):
        if len(self.evaluated) == 10:
            os.kill(os.getpid(), 9)
        return super().evaluate(config)

run_search(Killed(), open_storage(sys.argv[1]), trials=50)
"""


def test_a_killed_run_leaves_a_study_that_goes_on(path):
    command = [sys.executable, "-c", _KILLED, str(path), str(Path(__file__).parent)]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    killed = subprocess.run(command, cwd=root, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    storage = open_storage(str(path))
    (study,) = storage.get_all_studies()
    running = [t for t in trials_of(storage, study.study_name) if t.state is TrialState.RUNNING]
    finished = _finished(storage, len(running))
    assert finished >= 8 and 1 <= len(running) <= 2 + HANDED_OVER
    again = FakeEvaluator()
    run_search(again, storage, trials=10)
    assert _finished(storage, len(running)) == finished + 10
    left = {Config.from_dict(trial.params) for trial in running}
    assert not left & set(again.evaluated[:10]), "their process may still evaluate them"


@pytest.mark.exhaustive
def test_a_time_budget_covers_search_and_finals(storage, evaluator):
    result = run_search(evaluator, storage, budget_s=4.0)
    assert result.measured > 10
    assert result.elapsed_s < 4.5


def test_no_usable_kernel_is_said_with_the_stages(storage):
    class Failing(FakeEvaluator):
        def evaluate(self, config):
            return Rejected(Stage.VERIFY, "relative error 1 at row 0")

    with pytest.raises(NotFound, match=r"no kernel .* could be used: .*12 verify"):
        run_search(Failing(), storage, trials=12)


def test_progress_is_told_after_every_trial(storage, evaluator):
    told = []
    result = run_search(evaluator, storage, trials=20, on_progress=told.append)
    assert told[0].best_us is None
    assert [p.remaining_trials for p in told[:-1]] == list(range(20, -1, -1))
    assert told[-1].phase == "finals"
    assert told[-1].measured == result.measured
    assert sum(told[-1].rejected.values()) + result.measured == result.trials


@pytest.mark.exhaustive
def test_optuna_opens_the_database_as_it_is(path, evaluator):
    result = run_search(evaluator, open_storage(str(path)), trials=30)
    script = (
        "import optuna, sys\n"
        "study = optuna.load_study(study_name=sys.argv[2], storage='sqlite:///' + sys.argv[1])\n"
        "print(len(study.trials), study.best_value, study.best_trial.user_attrs['registers'])\n"
        "print(optuna.importance.get_param_importances(study))\n"
    )
    command = [sys.executable, "-c", script, str(path), result.study]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    best = load_history(open_storage(str(path)), ProblemQuery(4096)).view.best
    assert int(printed[0]) == result.trials
    assert float(printed[1]) <= best.outcome.time_us


@pytest.mark.exhaustive
def test_the_database_speaks_for_itself(tmp_path):
    """Numbers to plot, a command, the finals' verdict on the trials, and a note for dashboards."""
    path = tmp_path / "a.db"
    storage = open_storage(str(path))
    result = run_search(FakeEvaluator(), storage, trials=40, seed=1)
    run_search(FakeEvaluator(), storage, trials=5, seed=2)  # finals again, of other trials
    study = optuna.load_study(study_name=result.study, storage=f"sqlite:///{path}")
    measured = [t for t in study.trials if t.state is TrialState.COMPLETE]
    for trial in measured:
        told = trial.user_attrs
        assert told["gbps"] == pytest.approx(result.problem.gbps(trial.value), abs=0.1)
        assert 0 < told["of_limit"] < 1.1 and told["spill_bytes"] == 0 and told["shared_bytes"] >= 0
        assert told["config"].startswith(f"{trial.params['algorithm']}, ")
        words = shlex.split(told["emit"])
        config = Config.from_dict({**Config().as_dict(), **json.loads(words[2])})
        assert config.as_dict() == trial.params and words[3:5] == ["--cols", "4096"]
    finals = load_history(storage, result.problem).view.finals
    ranked = {t.user_attrs["finals_rank"]: t for t in measured if "finals_rank" in t.user_attrs}
    assert [ranked[n].number for n in sorted(ranked)] == [f.trial.number for f in finals.finalists]
    assert [ranked[n].user_attrs["finals_us"] for n in sorted(ranked)] == pytest.approx(
        [f.time_us for f in finals.finalists], abs=1e-3
    )
    attributes = [study.user_attrs, *(t.user_attrs for t in study.trials)]
    longest = max(len(json.dumps(value)) for one in attributes for value in one.values())
    assert longest < 2048
    kept = storage.get_study_system_attrs(study._study_id)
    for trial in measured:
        told = kept[f"dashboard:{trial._trial_id}:note_str:0"]
        assert kept[f"dashboard:{trial._trial_id}:note_ver"] == 1
        assert told.startswith(f"**{trial.value:.2f} µs a launch, ") and len(told) < 2045
        assert trial.user_attrs["config"] in told
        assert trial.user_attrs["emit"] in told.replace(" \\\n  ", " ")
    note = "".join(kept[key] for key in sorted(kept) if key.startswith("dashboard:note_str"))
    assert note.startswith(f"**{result.problem}**: the best is trial {ranked[1].number}, ")
    named = f"The dashboard calls trial {study.best_trial.number} the best"
    assert (named in note) == (study.best_trial.number != ranked[1].number)
    verdict = study.user_attrs["best"]
    assert verdict.startswith(f"trial {ranked[1].number}: ") and verdict.endswith("by the finals")
    assert next(iter(study.user_attrs)) == "best"  # the first that a dashboard lists
    assert kept["dashboard:note_ver"] == 2


@pytest.mark.exhaustive
def test_new_finals_take_the_place_of_an_earlier_versions(tmp_path):
    """Those were in one attribute, which would otherwise be read for ever."""
    storage = open_storage(str(tmp_path / "a.db"))
    result = run_search(FakeEvaluator(), storage, trials=20)
    (study,) = storage.get_all_studies()
    storage.set_study_user_attr(study._study_id, "finals", "{}")
    storage.set_study_user_attr(study._study_id, "finals:77", "left")
    run_search(FakeEvaluator(), storage, trials=5, seed=1)
    (study,) = storage.get_all_studies()
    parts = study.user_attrs["finals_parts"]
    named = {name for name in study.user_attrs if name.startswith("finals")}
    assert named == {"finals_parts", "finals_through", *(f"finals:{n}" for n in range(parts))}
    assert load_history(storage, result.problem).view.finals is not None


def test_finals_of_an_earlier_version_are_read():
    """They were in one attribute."""
    storage = Memory()
    result = run_search(FakeEvaluator(), storage, trials=20)
    told = finals_to_attributes(result.finals, result.problem)
    assert finals_text(told) == finals_text({"finals": finals_text(told)})
    with pytest.raises(InvalidInput, match="finals:1"):
        finals_text({"finals_parts": 2, "finals:0": "{"})
    with pytest.raises(InvalidInput, match="1000000 parts, which are not there"):
        finals_text({"finals_parts": 10**6, "finals:0": "{"})


class Level(FakeEvaluator):
    """Every kernel takes as long."""

    def evaluate(self, config):
        self.evaluated.append(config)
        return replace(self.measured(config), samples_us=(50.0,) * 20)


def test_a_search_ends_where_it_gains_no_more():
    """As soon as so many kernels gained nothing, and says so; not where a number is asked for."""
    evaluator = FakeEvaluator(noise=0.0)
    result = run_search(evaluator, Memory(), effort=Effort.QUICK, seed=3)
    evaluated = result.measured + sum(result.rejected[s] for s in result.rejected if s != "invalid")
    times = [t for t in (failure(c) or model_us(c) for c in evaluator.evaluated)]
    best = [
        min((t for t in times[: n + 1] if isinstance(t, float)), default=1e9) for n in range(60)
    ]
    patience = Effort.QUICK.patience
    gained = [n < patience or best[n] < best[n - patience] * (1 - LEAST_GAIN) for n in range(60)]
    # What was handed over is evaluated, and where it gains the search goes on.
    ends = (n for n in range(60 - HANDED_OVER) if not any(gained[n : n + HANDED_OVER]))
    expected = next(ends, None)
    assert evaluated == (60 if expected is None else min(60, expected + HANDED_OVER))
    assert bool(result.stopped) == (expected is not None)
    whole = run_search(FakeEvaluator(noise=0.0), Memory(), trials=70, seed=3)
    assert whole.stopped == "" and whole.measured + whole.rejected.get(Stage.CRASH, 0) <= 70


def test_the_study_says_why_its_search_ended():
    def ended(evaluator, **told):
        storage = Memory()
        run_search(evaluator, storage, rounds=2, **told)
        view = load_history(storage, evaluator.problem).view
        (study,) = storage.get_all_studies()
        assert storage.get_study_user_attrs(study._study_id)["ended"] == view.ended
        return view.ended

    assert ended(FakeEvaluator(), trials=12) == "as many kernels as were asked for were evaluated"
    assert ended(FakeEvaluator(), budget_s=0.5) == "the time that was asked for was used up"
    assert ended(Level(), effort=Effort.QUICK).startswith("the last 30 kernels improved the best")


def test_the_words_of_the_efforts_have_their_numbers():
    told = Effort.help()
    assert told.startswith("quick, default or full: 60, 200 or 1000 kernels at most; ")
    numbers = [int(number) for number in re.findall(r"\d+", told)]
    assert numbers == [e.trials for e in Effort] + [e.patience for e in Effort]


@pytest.mark.exhaustive
def test_what_cannot_gain_ends_after_its_patience():
    evaluator = Level()
    result = run_search(evaluator, Memory(), effort=Effort.DEFAULT)
    # The search asks for no more than these ahead, and for fewer where its sampler is slow.
    assert 0 <= len(evaluator.evaluated) - Effort.DEFAULT.patience <= HANDED_OVER
    assert result.stopped == (
        "the last 80 kernels improved the best by less than 0.05 %, which is below the noise"
    )
    assert not result.exhausted
    both = run_search(Level(), Memory(), effort=Effort.QUICK, objectives=Objectives.TIME_ERROR)
    assert both.stopped == "" and both.measured == Effort.QUICK.trials


SAMPLERS = """
import optuna

class Raises(optuna.samplers.RandomSampler):
    def sample_independent(self, *_):
        raise ZeroDivisionError("oh")

class FailsAfter(optuna.samplers.RandomSampler):
    def after_trial(self, *_):
        raise ZeroDivisionError("oh")

class Exits(optuna.samplers.RandomSampler):
    def sample_independent(self, *_):
        raise SystemExit(3)

class Nonsense(optuna.samplers.RandomSampler):
    def sample_independent(self, *_):
        return "moon"

class Seedless(optuna.samplers.RandomSampler):
    def __init__(self):
        super().__init__(seed=1)

class Stuck(optuna.samplers.RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        return distribution.choices[-1]

class Refuses(optuna.samplers.RandomSampler):
    def __init__(self):
        raise OSError("not today")

thing = 5
"""


@pytest.fixture
def samplers(tmp_path, monkeypatch):
    (tmp_path / "my_samplers.py").write_text(SAMPLERS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("name", ["optuna.samplers:RandomSampler", "my_samplers:Seedless"])
def test_a_sampler_of_the_users_proposes_what_follows_the_seeds(samplers, name):
    storage = Memory()
    result = run_search(FakeEvaluator(), storage, trials=40, sampler=sampler_of(name))
    origins = {trial.user_attrs["origin"] for trial in trials_of(storage, result.study)}
    assert "sampler" in origins and origins <= {"seed", "sampler"}
    evaluated = [t for t in trials_of(storage, result.study) if t.user_attrs["digest"]]
    assert evaluated[-1].user_attrs["origin"] == "sampler" and len(evaluated) == 40


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_samplers:Raises", "sampler Raises raised ZeroDivisionError: oh; what finished before"),
        ("my_samplers:FailsAfter", "sampler FailsAfter raised ZeroDivisionError: oh; what"),
        ("my_samplers:Exits", "sampler Exits raised SystemExit: 3; what finished before"),
        ("my_samplers:Nonsense", "sampler Nonsense raised ValueError: 'moon' not in"),
        ("my_samplers:Refuses", "sampler my_samplers:Refuses raised OSError: not today"),
        ("my_samplers:thing", "sampler 'my_samplers:thing' is no class of optuna.samplers"),
        ("my_samplers:Missing", "cannot be loaded .AttributeError"),
        ("no_such_module:A", "cannot be loaded .ModuleNotFoundError"),
        ("", "sampler '' cannot be loaded"),
    ],
)
def test_a_sampler_that_fails_costs_nothing_that_finished(samplers, name, said):
    storage = Memory()
    with pytest.raises(InvalidInput, match=said) as raised:
        run_search(FakeEvaluator(), storage, trials=40, sampler=sampler_of(name))
    assert "\n" not in str(raised.value)
    if name.endswith(("Raises", "FailsAfter", "Exits", "Nonsense")):
        (study,) = storage.get_all_studies()
        assert len(storage.get_all_trials(study._study_id)) >= 1


@pytest.mark.exhaustive
def test_the_study_names_the_sampler_and_the_result_says_what_it_could_not_have(samplers):
    storage = Memory()
    stuck = sampler_of("my_samplers:Stuck")
    result = run_search(FakeEvaluator(), storage, trials=40, sampler=stuck)
    told = re.match(
        r"of the (\d+) configs that sampler my_samplers:Stuck proposed, (\d+) broke", result.changed
    )
    asked, changed = map(int, told.groups())
    evaluated = [t for t in trials_of(storage, result.study) if t.user_attrs["digest"]]
    by_it = [t for t in evaluated if t.user_attrs["origin"] == "sampler"]
    assert asked >= len(by_it) > 10 and changed >= asked - 1
    (study,) = storage.get_all_studies()
    assert study.user_attrs["sampler"] == "my_samplers:Stuck"


def test_our_own_mixture_is_no_sampler_of_the_users():
    storage = Memory()
    assert run_search(FakeEvaluator(), storage, trials=40).changed == ""
    (study,) = storage.get_all_studies()
    assert "sampler" not in study.user_attrs


def test_a_sampler_of_the_users_keeps_all_that_it_was_told():
    """TPE's mirror is thinned, as it grows slow; another's state may be in the sampler itself."""
    made = []

    def counted(seed):
        made.append(seed)
        return optuna.samplers.RandomSampler(seed=seed)

    values = Space(FakeEvaluator().problem, FakeEvaluator().gpu).parameters
    ours, theirs = OptunaSampler(values, 0), OptunaSampler(values, 0, sampler=counted)
    for number in range(MIRROR_LIMIT + 1):
        for sampler in (ours, theirs):
            sampler.tell(Config(unroll=(1, 2, 4, 8)[number % 4]), (60.0,))
    assert len(made) == 1 and len(theirs._told) == MIRROR_LIMIT + 1 > len(ours._told)


def test_a_restricted_search_has_a_study_and_kernels_of_its_own(storage):
    evaluator = RestsOnRegisters()
    where = {"cache": ("shared",), "threads": (128, 256)}
    result = run_search(evaluator, storage, trials=25, where=where)
    assert "cache=shared threads=128,256" in result.study
    assert {(config.cache, config.threads) for config in evaluator.evaluated} <= {
        ("shared", 128),
        ("shared", 256),
    }
    assert result.is_one_of_several  # a study of the whole space would be meant without its name
    whole = run_search(evaluator, storage, trials=10)
    assert whole.study != result.study and not whole.is_one_of_several
    view, _ = load_trial(storage, evaluator.problem, "best")
    assert view.summary.name == whole.study and not view.summary.where
    named = Goal(study="cache=shared")
    view, _ = load_trial(storage, evaluator.problem, "best", named)
    assert view.summary.where == where and view.best.config.cache == "shared"
    assert "--where cache=shared --where threads=128,256" in search_command(view.summary)


def test_a_long_restriction_has_a_digest_in_the_name(storage):
    space = Space.searched(Problem(8192, 4096), RestsOnRegisters().gpu)
    where = {name: values for name, values in space.parameters.items() if len(values) > 1}
    result = run_search(RestsOnRegisters(), storage, trials=5, where=where)
    assert " | where " in result.study and len(result.study) < 200


@pytest.mark.exhaustive
def test_a_restriction_that_no_recorded_kernel_meets_is_refused():
    evaluator, where = as_replay(RestsOnRegisters()), {"cluster": (16,), "threads": (96,)}
    with pytest.raises(InvalidInput, match=r"where leaves none of the .* recorded kernels"):
        run_search(evaluator, Memory(), trials=5, where=where)
