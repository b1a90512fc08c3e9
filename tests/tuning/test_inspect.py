"""Looking into studies: which there are, what they found, what is refused and how."""

import shlex
from dataclasses import replace

import pytest
from fake_evaluator import FakeEvaluator, as_replay
from storages import STORAGES, Memory, storage_of

from explorer.model.config import Config
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Stage
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery
from explorer.report.studies import study_data
from explorer.report.text import search_command
from explorer.tuning.objective import Goal
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage
from explorer.tuning.study_reader import (
    list_views,
    load_history,
    load_trial,
    survey,
)

PROBLEM = Problem(8192, 4096)


@pytest.fixture(scope="module", params=STORAGES)
def searched(tmp_path_factory, request):
    """A storage with one study of 4096 columns, and its result."""
    storage = storage_of(request.param, tmp_path_factory.mktemp("inspect") / "studies.db")
    return storage, run_search(FakeEvaluator(), storage, trials=80)


def test_a_study_is_listed(searched):
    storage, result = searched
    (summary,) = survey(storage).summaries
    assert summary.name == result.study
    assert summary.name.startswith("softmax f32 8192x4096 | NVIDIA H200 | cold | ")
    assert summary.problem == Problem(8192, 4096)
    assert summary.measured == result.measured
    assert summary.is_current
    assert not summary.replayed


def test_a_view_counts_what_the_search_counted(searched):
    storage, result = searched
    view = load_history(storage, result.problem).view
    assert view.rejected == result.rejected
    assert view.finals == result.finals
    assert view.best == result.finals.winner.trial
    assert sum(count for _, _, count in view.reasons) == sum(result.rejected.values())
    invalid = [reason for stage, reason, _ in view.reasons if stage is Stage.INVALID]
    assert all("(" not in reason for reason in invalid)


def test_effects_are_ordered_and_name_the_extremes(searched):
    view = load_history(searched[0], ProblemQuery(4096)).view
    weights = [effect.importance for effect in view.effects]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1.0)
    by_name = {effect.name: effect for effect in view.effects}
    assert by_name["cache"].fastest_value in ("registers", "shared")
    assert all(effect.fastest_us <= effect.slowest_us for effect in view.effects)


@pytest.mark.exhaustive
def test_importances_mostly_lie_in_their_ranges_with_more_trials():
    """Each range is of the parameter's importance; what more trials say lies within or beside.

    In four of twelve searches a parameter leaves its range by more than 0.05, and once by 0.27:
    `unroll`, from 0.02 to 0.33. The fastest tenth is 20 kernels, most of which are close to one of
    the hills that the search climbs, and another hill may have the most of them later. What is
    shown says that importances may leave their range.
    """
    beside = 0
    for seed in range(3):
        storage, views = Memory(), []
        for trials in (200, 65):
            evaluator = FakeEvaluator(identity=Config.to_json)
            run_search(evaluator, storage, trials=trials, rounds=6, seed=seed)
            views.append(
                {e.name: e for e in load_history(storage, ProblemQuery(4096)).view.effects}
            )
        before, after = views
        widths = {name: e.importance_high - e.importance_low for name, e in before.items()}
        assert all(0 <= e.importance_low <= e.importance_high <= 1 for e in before.values())
        off = {name: abs(after[name].importance - e.importance) for name, e in before.items()}
        beside += any(off[name] > width + 0.05 for name, width in widths.items())
        assert any(width > 0 for width in widths.values())
    assert beside <= 1


def test_a_trial_is_found_by_number_and_by_best(searched):
    storage, result = searched
    winner = result.finals.winner.trial
    assert load_trial(storage, result.problem, "best")[1] == winner
    assert load_trial(storage, result.problem, winner.number)[1] == winner
    assert load_trial(storage, result.problem, str(winner.number))[1] == winner


def test_an_unknown_trial_gives_the_range(searched):
    storage, result = searched
    with pytest.raises(NotFound, match=rf"9999 does not exist; .*0 to {result.trials - 1}"):
        load_trial(storage, result.problem, 9999)
    with pytest.raises(InvalidInput, match="'winner' is no trial"):
        load_trial(storage, result.problem, "winner")


def test_a_rejected_trial_gives_its_reason(searched):
    storage, result = searched
    study_id = storage.get_study_id_from_name(result.study)
    rejected = next(t for t in storage.get_all_trials(study_id) if "stage" in t.user_attrs)
    with pytest.raises(InvalidInput) as raised:
        load_trial(storage, result.problem, rejected.number)
    assert rejected.user_attrs["reason"] in str(raised.value)


def test_no_study_names_the_command(searched):
    with pytest.raises(
        NotFound,
        match=r"999 cols yet in .*; run explorer search --cols 999 --dtype f32, or take a kernel "
        r"that needs no search: explorer emit heuristic --cols 999 --dtype f32$",
    ):
        load_history(searched[0], ProblemQuery(999))


def test_no_study_names_the_database(tmp_path):
    path = tmp_path / "studies.db"
    with pytest.raises(NotFound, match=f"yet in {path}; run explorer search"):
        load_history(open_storage(str(path)), ProblemQuery(999))


def test_a_study_of_an_older_space_is_refused_and_a_new_search_begins_afresh(storage):
    old = run_search(FakeEvaluator(version="01d01d01"), storage, trials=5)
    for look in (load_history, lambda s, p: load_trial(s, p, "best")):
        with pytest.raises(NotFound, match=r"space version 01d01d01.*run explorer search"):
            look(storage, old.problem)
    new = run_search(FakeEvaluator(), storage, trials=5)
    assert new.study != old.study
    assert load_history(storage, old.problem).view.summary.name == new.study
    assert [summary.is_current for summary in survey(storage).summaries] == [True, False]


def test_rows_left_out_mean_the_usual_rows_or_the_only_ones(storage):
    run_search(FakeEvaluator(Problem(64, 4096)), storage, trials=2)
    assert load_history(storage, ProblemQuery(4096)).view.summary.problem.rows == 64
    run_search(FakeEvaluator(Problem(32, 4096)), storage, trials=2)
    with pytest.raises(InvalidInput, match=r"2 studies fit .* 4096 cols; name one with --study"):
        load_history(storage, ProblemQuery(4096))
    assert load_history(storage, ProblemQuery(4096, rows=64)).view.summary.problem.rows == 64
    usual = ProblemQuery(4096).problem()
    run_search(FakeEvaluator(usual), storage, trials=2)
    run_search(FakeEvaluator(Problem(64, 4096)), storage, trials=1)
    assert load_history(storage, ProblemQuery(4096)).view.summary.problem == usual


def test_where_several_studies_fit_they_are_named(storage):
    """None is taken: `emit best` would write a kernel for another GPU."""
    for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        run_search(FakeEvaluator(gpu=known_gpu(gpu)), storage, trials=2)
    names = [summary.name for summary in survey(storage).summaries]
    for look in (load_history, lambda *given: load_trial(*given, "best")):
        with pytest.raises(InvalidInput, match="2 studies fit") as raised:
            look(storage, PROBLEM)
        assert all(name in str(raised.value) for name in names)
        assert "--study" in str(raised.value) and "--gpu" in str(raised.value)
    for goal in (
        Goal(gpu="h100"),
        Goal(gpu="NVIDIA H100"),
        Goal(study="H100"),
        Goal(study=names[0]),
    ):
        assert load_history(storage, PROBLEM, goal).view.summary.name == names[0]
    assert load_trial(storage, PROBLEM, "best", near="H200")[0].summary.name == names[1]
    with pytest.raises(InvalidInput, match="2 studies fit"):  # and no study is of this one
        load_trial(storage, PROBLEM, "best", near="A100")
    for goal in (Goal(gpu="A100"), Goal(study="moon")):
        with pytest.raises(NotFound, match="name one with --study") as raised:
            load_history(storage, PROBLEM, goal)
        assert all(name in str(raised.value) for name in names)


@pytest.mark.exhaustive
def test_timing_modes_and_versions_of_replays_are_told_apart(storage):
    class Warm(FakeEvaluator):
        @property
        def environment(self):
            return replace(super().environment, timing="warm")

    run_search(FakeEvaluator(), storage, trials=2)
    run_search(Warm(), storage, trials=2)
    with pytest.raises(InvalidInput, match="2 studies fit"):
        load_history(storage, PROBLEM)
    assert load_history(storage, PROBLEM, Goal(study="warm")).view.environment.timing == "warm"
    other = Memory()
    for version in ("01d01d01", "02d02d02"):
        run_search(as_replay(FakeEvaluator(version=version)), other, trials=2)
    with pytest.raises(InvalidInput, match=r"01d01d01.* replay.*02d02d02|02d02d02.*01d01d01"):
        load_history(other, PROBLEM)
    assert "01d01d01" in load_history(other, PROBLEM, Goal(study="01d01d01")).view.summary.name
    live = run_search(FakeEvaluator(), other, trials=2)  # before replays of the same GPU
    assert load_history(other, PROBLEM).view.summary.name == live.study


def test_the_next_command_names_its_study_where_it_must(storage):
    alone = run_search(FakeEvaluator(), storage, trials=2)
    assert "--study" not in study_data(load_history(storage, PROBLEM).view)["emit"]
    assert alone.goal.study_options == []
    gpu = known_gpu("NVIDIA H100 80GB HBM3")
    second = run_search(FakeEvaluator(gpu=gpu), storage, trials=2)
    assert second.goal.study_options == ["--study", second.study]
    view = load_history(storage, PROBLEM, Goal(gpu="H200")).view
    words = shlex.split(study_data(view)["emit"])
    assert words[words.index("--study") + 1] == alone.study
    assert "--study" not in search_command(view.summary)


def test_time_and_copy_of_a_study_are_those_of_its_finals(searched):
    storage, result = searched
    (summary,) = survey(storage).summaries
    finals = result.finals
    assert summary.best_us == finals.winner.time_us != finals.winner.trial.outcome.time_us
    assert summary.limit_us == finals.limit_us == result.environment.limit_us
    assert load_history(storage, result.problem).view.environment == result.environment


def test_a_stopped_search_leaves_the_finals_and_tells_what_looks_faster(storage):
    class Interrupted(FakeEvaluator):
        @property
        def environment(self):
            return replace(super().environment, limit_us=99.0, driver="another")

        def evaluate(self, config):
            if len(self.evaluated) == 60:
                raise KeyboardInterrupt
            return super().evaluate(config)

    first = run_search(FakeEvaluator(), storage, trials=4)
    with pytest.raises(KeyboardInterrupt):
        run_search(Interrupted(), storage, trials=100, seed=7)
    view = load_history(storage, first.problem).view
    assert view.finals == first.finals
    assert view.environment == first.environment
    assert view.summary.limit_us == first.finals.limit_us
    assert view.best == first.finals.winner.trial == load_trial(storage, first.problem, "best")[1]
    assert view.since.outcome.time_us < view.best.outcome.time_us
    last = run_search(FakeEvaluator(), storage, trials=1)
    assert last.finals.winner.time_us < first.finals.winner.time_us
    assert load_history(storage, first.problem).view.since is None


def test_each_listed_study_has_a_view(storage):
    for problem in (Problem(64, 4096), Problem(8, 512)):
        run_search(FakeEvaluator(problem), storage, trials=2)
    run_search(FakeEvaluator(Problem(64, 4096), gpu=known_gpu("Tesla T4")), storage, trials=2)
    run_search(FakeEvaluator(Problem(8, 512), version="01d01d01"), storage, trials=2)
    views = list_views(storage)
    assert [(view.summary.problem.cols, view.summary.gpu) for view in views] == [
        (512, "NVIDIA H200"),
        (4096, "NVIDIA H200"),
        (4096, "Tesla T4"),
    ]


def test_studies_of_other_programs_are_passed_over(storage):
    from optuna.study import StudyDirection

    storage.create_new_study([StudyDirection.MAXIMIZE], "someone else's")
    assert survey(storage).summaries == []
