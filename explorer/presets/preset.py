"""A published kernel as a named point of the space, and how it is fitted to a problem."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import WARP, GpuSpec, occupancy
from explorer.model.outcome import Resources
from explorer.model.problem import Problem, power_of_two
from explorer.ops import FORWARD
from explorer.space import Space
from explorer.space.design_rules import has_plain_rows

# ------------------------------------------------------------------ preset


Design = Mapping[str, Any]
"""Values of parameters that differ from `PLAIN`; a function is given the problem and the GPU. Where
`threads_per_row` is left out, a block has a row."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a kernel was published."""

    project: str
    place: str
    """File and kernel, or title."""
    revision: str = ""
    """The commit or date that was read."""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.project, self.place, self.revision) if part)


@dataclass(frozen=True, slots=True)
class Preset:
    """A design, and how its author fits it to a problem."""

    name: str
    sentence: str
    source: Source
    design: Design
    other_names: tuple[str, ...] = ()
    """Published kernels that differ by nothing that matters."""
    ops: tuple[str, ...] = FORWARD
    dtypes: tuple[DType, ...] = (DType.F32, DType.F16, DType.BF16)
    across_rows: bool = False
    """Whether it is for rows over a middle axis, instead of contiguous ones."""
    limit: Callable[[Problem], str] | None = None
    """Return why the design is not for a problem, or nothing."""
    reported: str = ""
    """What its publication measured, with the GPU."""

    def fault(self, problem: Problem, gpu: GpuSpec) -> str | None:
        """Return why it cannot compute `problem` on `gpu`, or None where it is legal."""
        if problem.op not in self.ops:
            return f"it cannot do {problem.op}; it does {' and '.join(self.ops)}"
        if problem.dtype not in self.dtypes:
            return f"it is not for {problem.dtype}; it is for {', '.join(self.dtypes)}"
        if self.across_rows != (problem.inner > 1):
            if self.across_rows:
                return "it is for rows over a middle axis, and here their elements lie side by side"
            return (
                "it is for rows whose elements lie side by side, and along this axis they lie "
                f"{problem.inner} apart"
            )
        limit = self.limit(problem) if self.limit is not None else ""
        if limit:
            return limit
        return fault_of(fitted(self.design, problem, gpu), Space(problem, gpu))

    def idle(self, problem: Problem, gpu: GpuSpec) -> str:
        """Return a warning where half of a row's threads or more have no work; else ""."""
        config = fitted(self.design, problem, gpu)
        broken = [rule.name for rule in Space(problem, gpu).broken_rules(config)]
        if IDLE_THREADS not in broken:
            return ""
        return (
            f"warning: at least half of the {config.threads_per_row} threads a row of "
            f"'{self.name}' have none of the {problem.cols} columns to work on; a search leaves "
            "such kernels out"
        )

    def config(self, problem: Problem, gpu: GpuSpec) -> Config:
        """Return its point of the problem's space; raises InvalidInput saying why there is none."""
        fault = self.fault(problem, gpu)
        if fault is not None:
            raise InvalidInput(f"preset '{self.name}' is not for {problem}: {fault}")
        return fitted(self.design, problem, gpu)


IDLE_THREADS = "idle-threads"
"""The rule that a kernel may break: threads without work are slow, not wrong, and published kernels
have some at few columns."""


def fault_of(config: Config, space: Space) -> str | None:
    """Return why a config has no kernel in a space; None where it has one, with idle threads too.

    A search leaves kernels with idle threads out, as illegal.
    """
    foreign = space.foreign_value(config)
    if foreign is not None:
        return foreign
    broken = (rule for rule in space.broken_rules(config) if rule.name != IDLE_THREADS)
    rule = next(broken, None)
    return None if rule is None else space.reason(rule, config)


def fitted(design: Design, problem: Problem, gpu: GpuSpec) -> Config:
    """Return a design's config for a problem, legal or not."""
    plain = PLAIN_OF_ATTENTION if problem.attends else PLAIN
    values = {
        name: value(problem, gpu) if callable(value) else value
        for name, value in {**plain, **design}.items()
    }
    if not problem.attends:
        values.setdefault("threads_per_row", values["threads"])
    if values.get("reduction") == FIRST_WARP and values["threads_per_row"] <= WARP:
        values["reduction"] = "shuffle"
    return Config(**values)


# ------------------------------------------------------------------ what a design may keep


def holds(problem: Problem, _: GpuSpec) -> str:
    """Return what is kept between passes: a log-softmax needs the inputs again."""
    return "input" if problem.operator.is_log else "exp"


PLAIN: Design = {
    "vector_bytes": lambda problem, _: problem.dtype.itemsize,
    "cache": "none",
    "cache_holds": "input",
    "exp": "expf",
    # A log-softmax divides by nothing: the space has one of the two for it.
    "normalise": lambda problem, _: "reciprocal" if problem.operator.is_log else "divide",
    "static_cols": False,
}
"""Three passes over the row, element by element; nothing is kept; expf, IEEE division."""

PLAIN_OF_ATTENTION: Design = {
    "threads": 128,
    "exp": "exp2f",
    "static_cols": False,
    "core": "fma",
    "lanes_per_key": lambda problem, _: min(16, problem.of_head * problem.dtype.itemsize // 16),
}
"""A block for each query head; the lanes of a key have 16 bytes of it each."""

FIRST_WARP = "shuffle-first-warp"
"""Warps reduce by shuffles; then the first warp reduces their results, if there are several."""

VECTOR_BYTES = 16
"""Of a float4, or of eight half-precision numbers."""

WIDE: Design = {"vector_bytes": VECTOR_BYTES}
"""Accesses of 16 bytes."""

WIDE_FAST: Design = {**WIDE, "exp": "__expf"}

IN_OUTPUT: Design = {"cache": "output", "cache_holds": "exp"}
"""Exponentials are stored to the output and read back to be divided: 3 reads and 2 writes."""

IN_SHARED: Design = {"cache": "shared", "cache_holds": holds}

IN_REGISTERS: Design = {"cache": "registers", "cache_holds": holds, "static_cols": True}


def careful_sum(problem: Problem, _: GpuSpec) -> str:
    """Return the sum of a thread that has a whole row: a plain one is too inexact in f32."""
    is_careful = problem.dtype.itemsize == 4 and has_plain_rows(problem)
    return "compensated" if is_careful else "plain"


CAREFUL: Design = {"sum": careful_sum}


# ------------------------------------------------------------------ how many threads a row


MOST_THREADS = 1024
"""Threads of a block, at most."""


def warps_for(vectors: int, each: int = 1) -> int:
    """Return threads of whole warps, a power of two, for about `each` vectors of a row a thread."""
    return min(MOST_THREADS, max(WARP, power_of_two(-(-vectors // each))))


def lanes_for(vectors: int) -> int:
    """Return lanes of one warp, a power of two, as many as have a vector of the row to work on."""
    return min(WARP, power_of_two(vectors))


def row_vectors(problem: Problem) -> int:
    """Return how many vectors of 16 bytes cover a row."""
    return -(-problem.row_bytes // VECTOR_BYTES)


def packed(most: int) -> Callable[[Problem, GpuSpec], int]:
    """Return what gives the bytes, 16 at most, of the widest pack of elements that divides a row.

    The pack has at most `most` elements.
    """

    def vector_bytes(problem: Problem, _: GpuSpec) -> int:
        pack = next(n for n in (8, 4, 2, 1) if n <= most and problem.cols % n == 0)
        return min(VECTOR_BYTES, pack * problem.dtype.itemsize)

    return vector_bytes


def largest_as_resident(problem: Problem, gpu: GpuSpec) -> int:
    """Return the largest block of which an SM holds as many as of blocks of 128 threads.

    It is the rule of OneFlow and AITemplate for rows kept in shared memory as fp32: where memory,
    not threads, limits what is resident, threads come free.
    """
    resources = Resources(registers=WARP, dynamic_shared_bytes=4 * (problem.cols + 2 * WARP))

    def resident(threads: int) -> int:
        return occupancy(resources, threads, 1, gpu).blocks_per_sm

    return next(n for n in (1024, 512, 256, 128) if n == 128 or resident(n) == resident(128))


def several_rows(problem: Problem, rows: int) -> int:
    """Return how many rows threads work on together: several only of plain rows."""
    return rows if has_plain_rows(problem) else 1


# ------------------------------------------------------------------ what a design is not for


def most_cols(most: int) -> Callable[[Problem], str]:
    """Return the limit of a design for rows of at most `most` columns."""

    def limit(problem: Problem) -> str:
        if problem.cols <= most:
            return ""
        return f"it is for rows of at most {most} columns"

    return limit
