"""Kernels of attention are verified whole: every legal config that is drawn, and what they try."""

import random
from dataclasses import replace

import pytest
from planted_attention import BY_LANES, BY_TILES, PLAIN, PROBLEM, SINGLE, TILES

from explorer.devices.emulated.emulator import Emulator
from explorer.devices.emulated.far import FAR_ELEMENTS, far_problems
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.runs import emulated_runs, few_blocks, too_large
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.key_split import KeySplit
from explorer.model.problem import Layout, Mask, Problem, inputs, results
from explorer.ops import Op
from explorer.space.space import Space

EMULATOR = Emulator("sm_90")

GPU = known_gpu("NVIDIA H200")


def drawn(seed):
    """A random problem, and a legal config of it."""
    rng = random.Random(seed)
    group, heads = rng.choice((1, 3, 4, 5, 7, 8)), rng.choice((1, 2, 8))
    problem = Problem(
        group * heads * rng.choice((1, 4)),
        rng.choice((100, 1000, 4096, 16384, 100_000)),
        rng.choice(("bf16", "bf16", "f16", "f32")),
        Op.DECODE_ATTENTION,
        group=group,
        key_heads=heads,
        head_dim=rng.choice((64, 128, 256)),
        mask=rng.choice((Mask.NONE, Mask.LENGTHS)),
        also=rng.choice(("", "lse")),
        scale=rng.choice((None, None, 0.2)),
        layout=rng.choice(list(Layout)),
    )
    return problem, Space(problem, GPU).sample(rng)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(24))
def test_legal_configs_are_verified(seed):
    problem, config = drawn(seed)
    program = replace(ProgramUnderTest.of_config(problem, config), seed=seed)
    verdict = EMULATOR.verify(program)
    rounded = config.probabilities == "one"
    due = (Status.VERIFIED, Status.INACCURATE) if rounded else (Status.VERIFIED,)
    assert verdict.status in due, verdict.sentence


def test_probabilities_of_16_bits_are_inaccurate_and_not_wrong():
    config = replace(BY_TILES, probabilities="one")
    verdict = EMULATOR.verify(ProgramUnderTest.of_config(PROBLEM, config))
    assert verdict.status is Status.INACCURATE, verdict.sentence


@pytest.mark.exhaustive
def test_fp16_keeps_the_digits_of_small_weights():
    problem = replace(PROBLEM, dtype="f16", out_dtype=None)
    program = ProgramUnderTest.of_config(problem, BY_TILES)
    right = ("kRaisedBy = 14.0f", "kRaised = 16384.0f")
    source = program.source
    assert all(source.count(text) == 1 for text in right)
    source = source.replace(right[0], "kRaisedBy = 0.0f").replace(right[1], "kRaised = 1.0f")
    assert EMULATOR.verify(program).status is Status.VERIFIED
    assert EMULATOR.verify(replace(program, source=source)).status is Status.WRONG


@pytest.mark.parametrize("config", [BY_TILES, BY_LANES])
def test_runs_have_what_small_problems_can_show(config):
    program = ProgramUnderTest.of_config(PROBLEM, config)
    problems = [run.problem for run in emulated_runs(replace(program, thorough=True))]
    part, parts = KeySplit(PROBLEM, config).least_part_keys, config.splits
    assert {problem.layout for problem in problems} == set(Layout)
    assert {problem.key_heads for problem in problems} >= {1, 2, 3}
    assert {problem.group for problem in problems} == {PROBLEM.group}
    assert {1, 2, 15, 16, 17, part - 1, part, part + 1} <= {problem.cols for problem in problems}
    assert {(parts - 1) * part + 1, parts * part, parts * part + 1} <= {p.cols for p in problems}
    assert {problem.scale for problem in problems} >= {0.0, PROBLEM.scale}
    assert not any(map(too_large, problems))


def test_runs_take_rows_that_are_asked_for():
    program = ProgramUnderTest.of_config(PLAIN, SINGLE[1])
    assert emulated_runs(program, 32)[0].problem == replace(PLAIN, rows=32)
    assert EMULATOR.verify(program, 16).status is Status.VERIFIED
    with pytest.raises(InvalidInput, match="whole sequences"):
        emulated_runs(program, 30)


def test_another_seed_draws_other_columns_and_lengths():
    program = ProgramUnderTest.of_config(*TILES)
    first, second = (emulated_runs(replace(program, seed=seed)) for seed in (0, 1))
    assert [run.problem.cols for run in first] != [run.problem.cols for run in second]
    lengths = [run[0].case.arrays(0)["lengths"].tolist() for run in (first, second)]
    assert lengths[0] != lengths[1]


def test_each_order_of_threads_is_tried_on_one_sequence():
    program = ProgramUnderTest.of_config(*TILES)
    few = few_blocks(program, emulated_runs(program)[0]).problem
    assert few.rows == few.heads and few.cols >= 2 * KeySplit(*TILES).block_keys


@pytest.mark.parametrize("blocks", [1, 3, 1024])
def test_far_keys_and_queries_lie_beyond_32_bits(blocks):
    problems = far_problems(PROBLEM, PROBLEM.group, blocks=blocks)
    caches = problems[:3]
    assert {problem.layout for problem in caches} == set(Layout)
    for problem in caches:
        assert min(o.count for o in inputs(problem) if o.name in ("key", "value")) > FAR_ELEMENTS
    grids = [problem.rows // problem.group * blocks for problem in problems]
    assert max(grids) < 2**31
    if blocks <= 3:
        assert results(problems[-1])[0].count > FAR_ELEMENTS
    within = caches[-1]  # of one sequence, whose keys are far apart
    assert within.rows == 2 * within.heads
    assert (within.cols - 1) * within.key_heads * within.head_dim > FAR_ELEMENTS


@pytest.mark.parametrize("of_one", ["key_stride < head_stride", "key_stride > head_stride"])
def test_a_defect_of_one_layout_alone_is_found(of_one):
    program, right = ProgramUnderTest.of_config(*SINGLE), "value + place,"
    assert program.source.count(right) == 1
    wrong = f"value + place + ({of_one} ? kWidth : 0),"
    verdict = EMULATOR.verify(replace(program, source=program.source.replace(right, wrong)))
    assert verdict.status is Status.WRONG, verdict.sentence


def test_no_length_is_far_beyond_the_keys():
    """A kernel that believes a length would otherwise run for minutes, until it is given up."""
    for run in emulated_runs(ProgramUnderTest.of_config(*TILES)):
        lengths = run.case.arrays(0)["lengths"]
        assert lengths.max() < run.problem.cols + 5000 and lengths.max() > 0


@pytest.mark.exhaustive
def test_a_config_whose_parts_small_problems_do_not_fill_is_verified():
    config = Config(
        core="fma",
        heads_per_thread=2,
        lanes_per_key=8,
        splits=128,
        part_keys=1024,
        launches="two",
        threads=64,
        static_cols=False,
    )
    problem = PLAIN.resized(cols=200_000)
    verdict = EMULATOR.verify(ProgramUnderTest.of_config(problem, config))
    assert verdict.status is Status.VERIFIED, verdict.sentence
