"""Registers guessed before a kernel is compiled, beside what the compiler allots."""

from collections import Counter

import pytest

from explorer.choose import config_for
from explorer.choose.residency import likely_registers, waves
from explorer.codegen.units import emit
from explorer.compile.compiler import CompilePool, Compiler
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu, occupancy
from explorer.model.problem import Problem
from explorer.model.tuned_table import read_table
from explorer.ops import Op
from tests.heuristic_losses import FOLDER

H200 = known_gpu("NVIDIA H200")
UNIT = 8
"""Registers are allotted to a thread in multiples of this."""

PROBLEMS = [
    Problem(rows, cols, dtype)
    for rows, cols in ((64, 3000), (650, 6301), (650, 4995), (8192, 4096), (100, 28000))
    for dtype in (DType.F32, DType.BF16)
] + [Problem(100_000, 33), Problem(29, 134_960, DType.F16), Problem(66, 110_000)]


@pytest.fixture(scope="module")
def allotted(cache):
    """Registers of the heuristic's kernel for each problem."""
    with CompilePool(Compiler(H200.arch, cache)) as pool:
        kernels = [pool.submit(emit(p, config_for(p, H200)).source) for p in PROBLEMS]
        return [kernel.result().resources.registers for kernel in kernels]


def test_registers_are_guessed_within_two_units(allotted):
    for problem, registers in zip(PROBLEMS, allotted, strict=True):
        guess = likely_registers(problem, config_for(problem, H200))
        assert abs(_allotted(guess) - _allotted(registers)) <= 2 * UNIT, problem


def test_most_guesses_are_right_for_the_kernels_of_a_table():
    """Where rows are many, an SM has a block more or fewer by a wrong guess."""
    off = Counter()
    for one in read_table(FOLDER / "nvidia-h200.json").problems:
        if one.problem.operator.is_gradient or one.problem.inner > 1:
            continue
        for timed in one.timed:
            config = timed.config
            if (config.cache, config.staging, config.cluster) == ("registers", "direct", 1):
                guess = _allotted(likely_registers(one.problem, config))
                off[(guess - _allotted(timed.registers)) // UNIT] += 1
    assert off[0] >= 0.7 * off.total()
    assert off[-1] + off[0] + off[1] >= 0.96 * off.total()


def test_most_guesses_are_not_below(allotted):
    guesses = [likely_registers(p, config_for(p, H200)) for p in PROBLEMS]
    below = [_allotted(g) < _allotted(r) for g, r in zip(guesses, allotted, strict=True)]
    assert sum(below) <= len(PROBLEMS) // 4


def _allotted(registers):
    return -(-registers // UNIT) * UNIT


def test_packed_rows_have_the_registers_that_min_blocks_leaves():
    problem = Problem(744, 43_001, DType.BF16)
    config = config_for(problem, H200)
    assert config.min_blocks > 1
    fitting = config.min_blocks * H200.sm_count // config.cluster
    assert round(problem.rows / waves(problem, config, H200)) == fitting


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "op"),
    [
        (550, 2131, DType.F32, Op.LOG_SOFTMAX),
        (270, 4501, DType.F32, Op.LOG_SOFTMAX),
        (515, 5799, DType.F32, Op.LOG_SOFTMAX),
        (515, 5798, DType.F32, Op.LOG_SOFTMAX),
        (550, 2126, DType.F32, Op.SOFTMAX),
        (335, 3965, DType.F32, Op.SOFTMAX),
        (700, 3001, DType.BF16, Op.LOG_SOFTMAX),
    ],
    ids=str,
)
def test_rows_that_have_hints_are_resident_together_as_compiled(rows, cols, dtype, op, cache):
    """By the registers without hints, the first would have 320 threads, of which 528 rows fit."""
    problem = Problem(rows, cols, dtype, op)
    config = config_for(problem, H200)
    assert config.load_hint == "cs"
    kernel = Compiler(H200.arch, cache).compile(emit(problem, config).source)
    held = occupancy(kernel.resources, config.threads, rows, H200)
    assert held.blocks_per_sm * H200.sm_count * config.rows_per_block >= rows


@pytest.mark.parametrize("cols", [1500, 2100, 3300, 4688, 4995, 5600, 6301])
def test_few_rows_are_on_the_gpu_all_at_once(cols):
    for dtype in (DType.F32, DType.F16, DType.BF16):
        problem = Problem(650, cols, dtype)
        assert waves(problem, config_for(problem, H200), H200) <= 1
