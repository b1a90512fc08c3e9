"""A published kernel as a named point of the space: what it is called, where it comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from explorer.config import Config
from explorer.dtype import DType
from explorer.errors import InvalidInput
from explorer.gpu_spec import GpuSpec
from explorer.op import Op
from explorer.problem import Problem
from explorer.space import Space

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
