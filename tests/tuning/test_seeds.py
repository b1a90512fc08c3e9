"""What a search tries first."""

import random

import pytest

from explorer.choose import config_for
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.space import Space
from explorer.tuning.objective import Goal, Objectives
from explorer.tuning.seeds import seeds, seeds_of

H200 = known_gpu("NVIDIA H200")


def seeds_for(problem, gpu=H200):
    space = Space(problem, gpu)
    found = seeds(space, random.Random(0))
    assert all(space.is_legal(config) for config in found)
    assert len(set(found)) == len(found)
    return found


@pytest.mark.parametrize("cols", [1, 17, 1000, 4096, 32768, 131072])
def test_the_heuristic_comes_first(cols):
    problem = Problem(256, cols, DType.BF16)
    assert seeds_for(problem)[0] == config_for(problem, H200)


def test_wide_rows_are_tried_by_asynchronous_copies_and_in_two_launches():
    found = seeds_for(Problem(64, 131072, DType.BF16))
    copied = [config.cluster for config in found if config.staging == "async"]
    assert copied and max(copied) > 1
    assert any(config.launches == "two-overlapped" for config in found)
    short = seeds_for(Problem(64, 4096, DType.BF16))
    assert not any(config.staging == "async" or config.launches != "one" for config in short)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA A100-SXM4-80GB"])
def test_what_a_gpu_lacks_is_repaired(name):
    assert len(seeds_for(Problem(64, 131072), known_gpu(name))) > 5
    assert len(seeds_for(Problem(64, 131072, op=Op.SOFTMAX_BACKWARD), known_gpu(name))) > 5


def test_a_strict_search_tries_no_exponential_that_cannot_pass():
    space = Space(Problem(8192, 4096), H200)
    strict = seeds_of(Goal(accuracy=Accuracy.STRICT), space, random.Random(0))
    assert len(strict) > 5
    assert {config.exp for config in strict} == {"expf"}


def test_a_front_is_begun_from_both_ends():
    space = Space(Problem(8192, 4096), H200)
    goal = Goal(Objectives.TIME_ERROR, Accuracy.FAST)
    first = seeds_of(goal, space, random.Random(0))
    assert [config.exp for config in first[:4]].count("expf") == 2
    assert first[1].sum == "compensated"
    assert set(seeds(space, random.Random(0), Accuracy.FAST)) <= set(first)
