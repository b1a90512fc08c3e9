"""Correct variants raise no alarm: covering arrays of the whole space, run on the emulator.

Rows are few, as the cost is one of instructions and not of elements, but more than a block has in
some variants and no multiple of it in most. Every variant drawn is checked. Not drawn are threads
that fold more than MOST_TERMS elements, or in f64 the results of more than MOST_THREADS: such a
kernel takes an emulator up to 18 s, and shows no more than it does of shorter rows.
"""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import pytest

nvrtc = pytest.importorskip("cuda.bindings.nvrtc")

from corpus_run import WRONG_NUMBERS, verdict_on  # noqa: E402
from covering import covering as covering_array_of  # noqa: E402
from paired_sizes import IN_PAIRS  # noqa: E402
from verified import MOST_TERMS, threads_a_row  # noqa: E402

from explorer.devices.program_under_test import ProgramUnderTest  # noqa: E402
from explorer.model.element import DType  # noqa: E402
from explorer.model.gpu_spec import known_gpu_for  # noqa: E402
from explorer.model.problem import Problem  # noqa: E402
from explorer.space import Space  # noqa: E402

pytestmark = pytest.mark.exhaustive  # test_sample_emulated.py is the quick twin

PARTS = 8
"""An array of strength 2 is shared out over so many tests, of which every second one is run: every
two choices of structure occur in the quick sample too. That of f32 is enough: what pairs of choices
share is the text, and single choices are drawn of every type."""

MOST_THREADS = 256
"""Threads a row in f64, whose results one thread folds in shared memory."""


@dataclass(frozen=True)
class Group:
    """Variants of one problem: those of a covering array, or every `each`-th of them."""

    rows: int
    cols: int
    dtype: DType
    strength: int = 1
    part: int = 0
    each: int = 1
    lead: int = 0
    arch: str = "compute_90"

    @property
    def problem(self):
        return Problem(self.rows, self.cols, self.dtype)

    def variants(self):
        return covering(self.problem, self.strength, self.arch)[self.part :: self.each]

    def __str__(self):
        part = f"-part{self.part}" if self.strength > 1 else ""
        lead = "-out-of-step" if self.lead else ""
        return f"{self.dtype}-{self.rows}x{self.cols}{part}{lead}-{self.arch}"


@cache
def covering(problem, strength, arch):
    """Of f32 and bf16 each single choice is drawn; pairs, double and f16 have fewer sizes."""
    space = Space(problem, known_gpu_for(arch.replace("compute", "sm")))
    few_sizes = strength > 1 or problem.dtype in (DType.F64, DType.F16)
    drawn = space.parameters | (IN_PAIRS if few_sizes else {})
    shared = threads_a_row(problem.cols, MOST_THREADS if problem.dtype is DType.F64 else 1024)
    drawn["threads_per_row"] = tuple(n for n in drawn["threads_per_row"] if n in shared)
    if problem.cols > MOST_TERMS:  # each thread folds the whole row
        drawn["arrangement"] = tuple(a for a in drawn["arrangement"] if a != "replicated")
    return covering_array_of(Space(problem, space.gpu, drawn), strength)


ARCHS = ("compute_75", "compute_100")
OF_AN_ARCH = [(dtype, 1 if dtype is DType.F32 else 3) for dtype in DType]
"""Beside sm_90: each choice in f32; of the other dtypes, whose conversions differ, every third
kernel, since what is emitted does not depend on the architecture."""


SHAPES = ((17, 1), (33, 5), (17, 33), (17, 37), (17, 1000), (3, 4096), (3, 4097))
GROUPS = [
    *(Group(17, 1000, DType.F32, 2, part, PARTS) for part in range(0, PARTS, 2)),
    *(Group(*shape, dtype, each=3) for shape in SHAPES for dtype in DType),
    *(Group(17, 301, dtype, each=3, lead=1) for dtype in DType),
    *(Group(17, 264, dtype, each=each, arch=arch) for arch in ARCHS for dtype, each in OF_AN_ARCH),
]


def is_rounding(problem, config, verdict):
    """Whether sums of fp32, in the kernel's own order, can come to that."""
    most = ProgramUnderTest.of_config(problem, config).rounding(problem)
    in_32_bits = problem.output_dtype.itemsize == 4
    return verdict.kinds == {WRONG_NUMBERS} and in_32_bits and verdict.error <= most


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_correct_variants_raise_no_alarm(group):
    alarms = []
    for config in group.variants():
        verdict = verdict_on(group.problem, config, lead=group.lead, arch=group.arch)
        if not verdict.clean and not is_rounding(group.problem, config, verdict):
            alarms.append(f"{config.to_json(brief=True)}\n{verdict.text}")
    assert not alarms, "\n\n".join(alarms)


def test_they_are_three_hundred_and_more():
    numbers = accumulate(len(group.variants()) for group in GROUPS)
    assert any(number >= 300 for number in numbers)  # the first arrays are enough
