"""The heuristic: legal for every problem and GPU, the same each time, and its regimes."""

import random
from dataclasses import replace

import pytest

from explorer.model.accuracy import Accuracy
from explorer.model.dtype import DType
from explorer.model.gpu_spec import GpuSpec, known_gpu
from explorer.model.parameters import WARPS
from explorer.model.problem import MAX_ROWS, Mask, Op, Problem
from explorer.model.work_split import WorkSplit
from explorer.space import Space
from explorer.space.candidates import candidates
from explorer.space.heuristic import config_for, promising
from explorer.space.heuristic.registers import likely_registers
from explorer.space.heuristic.residency import resident_rows
from explorer.space.heuristic.row_threads import row_of

H200 = known_gpu("NVIDIA H200")
COLS = (1, 5, 17, 64, 1000, 4096, 4097, 16384, 50257, 131072, 262144, 1048576)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla T4"])
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("cols", COLS)
def test_it_is_legal(gpu, dtype, cols):
    problem = Problem(256, cols, dtype)
    gpu = known_gpu(gpu)
    assert Space.searched(problem, gpu).is_legal(config_for(problem, gpu))
    assert config_for(problem, gpu) == config_for(problem, gpu)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(64, 4096, op=Op.SOFTMAX_BACKWARD),
        Problem(64, 17, op=Op.LOG_SOFTMAX),
        Problem(64, 50257, mask=Mask.CAUSAL),
        Problem(64, 4096, inner=64),
        Problem(64, 100, in_place=True),
    ],
    ids=str,
)
def test_it_is_legal_for_other_problems(problem):
    assert Space.searched(problem, H200).is_legal(config_for(problem, H200))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize("cols", COLS)
def test_plain_problems_need_no_repair_on_an_h200(dtype, cols):
    problem = Problem(256, cols, dtype)
    assert config_for(problem, H200) == promising(problem, H200)


def test_the_wider_the_row_the_more_blocks_share_it():
    blocks = [
        config_for(Problem(256, cols), H200).cluster for cols in (4096, 8192, 32768, 50257, 262144)
    ]
    assert blocks == [1, 4, 8, 8, 16]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("accuracy", Accuracy)
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
@pytest.mark.parametrize("cols", [131_072, 262_144, 1_048_576])
@pytest.mark.parametrize("rows", [1, 4])
def test_few_wide_rows_of_any_kind_are_for_several_blocks(rows, cols, changes, accuracy):
    problem = Problem(rows, cols, **changes)
    config = config_for(problem, H200, accuracy=accuracy)
    assert config.cluster > 1 or config.splits_launches


@pytest.mark.parametrize(
    "gpu",
    ["Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA B200", "NVIDIA GeForce RTX 5090"],
)
def test_plain_problems_need_no_repair_on_other_gpus(gpu):
    rng, limits = random.Random(0), known_gpu(gpu)
    for _ in range(300):
        rows, cols = (int(2 ** rng.uniform(0, most)) for most in (17, 20))
        problem = Problem(rows, cols, rng.choice([DType.F32, DType.F16, DType.BF16]))
        assert Space(problem, limits).broken_rule(promising(problem, limits)) is None


@pytest.mark.parametrize("gpu", ["Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"])
def test_few_wide_rows_are_for_all_sms_without_clusters_too(gpu):
    def launches(rows, cols):
        return config_for(Problem(rows, cols), known_gpu(gpu)).launches

    assert launches(1, 1_048_576) == launches(8, 65_536) == "two"
    assert launches(1000, 65_536) == launches(8, 16_384) == "one"


def test_rows_that_shared_memory_does_not_hold_are_for_all_sms_too():
    """16-bit rows that are short enough to hold, but not as fp32, nor in 64 KiB as they come."""
    problem = Problem(3, 58_576, DType.BF16)
    assert config_for(problem, known_gpu("Tesla T4")).launches == "two"
    assert config_for(problem, known_gpu("NVIDIA A100-SXM4-80GB")).cache == "shared"


def test_two_launches_have_few_rows_that_a_cluster_would_have_on_few_sms():
    splits = [
        config_for(Problem(rows, 131_072), H200).splits_launches for rows in (1, 2, 4, 8, 100)
    ]
    assert splits == [True, True, True, False, False]


def test_blocks_share_long_rows_over_a_middle_axis():
    def blocks(rows, cols, **changes):
        return config_for(Problem(rows, cols, **changes), H200).cluster

    assert [blocks(8192, cols, inner=8192) for cols in (128, 1024, 4096, 16384)] == [1, 8, 16, 16]
    assert blocks(8192, 4096, inner=8192, dtype=DType.BF16) == 16
    assert blocks(16, 65536, inner=16) > 1  # read twice, and by one SM otherwise
    assert blocks(8192, 131_072, inner=8192) == 1


def test_few_short_rows_have_a_warp_each():
    assert config_for(Problem(32, 512), H200).threads_per_row == 32
    assert config_for(Problem(65536, 512), H200).threads_per_row == 96


def test_rows_of_one_wave_have_a_block_each():
    def threads(rows, gpu=H200):
        config = config_for(Problem(rows, 2048), gpu)
        return config.threads // config.threads_per_row, config.threads_per_row

    assert threads(64) == threads(1056) == threads(1108) == (1, 256)  # 1.05 waves
    assert [threads(rows) for rows in (1109, 2217, 16384)] == [(1, 192), (1, 128), (1, 320)]
    assert threads(300, known_gpu("Tesla T4")) == (1, 128)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_few_threads_are_idle_at_a_row_s_last_access(dtype):
    """Of rows that whole accesses cover: seven of ten accesses, at least, find something.

    Rows of many waves have one to three accesses for each thread instead, whatever they find.
    """
    for cols in range(2048, 8192, 16 // dtype.itemsize):
        config = config_for(Problem(2000, cols, dtype), H200)
        split = WorkSplit(Problem(2000, cols, dtype), config)
        assert split.row_vectors / (split.slots * config.threads_per_row) >= 0.7, (cols, config)


def test_blocks_share_rows_that_are_fewer_than_sms():
    assert config_for(Problem(1, 32000), H200).cluster == 16
    assert config_for(Problem(1024, 32000), H200).cluster == 8


MANY_ROWS = (1, 17, 131, 133, 4096, 40_000, 300_000, 1_000_000, 4_000_000)


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("cols", [5, 17, 33, 177, 256, 512, 1001, 5000, 8192, 50257, 131072, 2**20])
def test_a_batch_invariant_config_is_one_for_all_rows(cols, dtype, op):
    problems = [Problem(rows, cols, dtype, op) for rows in MANY_ROWS if rows * cols < 2**33]
    for gpu in map(known_gpu, ("NVIDIA H200", "H100", "NVIDIA L4", "NVIDIA B200")):
        assert len({config_for(p, gpu, batch_invariant=True) for p in problems}) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cols", [8192, 16384, 32768, 40959, 50257, 131072, 163839])
@pytest.mark.parametrize(
    "fields",
    [
        {"mask": Mask.CAUSAL},
        {"mask": Mask.LENGTHS},
        {"mask": Mask.ADDITIVE},
        {"op": Op.SOFTMAX_BACKWARD},
        {"op": Op.LOG_SOFTMAX_BACKWARD},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", DType)
def test_wide_rows_of_every_kind_need_no_repair(cols, fields, dtype):
    """A repaired config is legal, but nobody has thought of it."""
    problem = Problem(cols if fields.get("mask") else 1000, cols, dtype, **fields)
    assert Space(problem, H200).broken_rule(promising(problem, H200)) is None


@pytest.mark.parametrize("mask", [Mask.ADDITIVE, Mask.LENGTHS, Mask.CAUSAL])
@pytest.mark.parametrize("dtype", DType)
def test_rows_under_a_mask_are_kept_where_something_holds_them(mask, dtype):
    """In registers, or shared memory but for f64, and 16-bit rows whose kept elements are fp32."""
    for cols in (6310, 8192, 16384, 22000, 24576, 30000, 32768, 40000, 50000, 65536, 131072):
        problem = Problem(1024, cols, dtype, mask=mask)
        space = Space(problem, H200)
        idea = promising(problem, H200)
        assert space.is_legal(idea), idea
        shared = replace(idea, cache="shared", cache_holds="input", min_blocks=1)
        fp32_kept = (mask is Mask.ADDITIVE and dtype.is_half) or dtype is DType.F64
        if idea.cache == "none" and cols >= 16384:
            assert fp32_kept or not space.is_legal(shared), idea
        assert idea.threads_per_row >= 128


@pytest.mark.sampled(3)
@pytest.mark.parametrize("inner", [2, 3, 48, 512, 4096])
@pytest.mark.parametrize("cols", [1024, 4096, 8192, 16384])
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.SOFTMAX_BACKWARD])
@pytest.mark.parametrize("dtype", DType)
def test_rows_over_a_middle_axis_need_no_repair(inner, cols, op, dtype):
    problem = Problem(4 * inner, cols, dtype, op, inner=inner)
    assert Space(problem, H200).broken_rule(promising(problem, H200)) is None


def test_no_part_of_a_row_is_too_little_for_a_block():
    """Blocks of fewer bytes than these come slower than the GPU's memory could serve them."""
    for cols in range(8192, 60000, 1111):
        for dtype in (DType.F32, DType.BF16):
            problem = Problem(4096, cols, dtype)
            part = problem.row_bytes / config_for(problem, H200).cluster
            assert part >= 6144, str(problem)


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("op", Op)
def test_a_strict_one_exponentiates_as_exactly_as_it_can(cols, dtype, op):
    problem = Problem(256, cols, dtype, op)
    strict = config_for(problem, H200, accuracy=Accuracy.STRICT)
    assert Space(problem, H200).is_legal(strict)
    assert strict.exp == ("exp2f" if op is Op.SOFTMAX_BACKWARD else "expf")
    assert strict.algorithm == "three-pass"


def test_16_bits_are_exact_enough_with_any_exponential():
    problem = Problem(256, 4096, DType.BF16)
    strict = config_for(problem, H200, accuracy=Accuracy.STRICT)
    assert strict == config_for(problem, H200)


@pytest.mark.parametrize("cols", [48, 64, 1000, 4096, 32768])
def test_under_a_causal_mask_the_longest_rows_come_first(cols):
    problem = Problem(4096, cols, mask=Mask.CAUSAL)
    assert config_for(problem, H200).row_order == "descending"
    for other in (Problem(4096, cols), Problem(8192, cols, mask=Mask.CAUSAL, mask_rows=4096)):
        assert config_for(other, H200).row_order == "ascending"


@pytest.mark.parametrize("cols", [64, 4096, 50257])
def test_a_batch_invariant_config_under_a_causal_mask(cols):
    problems = [Problem(rows, cols, mask=Mask.CAUSAL, mask_rows=cols) for rows in (cols, 3 * cols)]
    assert len({config_for(p, H200, batch_invariant=True) for p in problems}) == 1


@pytest.mark.parametrize("kind", [{}, {"op": Op.LOG_SOFTMAX}, {"scale": 0.5}, {"in_place": True}])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
@pytest.mark.parametrize("cols", [9, 17, 33, 63, 101, 127])
def test_odd_short_rows_come_by_way_of_a_span(cols, dtype, kind):
    assert config_for(Problem(100_000, cols, dtype, **kind), H200).staging == "span"


def test_longer_rows_of_16_bits_do_not_if_pairs_divide_them():
    for cols, vector_bytes in ((142, 4), (210, 4), (334, 4), (387, 8), (501, 8)):
        config = config_for(Problem(100_000, cols, DType.BF16), H200)
        assert (config.staging, config.vector_bytes) == ("direct", vector_bytes)
    for dtype in (DType.F32, DType.BF16):
        assert config_for(Problem(100_000, 333, dtype), H200).staging == "span"


def test_the_more_threads_a_row_in_a_span_the_longer_it_is_and_the_nearer_to_whole_banks():
    for rows, cols, threads_per_row in (
        (29_748, 55, 1),
        (200_000, 63, 2),
        (200_000, 119, 4),
        (200_000, 127, 8),
        (200_000, 149, 4),
        (10_000, 297, 16),
    ):
        config = config_for(Problem(rows, cols, DType.BF16), H200)
        assert (config.staging, config.threads_per_row) == ("span", threads_per_row)


def test_few_odd_rows_go_straight_to_their_threads():
    """A span takes one block longer, which counts where blocks are few."""
    for rows, cols, threads_per_row in (
        (3000, 9, 2),
        (300, 17, 4),
        (10_000, 127, 16),
        (6000, 177, 32),
    ):
        config = config_for(Problem(rows, cols, DType.BF16), H200)
        assert (config.staging, config.vector_bytes) == ("direct", 2)
        assert config.threads_per_row == threads_per_row


@pytest.mark.parametrize(
    ("cols", "dtype", "vector_bytes", "threads_per_row"),
    [
        (8, DType.F32, 16, 1),
        (16, DType.BF16, 16, 1),
        (32, DType.F32, 16, 4),
        (32, DType.BF16, 16, 2),
        (20, DType.BF16, 8, 2),
        (100, DType.F16, 8, 8),
        (402, DType.BF16, 4, 32),
        (501, DType.F32, 4, 64),
        (1234, DType.F16, 4, 32),
    ],
)
def test_other_short_rows_go_straight_to_their_threads(cols, dtype, vector_bytes, threads_per_row):
    config = config_for(Problem(100_000, cols, dtype), H200)
    assert config.staging == "direct"
    assert (config.vector_bytes, config.threads_per_row) == (vector_bytes, threads_per_row)


def test_threads_take_little_of_short_rows_straight_from_memory():
    """Rows of 1 to 400 elements: a thread takes no more than 64 bytes of its own."""
    for dtype in (DType.F32, DType.BF16):
        for cols in range(1, 401):
            config = config_for(Problem(100_000, cols, dtype), H200)
            share = cols * dtype.itemsize / config.threads_per_row
            assert config.staging == "span" or share <= 64, (cols, dtype, config)


def hints(rows, cols, dtype=DType.F32, **more):
    config = config_for(Problem(rows, cols, dtype, **more), H200)
    assert config.load_hint == config.store_hint
    return config.load_hint


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "hint"),
    [
        (32, 4096, DType.F32, "cs"),
        (1056, 2048, DType.F32, "cs"),
        (4224, 1024, DType.BF16, "cs"),
        (64, 151936, DType.BF16, "cs"),
        (1, 1048576, DType.F32, "cs"),
        (64, 777, DType.F32, "cs"),
        (90, 50257, DType.F32, "cs"),
        (8192, 4096, DType.F32, "default"),
        (8448, 1024, DType.F32, "default"),
        (128, 131072, DType.BF16, "default"),
        (4, 1048576, DType.BF16, "default"),
        (400_000, 17, DType.BF16, "default"),
        (2000, 2047, DType.F32, "default"),  # its rows share lines
        (1369, 1501, DType.F32, "default"),
        (721, 2999, DType.BF16, "cs"),
        (100, 50257, DType.F32, "cs"),
        (40, 202048, DType.F32, "cs"),
    ],
)
def test_what_is_on_the_gpu_at_once_is_evicted_first_and_no_more(rows, cols, dtype, hint):
    assert hints(rows, cols, dtype) == hint


@pytest.mark.parametrize("gpu", [H200, known_gpu("NVIDIA H100 80GB HBM3")], ids=lambda g: g.name)
def test_a_block_of_many_registers_is_on_the_gpu(gpu):
    """The compiler leaves a thread as many as let one block run, however many it could use.

    Where such blocks counted as on no SM, 8 rows were not evicted first: 7 to 8 % more time.
    """
    problem = Problem(8, 262144, DType.BF16, Op.SOFTMAX_BACKWARD)
    config = config_for(problem, gpu)
    assert config.cluster * config.threads >= 4096
    assert resident_rows(problem, config, gpu) >= 8
    assert config.load_hint == config.store_hint == "cs"


def test_rows_that_are_read_twice_stay_in_the_cache():
    assert hints(8, 1 << 20, DType.BF16, op=Op.LOG_SOFTMAX) == "default"


@pytest.mark.parametrize(("rows", "cols"), [(45, 45001), (58, 79441), (29, 134960), (90, 50000)])
def test_clusters_of_few_rows_have_the_fewest_accesses_with_which_all_are_there_at_once(rows, cols):
    problem = Problem(rows, cols, DType.F16)
    config = config_for(problem, H200)
    assert config.cluster >= 8
    assert rows <= resident_rows(problem, config, H200)
    twice = config_for(problem.resized(rows=8 * rows), H200)
    assert WorkSplit(problem, config).slots <= WorkSplit(problem, twice).slots


def test_blocks_of_a_cluster_have_parts_that_are_worth_a_block():
    config = config_for(Problem(185, 14104, DType.BF16), H200)
    assert (config.cluster, config.threads) == (4, 256)


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "blocks"),
    [
        (1, 14004, DType.BF16, 8),
        (4, 18404, DType.BF16, 16),
        (8, 18404, DType.F16, 8),
        (1, 9002, DType.F32, 8),
        (8, 12010, DType.F32, 8),
    ],
)
def test_few_rows_that_8_bytes_divide_are_loaded_by_such_words(rows, cols, dtype, blocks):
    config = config_for(Problem(rows, cols, dtype), H200)
    assert (config.cluster, config.threads, config.vector_bytes) == (blocks, 128, 8)


def test_other_few_rows_are_loaded_by_16_bytes():
    for rows, cols, dtype in ((1, 18402, "bf16"), (1, 14008, "bf16"), (1, 9004, "f32")):
        assert config_for(Problem(rows, cols, DType(dtype)), H200).vector_bytes == 16
    assert config_for(Problem(1, 151_938), H200).vector_bytes == 16


def test_packed_rows_start_anywhere_by_sizes_between_powers_of_two():
    shapes = {
        cols: config_for(Problem(400_000_000 // cols, cols, DType.BF16), H200)
        for cols in (45001, 50257, 65536, 262144)
    }
    assert {cols: (c.cluster, c.threads, c.min_blocks) for cols, c in shapes.items()} == {
        45001: (8, 192, 8),
        50257: (8, 160, 8),
        65536: (8, 128, 8),
        262144: (16, 256, 4),
    }
    assert all(config.cache_holds == "input" for config in shapes.values())


@pytest.mark.parametrize(("rows", "cols"), [(32, 165_927), (40, 167_970), (31, 167_458)])
def test_rows_that_are_to_be_exact_have_1024_threads_a_block_at_most(rows, cols):
    problem = Problem(rows, cols)
    for gpu in map(known_gpu, ("NVIDIA H200", "NVIDIA B200", "NVIDIA GeForce RTX 5090")):
        idea = promising(problem, gpu, Accuracy.STRICT)
        assert idea == config_for(problem, gpu, accuracy=Accuracy.STRICT)
        assert idea.threads_per_row == idea.threads <= 1024


@pytest.mark.parametrize("cols", [17, 777, 4097, 50257])
def test_the_most_rows_have_a_config(cols):
    problem = Problem(MAX_ROWS, cols, DType.BF16)
    assert Space(problem, H200).is_legal(config_for(problem, H200))


def test_a_row_s_last_element_alone_does_not_make_a_size_worse():
    """Of 4097 elements 128 threads have four accesses each, and one of them a fifth."""
    assert config_for(Problem(8192, 4097, DType.BF16), H200).threads_per_row == 128
    assert config_for(Problem(3000, 4096, DType.BF16), H200).threads_per_row == 192


GRADIENTS = (Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD)


@pytest.mark.parametrize("op", GRADIENTS)
def test_gradients_stay_in_registers_while_these_suffice(op):
    def caches(dtype, *widths):
        return [config_for(Problem(1000, cols, dtype, op), H200).cache for cols in widths]

    def of_one_block(dtype, *widths):
        gpu = known_gpu("NVIDIA A100")
        return [config_for(Problem(1000, cols, dtype, op), gpu).cache for cols in widths]

    assert caches(DType.F32, 20_000, 131_072, 500_000) == ["registers", "registers", "none"]
    assert caches(DType.BF16, 50_257, 262_144, 1_500_000) == ["registers", "registers", "none"]
    assert of_one_block(DType.F32, 20_000, 32_000) == ["registers", "none"]
    assert of_one_block(DType.BF16, 32_768, 40_000, 50_257) == ["registers", "registers", "none"]


@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "blocks"),
    [
        (4096, 8192, DType.BF16, 4),
        (1024, 16_384, DType.F32, 8),
        (668, 50_257, DType.BF16, 4),
        (334, 50_257, DType.F32, 8),
        (131, 128_256, DType.F32, 16),
        (8, 151_936, DType.F32, 8),
        (1, 262_144, DType.F32, 16),
    ],
)
def test_wide_rows_of_gradients_are_shared(rows, cols, dtype, blocks, op):
    config = config_for(Problem(rows, cols, dtype, op), H200)
    assert (config.cluster, config.cache) == (blocks, "registers")


@pytest.mark.parametrize("op", GRADIENTS)
def test_the_widest_rows_of_few_gradients_come_from_shared_memory(op):
    config = config_for(Problem(3, 767_895, DType.BF16, op), H200)
    assert (config.cluster, config.cache) == (16, "shared")
    assert config_for(Problem(9, 767_895, DType.BF16, op), H200).cache == "none"


@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize(
    ("cols", "dtype", "threads"),
    [
        (300, DType.F32, 96),
        (1000, DType.F32, 320),
        (2048, DType.BF16, 320),
        (4096, DType.F32, 1024),
    ],
)
def test_threads_of_a_gradient_have_one_access(cols, dtype, threads, op):
    problem = Problem(60_000_000 // cols, cols, dtype, op)
    config = config_for(problem, H200)
    assert config.threads_per_row == threads
    assert WorkSplit(problem, config).slots == 1


@pytest.mark.parametrize("op", GRADIENTS)
def test_gradients_of_rows_that_start_anywhere_have_narrow_words(op):
    def words(cols, dtype):
        return config_for(Problem(60_000_000 // cols, cols, dtype, op), H200).vector_bytes

    assert words(65, DType.F32) == words(66, DType.BF16) == 4
    assert words(1501, DType.BF16) == words(5001, DType.BF16) == words(209, DType.BF16) == 8
    assert words(5001, DType.F32) == 16


@pytest.mark.parametrize(
    ("op", "threads"),
    [
        (Op.SOFTMAX_BACKWARD, [16, 16, 32, 32]),
        (Op.LOG_SOFTMAX_BACKWARD, [16, 16, 32, 32]),
        (Op.SOFTMAX, [16, 32]),
    ],
)
def test_half_a_warp_has_a_short_row_of_16_bits_by_words_of_8_bytes(op, threads):
    """Shorter rows of the forward come by way of a span."""
    shapes = [(14_145, 199), (174_756, 209), (14_145, 299), (10_000, 345), (10_000, 501)]
    if op is Op.SOFTMAX:
        shapes = shapes[3:]
    configs = [config_for(Problem(*shape, DType.BF16, op), H200) for shape in shapes]
    assert [one.threads_per_row for one in configs[: len(threads)]] == threads
    assert {one.vector_bytes for one in configs} == {8}


@pytest.mark.parametrize("op", [Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD])
def test_spans_bring_many_short_rows_of_gradients(op):
    """Fewer rows, which the L2 cache holds, go straight to their threads."""
    for cols, dtype in ((17, DType.BF16), (91, DType.F16), (129, DType.BF16), (33, DType.F32)):
        for gpu in (H200, known_gpu("NVIDIA H100 80GB HBM3")):
            many = config_for(Problem(60_000_000 // cols, cols, dtype, op), gpu)
            assert (many.staging, many.cache_holds) == ("span", "input"), cols
            few = config_for(Problem(1_000_000 // cols, cols, dtype, op), gpu)
            assert (few.staging, few.vector_bytes) == ("direct", dtype.itemsize), cols


@pytest.mark.parametrize("gpu", [H200, known_gpu("NVIDIA H100 80GB HBM3")], ids=str)
def test_few_gradients_that_start_anywhere_are_loaded_by_the_words_that_divide_them(gpu):
    """A few more 16-bit rows by 8 bytes, by more threads than many have."""

    def chosen(rows, cols, dtype, op=Op.SOFTMAX_BACKWARD):
        config = config_for(Problem(rows, cols, dtype, op), gpu)
        assert config.cluster == 1
        return config.vector_bytes, config.threads_per_row

    log = Op.LOG_SOFTMAX_BACKWARD
    assert chosen(1, 1683, DType.BF16) == chosen(700, 1501, DType.F16, log) == (2, 256)
    assert chosen(3978, 501, DType.BF16) == chosen(300, 701, DType.BF16, log) == (2, 128)
    assert chosen(13, 394, DType.BF16, log) == (4, 128) and chosen(100, 601, DType.BF16) == (2, 256)
    assert chosen(5100, 338, DType.F32, log) == (8, 128)
    assert chosen(1731, 1121, DType.BF16) == chosen(1036, 1357, DType.BF16, log) == (2, 256)
    assert chosen(20, 7001, DType.F16) == chosen(132, 4501, DType.BF16, log) == (2, 512)
    assert chosen(24, 7501, DType.F16)[0] == chosen(200, 7501, DType.BF16)[0] == 16
    assert chosen(3, 321, DType.BF16) == (2, 128) and chosen(3, 321, DType.BF16, log)[1] == 32
    assert chosen(1143, 1571, DType.BF16) == (2, 128)
    assert chosen(1000, 1502, DType.BF16, log) == chosen(3, 2942, DType.BF16) == (4, 256)
    assert chosen(500, 6002, DType.BF16) == (4, 512)
    assert chosen(434, 8170, DType.BF16) == (4, 768)
    assert chosen(1, 1683, DType.F32) == chosen(2500, 701, DType.F32) == (4, 256)
    assert chosen(1731, 1121, DType.F32) == chosen(1731, 1121, DType.F32, log) == (4, 384)
    assert chosen(3, 4510, DType.F32) == chosen(16, 6002, DType.F32) == (8, 256)
    assert chosen(60, 2201, DType.F32, log) == (4, 768)
    assert chosen(1000, 1502, DType.F32) == (8, 256)
    assert chosen(300, 5001, DType.F32)[0] == 16
    assert chosen(700, 2501, DType.BF16) == chosen(2500, 2501, DType.F16) == (8, 128)
    assert chosen(6000, 1121, DType.BF16) == (8, 96)
    assert chosen(10_000, 751, DType.BF16) == chosen(2000, 1001, DType.BF16) == (8, 64)
    assert chosen(400, 5001, DType.BF16, log) == (8, 256)
    assert config_for(Problem(1, 1684, DType.BF16, Op.SOFTMAX_BACKWARD), gpu).vector_bytes == 8
    assert config_for(Problem(34, 27_674, DType.F16, Op.SOFTMAX_BACKWARD), gpu).cluster > 1
    one, many = (
        config_for(Problem(rows, 1683, DType.BF16, Op.SOFTMAX_BACKWARD), gpu, batch_invariant=True)
        for rows in (1, 100_000)
    )
    assert one == many


def test_rows_of_16_bits_have_the_threads_that_were_the_fastest_by_8_bytes():
    def threads(cols):
        found = config_for(Problem(2500, cols, DType.BF16, Op.SOFTMAX_BACKWARD), H200)
        assert found.vector_bytes == 8
        return found.threads_per_row

    assert [threads(cols) for cols in (1001, 1401, 1501, 3001)] == [64, 96, 128, 256]


@pytest.mark.parametrize("gpu", [H200, known_gpu("NVIDIA H100 80GB HBM3")], ids=str)
def test_lines_that_two_loads_share_are_not_evicted_where_rows_are_many(gpu):
    """Of gradients loaded by narrow words: with few rows all is resident, and hints pay."""

    def hint(rows, cols, dtype):
        return config_for(Problem(rows, cols, dtype, Op.SOFTMAX_BACKWARD), gpu).load_hint

    for rows, cols in ((100, 601), (100, 2501), (132, 3001), (700, 1121), (300, 3002)):
        assert hint(rows, cols, DType.BF16) == "cs", (rows, cols)
    for rows, cols in ((1, 1502), (3, 2942), (1000, 1501), (1731, 1121), (1000, 3002)):
        assert hint(rows, cols, DType.BF16) == "default", (rows, cols)
    assert hint(100, 1001, DType.F32) == hint(11_111, 27, DType.F32) == "cs"
    for rows, cols in ((60, 2201), (300, 2201), (1000, 1121), (12_646, 39)):
        assert hint(rows, cols, DType.F32) == "default", (rows, cols)
    assert hint(23_076, 13, DType.BF16) == "cs"
    assert hint(171_428, 14, DType.BF16) == hint(20_000, 50, DType.BF16) == "default"


def test_short_rows_of_gradients_come_by_spans_from_fewer_bytes_on():
    def chosen(rows, cols, dtype, op=Op.SOFTMAX_BACKWARD):
        config = config_for(Problem(rows, cols, dtype, op), H200)
        return config.staging, config.threads_per_row

    log = Op.LOG_SOFTMAX_BACKWARD
    for cols in (7, 13, 27):
        assert chosen(2_400_000 // cols, cols, DType.BF16) == ("span", 1)
        assert chosen(2_400_000 // cols, cols, DType.F32, log) == ("span", 4 if cols > 14 else 2)
    assert chosen(184_615, 13, DType.F32) == ("span", 2)
    assert chosen(88_888, 27, DType.F32) == ("direct", 8)
    assert chosen(60_000, 45, DType.BF16)[0] == chosen(97_378, 3, DType.F16)[0] == "direct"
    assert chosen(171_428, 14, DType.BF16) == ("direct", 2)
    assert chosen(171_428, 14, DType.BF16, log) == ("span", 1)
    assert chosen(240_000, 10, DType.BF16) == ("direct", 1)


def test_threads_of_few_rows_of_a_logarithm_have_few_exponentials():
    def threads(rows, cols, dtype=DType.BF16):
        config = config_for(Problem(rows, cols, dtype, Op.LOG_SOFTMAX_BACKWARD), H200)
        assert config.staging == "direct"
        return config.threads_per_row

    assert [threads(11, cols) for cols in (7, 13, 14, 27)] == [4, 8, 4, 16]
    assert threads(2000, 24) == threads(2000, 13, DType.F32) == 8
    assert [threads(300_000 // cols, cols) for cols in (7, 13, 15, 27)] == [1, 2, 4, 4]


@pytest.mark.parametrize("gpu", [H200, known_gpu("NVIDIA H100 80GB HBM3")], ids=str)
def test_few_rows_of_a_logarithm_have_two_threads_or_more_from_4_columns_on(gpu):
    def shared_out(rows, cols, dtype):
        config = config_for(Problem(rows, cols, dtype, Op.LOG_SOFTMAX_BACKWARD), gpu)
        return config.threads_per_row, config.threads, config.vector_bytes

    assert shared_out(371, 3, DType.F32) == (1, 128, 4)
    assert shared_out(354, 4, DType.F32) == (2, 128, 8)
    assert shared_out(3, 4, DType.F32) == shared_out(46, 5, DType.F32) == (2, 128, 4)
    assert shared_out(1, 60, DType.F32) == (32, 128, 4)
    assert shared_out(2000, 20, DType.F32) == (4, 128, 8)
    assert shared_out(1000, 32, DType.F32) == (8, 128, 8)
    assert shared_out(170, 55, DType.F32) == shared_out(11, 77, DType.F32) == (32, 128, 4)
    assert shared_out(4000, 64, DType.BF16) == (8, 128, 8)


@pytest.mark.parametrize("gpu", [H200, known_gpu("NVIDIA H100 80GB HBM3")], ids=str)
def test_few_rows_of_a_logarithm_that_words_divide_have_a_block_each(gpu):
    def shared_out(rows, cols, dtype, op=Op.LOG_SOFTMAX_BACKWARD):
        config = config_for(Problem(rows, cols, dtype, op), gpu)
        return config.threads_per_row, config.threads, config.vector_bytes

    assert shared_out(11, 512, DType.F32) == shared_out(400, 400, DType.F32) == (256, 256, 4)
    assert shared_out(1000, 512, DType.F32) == shared_out(11, 300, DType.F32) == (32, 128, 16)
    assert shared_out(11, 512, DType.F32, Op.SOFTMAX_BACKWARD) == (32, 128, 16)
    assert shared_out(1, 700, DType.BF16) == (128, 128, 8)
    assert shared_out(60, 700, DType.BF16) == shared_out(1, 700, DType.F16, Op.SOFTMAX_BACKWARD)


@pytest.mark.parametrize("gpu", [H200, known_gpu("NVIDIA H100 80GB HBM3")], ids=str)
def test_gradients_of_few_kilobytes_have_no_hints(gpu):
    def hint(rows, cols, dtype=DType.F32, op=Op.LOG_SOFTMAX_BACKWARD):
        return config_for(Problem(rows, cols, dtype, op), gpu).load_hint

    assert hint(1, 125) == hint(8, 125) == hint(46, 5) == "default"
    assert hint(46, 5, op=Op.SOFTMAX_BACKWARD) == "default"
    assert hint(300, 16) == hint(46, 5, DType.BF16) == "cs"


@pytest.mark.parametrize("gpu", [H200, known_gpu("NVIDIA H100 80GB HBM3")], ids=str)
def test_few_short_rows_of_any_gradient_are_loaded_by_two_elements(gpu):
    config = config_for(Problem(2, 34, op=Op.SOFTMAX_BACKWARD), gpu)
    assert (config.threads_per_row, config.vector_bytes) == (16, 8)


def test_rows_of_f32_that_start_anywhere_have_two_accesses_of_a_cluster():
    for op in (Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD):
        for rows, cols, threads in ((150, 10_001, 192), (374, 10_715, 192), (1355, 9784, 128)):
            config = config_for(Problem(rows, cols, DType.F32, op), H200)
            assert (config.cluster, config.threads) == (8, threads)


@pytest.mark.parametrize("cols", [145, 147, 163, 190])
def test_half_of_the_threads_of_a_gradient_have_work_on_any_gpu(cols):
    """What a rule excludes would be mended by random changes."""
    for gpu in (H200, known_gpu("NVIDIA A100-SXM4-80GB"), known_gpu("NVIDIA L4")):
        problem = Problem(8_000, cols, DType.F32, Op.SOFTMAX_BACKWARD)
        assert Space(problem, gpu).is_legal(promising(problem, gpu)), gpu.name


def test_blocks_of_gradients_keep_a_fast_memory_busy():
    """Where few blocks of one access a thread fit an SM, smaller ones have more in flight."""
    problem = Problem(6452, 5200, DType.BF16, Op.SOFTMAX_BACKWARD)
    chosen = {
        gbps: config_for(problem, replace(H200, peak_gbps=gbps)).threads
        for gbps in (0.0, 3000.0, 4800.0, 100_000.0)
    }
    assert chosen[3000.0] == 1024
    assert chosen[4800.0] == 384
    assert chosen[0.0] == chosen[4800.0]  # an unknown one counts as an H200's
    assert 64 <= chosen[100_000.0] <= 384  # no block suffices: what has about most bytes under way


def test_16_bit_rows_that_no_span_can_bring_are_loaded_by_narrow_words():
    for mask in (Mask.CAUSAL, Mask.LENGTHS):
        rows = {"mask_rows": 89} if mask is Mask.CAUSAL else {}
        by_elements = config_for(Problem(230_510, 89, DType.BF16, mask=mask, **rows), H200)
        assert (by_elements.vector_bytes, by_elements.threads_per_row) == (2, 16)
    in_pairs = Problem(150_474, 62, DType.F16, mask=Mask.ADDITIVE, mask_rows=62)
    assert config_for(in_pairs, H200).vector_bytes == 4


def test_few_short_rows_have_few_accesses_and_one_exchange():
    for rows, cols, dtype, threads in (
        (2000, 128, DType.BF16, 16),
        (2000, 48, DType.F32, 16),
        (10_000, 63, DType.F32, 16),
        (27, 679, DType.F16, 128),
        (13, 1110, DType.F16, 64),
    ):
        config = config_for(Problem(rows, cols, dtype), H200)
        assert (config.algorithm, config.threads_per_row) == ("online-block-max", threads)
    many = config_for(Problem(100_000, 128, DType.BF16), H200)
    assert (many.algorithm, many.threads_per_row) == ("three-pass", 8)


def test_few_16_bit_rows_have_the_words_that_divide_them():
    assert config_for(Problem(40, 1500, DType.BF16), H200).vector_bytes == 8
    assert config_for(Problem(40, 1504, DType.BF16), H200).vector_bytes == 16
    assert config_for(Problem(2, 3554, DType.BF16), H200).vector_bytes == 4
    assert config_for(Problem(2, 4095, DType.BF16), H200).vector_bytes == 2
    assert config_for(Problem(2, 4097, DType.BF16), H200).vector_bytes == 16


def test_16_bit_rows_with_lengths_have_32_elements_a_thread():
    for cols in (1024, 4096):
        problem = Problem(2**24 // cols, cols, DType.BF16, mask=Mask.LENGTHS)
        config = config_for(problem, H200)
        assert (config.algorithm, cols // config.threads_per_row) == ("three-pass", 32)


def test_packed_logarithms_leave_more_registers():
    for cols, blocks in ((50_257, 4), (128_256, 8)):
        problem = Problem(2**25 // cols, cols, DType.BF16, Op.LOG_SOFTMAX)
        config = config_for(problem, H200)
        assert (config.cluster, config.threads, config.min_blocks) == (blocks, 128, 4)


def test_a_gpu_that_nobody_knows_is_described_by_its_limits():
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
    rng, configs = random.Random(0), {"same": 0, "other": 0}
    for _ in range(60):
        rows, cols = (int(2 ** rng.uniform(0, most)) for most in (17, 20))
        problem = Problem(rows, cols, rng.choice([DType.F32, DType.F16, DType.BF16]))
        config = config_for(problem, unknown)
        assert Space(problem, unknown).is_legal(config) and config.cluster == 1
        configs["same" if config == config_for(problem, H200) else "other"] += 1
    assert min(configs.values()) > 10, configs
    rows = 1000  # 7.6 blocks an SM: of 256 threads an H200 holds eight, an RTX 4090 six
    assert config_for(Problem(rows, 2048), H200).threads == 256
    assert config_for(Problem(rows, 2048), unknown).threads < 256


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
def test_every_problem_has_candidates_with_the_heuristics_first(problem):
    found = candidates(problem, H200)
    assert found[0] == config_for(problem, H200)
    assert len(found) == len(set(found)) and all(map(Space(problem, H200).is_legal, found))
    assert len(found) >= min(3, problem.cols)


H100 = known_gpu("NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("cols", "dtype", "one", "two"),
    [
        (512, DType.F32, 128, 96),
        (1000, DType.F32, 256, 160),
        (1280, DType.BF16, 128, 96),
        (1896, DType.F16, 192, 128),
        (2048, DType.BF16, 192, 160),  # 256, one access of each, would take 1 % less time
        (256, DType.F64, 64, 64),  # which was not measured
        (2560, DType.BF16, 256, 192),
        (256, DType.BF16, 32, 32),  # a warp's access
        (513, DType.F32, 128, 64),
    ],
)
def test_threads_have_fewer_accesses_where_an_sm_can_load_little(cols, dtype, one, two):
    problem = Problem(50000, cols, dtype)
    assert config_for(problem, H100).threads_per_row == one
    assert config_for(problem, H200).threads_per_row == two


def test_rows_of_few_waves_and_under_a_mask_have_two():
    assert config_for(Problem(4224, 2048, DType.BF16), H100).threads_per_row == 256
    masked = Problem(32768, 512, mask=Mask.ADDITIVE)
    assert config_for(masked, H100).threads_per_row == 64


@pytest.mark.parametrize("gpu", [H100, H200])
def test_half_a_warp_loads_a_kibibyte(gpu):
    assert config_for(Problem(65536, 256), gpu).threads_per_row == 16
    assert config_for(Problem(65536, 256, mask=Mask.ADDITIVE), gpu).threads_per_row == 32
    assert config_for(Problem(65536, 224), gpu).threads_per_row == 32


def shape(problem, gpu=H200):
    """Return the threads of a row, a word's bytes, a row's blocks, and those an SM is to hold."""
    config = config_for(problem, gpu)
    return config.threads_per_row, config.vector_bytes, config.cluster, config.min_blocks


@pytest.mark.parametrize(
    ("problem", "threads_per_row", "word", "hint"),
    [
        (Problem(104104, 12, inner=11), 2, 4, "cs"),
        (Problem(50001, 24, inner=7), 4, 4, "cs"),
        (Problem(100100, 20, inner=77), 4, 4, "default"),  # of 1.5 waves
        (Problem(99990, 6, inner=11), 2, 4, "cs"),  # few rows: three elements a thread
        (Problem(25600, 16, inner=64), 8, 4, "cs"),  # and two
        (Problem(102400, 16, inner=64), 4, 16, "cs"),  # many: words of four rows
        (Problem(51200, 32, DType.BF16, inner=256), 8, 4, "cs"),  # pairs
        (Problem(20020, 32, DType.BF16, inner=13), 8, 2, "cs"),  # no words divide 13 elements
        (Problem(12800, 48, DType.BF16, inner=128), 8, 4, "cs"),  # longer rows: four at least
        (Problem(300200, 8, DType.BF16, Op.SOFTMAX_BACKWARD, inner=1501), 1, 2, "default"),
        (Problem(100100, 20, DType.BF16, Op.LOG_SOFTMAX_BACKWARD, inner=77), 4, 2, "default"),
    ],
)
def test_few_elements_over_a_middle_axis(problem, threads_per_row, word, hint):
    config = config_for(problem, H200)
    assert (config.threads_per_row, config.vector_bytes) == (threads_per_row, word)
    assert config.load_hint == hint


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "expected"),
    [
        (64, 32000, DType.BF16, (512, 16, 2, 1)),
        (64, 32000, DType.F32, (512, 16, 2, 1)),
        (128, 16384, DType.BF16, (512, 16, 2, 2)),
        (200, 32000, DType.BF16, (128, 16, 8, 1)),  # more than two blocks for each SM
        (48, 40000, DType.F32, (256, 16, 8, 1)),  # of too few pairs, but not of 16 bits
        (40, 32000, DType.BF16, (512, 16, 8, 1)),
        (40, 16384, DType.BF16, (128, 16, 8, 1)),  # too short for large blocks
        (16, 32000, DType.BF16, (128, 16, 8, 1)),
        (100, 8192, DType.F64, (128, 16, 8, 1)),  # which was not timed
    ],
)
def test_few_wide_rows_of_a_logarithm_have_pairs_of_large_blocks(rows, cols, dtype, expected):
    problem = Problem(rows, cols, dtype, Op.LOG_SOFTMAX_BACKWARD)
    assert shape(problem) == expected
    assert config_for(problem, H200).cache == "registers"


@pytest.mark.parametrize(
    ("rows", "cols", "expected"),
    [
        (300, 8943, (256, 16, 2, 4)),
        (1117, 12310, (256, 8, 1, 2)),  # by words of 8 bytes
        (400, 17003, (256, 16, 1, 2)),
        (300, 20001, (512, 16, 2, 2)),
        (300, 13001, (128, 16, 2, 4)),  # between these, nothing was timed
        (2000, 20001, (256, 16, 2, 1)),
        (500, 25001, (256, 16, 2, 2)),
    ],
)
def test_wide_odd_gradients_have_two_blocks_or_one(rows, cols, expected):
    problem = Problem(rows, cols, DType.BF16, Op.SOFTMAX_BACKWARD)
    assert shape(problem) == expected
    assert config_for(problem, H200).cache == "registers"


@pytest.mark.parametrize(
    ("rows", "cols", "threads_per_row", "word"),
    [
        (2400, 1600, 64, 8),
        (3171, 1296, 32, 16),
        (2957, 2048, 32, 16),
        (2670, 1296, 96, 16),  # resident by three warps
        (3400, 1800, 128, 16),  # not even resident by one
        (1478, 4096, 192, 16),  # two warps would have eight accesses each
    ],
)
def test_rows_that_few_warps_keep_resident_have_few(rows, cols, threads_per_row, word):
    config = config_for(Problem(rows, cols, DType.BF16), H200)
    assert (config.threads_per_row, config.vector_bytes) == (threads_per_row, word)


def lasts_ns(problem, threads, gpu, word=16):
    """Nanoseconds at an SM's share of bandwidth for which what its blocks load at once lasts."""
    block = {"threads": row_of(threads).threads, "threads_per_row": threads, "vector_bytes": word}
    idea = replace(config_for(problem, gpu), **block, min_blocks=1)
    rows = resident_rows(problem, idea, gpu) / gpu.sm_count
    matrices = 2 if problem.op.is_backward else 1
    return rows * matrices * problem.row_bytes * gpu.sm_count / gpu.peak_gbps


@pytest.mark.parametrize("gpu", [H200, H100], ids=str)
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (Op.SOFTMAX, DType.F32),
        (Op.LOG_SOFTMAX, DType.F32),
        (Op.LOG_SOFTMAX, DType.BF16),
        (Op.SOFTMAX_BACKWARD, DType.F32),
    ],
    ids=str,
)
def test_many_rows_have_the_largest_block_that_keeps_memory_busy(op, dtype, gpu):
    """What all blocks of an SM load at once lasts for 1.2 microseconds or more, and for less than
    1.9 by every larger block of which an SM has two."""
    for cols in (*range(1201, 8192, 211), 2048, 4096):
        problem = Problem(400_000, cols, dtype, op)
        chosen = config_for(problem, gpu)
        threads, word = chosen.threads_per_row, chosen.vector_bytes
        assert lasts_ns(problem, threads, gpu, word) > 1200, cols
        most = min(1024 if op.is_backward else 768, 2 * problem.row_bytes // 16 - 1)
        larger = [n for n in WARPS if threads < n <= most]
        assert all(lasts_ns(problem, n, gpu, word) < 1900 for n in larger), cols


GPUS = [
    known_gpu(name)
    for name in (
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA L4",
        "Tesla T4",
        "NVIDIA GeForce RTX 5090",
        "NVIDIA B200",
    )
]


@pytest.mark.parametrize("gpu", [H200, H100, *GPUS, replace(H200, peak_gbps=0.0)], ids=str)
@pytest.mark.parametrize("op", Op, ids=str)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_many_rows_have_sound_blocks_on_any_gpu(dtype, op, gpu):
    """Few registers of each thread, two blocks of an SM unless none leaves room for as many."""
    for cols in range(1100, 8192, 331):
        problem = Problem(1_000_000, cols, dtype, op)
        config = config_for(problem, gpu)
        assert config.cluster == 1 and config.cache == "registers"
        assert likely_registers(problem, config) <= 136, cols
        two = resident_rows(problem, config, gpu) >= 2 * gpu.sm_count * config.rows_per_block
        assert two or config.threads_per_row <= 512, cols


def test_an_unknown_bandwidth_counts_as_an_h200s():
    unknown = replace(H200, peak_gbps=0.0)
    for cols in (513, 1797, 4399, 7001):
        for dtype in (DType.F32, DType.BF16):
            for op in Op:
                problem = Problem(100_000, cols, dtype, op)
                assert config_for(problem, unknown) == config_for(problem, H200)


@pytest.mark.parametrize("gpu", [H200, H100], ids=str)
@pytest.mark.parametrize(("dtype", "step"), [(DType.F32, 20), (DType.BF16, 24)])
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.SOFTMAX_BACKWARD], ids=str)
def test_longer_rows_have_hardly_fewer_threads_where_rows_are_many(op, dtype, step, gpu):
    """A size or two fewer, where one more access leaves an SM fewer blocks."""
    longest = 8192 if dtype is DType.F32 else 6496
    most = 0
    for cols in range(1104, longest, step):
        threads = shape(Problem(200_000, cols, dtype, op), gpu)[0]
        assert threads >= most / 2, cols
        most = max(most, threads)


@pytest.mark.parametrize(
    ("rows", "cols", "on_h200", "on_h100"),
    [
        (30_000, 777, 128, 160),
        (77_605, 684, 128, 160),
        (88_848, 1797, 256, 384),
        (10_535, 2234, 320, 384),
        (39_354, 3928, 512, 640),
        (30_000, 1327, 224, 256),
        (20_000, 2000, 320, 384),
        (5665, 4399, 512, 640),
        (13_565, 6534, 640, 768),
        (8000, 7524, 768, 768),
    ],
)
def test_many_rows_of_f32_have_the_blocks_that_were_the_fastest(rows, cols, on_h200, on_h100):
    """On an H200, by searches and grids of these or of lengths that are close."""
    problem = Problem(rows, cols)
    assert shape(problem)[:2] == (on_h200, 16)
    assert shape(problem, H100)[:2] == (on_h100, 16)


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "threads", "word"),
    [
        (17_103, 2227, DType.F32, 320, 16),
        (28_586, 1934, DType.F32, 256, 16),
        (19_019, 4234, DType.F32, 512, 16),
        (37_698, 1624, DType.BF16, 64, 16),
        (8000, 7681, DType.BF16, 256, 8),
        (105_659, 650, DType.BF16, 32, 8),
        (19_019, 4234, DType.BF16, 128, 8),
    ],
)
def test_many_rows_of_log_softmax_have_the_blocks_that_were_the_fastest(
    rows, cols, dtype, threads, word
):
    problem = Problem(rows, cols, dtype, Op.LOG_SOFTMAX)
    assert shape(problem)[:2] == (threads, word)
    assert dtype is DType.F32 or shape(problem, H100)[1] == 16  # no words of 8 bytes there


def test_fewer_rows_have_more_accesses():
    few, few_large_blocks = Problem(1400, 1001), Problem(1502, 5837)
    assert (shape(few)[0], shape(few_large_blocks, H100)[0]) == (128, 384)
    few_of_logarithm = Problem(7825, 1484, DType.BF16, Op.LOG_SOFTMAX)
    assert shape(few_of_logarithm)[:2] == (64, 8)


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "op", "threads", "word"),
    [
        (2000, 1000, DType.F32, Op.SOFTMAX, 32, 16),
        (3337, 1296, DType.F32, Op.SOFTMAX, 32, 16),
        (2218, 1128, DType.F32, Op.LOG_SOFTMAX, 32, 16),
        (3500, 800, DType.F32, Op.SOFTMAX, 32, 16),
        (2000, 1504, DType.F32, Op.LOG_SOFTMAX, 32, 16),
        (1585, 1296, DType.F32, Op.SOFTMAX, 32, 16),
        (1300, 1128, DType.F32, Op.LOG_SOFTMAX, 160, 16),
        (2600, 1001, DType.F32, Op.SOFTMAX, 32, 4),
        (2600, 1001, DType.F32, Op.LOG_SOFTMAX, 32, 4),
        (2200, 701, DType.F32, Op.LOG_SOFTMAX, 64, 4),
        (4000, 1201, DType.F32, Op.LOG_SOFTMAX, 128, 4),
        (5000, 1001, DType.F32, Op.SOFTMAX, 128, 4),
        (1600, 1001, DType.F32, Op.SOFTMAX, 32, 4),  # blocks more uneven than those of 2200 x 701
        (700, 3002, DType.F32, Op.LOG_SOFTMAX, 256, 16),
        (260, 4002, DType.F32, Op.SOFTMAX, 640, 16),
        (20_000, 2302, DType.BF16, Op.SOFTMAX, 96, 16),
        (300, 7001, DType.F32, Op.SOFTMAX_BACKWARD, 1024, 16),
        (12_921, 866, DType.BF16, Op.LOG_SOFTMAX, 32, 4),
        (13, 1110, DType.F16, Op.SOFTMAX, 64, 4),
        (3000, 1598, DType.BF16, Op.SOFTMAX, 64, 4),
        (9000, 2002, DType.BF16, Op.LOG_SOFTMAX, 64, 4),
        (1000, 4002, DType.BF16, Op.LOG_SOFTMAX, 128, 8),
        (898, 5517, DType.BF16, Op.LOG_SOFTMAX, 128, 8),
        (600, 2602, DType.BF16, Op.LOG_SOFTMAX, 192, 16),
    ],
    ids=str,
)
def test_rows_of_few_waves_have_the_threads_that_grids_speak_for(
    rows, cols, dtype, op, threads, word
):
    """On an H200, by grids of these problems or of some close to them: within 3 % of the best."""
    assert shape(Problem(rows, cols, dtype, op))[:2] == (threads, word)


@pytest.mark.parametrize("rows", [132, 300, 600])
def test_few_rows_of_f32_are_loaded_by_the_words_of_8_bytes_that_divide_them(rows):
    assert shape(Problem(rows, 2126))[:2] == (384, 8)
    assert shape(Problem(rows, 7502))[1] == 16
    longer = Problem(min(rows, 515), 5798, op=Op.LOG_SOFTMAX)
    assert shape(longer)[:2] == (512, 8)


def test_few_odd_rows_of_log_softmax_have_no_small_blocks():
    """A GPU with room for more blocks than there are rows gains nothing by small ones."""
    for rows, cols in ((700, 5202), (600, 5202), (500, 3502)):
        problem = Problem(rows, cols, DType.BF16, Op.LOG_SOFTMAX)
        assert shape(problem, known_gpu("NVIDIA B200"))[0] >= 96, (rows, cols)


def test_f32_rows_that_start_anywhere_have_three_warps_or_are_not_resident_together():
    assert shape(Problem(1848, 1555, op=Op.LOG_SOFTMAX))[0] >= 96


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "op", "hint"),
    [
        (3500, 905, DType.F32, Op.SOFTMAX, "default"),
        (1500, 827, DType.F32, Op.SOFTMAX, "cs"),
        (2200, 701, DType.F32, Op.SOFTMAX, "cs"),  # by two warps
        (2210, 791, DType.F32, Op.SOFTMAX, "default"),  # by two warps
        (1440, 1279, DType.F32, Op.SOFTMAX, "default"),  # by four
        (4000, 1182, DType.BF16, Op.LOG_SOFTMAX, "default"),
        (3000, 1030, DType.BF16, Op.SOFTMAX, "cs"),
        (4000, 1402, DType.BF16, Op.SOFTMAX, "default"),
        (1200, 3002, DType.BF16, Op.LOG_SOFTMAX, "default"),
    ],
    ids=str,
)
def test_rows_of_narrow_words_have_hints_while_the_cache_holds_little_of_them(
    rows, cols, dtype, op, hint
):
    config = config_for(Problem(rows, cols, dtype, op), H200)
    assert (config.load_hint, config.store_hint) == (hint, hint)


@pytest.mark.parametrize("mask", [Mask.CAUSAL, Mask.LENGTHS, Mask.ADDITIVE])
def test_rows_under_a_mask_have_no_warp_where_none_was_timed(mask):
    problem = Problem(2600, 1001, mask=mask, mask_rows=2600 if mask is Mask.CAUSAL else 0)
    assert config_for(problem, H200).threads_per_row > 32


def test_few_threads_of_a_row_of_16_bits_do_not_have_a_second_access_alone():
    assert shape(Problem(33_554, 2000, DType.BF16), H100)[0] == 192  # 224 would have 1.1 each


@pytest.mark.parametrize("gpu", [H200, H100], ids=str)
def test_odd_rows_of_f32_that_are_hardly_short_have_a_warp(gpu):
    def kind(rows, cols, op=Op.SOFTMAX):
        config = config_for(Problem(rows, cols, op=op), gpu)
        return config.threads_per_row, config.vector_bytes, config.staging

    assert kind(5729, 487) == (32, 4, "direct")
    assert kind(12_000, 487) == (32, 16, "span")
    assert kind(9000, 401) == (16, 16, "span")
    assert kind(12_000, 487, Op.SOFTMAX_BACKWARD)[2] == "direct"
    assert kind(500, 401)[0] == kind(12_000, 487, Op.LOG_SOFTMAX)[0] == 64  # not timed


def test_many_gradients_of_f32_have_no_more_than_one_access_for_each_thread():
    for rows, cols, threads in ((100_000, 514, 160), (50_000, 777, 256), (20_000, 1001, 320)):
        for op in GRADIENTS:
            config = config_for(Problem(rows, cols, op=op), H200)
            assert (config.threads_per_row, config.vector_bytes) == (threads, 16)
    few = config_for(Problem(2000, 1001, op=Op.SOFTMAX_BACKWARD), H200)
    assert few.vector_bytes == 4


def test_gradients_have_spare_threads_where_an_sm_can_load_little():
    def threads(rows, cols, dtype=DType.F32, gpu=H100):
        return config_for(Problem(rows, cols, dtype, Op.SOFTMAX_BACKWARD), gpu).threads_per_row

    assert threads(32_768, 512, gpu=H200) == 160
    spare = [threads(rows, cols) for rows, cols in ((32_768, 512), (11_177, 1501), (8192, 2048))]
    assert spare == [224, 512, 640]
    assert threads(5592, 3000) == threads(5592, 6000, DType.BF16) == 1024
    assert threads(16_384, 2048, DType.BF16) == 384


def test_wide_gradients_have_the_blocks_that_were_the_fastest():
    def blocks(rows, cols, dtype=DType.BF16):
        config = config_for(Problem(rows, cols, dtype, Op.SOFTMAX_BACKWARD), H200)
        return config.cluster, config.threads, config.min_blocks

    assert blocks(195, 36_464) == blocks(300, 33_000) == (8, 192, 1)
    assert blocks(150, 43_344) == (8, 192, 4) and blocks(200, 60_000) == (8, 128, 4)
    assert blocks(41, 13_294)[0] == 8 and blocks(32, 13_294)[0] == blocks(60, 13_294)[0] == 4
    assert blocks(250, 14_002) == (1, 256, 2)  # all rows at once, by two blocks of each SM
    assert blocks(264, 20_001) == blocks(265, 20_001) == (2, 512, 2)
    assert blocks(215, 8548, DType.F32)[0] == blocks(300, 8200, DType.F32)[0] == 4
    assert blocks(100, 8548, DType.F32)[0] == blocks(600, 8548, DType.F32)[0] == 8


def test_hints_of_gradients_that_start_anywhere():
    def hint(rows, cols, dtype=DType.BF16):
        return config_for(Problem(rows, cols, dtype, Op.SOFTMAX_BACKWARD), H200).load_hint

    assert hint(41, 13_294) == "cs" and hint(250, 14_002) == hint(100, 20_002) == "default"
    assert hint(16, 6002, DType.F32) == hint(3, 4510, DType.F32) == "cs"
    assert hint(3, 2942) == "default"


@pytest.mark.parametrize("gpu", [H200, H100], ids=str)
@pytest.mark.parametrize(
    ("rows", "cols", "op", "cluster", "threads"),
    [
        (215, 8548, Op.SOFTMAX_BACKWARD, 4, 128),
        (16, 9004, Op.SOFTMAX_BACKWARD, 8, 128),
        (2000, 8548, Op.LOG_SOFTMAX_BACKWARD, 4, 128),
        (300, 20_004, Op.SOFTMAX_BACKWARD, 8, 128),
        (64, 50_260, Op.SOFTMAX_BACKWARD, 8, 256),
        (300, 12_300, Op.SOFTMAX, 2, 128),
        (100, 50_260, Op.SOFTMAX, 8, 128),
    ],
)
def test_wide_rows_are_loaded_by_the_8_bytes_that_divide_them(
    gpu, rows, cols, op, cluster, threads
):
    config = config_for(Problem(rows, cols, DType.BF16, op), gpu)
    assert (config.cluster, config.threads, config.vector_bytes) == (cluster, threads, 8)
    odd = config_for(Problem(rows, cols + 1, DType.BF16, op), gpu)
    assert odd.vector_bytes == 16


def test_wide_16_bit_rows_of_a_logarithm_keep_their_words():
    """None were timed by words of 8 bytes."""
    for rows, cols in ((300, 12_300), (1000, 8548)):
        config = config_for(Problem(rows, cols, DType.BF16, Op.LOG_SOFTMAX), H200)
        assert config.vector_bytes == 16


def test_strides_count_where_words_of_8_bytes_are_chosen():
    wide = Problem(1000, 12_300, DType.BF16, input_stride=12_301)
    assert config_for(wide, H200).vector_bytes == 16
    assert config_for(replace(wide, input_stride=12_304), H200).vector_bytes == 8


def test_many_odd_gradients_of_f32_have_four_blocks():
    def shared(rows, cols):
        config = config_for(Problem(rows, cols, op=Op.SOFTMAX_BACKWARD), H200)
        return config.cluster, config.threads

    assert shared(12_968, 8963) == (4, 256)
    assert shared(1000, 8963)[0] == shared(6000, 12_001)[0] == 8


def test_wide_rows_may_be_hardly_more_than_one_wave():
    for dtype in (DType.F32, DType.BF16):
        config = config_for(Problem(100, 65_536, dtype), H200)
        assert (config.cluster, config.threads, config.cache_holds) == (8, 128, "exp")
    more = config_for(Problem(100, 80_000, DType.BF16), H200)
    assert more.cache_holds == "input"


@pytest.mark.parametrize(
    ("problem", "threads", "threads_per_row", "word"),
    [
        (Problem(12_800, 96, DType.BF16, inner=128), 256, 32, 8),
        (Problem(12_800, 96, DType.BF16, Op.SOFTMAX_BACKWARD, inner=128), 256, 32, 8),
        (Problem(32_768, 96, DType.BF16, Op.LOG_SOFTMAX, inner=256), 128, 16, 8),
        (Problem(131_072, 80, DType.F16, inner=16_384), 128, 8, 8),
        (Problem(20_020, 96, DType.BF16, inner=13), 128, 8, 2),
        (Problem(13_013, 72, inner=13), 256, 16, 4),
        (Problem(65_536, 150, DType.BF16, inner=16_384), 256, 16, 8),
        (Problem(4096, 512, inner=64), 256, 64, 16),
        (Problem(8192, 200, DType.F16, inner=128), 256, 32, 8),
        (Problem(2048, 300, DType.BF16, inner=32), 256, 64, 8),
    ],
    ids=str,
)
def test_rows_of_some_elements_over_a_middle_axis_have_small_tiles(
    problem, threads, threads_per_row, word
):
    for gpu in (H200, H100):
        config = config_for(problem, gpu)
        found = (config.threads, config.threads_per_row, config.vector_bytes)
        assert found == (threads, threads_per_row, word) and config.cluster == 1
    for gpu in (H200, H100, known_gpu("NVIDIA A100-SXM4-80GB")):
        assert Space(problem, gpu).is_legal(promising(problem, gpu))


def test_the_fewer_rows_over_a_middle_axis_the_more_threads_has_each():
    for cols, dtype in ((96, DType.BF16), (80, DType.F32), (150, DType.BF16)):
        problems = [Problem(256 * 2**n, cols, dtype, inner=128) for n in range(13)]
        threads = [config_for(problem, H200).threads_per_row for problem in problems]
        assert threads == sorted(threads, reverse=True), cols


def test_many_rows_over_a_middle_axis_have_clusters():
    assert config_for(Problem(32_768, 256, DType.BF16, inner=512), H200).cluster == 2
    assert config_for(Problem(65_536, 150, inner=16_384), H200).cluster == 2


def test_sums_are_rescaled_where_that_takes_fewer_registers():
    for cols, algorithm in ((13, "three-pass"), (15, "online-block-max"), (17, "online-block-max")):
        assert config_for(Problem(200_000, cols, DType.BF16), H200).algorithm == algorithm
    logarithm = Problem(200_000, 17, DType.BF16, Op.LOG_SOFTMAX)
    assert config_for(logarithm, H200).algorithm == "three-pass"


def test_rows_are_read_twice_only_where_the_cache_holds_them():
    problem = Problem(16, 524288)
    assert config_for(problem, H200).splits_launches
    assert not config_for(problem, H100).splits_launches


@pytest.mark.parametrize("cols", [6, 20, 60, 80, 150, 300])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_few_elements_over_a_middle_axis_may_be_batch_invariant(cols, dtype):
    """Also where the number of rows would change the words and the threads."""
    kinds = set()
    for slices in (1, 50, 400, 1600, 6400, 100_000):
        problem = Problem(64 * slices, cols, dtype, inner=64)
        kinds.add(config_for(problem, H200, batch_invariant=True))
    assert len(kinds) == 1


@pytest.mark.parametrize("gpu", [H200, known_gpu("NVIDIA H100 80GB HBM3")], ids=lambda g: g.name)
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX])
def test_short_rows_of_f32_go_straight_to_half_a_warp_while_they_are_few(gpu, op):
    """Then they come by way of spans, of small blocks at first, whatever words divide them."""

    def chosen(rows, cols):
        config = config_for(Problem(rows, cols, op=op), gpu)
        return config.staging, config.threads, config.threads_per_row

    for cols in (101, 102, 124, 177, 178):  # by words of 4, 8, 16, 4 and 8 bytes
        assert chosen(3000, cols) == ("direct", 128, 16)
        assert chosen(12_000, cols) == ("span", 64, 16)
        assert chosen(20_000, cols) == ("span", 128, 16)
        assert chosen(200_000, cols) == ("span", 128, 32 if cols > 160 else 16)
    assert chosen(6000, 399) == ("direct", 128, 32)
    assert chosen(13_000, 399) == ("span", 64, 16) and chosen(20_000, 399) == ("span", 128, 32)
    assert chosen(13_000, 69) == ("direct", 128, 16) and chosen(20_000, 69) == ("span", 128, 8)
    assert chosen(13, 125) == ("direct", 128, 32)  # so few that the time of one row counts
    for rows in (3000, 20_000, 200_000):  # whose rows start at the same bank of shared memory
        assert chosen(rows, 96)[0] == chosen(rows, 288)[0] == "direct"


def test_short_rows_of_f32_have_no_hints_where_the_l2_cache_holds_some_of_them():
    def hint(rows, cols):
        config = config_for(Problem(rows, cols), H200)
        assert config.staging == "direct"
        return config.load_hint

    assert hint(2951, 113) == hint(2944, 101) == hint(6812, 399) == "cs"
    assert hint(10_000, 127) == hint(13_813, 87) == hint(7865, 267) == "default"
    assert hint(9866, 206) == "cs"  # words of 8 bytes divide rows
    assert hint(1300, 1001) == "cs"  # 0.17 of the cache, but a block has each row


def test_spans_of_f32_have_hints_if_their_blocks_are_about_one_wave():
    def hint(rows, cols):
        config = config_for(Problem(rows, cols), H200)
        assert config.staging == "span"
        return config.load_hint

    assert hint(10_165, 381) == hint(12_803, 102) == hint(27_843, 69) == "cs"
    assert hint(13_861, 335) == hint(35_736, 130) == "default"


def test_16_bit_rows_that_pairs_divide_are_loaded_by_pairs_however_many_they_are():
    def chosen(rows, cols):
        config = config_for(Problem(rows, cols, DType.BF16, Op.SOFTMAX_BACKWARD), H200)
        return config.vector_bytes, config.threads_per_row

    assert chosen(4299, 1758) == chosen(25_872, 1554) == chosen(200_000, 1554) == (4, 256)
    assert chosen(10_413, 3826) == (4, 384)
    assert chosen(7280, 1014) == (4, 128)  # 256 would have less than two pairs each
    assert chosen(2819, 6546)[0] == 8


@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize("cols", [898, 1554, 3826])
def test_a_batch_invariant_config_of_pairs_is_one_for_all_rows(cols, op):
    one, many = (
        config_for(Problem(rows, cols, DType.BF16, op), H200, batch_invariant=True)
        for rows in (1, 2_000_000)
    )
    assert one == many and one.vector_bytes == 4


@pytest.mark.parametrize("cols", range(991, 8192, 110))
def test_words_of_8_bytes_are_three_to_eight_for_each_thread(cols):
    problem = Problem(60_000_000 // cols, cols | 1, DType.BF16, Op.SOFTMAX_BACKWARD)
    config = config_for(problem, H200)
    accesses = WorkSplit(problem, config).row_vectors / config.threads_per_row
    assert config.vector_bytes == 8 and 2.8 <= accesses <= 8
    assert config.threads_per_row <= 256


def test_few_gradients_have_one_access_of_each_thread_or_two():
    def threads(rows, cols, dtype, op):
        return config_for(Problem(rows, cols, dtype, op), H200).threads_per_row

    log = Op.LOG_SOFTMAX_BACKWARD
    assert threads(4, 4000, DType.BF16, Op.SOFTMAX_BACKWARD) == 256
    assert threads(3, 3880, DType.BF16, log) == 512
    assert threads(2, 4920, DType.BF16, log) == threads(21, 2072, DType.F32, log) == 640
    assert threads(300, 2072, DType.F32, log) == threads(10, 1100, DType.F64, log) == 320


def test_gradients_of_f32_have_no_hints_where_the_l2_cache_holds_some_of_them():
    def hint(rows, cols, op=Op.SOFTMAX_BACKWARD):
        return config_for(Problem(rows, cols, op=op), H200).load_hint

    assert hint(128, 4696) == hint(118, 2328) == "cs"
    assert hint(352, 5240) == hint(1555, 884) == hint(1049, 1796) == "default"
    assert hint(1117, 2304) == "cs"  # 0.49 of it
    assert hint(3617, 264) == hint(3500, 252) == "cs"  # a warp has each row
    assert hint(52, 3766) == "cs"  # by words of 8 bytes
    assert hint(4, 60, Op.LOG_SOFTMAX_BACKWARD) == "default"  # so little that hints gain nothing


def test_short_rows_of_16_bits_have_the_threads_that_were_the_fastest_by_random_rows():
    def chosen(rows, cols):
        config = config_for(Problem(rows, cols, DType.BF16), H200)
        return config.staging, config.threads_per_row, config.vector_bytes

    assert chosen(20_120, 71) == ("direct", 16, 2) and chosen(200_000, 71)[:2] == ("span", 4)
    assert chosen(200_000, 66)[1] != 2 and chosen(200_000, 65)[:2] == ("span", 2)
    assert chosen(8236, 84) == chosen(12_137, 76) == ("direct", 8, 8)
    assert chosen(100, 84) == ("direct", 16, 8) and chosen(2000, 96)[1] == 16


def test_gradients_of_f32_of_a_wave_or_more_have_a_block_for_each_row():
    for rows, cols, threads in ((4092, 571, 192), (3648, 803, 256), (5813, 554, 160)):
        config = config_for(Problem(rows, cols, op=Op.SOFTMAX_BACKWARD), H200)
        assert (config.threads, config.threads_per_row) == (threads, threads)
