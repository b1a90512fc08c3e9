"""Making a recording, and searching it."""

import random
from dataclasses import dataclass, replace

import pytest
from fake_evaluator import FakeEvaluator, failure
from replays import replay
from storages import Memory

from explorer.devices.recording import Recording, read_recording
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Measured, Rejected, Stage, TrialRecord
from explorer.space import Space, parameters
from explorer.tuning.contest import ratio, run_finals
from explorer.tuning.proposer import RecordedCandidates
from explorer.tuning.recorder import choose_configs, compare_again, record
from explorer.tuning.results import Progress, SearchResult
from explorer.tuning.search import run_search
from explorer.tuning.study_reader import load_history, survey


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording of 400 kernels, read back."""
    evaluator = FakeEvaluator()
    space = Space.searched(evaluator.problem, evaluator.gpu)
    choice = choose_configs(space, sample=400, seed=0)
    path = tmp_path_factory.mktemp("recorded") / "fake.json.gz"
    written = record(evaluator, choice, path)
    assert read_recording(path) == written
    return written


def test_a_sample_is_distinct_legal_and_says_its_rule(recorded):
    space = Space(recorded.header.problem, recorded.header.gpu)
    assert len({kernel.digest for kernel in recorded.kernels}) == 400
    assert all(space.is_legal(kernel.config) for kernel in recorded.kernels)
    assert recorded.header.rule == "400 drawn at random from the whole space, seed 0"
    assert recorded.header.sub_space == {}


def test_a_recording_keeps_failures_and_the_comparison_of_the_best(recorded):
    for kernel in recorded.kernels:
        assert isinstance(kernel.outcome, Rejected) == (failure(kernel.config) is not None)
    times = {
        kernel.digest: kernel.outcome.time_us
        for kernel in recorded.kernels
        if isinstance(kernel.outcome, Measured)
    }
    compared = recorded.comparison.digests
    assert compared == tuple(sorted(times, key=times.__getitem__)[: len(compared)])
    close = sum(time_us <= 1.03 * min(times.values()) for time_us in times.values())
    assert len(compared) == max(48, close)
    assert len(recorded.comparison.again_us) == len(recorded.comparison.limit_us) == 40


def test_all_close_to_the_fastest_are_compared_up_to_a_limit(tmp_path, monkeypatch):
    space = Space(FakeEvaluator().problem, FakeEvaluator().gpu)
    choice = choose_configs(space, sample=80, seed=0)
    monkeypatch.setattr("explorer.tuning.recorder.CLOSE", 100.0)
    every = record(FakeEvaluator(), choice, tmp_path / "every.json.gz")
    measured = sum(isinstance(kernel.outcome, Measured) for kernel in every.kernels)
    assert len(every.comparison.digests) == measured > 60
    monkeypatch.setattr("explorer.tuning.recorder.MOST_COMPARED", 60)
    few = record(FakeEvaluator(), choice, tmp_path / "few.json.gz")
    assert few.comparison.digests == every.comparison.digests[:60]


def test_the_best_are_compared_again(recorded, tmp_path):
    """On another day: the kernels and what they took by themselves stay what they were."""
    path = tmp_path / "again.json.gz"
    made = compare_again(FakeEvaluator(seed=5), recorded, path, rounds=7)
    assert read_recording(path) == made
    assert made.comparison.digests == recorded.comparison.digests
    assert made.comparison.samples_us != recorded.comparison.samples_us
    assert len(made.comparison.again_us) == 7
    assert made.comparison.date == "2026-01-02T03:04:05Z" and recorded.comparison.date == ""
    assert replace(made, comparison=recorded.comparison, name=recorded.name) == recorded


def test_kernels_of_another_compiler_are_not_compared_again(recorded, tmp_path):
    class Newer(FakeEvaluator):
        @property
        def environment(self):
            return replace(super().environment, nvrtc="14.0")

    with pytest.raises(
        InvalidInput, match=r"that NVRTC 13\.0 compiled, and this is 14\.0; install"
    ):
        compare_again(Newer(), recorded, tmp_path / "again.json.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({"gpu": known_gpu("NVIDIA B200")}, "is of NVIDIA H200, and this GPU is NVIDIA B200"),
        ({"identity": lambda config: "0" * 16}, "is older than the templates: of .* other code"),
    ],
    ids=["gpu", "code"],
)
def test_what_cannot_be_compared_again(recorded, tmp_path, other, fault):
    with pytest.raises(InvalidInput, match=fault):
        compare_again(FakeEvaluator(**other), recorded, tmp_path / "again.json.gz")
    assert list(tmp_path.iterdir()) == []


def test_every_legal_config_of_a_sub_space():
    evaluator = FakeEvaluator()
    space = Space(evaluator.problem, evaluator.gpu)
    fixed = {
        "threads": (256,),
        "threads_per_row": (128, 256),
        "vector_bytes": (16,),
        "cache": ("registers",),
        "reduction": ("shuffle",),
        "min_blocks": (1,),
        "algorithm": ("three-pass",),
        "rows_per_thread": (1,),
        "persistent": (0,),
    }
    choice = choose_configs(space, fixed=fixed)
    assert len(choice.configs) == Space(space.problem, space.gpu, fixed).legal_count().number == 384
    assert choice.rule.startswith("every legal config with threads in (256,), ")
    assert choice.sub_space == fixed
    both = choose_configs(space, sample=50, seed=3, fixed=fixed)
    assert both.configs[:384] == choice.configs and len(set(both.configs)) == 434
    assert both.rule.endswith(": 384; 50 drawn at random from the whole space, seed 3")


def test_nothing_measured_is_no_recording(tmp_path):
    class Failing(FakeEvaluator):
        def evaluate(self, config):
            return Rejected(Stage.VERIFY, "wrong")

    evaluator = Failing()
    space = Space(evaluator.problem, evaluator.gpu)
    choice = choose_configs(space, sample=5, seed=0)
    with pytest.raises(NotFound, match="none of 5 kernels"):
        record(evaluator, choice, tmp_path / "none.json.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_a_replay_finds_the_best_of_the_recording(recorded, seeds):
    best = min(k.outcome.time_us for k in recorded.kernels if isinstance(k.outcome, Measured))
    regrets = []
    for seed in range(seeds):
        evaluator = replay(recorded)
        result = run_search(evaluator, Memory(), trials=100, seed=seed)
        regrets.append(result.finals.winner.trial.outcome.time_us / best - 1)
    assert sorted(regrets)[seeds // 2] <= 0.005
    assert max(regrets) <= 0.02


@dataclass
class Replayed:
    """A search in a recording until nothing was left to try, after one on a device."""

    recording: Recording
    storage: Memory
    live: SearchResult
    result: SearchResult
    told: list[Progress]


@pytest.fixture(scope="module")
def replayed(recorded):
    compared = set(recorded.comparison.digests)
    kernels = [k for n, k in enumerate(recorded.kernels) if n < 80 or k.digest in compared]
    recording = replace(recorded, kernels=tuple(kernels))
    storage, told = Memory(), []
    live = run_search(FakeEvaluator(), storage, trials=10)
    result = run_search(replay(recording), storage, trials=1000, on_progress=told.append)
    return Replayed(recording, storage, live, result, told)


def test_a_replay_ends_when_all_was_tried_and_is_a_study_of_its_own(replayed):
    storage, live, result = replayed.storage, replayed.live, replayed.result
    assert result.replayed
    assert result.study.endswith(" | replay")
    assert result.measured + sum(result.rejected.values()) == len(replayed.recording.kernels)
    assert result.exhausted
    assert {s.name: s.replayed for s in survey(storage).summaries} == {
        live.study: False,
        result.study: True,
    }
    assert load_history(storage, result.problem).view.summary.name == live.study


def test_a_replay_with_nothing_left_to_try_says_so(replayed):
    remaining = [replayed.told[0].remaining_trials, replayed.told[-1].remaining_trials]
    assert remaining == [len(replayed.recording.kernels), 0]
    told = []
    again = run_search(
        replay(replayed.recording), replayed.storage, trials=3000, on_progress=told.append
    )
    assert again.exhausted and again.trials == 0
    assert [progress.phase for progress in told] == ["finals"]


def test_finals_say_whether_they_were_interleaved_when_recorded(recorded):
    evaluator = replay(recorded)
    trials = [
        TrialRecord(number, kernel.config, kernel.outcome)
        for number, kernel in enumerate(recorded.kernels)
        if isinstance(kernel.outcome, Measured)
    ]
    assert run_finals(evaluator, trials).interleaved
    others = [trial for trial in trials if trial.config not in evaluator.compared]
    finals = run_finals(evaluator, others)
    assert not finals.interleaved
    assert finals.limit_spread is None and finals.limit_us == evaluator.environment.limit_us


def test_finalists_of_the_recorded_comparison_are_preferred_to_slower_ones(recorded):
    """The comparison holds the fastest three alone: a fourth would spoil what was interleaved."""
    whole = recorded.comparison
    three = replace(whole, digests=whole.digests[:3], samples_us=whole.samples_us[:3])
    evaluator = replay(replace(recorded, comparison=three))
    trials = [
        TrialRecord(number, kernel.config, kernel.outcome)
        for number, kernel in enumerate(recorded.kernels)
        if isinstance(kernel.outcome, Measured)
    ]
    finals = run_finals(evaluator, trials)
    assert finals.interleaved and finals.rounds == 40
    assert {f.trial.outcome.digest for f in finals.finalists} == set(three.digests)
    fastest = three.digests[0]
    without = run_finals(evaluator, [t for t in trials if t.outcome.digest != fastest])
    assert not without.interleaved  # two are too few for finals


def test_a_second_entry_of_another_than_the_best_has_the_recorded_noise(recorded):
    evaluator = replay(recorded)
    by_digest = {kernel.digest: kernel.config for kernel in recorded.kernels}
    first, second = (by_digest[digest] for digest in recorded.comparison.digests[:2])
    best, best_again = evaluator.compare([first, first], 30).samples_us
    other, other_again = evaluator.compare([second, second], 30).samples_us
    assert best_again == recorded.comparison.again_us
    assert ratio(other_again, other).median == pytest.approx(ratio(best_again, best).median)


def test_replayed_finals_use_the_recorded_comparison(recorded, replayed):
    result, comparison = replayed.result, recorded.comparison
    for finalist in result.finals.finalists:
        row = comparison.digests.index(finalist.trial.outcome.digest)
        assert finalist.samples_us == comparison.samples_us[row]
    assert result.finals.rounds == 40


def test_a_replay_of_an_older_space_is_still_shown(recorded, storage):
    older = replace(recorded.header.environment, space_version="01d01d01")
    recording = replace(recorded, header=replace(recorded.header, environment=older))
    result = run_search(replay(recording), storage, trials=20)
    view = load_history(storage, result.problem).view
    assert view.summary.replayed
    assert not view.summary.is_current


def test_the_catalogue_gives_the_nearest_untried_config(recorded):
    configs = [kernel.config for kernel in recorded.kernels]
    catalogue = RecordedCandidates(configs, parameters(recorded.header.problem.dtype))
    rng = random.Random(0)
    space = Space(recorded.header.problem, recorded.header.gpu)
    for _ in range(50):
        wanted = space.sample(rng)
        adopted = catalogue.adopt(wanted, rng)
        least = min(len(wanted.differences(c)) for c in configs if not catalogue.is_tried(c))
        assert len(wanted.differences(adopted)) == least
        catalogue.take(adopted)
    assert catalogue.adopt(configs[-1], rng) not in (None, *configs[:0])
