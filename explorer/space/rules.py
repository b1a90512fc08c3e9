"""What rules a config out: each rule one named predicate with a sentence for the user."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP, GpuSpec, registers_left
from explorer.model.key_split import KeySplit
from explorer.model.problem import Problem
from explorer.model.work_split import WorkSplit

# ------------------------------------------------------------------ rules


WORKING_REGISTERS = 24
"""What a kernel needs beside its cached share: addresses, indices, partial results.

ptxas reports 20 to 32 for the variants that cache nothing.
"""

WORKING_REGISTERS_IN_DOUBLE = 40
"""The same in double, whose exponential is a dozen multiply-adds: 32 to 90 are reported."""

LEAST_WORKING_REGISTERS = 12
"""What a kernel gets by with beside its cached share where its launch bounds leave it no more."""

REGISTERS_A_ROW = 4
"""What each further row of a thread needs: its address, maximum and sum."""


SHARING = (
    "threads",
    "threads_per_row",
    "vector_bytes",
    "cache",
    "cache_holds",
    "reduction",
    "rows_per_thread",
    "staging",
    "sum",
    "cluster",
    "stages",
    "arrangement",
)
"""The parameters that decide how much shared memory a block takes."""

_sharing = attrgetter(*SHARING)


@dataclass(frozen=True, slots=True)
class Point:
    """What a rule judges: a config for a problem on a GPU."""

    problem: Problem
    gpu: GpuSpec
    config: Config
    shared: dict[Any, int] = field(default_factory=dict, compare=False, repr=False)
    """Shared memory of a block by the values of SHARING, which points of one problem may share."""

    @property
    def split(self) -> WorkSplit:
        """The config's division of a row."""
        return WorkSplit(self.problem, self.config)

    @property
    def keys(self) -> KeySplit:
        """The config's division of the keys of attention."""
        return KeySplit(self.problem, self.config)

    @property
    def shared_bytes(self) -> int:
        """All shared memory of one block; to work it out takes ten times as long as to know it."""
        values = _sharing(self.config)
        size = self.shared.get(values)
        if size is None:
            size = self.shared[values] = self.split.shared_bytes
        return size


@dataclass(frozen=True, slots=True)
class Rule:
    """A predicate that legal points satisfy; `reads` names the parameters that it looks at."""

    name: str
    reads: tuple[str, ...]
    sentence: str
    holds: Callable[[Point], bool]
    limit: Callable[[Point], str] | None = None
    """What the problem and the GPU allow, in words with a figure; None: the sentence says all."""

    def reason(self, config: Config, limit: str = "") -> str:
        """Return the sentence and the limit, if one is known, with the values of this config."""
        values = config.as_dict()
        shown = ", ".join(f"{name}={values[name]}" for name in self.reads)
        return f"{self.name}: {self.sentence}{limit and f': {limit}'} ({shown})"


RULES: list[Rule] = []
"""All rules of operators over rows, cheapest and most often broken first."""

ATTENTION_RULES: list[Rule] = []
"""All rules of attention."""


def rules_of(problem: Problem) -> list[Rule]:
    """Return the rules that configs for a problem must keep."""
    return ATTENTION_RULES if problem.attends else RULES


def rule(
    *reads: str,
    says: str,
    limit: Callable[[Point], str] | None = None,
    of: list[Rule] = RULES,
) -> Callable[[Callable[[Point], bool]], Callable[[Point], bool]]:
    """Make the predicate below a rule of a list, named after it."""

    def register(holds: Callable[[Point], bool]) -> Callable[[Point], bool]:
        of.append(Rule(holds.__name__.replace("_", "-"), reads, says, holds, limit))
        return holds

    return register


@rule("exp", says="in double there are exp and exp2 alone, chosen by expf and exp2f")
def exponent_in_double(p: Point) -> bool:
    return not p.problem.dtype.in_double or p.config.exp in ("expf", "exp2f")


@rule("exp", says="folding log2(e) into a multiply-add overflows at 1e9 and more: only f16 is safe")
def folded_exponent(p: Point) -> bool:
    return not p.config.exp.endswith("-folded") or p.problem.dtype.greatest < 1e9


@rule(
    "threads",
    "threads_per_row",
    says="a block works on whole rows: threads_per_row divides threads",
)
def whole_rows(p: Point) -> bool:
    return p.config.threads % p.config.threads_per_row == 0


@rule(
    "threads_per_row",
    "vector_bytes",
    "staging",
    "cluster",
    says="at least half of a row's threads have a vector of it to work on",
)
def idle_threads(p: Point) -> bool:
    return p.config.threads_per_row == 1 or p.config.threads_per_row < 2 * p.split.row_vectors


@rule(
    "cache",
    "cache_holds",
    says="without a cache nothing is held: cache_holds is input, which is read again",
)
def nothing_held(p: Point) -> bool:
    return p.config.cache != "none" or p.config.cache_holds == "input"


@rule(
    "algorithm",
    "cache_holds",
    says="an element-wise online pass knows no final maximum: it cannot hold exponentials",
)
def online_holds_input(p: Point) -> bool:
    per_element = p.config.algorithm in ("online", "online-branchy")
    return not per_element or p.config.cache_holds == "input"


@rule(
    "algorithm",
    "cache",
    "cache_holds",
    says="block-max keeps exponentials only in registers: one maximum covers a thread's share",
)
def block_max_in_shared(p: Point) -> bool:
    in_shared = p.config.algorithm == "online-block-max" and p.config.cache == "shared"
    return not in_shared or p.config.cache_holds == "input"


@rule(
    "cache",
    "static_cols",
    says="registers are indexed by constants: a row is kept in them only if cols is static",
)
def registers_need_static_cols(p: Point) -> bool:
    return p.config.cache != "registers" or p.config.static_cols


@rule("cache", "unroll", says="a row kept in registers is loaded whole: there is no loop to unroll")
def registers_have_no_loop(p: Point) -> bool:
    return p.config.cache != "registers" or p.config.unroll == 1


@rule(
    "threads_per_row",
    "vector_bytes",
    "unroll",
    "staging",
    "cluster",
    says="a thread has at least `unroll` vectors of a row to load",
)
def unroll_past_row(p: Point) -> bool:
    return p.config.unroll == 1 or p.config.unroll <= p.split.slots


@rule("threads", "min_blocks", says="min_blocks blocks of `threads` threads fit an SM")
def blocks_fit(p: Point) -> bool:
    return p.config.threads * p.config.min_blocks <= p.gpu.threads_per_sm


@rule(
    "threads",
    "threads_per_row",
    "vector_bytes",
    "cache",
    "cache_holds",
    "min_blocks",
    "rows_per_thread",
    "staging",
    "cluster",
    says="a thread's share of the row and its working values fit its registers",
)
def registers_fit(p: Point) -> bool:
    spare = _spare_registers(p, p.config.min_blocks)
    return spare >= LEAST_WORKING_REGISTERS and has_working_registers(p, 1)


def has_working_registers(p: Point, blocks: int) -> bool:
    """Whether `blocks` blocks an SM leave a thread the registers that kernels work with, or more.

    Launch bounds can ask for more blocks: then kernels get by with fewer registers, or spill them.
    """
    in_double = p.problem.dtype.in_double
    working = WORKING_REGISTERS_IN_DOUBLE if in_double else WORKING_REGISTERS
    return _spare_registers(p, blocks) >= working


def _spare_registers(p: Point, blocks: int) -> float:
    """Return the registers that `blocks` blocks an SM leave a thread beside its share of a row."""
    if p.config.cache != "registers":
        return math.inf
    share = p.split.cached_registers + (p.config.rows_per_thread - 1) * REGISTERS_A_ROW
    return registers_left(p.config.threads, blocks, p.gpu) - share


@rule(
    *SHARING,
    says="a block's rows and its reduction scratch fit the shared memory of a block",
)
def shared_fits(p: Point) -> bool:
    return p.shared_bytes <= p.gpu.shared_per_block_bytes


@rule(
    "threads",
    "threads_per_row",
    "vector_bytes",
    "cache",
    "cache_holds",
    "reduction",
    "min_blocks",
    "rows_per_thread",
    "staging",
    "sum",
    "cluster",
    "stages",
    "arrangement",
    says="the shared memory of min_blocks blocks fits an SM",
)
def shared_fits_min_blocks(p: Point) -> bool:
    a_block = p.shared_bytes + p.gpu.shared_reserved_bytes
    return p.config.min_blocks * a_block <= p.gpu.shared_per_sm_bytes


# ------------------------------------------------------------------ reductions


@rule("threads_per_row", "reduction", says="a row of one thread has nothing to reduce: use shuffle")
def lone_thread(p: Point) -> bool:
    return p.config.threads_per_row > 1 or p.config.reduction == "shuffle"


@rule(
    "threads_per_row",
    "reduction",
    says="a row of one warp or less leaves its first warp nothing to fold: use shuffle",
)
def warps_to_fold(p: Point) -> bool:
    return p.config.threads_per_row > WARP or not p.config.first_warp_folds


@rule("reduction", says="redux.sync is of sm_80 and later")
def redux_exists(p: Point) -> bool:
    return p.gpu.reduces_warps or not p.config.uses_redux


@rule(
    "threads_per_row",
    "reduction",
    says="redux.sync finds fp32 maxima of whole warps, along rows: others shuffle",
)
def redux_of_warps(p: Point) -> bool:
    if not p.config.uses_redux:
        return True
    single = not p.problem.dtype.in_double
    maxima = not p.problem.operator.is_gradient and not p.split.across_rows
    return single and maxima and p.config.threads_per_row % WARP == 0
