"""Attention of one query by mma: right numbers, and what breaks it is found or shows in them."""

import numpy as np
import pytest
from decode_attention import BF16, F16, decode, inputs, source_of, truth
from run_kernel import PRELUDE, compile_ptx

from explorer.ptx_emulator import Schedule, decided_by_arrival, parse

WRONG = "wrong numbers"


def is_close(output, expected):
    """Whether numbers are the nearest of their type to the truth, give or take 1e-5."""
    kept_bits = 8 if output.dtype == BF16 else 11
    half_ulp = np.exp2(np.floor(np.log2(np.abs(expected))) - kept_bits)
    off = np.abs(output.astype(np.float64) - expected)
    return bool(np.all(off <= 1.01 * half_ulp + 1e-5))


CASES = [
    (BF16, 64, 1, 70, 1),
    (BF16, 64, 4, 70, 3),
    (BF16, 128, 5, 70, 2),
    (BF16, 128, 8, 150, 2),
    (F16, 64, 8, 70, 2),
    (F16, 128, 4, 70, 1),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("last_block", [False, True], ids=["two launches", "last block"])
@pytest.mark.parametrize(("dtype", "width", "group", "count", "splits"), CASES)
def test_numbers_are_right(dtype, width, group, count, splits, last_block):
    given = inputs(dtype, width, group, 2, count)
    source = source_of(dtype, width, group, last_block=last_block)
    output, found, counters = decode(source, *given, splits)
    assert not found, found
    assert is_close(output, truth(*given))
    ends = [*range(0, count, -(-count // splits)), count]
    tiles = sum(-(-span // 16) for span in np.diff(ends).tolist())
    assert counters.instructions["mma"] == 2 * tiles * width // 4


@pytest.mark.sampled(4)
@pytest.mark.parametrize("schedule", [Schedule.STAGGERED, Schedule.PERMUTED, Schedule.RANDOM])
@pytest.mark.parametrize("last_block", [False, True], ids=["two launches", "last block"])
def test_every_order_of_threads_gives_the_same_bits(last_block, schedule):
    given = inputs(BF16, 64, 5, 2, 200)
    source = source_of(BF16, 64, 5, last_block=last_block)
    entry = parse(compile_ptx(PRELUDE + source)).entries["decode"]
    assert decided_by_arrival(entry) is None
    output, found, _ = decode(source, *given, 3, schedule=schedule, reproducible=True)
    assert not found, found
    assert np.array_equal(output, decode(source, *given, 3)[0])


def test_a_head_does_not_depend_on_its_place_in_a_group():
    query, keys, values = inputs(BF16, 64, 8, 1, 70)
    source = source_of(BF16, 64, 8)
    order = [5, 2, 7, 0, 6, 4, 1, 3]
    moved = decode(source, query[:, order], keys, values, 2)[0]
    assert np.array_equal(moved, decode(source, query, keys, values, 2)[0][:, order])


DEFECTS = {
    "lanes take another's row": ("g = lane / 4, t = lane % 4", "g = lane % 8, t = lane / 8", WRONG),
    "rows of A exchanged": ("v[1].pairs[i], 0x7632),", "v[1].pairs[i], 0x5410),", WRONG),
    "keys of A exchanged": ("2 * t + i % 2 + 8 * (i / 2)", "2 * t + i / 2 + 8 * (i % 2)", WRONG),
    "halves of B exchanged": ("a, high[0], high[1]", "a, high[1], high[0]", WRONG),
    "factors of other heads": ("factor, 8 * t + 4)", "factor, 8 * t + 1)", WRONG),
    "weights of 16 bits": ("add_product(o[4 * c + i], a, low[0], low[1]);", "", WRONG),
    "keys beyond the last count": (
        "of[i] < end ? s[i / 2][i % 2] * scale : NEG_INF",
        "s[i / 2][i % 2] * scale",
        WRONG,
    ),
    "scores are not set to zero": ("float s[2][4] = {};", "float s[2][4];", WRONG),
    "sums are not set to zero": (
        "float o[D / 16][4] = {}, maximum",
        "float o[D / 16][4], maximum",
        WRONG,
    ),
    "heads beyond the group are not set": (
        "query[g * kWords + 4 * j + t] : uint4{}",
        "query[g * kWords + 4 * j + t] : query[(g + 90) * kWords]",
        "out-of-bounds",
    ),
    "keys beyond the last are read": (
        "min(key + 8 * n + g, count - 1)",
        "(key + 8 * n + g)",
        "out-of-bounds",
    ),
    "lanes of a group multiply alone": (
        "add_product(s[n], {q[j].z",
        "if (g < G) add_product(s[n], {q[j].z",
        "warp-mask",
    ),
    "lanes rescale alone": (
        "if (__any_sync(FULL, largest > maximum))",
        "if (largest > maximum)",
        "warp-mask",
    ),
    "warps are not waited for": (
        "  __syncthreads();\n  for (int i = threadIdx.x; i < G * D; i += 128) {",
        "  for (int i = threadIdx.x; i < G * D; i += 128) {",
        "shared-race",
    ),
    "the launch before is not waited for": (
        'asm volatile("griddepcontrol.wait;" ::: "memory");',
        "",
        "global-race",
    ),
    "a part that nobody wrote": (
        "states[row * parts + i].x",
        "states[row * parts + i + 1].x",
        "out-of-bounds",
    ),
}


def verdict(source, right, wrong, splits=2, **options):
    """The kinds of what is found once a source's text is replaced, or that its numbers are off."""
    assert source.count(right) == 1, f"{right!r} occurs {source.count(right)} times"
    given = inputs(BF16, 64, 5, 2, 200)
    output, found, _ = decode(source.replace(right, wrong), *given, splits, **options)
    off = not is_close(output, truth(*given))
    return {finding.kind.value for finding in found} | ({WRONG} if off else set())


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_are_found(name):
    right, wrong, shows = DEFECTS[name]
    assert shows in verdict(source_of(BF16, 64, 5), right, wrong)


COUNTS = "  __threadfence();\n  __syncthreads();\n  if (threadIdx.x == 0) is_last"

IN_ONE_LAUNCH = {
    "no fence before the block counts itself": (COUNTS, COUNTS.replace("  __threadfence();\n", "")),
    "threads are not waited for": (COUNTS, COUNTS.replace("  __syncthreads();\n", "")),
    "no fence after the others have come": (
        "  if (!is_last) return;\n  __threadfence();\n",
        "  if (!is_last) return;\n",
    ),
    "every block merges": ("  if (!is_last) return;\n", ""),
}


@pytest.mark.parametrize("name", IN_ONE_LAUNCH)
def test_parts_that_are_read_before_they_are_known_are_a_race(name):
    right, wrong = IN_ONE_LAUNCH[name]
    source = source_of(BF16, 64, 5, last_block=True)
    assert "global-race" in verdict(source, right, wrong)
