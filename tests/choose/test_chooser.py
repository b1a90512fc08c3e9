"""The chooser: legal for every problem and GPU, the same each time, and true to its few rules."""

from dataclasses import replace
from itertools import product

import pytest

from explorer.choose import config_for, promising
from explorer.choose.residency import (
    blocks_of_an_sm,
    busy_ns,
    likely_registers,
    waves,
    with_likely_residency,
)
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.gpu_spec import GpuSpec, known_gpu
from explorer.model.problem import MAX_ROWS, Mask, Problem
from explorer.ops import OPERATORS, Extent, Op
from explorer.space import Space
from explorer.space.candidates import candidates
from tests.chooser_contest import drawn

H200 = known_gpu("NVIDIA H200")
NAMES = (
    "NVIDIA H200",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA L4",
    "Tesla T4",
    "NVIDIA B200",
    "NVIDIA GeForce RTX 5090",
)
GPUS = [known_gpu(name) for name in NAMES]
COLS = (1, 5, 17, 64, 1000, 4096, 4097, 16384, 50257, 131072, 262144, 1048576)
GRADIENTS = (Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD)

# ------------------------------------------------------------------ legal

OVER_ROWS = [op for op in Op if OPERATORS[op].over is Extent.MATRIX]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_random_problems_need_no_repair_on_any_gpu(gpu):
    """A repaired config is legal, but nobody has thought of it."""
    for problem in drawn(300, seed=11):
        idea = promising(problem, gpu)
        assert Space(problem, gpu).broken_rule(idea) is None, (problem, idea)
        assert config_for(problem, gpu) == idea


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_gradients_of_losses_need_no_repair_on_any_gpu(gpu):
    """Of the sizes of problems that are drawn, which are of operators of matrices alone."""
    ops = [op for op in Op if OPERATORS[op].options and OPERATORS[op].extent is Extent.MATRIX]
    for number, one in enumerate(drawn(200, seed=12)):
        rows, cols, dtype = one.rows, one.cols, one.dtype
        for op in ops:
            problem = Problem(rows, cols, dtype, op, in_place=number % 3 == 0)
            idea = promising(problem, gpu)
            assert Space(problem, gpu).broken_rule(idea) is None, (problem, idea)
            assert config_for(problem, gpu) == idea


@pytest.mark.parametrize("dtype", DType)
def test_it_is_legal(dtype):
    for gpu in GPUS:
        for cols in COLS:
            problem = Problem(256, cols, dtype)
            config = config_for(problem, gpu)
            assert Space(problem, gpu).is_legal(config), (problem, gpu)
            free = replace(config, min_blocks=1)  # a search draws not all residencies
            assert Space.searched(problem, gpu).is_legal(free), (problem, gpu)


@pytest.mark.parametrize("op", OVER_ROWS)
def test_odd_sizes_of_every_type_are_legal(op):
    sizes = (1, 2, 3, 7, 31, 33, 401, 961, 1281, 8191, 8193, 99_991)
    for rows, cols, dtype in product((1, 3, 131, 5000, MAX_ROWS), sizes, DType):
        problem = Problem(rows, cols, dtype, op)
        assert Space(problem, H200).is_legal(config_for(problem, H200)), problem


def needs_no_repair(problem):
    return Space(problem, H200).broken_rule(promising(problem, H200)) is None


@pytest.mark.parametrize("dtype", DType)
def test_wide_rows_of_every_kind_need_no_repair(dtype):
    kinds = [{"mask": mask} for mask in Mask] + [{"op": op} for op in GRADIENTS]
    for cols in (8192, 16384, 32768, 40959, 50257, 131072, 163839):
        for fields in kinds:
            rows = 1000 if fields.get("mask", Mask.NONE) is Mask.NONE else cols
            problem = Problem(rows, cols, dtype, **fields)
            assert needs_no_repair(problem), problem


@pytest.mark.parametrize(
    "op", [Op.SOFTMAX, Op.SOFTMAX_BACKWARD, *(op for op in OVER_ROWS if OPERATORS[op].options)]
)
def test_rows_over_a_middle_axis_need_no_repair(op):
    widths = (20, 90, 300, 1024, 4096, 8192, 16384)
    for inner, cols, dtype in product((2, 3, 48, 512, 4096), widths, DType):
        problem = Problem(4 * inner, cols, dtype, op, inner=inner)
        assert needs_no_repair(problem), problem


def test_a_gpu_that_is_unknown_is_described_by_its_limits():
    """An RTX 4090: no clusters, and 1536 threads an SM instead of 2048."""
    kib = 1024
    unknown = GpuSpec(
        name="NVIDIA GeForce RTX 4090",
        arch="sm_89",
        sm_count=128,
        memory_bytes=24 * kib**3,
        l2_bytes=72 * kib**2,
        shared_per_block_bytes=99 * kib,
        shared_per_sm_bytes=100 * kib,
        threads_per_sm=1536,
        blocks_per_sm=24,
    )
    for problem in drawn(60, seed=2):
        config = config_for(problem, unknown)
        assert Space(problem, unknown).is_legal(config) and config.cluster == 1


def test_an_unknown_bandwidth_counts_as_an_h200s():
    unknown = replace(H200, peak_gbps=0.0)
    for problem in drawn(60, seed=5):
        assert config_for(problem, unknown) == config_for(problem, H200)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(104_104, 12, inner=11),
        Problem(300_200, 8, DType.BF16, Op.SOFTMAX_BACKWARD, inner=1501),
        Problem(251_314, 21, inner=406),
        Problem(23_051, 89, DType.BF16, mask=Mask.CAUSAL, mask_rows=89),
        Problem(1, 1),
    ],
    ids=str,
)
def test_every_problem_has_candidates_with_the_choice_first(problem):
    chosen = config_for(problem, H200)
    found = candidates(problem, H200, chosen)
    assert found[0] == chosen
    assert len(found) == len(set(found)) and all(map(Space(problem, H200).is_legal, found))
    assert len(found) >= min(3, problem.cols)


# ------------------------------------------------------------------ no number is of one GPU


def test_twice_the_gpu_has_the_same_kernels_for_twice_the_rows():
    """Rules compare with SMs, caches and bandwidth: a GPU of twice as many of all changes none."""
    double = replace(
        H200,
        sm_count=2 * H200.sm_count,
        l2_bytes=2 * H200.l2_bytes,
        peak_gbps=2 * H200.peak_gbps,
    )
    for problem in drawn(200, seed=7):
        if problem.mask is not Mask.NONE or problem.rows % 2:
            continue
        twice = problem.resized(rows=2 * problem.rows)
        assert config_for(twice, double) == config_for(problem, H200), problem


# ------------------------------------------------------------------ residency


def test_a_kernel_states_the_blocks_that_its_rule_counts_on():
    problem = Problem(7000, 5120, DType.BF16)
    config = config_for(problem, H200)
    assert config.cache == "registers" and config.min_blocks == 5
    assert config.min_blocks == blocks_of_an_sm(problem, config, H200)
    assert with_likely_residency(config, problem, H200) == config
    assert with_likely_residency(replace(config, min_blocks=1), problem, H200) == config


def test_bounds_are_set_only_where_registers_decide_and_no_rule_has_set_any():
    problem = Problem(7000, 5120, DType.BF16)
    free = replace(config_for(problem, H200), min_blocks=1)
    for config, rows in (
        (replace(free, min_blocks=2), 7000),
        (replace(free, cache="none"), 7000),
        (replace(free, cache="shared"), 7000),
        (free, 132),  # an SM has one block anyway
    ):
        assert with_likely_residency(config, problem.resized(rows), H200) == config


@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_stated_kernels_are_legal_and_count_no_block_that_cannot_be(gpu):
    for problem in drawn(60, 60):
        config = config_for(problem, gpu)
        assert Space(problem, gpu).is_legal(config)
        likely = with_likely_residency(replace(config, min_blocks=1), problem, gpu)
        assert likely.min_blocks * config.threads <= gpu.threads_per_sm


def test_a_batch_invariant_kernel_states_the_blocks_of_many_rows():
    for cols in (1024, 5120, 8192):
        chosen = {
            config_for(Problem(rows, cols, DType.BF16), H200, batch_invariant=True).min_blocks
            for rows in (1, 132, 7000, 1_000_000)
        }
        assert len(chosen) == 1
        assert cols != 5120 or chosen == {5}


# ------------------------------------------------------------------ options


@pytest.mark.sampled(5)
@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_batch_invariant_config_is_one_for_all_rows(dtype, op):
    rows = (1, 17, 131, 133, 4096, 40_000, 300_000, 1_000_000, 4_000_000, 50_000_000)
    for cols in (1, 5, 17, 33, 177, 256, 512, 898, 1001, 5000, 8192, 50257, 131072, 2**20):
        problems = [Problem(number, cols, dtype, op) for number in rows if number * cols < 2**33]
        for gpu in map(known_gpu, ("NVIDIA H200", "H100", "NVIDIA L4", "NVIDIA B200")):
            chosen = {config_for(p, gpu, batch_invariant=True) for p in problems}
            assert len(chosen) == 1, (cols, gpu)


@pytest.mark.parametrize("cols", [6, 20, 60, 80, 150, 300])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_batch_invariant_config_over_a_middle_axis(cols, dtype):
    problems = [Problem(64 * slices, cols, dtype, inner=64) for slices in (1, 50, 6400, 100_000)]
    assert len({config_for(p, H200, batch_invariant=True) for p in problems}) == 1


@pytest.mark.parametrize("cols", [64, 4096, 50257])
def test_a_batch_invariant_config_under_a_causal_mask(cols):
    problems = [Problem(rows, cols, mask=Mask.CAUSAL, mask_rows=cols) for rows in (cols, 3 * cols)]
    assert len({config_for(p, H200, batch_invariant=True) for p in problems}) == 1


@pytest.mark.parametrize("op", OVER_ROWS)
def test_a_strict_one_exponentiates_as_exactly_as_it_can(op):
    for cols, dtype in product(COLS, (DType.F32, DType.F64)):
        problem = Problem(256, cols, dtype, op)
        strict = config_for(problem, H200, accuracy=Accuracy.STRICT)
        assert Space(problem, H200).is_legal(strict), problem
        assert strict.exp == ("exp2f" if op is Op.SOFTMAX_BACKWARD else "expf"), problem
        three = OPERATORS[op].allows("algorithm", "three-pass")
        assert strict.algorithm == ("three-pass" if three else "online-block-max"), problem


def test_16_bits_are_exact_enough_with_any_exponential():
    problem = Problem(256, 4096, DType.BF16)
    strict = config_for(problem, H200, accuracy=Accuracy.STRICT)
    assert strict == config_for(problem, H200)


@pytest.mark.parametrize(("rows", "cols"), [(32, 165_927), (40, 167_970), (31, 167_458)])
def test_strict_rows_have_1024_threads_a_block_at_most(rows, cols):
    problem = Problem(rows, cols)
    for gpu in map(known_gpu, ("NVIDIA H200", "NVIDIA B200", "NVIDIA GeForce RTX 5090")):
        idea = promising(problem, gpu, Accuracy.STRICT)
        assert idea == config_for(problem, gpu, accuracy=Accuracy.STRICT)
        assert idea.threads_per_row == idea.threads <= 1024


@pytest.mark.parametrize("cols", [48, 64, 1000, 4096, 32768])
def test_under_a_causal_mask_the_longest_rows_come_first(cols):
    problem = Problem(4096, cols, mask=Mask.CAUSAL)
    assert config_for(problem, H200).row_order == "descending"
    for other in (Problem(4096, cols), Problem(8192, cols, mask=Mask.CAUSAL, mask_rows=4096)):
        assert config_for(other, H200).row_order == "ascending"


# ------------------------------------------------------------------ rules


def test_the_wider_the_row_the_more_blocks_share_it():
    for dtype in (DType.F32, DType.BF16):
        for op in (Op.SOFTMAX, Op.SOFTMAX_BACKWARD):
            widths = (4096, 16_384, 65_536, 262_144)
            blocks = [config_for(Problem(2048, cols, dtype, op), H200).cluster for cols in widths]
            assert blocks == sorted(blocks) and blocks[0] == 1 < blocks[-1]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"op": Op.LOG_SOFTMAX},
        {"scale": 0.5},
        {"in_place": True},
        {"input_stride": 2_000_000},
        {"out_dtype": DType.BF16},
    ],
)
def test_few_wide_rows_of_any_kind_are_for_several_blocks(changes):
    for accuracy, rows, cols in product(Accuracy, (1, 4), (131_072, 262_144, 1_048_576)):
        config = config_for(Problem(rows, cols, **changes), H200, accuracy=accuracy)
        assert config.cluster > 1 or config.splits_launches, (accuracy, rows, cols)


@pytest.mark.parametrize("gpu", ["Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"])
def test_few_wide_rows_are_for_all_sms_without_clusters_too(gpu):
    assert config_for(Problem(1, 1_048_576), known_gpu(gpu)).launches == "two"
    assert config_for(Problem(1000, 65_536), known_gpu(gpu)).launches == "one"


def test_rows_are_read_twice_only_where_the_cache_holds_them():
    for cols in (2**17, 2**19, 2**21):
        for rows in (1, 4, 16, 64):
            problem = Problem(rows, cols)
            if config_for(problem, H200).splits_launches and cols < 2**19:
                assert problem.rows * problem.row_bytes < H200.l2_bytes


def test_what_is_resident_at_once_is_evicted_first_and_no_more():
    for problem in drawn(300, seed=6):
        config = config_for(problem, H200)
        if config.load_hint == "cs":
            assert waves(problem, config, H200) <= (1.7 if config.cluster > 1 else 1.3)


@pytest.mark.parametrize("op", OVER_ROWS, ids=str)
@pytest.mark.parametrize("cols", [1024, 2048, 4096, 7168])
def test_few_rows_of_whole_vectors_are_resident_together(cols, op):
    for rows in (1, 64, 132, 264, 396):
        problem = Problem(rows, cols, DType.BF16, op)
        assert waves(problem, config_for(problem, H200), H200) <= 1


@pytest.mark.parametrize("gpu", [GPUS[0], GPUS[1]], ids=str)
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX, Op.SOFTMAX_BACKWARD], ids=str)
def test_many_rows_keep_memory_busy(op, gpu):
    """For a good microsecond it loads what the other blocks of an SM wait for."""
    for cols in (*range(1300, 8192, 211), 2048, 4096):
        problem = Problem(400_000, cols, DType.F32, op)
        assert busy_ns(problem, config_for(problem, gpu), gpu) >= 1000, cols


@pytest.mark.parametrize("gpu", [*GPUS, replace(H200, peak_gbps=0.0)], ids=str)
def test_many_rows_have_sound_blocks_on_any_gpu(gpu):
    """A thread takes few registers, and an SM holds two blocks unless none leaves room."""
    for op, dtype, cols in product(Op, (DType.F32, DType.BF16), range(1100, 8192, 331)):
        problem = Problem(1_000_000, cols, dtype, op)
        config = config_for(problem, gpu)
        kept = "registers" if problem.operator.reduces else "none"  # what is read once is not kept
        assert config.cluster == 1 and config.cache == kept, problem
        assert likely_registers(problem, config) <= 136, problem
        several = blocks_of_an_sm(problem, config, gpu) >= 2
        assert several or config.threads_per_row <= 512, problem


@pytest.mark.parametrize("op", GRADIENTS)
def test_gradients_stay_in_registers_while_these_suffice(op):
    def caches(gpu, dtype, *widths):
        problems = [Problem(1000, cols, dtype, op) for cols in widths]
        return [config_for(problem, known_gpu(gpu)).cache for problem in problems]

    by_clusters = ["registers", "registers", "none"]
    assert caches("NVIDIA H200", DType.F32, 20_000, 131_072, 500_000) == by_clusters
    assert caches("NVIDIA H200", DType.BF16, 50_257, 262_144, 1_500_000) == by_clusters
    assert caches("NVIDIA A100", DType.F32, 20_000)[0] == "registers"
    assert caches("NVIDIA A100", DType.BF16, 32_768)[0] == "registers"


@pytest.mark.parametrize("mask", [Mask.ADDITIVE, Mask.LENGTHS, Mask.CAUSAL])
@pytest.mark.parametrize("dtype", DType)
def test_rows_under_a_mask_are_kept_where_something_holds_them(mask, dtype):
    """In registers, or shared memory but for f64, and 16-bit rows whose kept elements are f32."""
    for cols in (6310, 8192, 16384, 24576, 32768, 40000, 50000, 65536, 131072):
        problem = Problem(1024, cols, dtype, mask=mask)
        idea, space = promising(problem, H200), Space(problem, H200)
        assert space.is_legal(idea), idea
        shared = replace(idea, cache="shared", cache_holds="input", min_blocks=1)
        f32_kept = (mask is Mask.ADDITIVE and dtype.is_half) or dtype is DType.F64
        if idea.cache == "none" and cols >= 16384:
            assert f32_kept or not space.is_legal(shared), idea
        assert idea.threads_per_row >= 128


def test_many_odd_short_rows_come_by_staged_tiles():
    for dtype in (DType.F32, DType.BF16):
        for op in (op for op in OVER_ROWS if OPERATORS[op].allows("staging", "span")):
            config = config_for(Problem(2_000_000, 21, dtype, op), H200)
            assert config.staging == "span"
            assert config_for(Problem(1000, 21, dtype, op), H200).staging == "direct"


def test_the_fewer_rows_over_a_middle_axis_the_more_threads_has_each():
    for cols, dtype in ((96, DType.BF16), (80, DType.F32), (150, DType.BF16)):
        problems = [Problem(256 * 2**n, cols, dtype, inner=128) for n in range(13)]
        threads = [config_for(problem, H200).threads_per_row for problem in problems]
        assert threads == sorted(threads, reverse=True), cols
