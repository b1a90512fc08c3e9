"""Launch bounds that state a residency: which are legal, and which are tried."""

from dataclasses import replace

import pytest

from explorer.choose import config_for
from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.compile.resources import resources_on
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu, with_residency
from explorer.model.outcome import Resources
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.space import Space
from explorer.space.candidates import candidates, residencies
from explorer.space.rules import Point, has_working_registers

H200 = known_gpu("NVIDIA H200")
PROBLEM = Problem(7000, 5120, DType.BF16)
KERNEL = Config(threads=384, threads_per_row=384)


def bounds(registers, config=KERNEL, rows=7000):
    """Return the launch bounds that are tried of a kernel of so many registers a thread."""
    resources = with_residency(Resources(registers), config.threads, rows, H200)
    found = residencies(config, resources, PROBLEM, H200)
    assert all(replace(one, min_blocks=config.min_blocks) == config for one in found)
    return [one.min_blocks for one in found]


def test_the_measured_residency_comes_first_then_the_next_fewer_and_more():
    assert bounds(40) == [4, 3, 5]
    assert bounds(32) == [5, 4]  # six blocks have more warps than an SM holds
    assert bounds(40, replace(KERNEL, min_blocks=4)) == [3, 5]
    assert bounds(40, replace(KERNEL, min_blocks=3)) == [4, 5]


def test_none_is_tried_where_registers_make_no_difference():
    assert bounds(24) == []
    assert bounds(40, rows=132) == []  # an SM has one block anyway


def test_only_legal_ones_are_tried():
    """72 registers of 8 warps: 3 blocks; 88: 2, and 64: 4, which leave a thread 64."""
    config = Config(threads=256, threads_per_row=256)
    resources = with_residency(Resources(72), 256, 7000, H200)
    for cols, bounds in ((12288, [3, 2, 4]), (14336, [3, 2])):  # 48 and 56 of a row are kept
        found = residencies(config, resources, Problem(7000, cols), H200)
        assert [one.min_blocks for one in found] == bounds


def test_bounds_may_leave_a_thread_twelve_registers_beside_its_row():
    """A compiler gets by with fewer than it takes by itself."""
    problem, config = Problem(8192, 8192), Config(threads=256, threads_per_row=256)

    def legal(blocks):
        return Space(problem, H200).is_legal(replace(config, min_blocks=blocks))

    # 32 registers keep the row. Of 65536 registers 5 blocks leave a thread 48, 6 leave 40.
    assert [blocks for blocks in range(1, 9) if legal(blocks)] == [1, 2, 3, 4, 5]
    point = Point(problem, H200, config)
    working = [blocks for blocks in range(1, 9) if has_working_registers(point, blocks)]
    assert working == [1, 2, 3, 4]  # 64: enough for what kernels take by themselves


@pytest.mark.parametrize("cols", [44 * 1024, 52 * 1024, 65536])
def test_without_bounds_a_thread_has_24_registers_beside_its_row(cols):
    """A block of 1024 threads leaves each 64: the rule for one block is as it was."""
    config = Config(threads=1024, threads_per_row=1024)
    broken = Space(Problem(8192, cols), H200).broken_rule(config)
    assert broken is not None and broken.name == "registers-fit"
    assert Space(Problem(8192, 40 * 1024), H200).is_legal(config)


@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        Problem(8797, 5120, DType.F16),
        Problem(8192, 4096),
        Problem(4000, 3584, DType.BF16, Op.LOG_SOFTMAX),
        Problem(4096, 8192, op=Op.SOFTMAX_BACKWARD),
        Problem(16384, 2048, DType.BF16, Op.LOG_SOFTMAX_BACKWARD),
    ],
    ids=str,
)
def test_what_the_compiler_gives_by_itself_may_be_stated_and_is_kept(problem):
    """Without bounds, then with those for its own residency: as many blocks are resident."""
    listed = candidates(problem, H200, config_for(problem, H200))
    for one in listed:
        free = replace(one, min_blocks=1)
        resources = compiled(problem, free)
        if resources.rests_on_registers and resources.resident_blocks > 1:
            break
    stated = replace(free, min_blocks=resources.resident_blocks)
    assert not resources.is_stated(free) and Space(problem, H200).is_legal(stated)
    assert stated == residencies(free, resources, problem, H200)[0]
    again = compiled(problem, stated)
    assert again.resident_blocks == resources.resident_blocks and again.is_stated(stated)


def compiled(problem, config):
    variant = emit(problem, config)
    resources = Compiler(H200.arch).compile(variant.source).resources
    return resources_on(H200, variant.launches, resources)
