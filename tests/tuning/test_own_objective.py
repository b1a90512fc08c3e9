"""An objective of the user's: what is learnt, stored, compared in finals, shown and refused."""

import json
import re
from statistics import median

import pytest
from fake_evaluator import RestsOnRegisters
from storages import Memory

import explorer
from explorer.model.errors import InvalidInput
from explorer.report.studies import search_data, study_data
from explorer.tuning.contest import finals_from_json, finals_to_json
from explorer.tuning.objective import Goal, Objectives
from explorer.tuning.search import run_search
from explorer.tuning.study_reader import load_history

NAME = f"{__name__}:weighed"


def weighed(outcome):
    """Registers matter most: the fastest kernel is seldom the best by this."""
    return outcome.resources.registers + outcome.time_us / 1000


def negative(outcome):
    return -outcome.time_us


def nothing(outcome):
    return None


def failing(outcome):
    raise KeyError("power")


def slow_first(outcome):
    return 1.0 / outcome.time_us


@pytest.fixture(scope="module")
def searched():
    storage = Memory()
    result = run_search(RestsOnRegisters(), storage, trials=40, objectives=Objectives.of(weighed))
    return storage, result


def test_the_least_value_is_the_best_and_the_study_has_it(searched):
    storage, result = searched
    assert NAME in result.study and result.objectives == Objectives(NAME)
    trials = [trial for trial in storage.get_all_trials(0) if trial.values]
    history = load_history(storage, result.problem, Goal(Objectives(NAME)))
    by_number = {trial.number: trial for trial in history.measured}
    for trial in trials:
        assert trial.values == [weighed(by_number[trial.number].outcome)]
    best = min(history.measured, key=lambda trial: weighed(trial.outcome))
    assert result.best.registers == best.outcome.resources.registers
    assert history.view.best.number == result.best.trial.number


def test_finals_compare_the_values_round_by_round(searched):
    _, result = searched
    for one in result.finalists:
        values = [one.trial.outcome.resources.registers + s / 1000 for s in one.samples_us]
        assert one.value == pytest.approx(median(values))
    apart = [one.ratio_to_best for one in result.finalists if not one.tied]
    assert apart == sorted(apart) and all(ratio > 1 for ratio in apart)
    assert finals_from_json(finals_to_json(result.finals)) == result.finals


def test_what_is_slow_can_be_asked_for():
    result = run_search(
        RestsOnRegisters(), Memory(), trials=30, objectives=Objectives.of(slow_first)
    )
    assert result.time_us == max(one.time_us for one in result.ties)
    assert result.time_us > 1.5 * run_search(RestsOnRegisters(), Memory(), trials=30).time_us


def test_it_is_shown_with_its_values(searched):
    storage, result = searched
    data = search_data(result)
    assert data["objectives"] == NAME and data["best"]["value"] == result.best.value
    assert f"--objectives {NAME}" in data["emit"]
    view = load_history(storage, result.problem, Goal(Objectives.parse(NAME))).view
    assert study_data(view)["best"]["value"] == result.best.value
    json.dumps(study_data(view))


def test_where_there_were_no_finals_the_least_value_is_the_best():
    class Stopped(Exception):
        pass

    class Storage(Memory):
        def put_attributes(self, study_id, user, *more):
            if "finals" in "".join(user):
                raise KeyboardInterrupt
            return super().put_attributes(study_id, user, *more)

    storage = Storage()
    with pytest.raises(KeyboardInterrupt):
        run_search(RestsOnRegisters(), storage, trials=20, objectives=Objectives.of(weighed))
    history = load_history(storage, RestsOnRegisters().problem, Goal(Objectives(NAME)))
    assert history.view.finals is None
    assert history.view.best == min(history.measured, key=lambda one: weighed(one.outcome))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (negative, "gave -"),
        (nothing, "raised TypeError"),
        (failing, "raised KeyError: 'power'; what finished before is kept"),
    ],
)
def test_what_it_raises_is_said_in_a_sentence(function, says):
    storage = Memory()
    with pytest.raises(InvalidInput, match=re.escape(f":{function.__name__} {says}")):
        run_search(RestsOnRegisters(), storage, trials=5, objectives=Objectives.of(function))
    assert not storage.get_all_studies(), "a study without a kernel is left"


def test_what_finished_before_an_objective_fails_is_kept():
    first = []

    def fails_later(outcome):
        first.append(outcome)
        return weighed(outcome) if outcome is first[0] else failing(outcome)

    storage = Memory()
    with pytest.raises(InvalidInput, match="what finished before is kept"):
        run_search(RestsOnRegisters(), storage, objectives=Objectives(NAME, fails_later))
    history = load_history(storage, RestsOnRegisters().problem, Goal(Objectives(NAME)))
    assert len(history.attempts) == 1


@pytest.mark.parametrize(
    ("objectives", "says"),
    [
        ("speed", "choose time or time,error, or name a function"),
        ("nowhere:it", "cannot be loaded (ModuleNotFoundError"),
        (f"{__name__}:NAME", "it must be a function"),
        (lambda outcome: 1.0, "a function of a module, which names the study"),
        (5, "objectives are 5"),
    ],
)
def test_what_is_no_objective_is_refused(objectives, says):
    with pytest.raises(InvalidInput, match=re.escape(says)):
        explorer.search(cols=64, objectives=objectives)


def test_a_function_and_its_name_are_one_objective():
    assert Objectives.of(weighed) == Objectives.of(NAME) == Objectives.parse(NAME)
    assert Objectives.parse(NAME).score is None and Objectives.of(NAME).score is weighed
