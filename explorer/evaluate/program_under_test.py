"""A program to check: source text, how to launch it, what it assumes."""

from dataclasses import dataclass, replace

from explorer.codegen import Launch, LaunchPlan, Variant, emit
from explorer.config import Config
from explorer.dtype import DType
from explorer.errors import InvalidInput, brief
from explorer.problem import Problem
from explorer.work_split import WorkSplit

HALF_ULP = 2.0**-24
"""Relative error of one fp32 operation."""

ROUNDINGS_A_TERM = 3
"""Operations on a running sum for each term: an online sum is rescaled as well."""

SPARE_TERMS = 32
"""Terms' worth of rounding in all that is not the sum."""


@dataclass(frozen=True, slots=True)
class ProgramUnderTest:
    """The source of one file's kernels, what they compute, and how they are launched."""

    source: str
    problem: Problem
    """What it was emitted for; its rows do not bind it, its cols do where they are static."""
    config: Config
    plan: LaunchPlan
    file: str = "softmax.cu"
    """What its source is called in findings and in errors of the compiler."""
    run_time_cols: int = 0
    """Cols to check it at, where they are others than those that it was emitted for."""
    host_checked: bool = True
    """Whether its host part is known to launch the kernels as the plan does."""

    @classmethod
    def of(cls, variant: Variant) -> "ProgramUnderTest":
        """A variant as it was emitted."""
        plan = LaunchPlan.read(variant.source)
        assert plan is not None, "the templates write a plan into every header"
        return cls(variant.source, variant.problem, variant.config, plan)

    @classmethod
    def of_config(cls, problem: Problem, config: Config) -> "ProgramUnderTest":
        """What a config emits for a problem."""
        return cls.of(emit(problem, config))

    def at_cols(self, cols: int | None) -> "ProgramUnderTest":
        """The same text for other cols; raises InvalidInput where the kernel is not for them."""
        if cols is None or cols == self.problem.cols:
            return self
        self._check_cols(cols)
        return replace(self, run_time_cols=cols)

    @property
    def cols(self) -> int:
        """The columns to check it at."""
        return self.run_time_cols or self.problem.cols

    @property
    def split(self) -> WorkSplit:
        """How it divides the rows of the problem that it was emitted for."""
        return WorkSplit(self.problem, self.config)

    @property
    def any_alignment(self) -> bool:
        """Whether its matrices may begin at any element."""
        return self.split.width == 1 or not self.split.aligned

    @property
    def cols_unit(self) -> int:
        """Its run-time cols are multiples of this."""
        return self.split.row_width if self.split.aligned else 1

    def rounding(self, problem: Problem) -> float:
        """Relative error that fp32 sums in this kernel's order can come to: no defect by itself."""
        if problem.output_dtype is not DType.F32:
            return 0.0
        config = self.config
        terms: float = SPARE_TERMS
        if config.sum == "plain":
            terms += problem.cols / config.threads_per_row
            terms += config.threads_per_row if config.reduction == "shared-serial" else 0
        return ROUNDINGS_A_TERM * terms * HALF_ULP

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        """Its launches for other rows, and other cols where they are chosen at run time.

        Raises InvalidInput for cols that the kernel is not for.
        """
        self._check_cols(problem.cols)
        try:
            return self.plan.launches(problem.rows, problem.cols)
        except InvalidInput as error:
            raise InvalidInput(f"the header of {self.file}: {brief(error)}") from None

    def scratch_bytes(self, problem: Problem) -> int:
        """Bytes of scratch memory that its launches share; raises InvalidInput."""
        try:
            return self.plan.scratch_bytes(problem.rows, problem.cols)
        except InvalidInput as error:
            raise InvalidInput(f"the header of {self.file}: {brief(error)}") from None

    def _check_cols(self, cols: int) -> None:
        if cols == self.problem.cols:
            return
        if self.config.static_cols:
            raise InvalidInput(
                f"cols is {cols}; the kernel is for {self.problem.cols} columns only: ask for "
                f"--cols {self.problem.cols}, or take a config with static_cols=false"
            )
        if cols % self.cols_unit:
            raise InvalidInput(
                f"cols is {cols}; the kernel is for multiples of {self.cols_unit} columns"
            )
