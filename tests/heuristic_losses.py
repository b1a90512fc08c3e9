"""What the heuristic's kernels lose to the best that the committed tables know.

`python -m tests.heuristic_losses` prints the rows of studies/tuned/README.md. It needs no GPU:
each problem of a table has the times of some fifty kernels. Where the heuristic's kernel is none of
them, the loss is that of the one most like it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

from explorer.choose import config_for
from explorer.model.config import Config
from explorer.model.problem import Mask, Problem
from explorer.model.tuned_table import TunedProblem, TunedTable, read_table
from explorer.space.design_rules import WIDE_ROW

FOLDER = Path(__file__).resolve().parents[1] / "studies" / "tuned"

OF_FEW_RESULTS = "few results a row, H200"
"""The problems of the H200's table whose rows have a few numbers, which have rules of their own."""

TABLES = {
    "of the H200's table": FOLDER / "nvidia-h200.json",
    "of the H100's table": FOLDER / "nvidia-h100-80gb-hbm3.json",
    "held out, H200": FOLDER / "held-out" / "nvidia-h200.json",
    OF_FEW_RESULTS: FOLDER / "nvidia-h200.json",
}

OF_LITTLE_WEIGHT = (
    "load_hint",
    "store_hint",
    "reduction",
    "min_blocks",
    "algorithm",
    "cache_holds",
)
"""Parameters that mostly shift a time by a few percent: two configs that differ in these alone are
more alike than two that differ in another one."""

WEIGHT_OF_OTHERS = 4


@dataclass(frozen=True, slots=True)
class Loss:
    """What one problem's kernel takes over the best that is known for the problem."""

    problem: Problem
    config: Config
    ratio: float
    measured: bool
    """Whether the kernel itself was timed; otherwise the ratio is that of one like it."""
    earlier_ratio: float
    """The same of what was taken without a search when the table was made."""


def times_us(one: TunedProblem) -> dict[Config, float]:
    """Return the time of each config: of the finals, or its own, scaled to those of the finals."""
    timed = {t.config: t.time_us for t in one.timed}
    finals = {f.config: f.time_us for f in one.finalists}
    ratios = [finals[config] / timed[config] for config in finals if config in timed]
    scale = median(ratios) if ratios else 1.0
    return {config: scale * time_us for config, time_us in timed.items()} | finals


def most_alike(config: Config, known: Iterable[Config], times: dict[Config, float]) -> Config:
    """Return the known config that differs in the fewest parameters, the slowest of several."""

    def distance(other: Config) -> tuple[int, float]:
        names = config.differences(other)
        weights = (1 if name in OF_LITTLE_WEIGHT else WEIGHT_OF_OTHERS for name in names)
        return sum(weights), -times[other]

    return min(known, key=distance)


def losses_of(table: TunedTable, choose: Callable[[TunedProblem], Config]) -> list[Loss]:
    """Return the loss of what `choose` takes for each problem of a table."""
    found = []
    for one in table.problems:
        times, config = times_us(one), choose(one)
        best = min(times.values())
        judged = config if config in times else most_alike(config, times, times)
        found.append(
            Loss(
                problem=one.problem,
                config=config,
                ratio=times[judged] / best,
                measured=config in times,
                earlier_ratio=one.gain or times[one.untuned] / best,
            )
        )
    return found


def table_of(name: str) -> TunedTable:
    """Return the problems of a committed table that its name in `TABLES` stands for."""
    table, of_few = read_table(TABLES[name]), name == OF_FEW_RESULTS
    listed = tuple(one for one in table.problems if one.problem.fills_rows is not of_few)
    return replace(table, problems=listed)


@cache
def heuristic_losses(name: str) -> tuple[Loss, ...]:
    """Return the heuristic's losses in a committed table, by its name in `TABLES`."""
    table = table_of(name)
    return tuple(losses_of(table, lambda one: config_for(one.problem, table.gpu)))


def mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def kind(problem: Problem) -> str:
    """Return the kind of a problem, by which losses are compared with those of earlier rules."""
    if problem.inner > 1:
        return "over a middle axis"
    if problem.mask is not Mask.NONE:
        return f"mask {problem.mask}"
    length = "wide" if problem.cols >= WIDE_ROW else "short" if problem.cols <= 1280 else "middle"
    return f"{length} rows, {'gradient' if problem.operator.is_gradient else 'forward'}"


def readme_rows() -> list[str]:
    """Return the rows of the README's table of losses."""
    rows = []
    for name in TABLES:
        losses = heuristic_losses(name)
        ratios, earlier = [x.ratio for x in losses], [x.earlier_ratio for x in losses]
        unmeasured = sum(not x.measured for x in losses)
        figures = (mean(ratios), max(ratios), mean(earlier), max(earlier))
        cells = [name, *(f"{figure:.3f}" for figure in figures), f"{unmeasured} of {len(losses)}"]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    print("\n".join(readme_rows()))
