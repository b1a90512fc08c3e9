"""A published kernel as a named point of the space, and what such kernels have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import WARP, GpuSpec, occupancy
from explorer.model.outcome import Resources
from explorer.model.problem import Op, Problem, power_of_two
from explorer.space import Space
from explorer.space.design_rules import is_plain

# ------------------------------------------------------------------ preset


ROW_WISE = (Op.SOFTMAX, Op.LOG_SOFTMAX)
"""What a design does that keeps inputs, or nothing, between its passes."""

EXPONENTIALS_STORED: dict[str, Any] = {"ops": (Op.SOFTMAX,), "dtypes": (DType.F32,)}
"""What a design does that stores exponentials in the output: 16 bits would round them twice."""


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
    """A design, and how its author fits it to a problem; `design` gives the config."""

    name: str
    sentence: str
    source: Source
    design: Callable[[Problem, GpuSpec], Config]
    other_names: tuple[str, ...] = ()
    """Published kernels that differ by nothing that matters."""
    ops: tuple[Op, ...] = ROW_WISE
    dtypes: tuple[DType, ...] = (DType.F32, DType.F16, DType.BF16)
    across_rows: bool = False
    """Whether it is for rows over a middle axis, instead of contiguous ones."""
    limit: Callable[[Problem], str] | None = None
    """Why the design is not for a problem, or nothing."""
    reported: str = ""
    """What its publication measured, with the GPU."""

    def fault(self, problem: Problem, gpu: GpuSpec) -> str | None:
        """Why it cannot compute `problem` on `gpu`, or None where it is legal."""
        if problem.op not in self.ops:
            return f"it cannot do {problem.op}; it does {' and '.join(self.ops)}"
        if problem.dtype not in self.dtypes:
            return f"it is not for {problem.dtype}; it is for {', '.join(self.dtypes)}"
        if self.across_rows != (problem.inner > 1):
            where = "over a middle axis, inner 2 or more" if self.across_rows else "of inner 1"
            return f"it is for rows {where}; inner is {problem.inner}"
        limit = self.limit(problem) if self.limit is not None else ""
        if limit:
            return limit
        space, config = Space(problem, gpu), self.design(problem, gpu)
        rule = space.broken_rule(config)
        return space.foreign_value(config) or (rule.reason(config) if rule else None)

    def config(self, problem: Problem, gpu: GpuSpec) -> Config:
        """Its point of the problem's space; raises InvalidInput saying why there is none."""
        fault = self.fault(problem, gpu)
        if fault is not None:
            raise InvalidInput(f"preset '{self.name}' is not for {problem}: {fault}")
        return self.design(problem, gpu)


def most_cols(most: int) -> Callable[[Problem], str]:
    """The limit of a design for rows of at most `most` columns."""

    def limit(problem: Problem) -> str:
        if problem.cols <= most:
            return ""
        return f"it is for rows of at most {most} columns"

    return limit


# ------------------------------------------------------------------ how many threads a row


MOST_THREADS = 1024
"""Threads of a block, at most."""


def warps_for(vectors: int, each: int = 1) -> int:
    """Threads of whole warps, a power of two, for about `each` of a row's vectors a thread."""
    return min(MOST_THREADS, max(WARP, power_of_two(-(-vectors // each))))


def lanes_for(vectors: int) -> int:
    """Lanes of one warp, a power of two, as many as have a vector of the row to work on."""
    return min(WARP, power_of_two(vectors))


def largest_as_resident(shared_bytes: int, gpu: GpuSpec) -> int:
    """The largest block of which an SM holds as many as of blocks of 128 threads.

    The rule of OneFlow and AITemplate for rows kept in shared memory: where memory, not threads,
    limits what is resident, threads come free.
    """

    def held(threads: int) -> int:
        resources = Resources(registers=WARP, dynamic_shared_bytes=shared_bytes)
        return occupancy(resources, threads, 1, gpu).blocks_per_sm

    return next(n for n in (1024, 512, 256, 128) if n == 128 or held(n) == held(128))


VECTOR_BYTES = 16
"""Of a float4, or of eight half-precision numbers."""

FIRST_WARP = "shuffle-first-warp"
"""Warps reduce by shuffles, then the first warp folds what they found, if there are several."""


def scalar(problem: Problem, threads: int, threads_per_row: int, **changes: Any) -> Config:
    """Three passes over the row, element by element; nothing is kept; expf, IEEE division."""
    plain: dict[str, Any] = {
        "threads": threads,
        "threads_per_row": threads_per_row,
        "vector_bytes": problem.dtype.itemsize,
        "cache": "none",
        "cache_holds": "input",
        "exp": "expf",
        # A log-softmax divides by nothing: the space has one of the two for it.
        "normalise": "reciprocal" if problem.op.is_log else "divide",
        "static_cols": False,
    }
    if changes.get("reduction") == FIRST_WARP and threads_per_row <= WARP:
        changes = {**changes, "reduction": "shuffle"}
    return Config(**{**plain, **changes})


def stored(problem: Problem, threads: int, threads_per_row: int, **changes: Any) -> Config:
    """As `scalar`, but exponentials wait in the output to be divided: 3 reads and 2 writes."""
    waiting = {"cache": "output", "cache_holds": "exp", **changes}
    return scalar(problem, threads, threads_per_row, **waiting)


def vectors(problem: Problem, threads: int, **changes: Any) -> Config:
    """As `scalar`, a block a row, by accesses of 16 bytes and by __expf."""
    wide = {"vector_bytes": VECTOR_BYTES, "exp": "__expf", **changes}
    return scalar(problem, threads, threads, **wide)


def holds(problem: Problem) -> str:
    """What is kept between passes: a log-softmax needs the inputs again."""
    return "input" if problem.op.is_log else "exp"


def row_vectors(problem: Problem, vector_bytes: int = VECTOR_BYTES) -> int:
    """Vectors that cover a row."""
    return -(-problem.row_bytes // vector_bytes)


def packed_bytes(problem: Problem, most: int) -> int:
    """Bytes of the widest pack of at most `most` elements that divides a row; 16 at most."""
    pack = next(n for n in (8, 4, 2, 1) if n <= most and problem.cols % n == 0)
    return min(VECTOR_BYTES, pack * problem.dtype.itemsize)


def rows_at_once(problem: Problem, rows: int) -> dict[str, int]:
    """Rows that threads work on together: several only of a plain softmax."""
    return {"rows_per_thread": rows if is_plain(problem) else 1}


def careful_sum(problem: Problem) -> dict[str, str]:
    """For a thread that sums a whole row: in f32, a plain sum of it is not accurate enough."""
    is_careful = problem.dtype is DType.F32 and is_plain(problem)
    return {"sum": "compensated" if is_careful else "plain"}
