"""Published kernels: named once, legal where they say so, right in every dtype."""

from itertools import chain

import pytest

from explorer.codegen.units import emit
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.presets.ladder import LADDER, RUNGS
from explorer.presets.preset import IDLE_THREADS
from explorer.presets.published import BETWEEN, PRESET_NAMES, PRESETS, REPORTED, find_preset
from explorer.report.ladder import kept_journey, ladder_data, ladder_steps
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")
ROWS = 8192
INNER = 24
USUAL = Problem(8192, 4096)

ROUND = (8, 64, 1024, 4096, 16384)
"""Widths of which the narrowest that a preset is for is verified."""

RAGGED = (7, 37, 1001, 4099, 16387)

by_name = pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)


def problem_of(preset, rows, cols, dtype, op=None):
    """Contiguous rows, or for what is for a middle axis such rows as it may have."""
    inner = INNER if preset.across_rows else 1
    return Problem(rows * inner, cols, dtype, op or preset.ops[0], inner=inner)


def legal_widths(preset, dtype, widths, op):
    problems = (problem_of(preset, ROWS, cols, dtype, op) for cols in widths)
    return [p for p in problems if preset.fault(p, H200) is None]


def test_names_are_unique():
    names = [name for preset in PRESETS for name in (preset.name, *preset.other_names)]
    assert len(set(names)) == len(names)
    assert all(find_preset(name) for name in names)


@by_name
def test_a_preset_says_what_it_is_and_where_from(preset):
    assert preset.sentence.endswith(".") and preset.source.project and preset.source.place
    assert preset.ops and preset.dtypes


@by_name
def test_a_config_that_it_gives_is_legal(preset):
    found = 0
    for dtype in preset.dtypes:
        for cols in (*ROUND, *RAGGED, 32768, 50257, 131072):
            for rows in (1, 1024, 8191):
                problem = problem_of(preset, rows, cols, dtype)
                if preset.fault(problem, H200) is None:
                    found += 1
                    broken = Space(problem, H200).broken_rules(preset.config(problem, H200))
                    assert {rule.name for rule in broken} <= {IDLE_THREADS}
                else:
                    with pytest.raises(InvalidInput, match=preset.name):
                        preset.config(problem, H200)
    assert found


@pytest.mark.parametrize(("rows", "cols", "dtype"), [(8192, 4096, DType.F32), (64, 512, DType.F16)])
def test_presets_differ_in_their_code(rows, cols, dtype):
    """Where none of them but by its width is degenerate; else they would be one preset."""
    problem = Problem(rows, cols, dtype)
    legal = [preset for preset in PRESETS if preset.fault(problem, H200) is None]
    digests = {emit(problem, p.config(problem, H200)).digest: p.name for p in legal}
    assert len(legal) > 8
    assert len(digests) == len(legal), set(p.name for p in legal) - set(digests.values())


@pytest.mark.exhaustive
@by_name
def test_it_is_right(preset):
    """In f32 or a 16-bit type, at a round or a ragged width, by turns.

    What else a type, a width or log_softmax changes in a kernel is that of every config, which
    covering arrays try.
    """
    number = PRESETS.index(preset)
    halves = (DType.F32, (DType.F16, DType.BF16)[number // 2 % 2])
    kinds = (ROUND, RAGGED) if number // 2 % 2 else (RAGGED, ROUND)
    op = preset.ops[-1 if number % 3 == 0 else 0]
    dtypes = [dtype for dtype in halves if dtype in preset.dtypes]
    dtype = dtypes[number % len(dtypes)]
    problem = next(chain(*(legal_widths(preset, dtype, kind, op) for kind in kinds)))
    program = ProgramUnderTest.of_config(problem, preset.config(problem, H200))
    verdict = Emulator("sm_90").verify(program)
    assert verdict.status is Status.VERIFIED, f"{problem}: {verdict.sentence}"


def test_what_an_op_or_a_problem_is_refused_for():
    with pytest.raises(InvalidInput, match="it cannot do softmax_backward; it does softmax and"):
        find_preset("shared-tree").config(Problem(8, 512, op=Op.SOFTMAX_BACKWARD), H200)
    with pytest.raises(InvalidInput, match="not for f64; it is for f32, f16, bf16"):
        find_preset("shared-tree").config(Problem(8, 512, DType.F64), H200)
    with pytest.raises(InvalidInput, match="along this axis they lie 4 apart"):
        find_preset("shared-tree").config(Problem(8, 512, inner=4), H200)
    with pytest.raises(InvalidInput, match="over a middle axis, and here their elements lie side"):
        find_preset("pytorch-spatial").config(Problem(8, 512), H200)
    with pytest.raises(InvalidInput, match="at most 1024 columns"):
        find_preset("oneflow-warp").config(Problem(8, 1025), H200)


def test_a_preset_may_have_idle_threads_which_is_said_and_its_kernel_is_right():
    problem, preset = Problem(8, 64), find_preset("shared-tree")
    assert "at least half of the 256 threads a row of 'shared-tree'" in preset.idle(problem, H200)
    assert preset.idle(Problem(8, 512), H200) == ""
    config = preset.config(problem, H200)
    assert not Space(problem, H200).is_legal(config)  # a search does not try it
    program = ProgramUnderTest.of_config(problem, config)
    assert Emulator("sm_90").verify(program).status is Status.VERIFIED


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tile", Problem(9, 520, op=Op.LOG_SOFTMAX)),
        ("tile", Problem(9, 520, scale=0.5)),
        ("tile", Problem(9, 520, input_stride=1040)),
        ("unfused", Problem(9, 65, scale=2.0)),
        ("unfused", Problem(9, 65, input_stride=67, output_stride=66)),
        ("unfused", Problem(9, 65, op=Op.LOG_SOFTMAX, scale=2.0)),
        ("shared-tree-float4", Problem(3, 1028, input_stride=1032)),
        ("shared-tree-float4", Problem(3, 1028, scale=2.0)),
        ("llm.c-1", Problem(9, 65, scale=2.0)),
        ("triton-tutorial", Problem(9, 520, op=Op.LOG_SOFTMAX, scale=0.5)),
    ],
    ids=str,
)
def test_a_scale_gaps_and_a_logarithm_are_no_reason_to_refuse(name, problem):
    program = ProgramUnderTest.of_config(problem, find_preset(name).config(problem, H200))
    verdict = Emulator("sm_90").verify(program, rows=5)
    assert verdict.status is Status.VERIFIED, verdict.sentence


@pytest.mark.parametrize("fields", [{"scale": 0.5}, {"op": Op.LOG_SOFTMAX}, {"input_stride": 1030}])
def test_what_one_thread_sums_of_a_row_is_compensated(fields):
    """A plain sum of 1024 terms of f32 is inaccurate, scaled or not."""
    problem = Problem(3, 1024, **fields)
    config = find_preset("thread-per-row").config(problem, H200)
    assert config.sum == "compensated"


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(InvalidInput, match="'shared-three' is not known, but shared-tree"):
        find_preset("shared-three")


def test_reported_ratios_are_of_presets():
    for ratio in REPORTED:
        assert 1.0 < ratio.low <= ratio.high
        find_preset(ratio.slower)
        find_preset(ratio.faster)


def test_each_rung_of_the_ladder_has_a_time_in_the_kept_journey():
    journey = kept_journey(USUAL)
    steps = ladder_steps(USUAL, H200, journey)
    assert [step.rung for step in steps] == list(LADDER)
    assert all(step.timed for step in steps)
    rungs = ladder_data(steps, journey)["rungs"]
    assert rungs[0]["time_us"] > 20 * rungs[-1]["time_us"]
    small = ladder_steps(Problem(64, 64), H200, kept_journey(Problem(64, 64)))
    assert all(step.config for step in small) and not any(step.timed for step in small)


IDEAS = {
    "thread-per-row": {"threads"},
    "unfused": {"launches"},
    "thread-per-row-online": {"algorithm"},
    "shared-serial": {"threads", "threads_per_row", "reduction", "sum"},
    "shared-tree": {"reduction"},
    "llm.c-2": {"cache", "cache_holds"},
    "shared-tree-float4-256": {"vector_bytes"},
    "shared-tree-float4": {"threads", "threads_per_row"},
    "warp-reduce-float4": {"reduction"},
    "warp-reduce-float4-uncached": {"cache", "cache_holds"},
    "pytorch-block-uncached": {"threads", "threads_per_row"},
    "fast-softmax-4": {"vector_bytes"},
    "fast-softmax-4-fast-exp": {"exp"},
    "online-warp-state": {"algorithm"},
    "register-float4": {"cache", "cache_holds", "static_cols"},
    "register-float4-256": {"threads", "threads_per_row"},
    "tile": {"rows_per_thread", "reduction"},
}
"""The parameters of each step's idea: one, or those that it cannot be without."""


def test_each_step_of_the_ladder_changes_one_idea():
    for step in ladder_steps(USUAL, H200, None)[1:]:
        changed = step.base.config.differences(step.config).keys()
        assert changed - set(step.rung.besides) == IDEAS[step.rung.preset]
        assert changed >= set(step.rung.besides)
        assert step.base.rung.preset == step.rung.after or step.base.number == step.number - 1


@pytest.mark.exhaustive
def test_steps_between_published_kernels_are_right_and_have_names_but_are_not_listed():
    assert not {preset.name for preset in BETWEEN} & set(PRESET_NAMES)
    for preset in BETWEEN:
        program = ProgramUnderTest.of_config(Problem(2, 4096), preset.config(USUAL, H200))
        assert Emulator("sm_90").verify(program).status is Status.VERIFIED
        assert find_preset(preset.name) is preset


def test_a_step_whose_base_is_left_out_changes_the_last_one_that_is_not():
    of = {step.rung.preset: step for step in ladder_steps(Problem(8, 64, DType.BF16), H200, None)}
    for name in ("llm.c-2", "shared-tree-float4-256", "warp-reduce-float4-uncached"):
        assert of[name].config is None and "it is not for bf16" in of[name].fault
    assert of["pytorch-block-uncached"].base is of["shared-tree"]


@pytest.mark.parametrize("text", ["naive", "shuffle", "shared memory", "online", "fused"])
def test_presets_are_found_by_the_words_of_their_series(text):
    from explorer.api import find_presets

    found = {line.preset.name for line in find_presets(text=text)}
    assert found & {rung.preset for rung in LADDER}


def test_a_word_of_an_address_or_of_the_title_of_a_series_finds_none_of_its_presets():
    from explorer.api import find_presets

    fused = {line.preset.name for line in find_presets(text="fused")}
    ideas = {rung.preset for rung in RUNGS if "fused" in rung.idea.lower()}
    assert (
        fused == {"unfused", "llm.c-fused-classifier", *ideas} and "one-thread-block" not in fused
    )
    assert not find_presets(text="github.com") and find_presets(text="baslani")
    assert [line.preset.name for line in find_presets(text="cutile")] == ["tile"]
