"""The published forms of attention: legal where they say so, right, and in the order of ideas."""

import random
import re
from dataclasses import replace

import pytest

from explorer.codegen.units import emit
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.config import Config, parameters, refuted
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.key_split import KeySplit
from explorer.model.problem import Mask, Problem
from explorer.model.query import query_from_keywords
from explorer.ops import OPERATORS, Op
from explorer.presets.ladder import ATTENTION_LADDER, usual_problem
from explorer.presets.published import PRESETS, find_preset
from explorer.report.ladder import kept_journey, ladder_data, ladder_steps
from explorer.report.profile import moved_bytes
from explorer.space import Space
from explorer.space.candidates import listed

H200 = known_gpu("NVIDIA H200")
EMULATOR = Emulator("sm_90")
OF_ATTENTION = [preset for preset in PRESETS if Op.DECODE_ATTENTION in preset.ops]
LLAMA = query_from_keywords(usual_problem(Op.DECODE_ATTENTION)).problem()
"""The next token of 32 sequences, of a model of 32 query heads and 8 key heads."""

FIRST_FORMS = ("llm.c-attention-1", "vllm-paged-v1", "flash-attention-minimal", "vllm-paged-v2")
"""The presets with values that a search does not propose."""


def problem_of(group, dtype, head_dim, **more):
    """Sequences of several lengths, one of which is 0, for a kernel that also stores the lse."""
    return Problem(
        rows=group * 2 * 4,
        cols=1100,
        dtype=dtype,
        op=Op.DECODE_ATTENTION,
        group=group,
        key_heads=2,
        head_dim=head_dim,
        **{"mask": Mask.LENGTHS, "also": "lse", **more},
    )


KINDS = {
    1: problem_of(1, DType.F32, 64),
    4: problem_of(4, DType.BF16, 128),
    5: problem_of(5, DType.F16, 64, scale=0.3),
    8: problem_of(8, DType.BF16, 256),
}
"""By the heads of a group."""


@pytest.mark.sampled(7)
@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("preset", OF_ATTENTION, ids=lambda preset: preset.name)
def test_it_is_right_for_lengths_groups_and_lse(preset, group):
    problem = KINDS[group]
    fault = preset.fault(problem, H200)
    if fault is not None:
        expected = "f32" if problem.dtype is DType.F32 else "group is"
        assert expected in fault and preset.name.startswith("flash")
        return
    program = ProgramUnderTest.of_config(problem, preset.config(problem, H200))
    verdict = EMULATOR.verify(program)
    assert verdict.status is Status.VERIFIED, verdict.sentence


@pytest.mark.parametrize("preset", OF_ATTENTION, ids=lambda preset: preset.name)
def test_its_config_is_legal_wherever_it_is_for(preset):
    found = 0
    for problem in KINDS.values():
        for cols in (1, 100, 513, 4096, 16384, 100_000, 2**20):
            asked = problem.resized(cols=cols)
            if preset.fault(asked, H200) is None:
                found += 1
                assert Space(asked, H200).is_legal(preset.config(asked, H200))
    assert found > 5


def test_scores_in_shared_memory_limit_the_keys_and_the_message_says_how_many_fit():
    preset = find_preset("vllm-paged-v1")
    fault = preset.fault(LLAMA.resized(cols=100_000), H200)
    most = int(re.search(r": (\d+) keys fit, and", fault)[1])
    assert fault.startswith("scores-fit: ") and "and a block has 100000 (" in fault
    assert preset.fault(LLAMA.resized(cols=most), H200) is None
    assert preset.fault(LLAMA.resized(cols=most + 1), H200) is not None
    (launch,) = emit(LLAMA.resized(cols=most), preset.config(LLAMA, H200)).launches
    assert launch.shared_bytes == 4 * most
    with pytest.raises(InvalidInput, match="keys fit, and a block has"):
        preset.config(LLAMA.resized(cols=most + 1), H200)


def test_parts_lift_the_limit_and_the_merge_takes_no_shared_memory():
    problem = LLAMA.resized(cols=2**20)
    config = find_preset("vllm-paged-v2").config(problem, H200)
    part, merge = emit(problem, config).launches
    assert part.shared_bytes == 4 * KeySplit(problem, config).most_part_keys == 4 * 2**20 // 128
    assert merge.shared_bytes == 0
    few = find_preset("vllm-paged-v2").fault(LLAMA.resized(cols=512), H200)
    assert few == "cols is 512; one part has 512 keys: take vllm-paged-v1"


def test_unfused_launches_share_a_matrix_of_scores():
    variant = emit(LLAMA, find_preset("llm.c-attention-1").config(LLAMA, H200))
    steps = [launch.entry.rsplit("_", 2)[1] for launch in variant.launches]
    assert steps == ["score", "softmax", "value"]
    assert variant.scratch_bytes == 4 * LLAMA.rows * LLAMA.cols


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"launches": "three", "cache": "shared"}, "scores-in-one-place"),
        ({"launches": "three", "heads_per_thread": 2}, "scores-of-one-head"),
        ({"cache": "shared", "unroll": 2}, "scores-of-one-head"),
        ({"cache": "shared", "core": "mma"}, "scores-of-one-head"),
        ({"launches": "three", "splits": 2}, "parts-meet"),
        ({"launches": "three", "cluster": 2, "splits": 2}, "parts-meet"),
    ],
)
def test_what_kept_scores_do_not_go_with(changes, rule):
    plain = Config(core="fma", static_cols=False, exp="exp2f")
    assert Space(LLAMA, H200).is_legal(plain)
    broken = Space(LLAMA, H200).broken_rules(replace(plain, **changes))
    assert rule in [one.name for one in broken]


# ------------------------------------------------------------------ what a search proposes


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
def test_a_search_proposes_none_of_the_first_forms(dtype):
    problem = replace(LLAMA, dtype=dtype, out_dtype=None)
    searched, alone = Space.searched(problem, H200), refuted(problem.operator)
    rng = random.Random(0)
    drawn = [searched.sample(rng) for _ in range(100)]
    drawn += searched.neighbours(drawn[0]) + listed(problem, H200)
    assert all(map(Space(problem, H200).is_legal, drawn))
    for config in drawn:
        assert not KeySplit(problem, config).keeps_scores
        assert config.lanes_per_key not in alone["lanes_per_key"]


@pytest.mark.parametrize("name", FIRST_FORMS)
def test_the_first_forms_are_legal_and_not_proposed(name):
    config = find_preset(name).config(LLAMA, H200)
    assert Space(LLAMA, H200).is_legal(config)
    assert Space.searched(LLAMA, H200).foreign_value(config)


def test_every_value_that_is_not_proposed_is_one_of_the_space():
    operator = OPERATORS[Op.DECODE_ATTENTION]
    every = parameters(DType.BF16, operator)
    for name, values in refuted(operator).items():
        assert set(values) < set(every[name])


# ------------------------------------------------------------------ the ladder


@pytest.fixture(scope="module")
def steps():
    return ladder_steps(LLAMA.resized(cols=1024), H200, None)


def test_the_ladder_has_every_published_form_once(steps):
    assert [step.rung.preset for step in steps] == [preset.name for preset in OF_ATTENTION]
    assert [step.rung for step in steps] == list(ATTENTION_LADDER)
    assert all(step.config for step in steps)
    assert len({emit(step.problem, step.config).digest for step in steps}) == len(steps)
    rungs = ladder_data(steps, None)["rungs"]
    assert all(rung["time_us"] is None and rung["fault"] is None for rung in rungs)


def test_each_rung_has_a_time_in_the_kept_journey():
    assert all(step.timed for step in ladder_steps(LLAMA, H200, kept_journey(LLAMA)))


@pytest.mark.exhaustive
def test_what_the_ladder_says_of_bytes_registers_and_instructions_is_so(steps):
    of = {step.rung.preset: step.profile for step in steps}
    moved = {name: moved_bytes(one) / one.elements for name, one in of.items()}
    warps = {
        name: one.occupancy.blocks_per_sm * one.variant.launches[0].block
        for name, one in of.items()
    }
    assert moved["llm.c-attention-1"] > 1.9 * moved["vllm-paged-v1"]
    assert moved["llama.cpp-vec"] > 3.9 * moved["flashinfer-decode"]
    assert warps["llama.cpp-vec"] == 6 * warps["flash-attention-minimal"]
