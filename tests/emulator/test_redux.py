"""Maxima by redux.sync, in warps and in folds of what warps found, verified by emulation."""

from dataclasses import replace

import pytest
from verified import find_out, verify

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Problem

REDUX = Config(threads=192, threads_per_row=192, reduction="shuffle-redux")
FIRST_WARP = replace(REDUX, reduction="shuffle-redux-first-warp")
ONLINE = {"algorithm": "online-block-max"}
CLUSTER = {"threads": 128, "threads_per_row": 128, "cluster": 4}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("algorithm", ["three-pass", "online-block-max"])
@pytest.mark.parametrize("config", [REDUX, FIRST_WARP], ids=["all warps", "first warp"])
@pytest.mark.parametrize("threads", [64, 96, 192, 1024])
def test_folds_of_any_number_of_warps(emulator, threads, config, algorithm):
    config = replace(config, threads=threads, threads_per_row=threads, algorithm=algorithm)
    verify(emulator, Problem(3, 4099, DType.BF16), config)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("exchange", ["barrier", "mbarrier"])
@pytest.mark.parametrize("algorithm", ["three-pass", "online-block-max"])
def test_the_first_warp_of_a_clusters_blocks(emulator, algorithm, exchange):
    config = replace(FIRST_WARP, **CLUSTER, algorithm=algorithm, exchange=exchange)
    verify(emulator, Problem(2, 8193), config)


DEFECTS = {
    "negative numbers order backwards": ("bits ^ (bits >> 31 & 0x7fffffff)", "bits"),
    "lanes add one neighbour's sum": ("shuffle_xor(sum, lanes)", "shuffle_xor(sum, 1)"),
    "sums are not rescaled": (
        "float sum = state.sum * exponential(state.maximum, reference);",
        "float sum = state.sum;",
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("config", [REDUX, FIRST_WARP], ids=["all warps", "first warp"])
def test_defects_are_found_out(emulator, config, defect):
    find_out(emulator, Problem(3, 4099), replace(config, **ONLINE), [DEFECTS[defect]])


FOLD = "  value = source < kWarpsPerRow ? scratch[source] : State::identity();\n"


def test_lanes_that_do_not_repeat_what_warps_found_are_found_out(emulator):
    strays = FOLD.replace("State::identity()", "scratch[0]")
    find_out(emulator, Problem(3, 4099), replace(REDUX, **ONLINE), [(FOLD, strays)])
