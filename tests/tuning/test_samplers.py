"""The search's own mixture as an Optuna sampler: in a study of anyone's, and by its name."""

import logging
import math
import random

import optuna
import pytest
from fake_evaluator import GPU, failure, model_us
from optuna.trial import TrialState
from replays import replay
from storages import Memory

from explorer.devices.recording import load_recording
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.space import Space
from explorer.tuning.objective import Goal
from explorer.tuning.proposer import Proposer, SpaceCandidates
from explorer.tuning.samplers import ExplorerSampler, sampler_of
from explorer.tuning.search import run_search
from explorer.tuning.seeds import seeds_of
from explorer.tuning.storage import open_storage
from explorer.tuning.surrogate import distributions

NAME = "explorer.tuning.samplers:ExplorerSampler"
SPACE = Space(Problem(8192, 4096), GPU)
PARAMETERS = distributions(SPACE.parameters)


def value_of(config):
    return math.inf if failure(config) else model_us(config)


def optimised(study, trials):
    """Ask and tell so many trials by the model; gives their configs."""
    configs = []
    for _ in range(trials):
        trial = study.ask(PARAMETERS)
        configs.append(Config(**trial.params))
        us = value_of(configs[-1])
        told = {"state": TrialState.PRUNED} if us == math.inf else {"values": us}
        study.tell(trial, **told)
    return configs


def proposed(seed, trials):
    """What the search's proposer gives where each proposal waits for the one before."""
    space = Space(SPACE.problem, GPU)  # a space counts its draws: each search has its own
    first = seeds_of(Goal(), space, random.Random(seed))
    proposer = Proposer(SpaceCandidates(space), Config.to_json, first, seed, lambda *_: None)
    configs = []
    for _ in range(trials):
        proposal = proposer.propose()
        configs.append(proposal.config)
        proposer.learn(proposal.config, proposal.digest, (value_of(proposal.config),))
    return configs


def test_a_study_of_anyone_s_gets_the_proposals_of_a_search():
    study = optuna.create_study(sampler=ExplorerSampler(Space(SPACE.problem, GPU), seed=5))
    configs = optimised(study, 60)
    assert configs == proposed(5, 60)
    assert len(set(configs)) == 60 and all(map(SPACE.is_legal, configs))
    by_chance = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=5))
    optimised(by_chance, 60)
    assert study.best_value < by_chance.best_value


def test_it_says_nothing_of_studies_that_are_not_the_user_s(caplog):
    with caplog.at_level(logging.INFO, logger="optuna"):
        study = optuna.create_study(study_name="mine", sampler=ExplorerSampler(SPACE))
        optimised(study, 2)
    assert [record.name for record in caplog.records if "new study" in record.message] == [
        "optuna.storages._in_memory"
    ]


@pytest.mark.exhaustive
def test_a_study_goes_on_with_what_it_holds(tmp_path):
    """Another sampler, in another process, learns of all trials; what is of others is passed by."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    open_storage(url)
    mine = {"study_name": "mine", "storage": url}
    before = optimised(optuna.create_study(**mine, sampler=ExplorerSampler(SPACE)), 15)
    study = optuna.load_study(**mine, sampler=ExplorerSampler(SPACE))
    study.tell(study.ask(), 1.0)
    trial = study.ask(PARAMETERS)
    study.tell(trial, state=TrialState.FAIL)
    after = [Config(**trial.params), *optimised(study, 15)]
    assert len(set(before) | set(after)) == 31
    assert study.ask().suggest_int("of_another_space", 1, 3) in (1, 2, 3)


def test_where_every_config_was_tried_it_proposes_what_there_is():
    values = {name: (value,) for name, value in Config().as_dict().items()}
    values["exp"] = ("ex2.approx", "expf")
    study = optuna.create_study(sampler=ExplorerSampler(Space(SPACE.problem, GPU, values)))
    configs = []
    for _ in range(3):
        trial = study.ask(distributions(values))
        configs.append(Config(**trial.params))
        study.tell(trial, value_of(configs[-1]))
    assert len(set(configs)) == 2


@pytest.mark.parametrize(
    "study", [{"direction": "maximize"}, {"directions": ["minimize", "minimize"]}]
)
def test_a_study_of_something_else_is_refused(study):
    made = optuna.create_study(**study, sampler=ExplorerSampler(SPACE))
    with pytest.raises(InvalidInput, match="must minimise one value"):
        made.ask(PARAMETERS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["h200-f32-1501", "h200-f32-32768"])
def test_by_its_name_a_search_is_the_one_without_a_name(name):
    def trials(**options):
        storage = Memory()
        run_search(replay(load_recording(name)), storage, trials=30, seed=2, **options)
        return [(t.params, t.values, t.user_attrs) for t in storage.get_all_trials(0)]

    assert trials(sampler=sampler_of(NAME)) == trials()


class Stubborn(optuna.samplers.RandomSampler):
    """Proposes one illegal config again and again."""

    def sample_independent(self, study, trial, param_name, param_distribution):
        return param_distribution.choices[-1]


def test_a_proposal_is_repaired_to_the_nearest_config_that_is_left():
    wanted = Config(**{name: values[-1] for name, values in SPACE.parameters.items()})
    candidates = SpaceCandidates(Space.searched(SPACE.problem, GPU))
    wanted = Config(**{name: values[-1] for name, values in candidates.drawn.items()})
    proposer = Proposer(candidates, Config.to_json, [], 0, lambda *_: None, sampler=Stubborn)
    configs = []
    for _ in range(12):
        one = proposer.propose()
        configs.append(one.config)
        proposer.learn(one.config, one.digest, (1.0 + len(configs),))
    assert len(set(configs)) == 12 and candidates.broken_rule(wanted) is not None
    assert all(map(Space.searched(SPACE.problem, GPU).is_legal, configs))
    far = [len(config.differences(wanted)) for config in configs]
    assert far == sorted(far) == proposer.repaired and far[0] > 0
    trials = proposer._sampler._study.trials
    assert [trial.value for trial in trials] == [1.0 + n for n in range(1, 13)]
    assert all(Config(**trial.params) == wanted for trial in trials)


def test_a_search_says_how_many_proposals_were_repaired_and_how_far():
    name = "optuna.samplers:RandomSampler"
    evaluator = replay(load_recording("h200-f32-4096"))
    kind, trials = optuna.samplers.RandomSampler, {}
    for wanted in (name, kind, kind(seed=1)):
        storage = Memory()
        result = run_search(evaluator, storage, trials=20, sampler=sampler_of(wanted))
        trials[wanted] = [one.trial for one in result.attempts]
    assert trials[name] == trials[kind]
    assert "each was repaired to the nearest one that is left, which differs in" in result.changed
    assert " values in the mean, " in result.changed and result.changed.endswith(" at most")
