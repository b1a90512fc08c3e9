"""What a search tries first."""

import random

import pytest

from explorer.dtype import DType
from explorer.gpu_spec import known_gpu
from explorer.op import Op
from explorer.problem import Problem
from explorer.search.seeds import seeds
from explorer.space import Space, config_for

H200 = known_gpu("NVIDIA H200")


def seeds_of(problem, gpu=H200):
    space = Space(problem, gpu)
    found = seeds(space, random.Random(0))
    assert all(space.is_legal(config) for config in found)
    assert len(set(found)) == len(found)
    return found


@pytest.mark.parametrize("cols", [1, 17, 1000, 4096, 32768, 131072])
def test_the_heuristic_comes_first(cols):
    problem = Problem(256, cols, DType.BF16)
    assert seeds_of(problem)[0] == config_for(problem, H200)


def test_wide_rows_are_tried_by_asynchronous_copies_and_in_two_launches():
    found = seeds_of(Problem(64, 131072, DType.BF16))
    copied = [config.cluster for config in found if config.staging == "async"]
    assert copied and max(copied) > 1
    assert any(config.launches == "two-overlapped" for config in found)
    short = seeds_of(Problem(64, 4096, DType.BF16))
    assert not any(config.staging == "async" or config.launches != "one" for config in short)


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA A100-SXM4-80GB"])
def test_what_a_gpu_lacks_is_repaired(name):
    assert len(seeds_of(Problem(64, 131072), known_gpu(name))) > 5
    assert len(seeds_of(Problem(64, 131072, op=Op.SOFTMAX_BACKWARD), known_gpu(name))) > 5
