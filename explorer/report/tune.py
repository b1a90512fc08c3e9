"""Tuned tables: what `explorer tune` and `explorer table` print, as data, and as a page."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from explorer.model.config import Config, brief_words
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Environment
from explorer.model.problem import Problem
from explorer.model.tuned_table import TunedProblem, TunedTable, shipped_tables, table_file
from explorer.report.charts import Row, above_chart, map_chart, matrix_chart
from explorer.report.compare import geometric_mean
from explorer.report.page import Blocks, Figure, Folded, KeptPage, command, definitions, tiles
from explorer.report.table import (
    Field,
    Kind,
    Table,
    data_of,
    notes,
    numbers,
    picked,
    print_table,
    prose,
    table_of,
    words,
)
from explorer.report.text import (
    config_command,
    count,
    counted,
    limit_us_heading,
    limit_word,
    microseconds,
    of_limit_heading,
    percent,
    share_of_limit,
)
from explorer.tuning.tune import Fault, TuneRun

# ------------------------------------------------------------------ the fields of a problem


def times(ratio: float) -> str:
    """Return a ratio of two times, such as `1.043 ×`."""
    return f"{ratio:.3f} ×"


PROBLEM: tuple[Field[TunedProblem], ...] = (
    Field(
        "problem",
        lambda p: p.problem.as_dict(),
        "problem",
        cell=lambda p: str(p.problem),
        kind=Kind.WORD,
    ),
    Field("time_us", lambda p: p.best.time_us, "µs", microseconds),
    Field("limit", lambda p: p.problem.limit),
    Field("limit_us", lambda p: p.environment.limit_us, limit_us_heading, microseconds),
    Field("of_limit", lambda p: of_limit(p), of_limit_heading, percent),
    Field("gain", lambda p: p.gain, "gain", times),
    Field("torch_over_best", lambda p: p.torch_over_best, "torch", times),
    Field("ties", lambda p: sum(f.tied for f in p.finalists[1:]), "ties"),
    Field("evaluated", lambda p: len(p.timed) + len(p.failed)),
    Field("gpu", lambda p: p.environment.gpu),
    Field("timing", lambda p: p.environment.timing),
    Field("date", lambda p: p.environment.date),
    Field(
        "config",
        lambda p: p.best.config.as_dict(),
        "best",
        cell=lambda p: brief_words(p.best.config),
        kind=Kind.PROSE,
    ),
)
"""What is known of each problem of a table. Those with a heading are columns of what is printed."""


def of_limit(one: TunedProblem) -> float | None:
    """Return the limit's time over the best's; None where the limit was not timed."""
    return share_of_limit(one.best.time_us, one.environment.limit_us)


def tuned_rows(run: TuneRun) -> list[dict[str, Any]]:
    """Return a row a problem of a tuned table."""
    return [data_of(PROBLEM, one) for one in run.table.problems]


def tuned_data(run: TuneRun, path: Path) -> dict[str, Any]:
    """Return the best of each problem, for JSON; the table's file has all that was timed."""
    fields = picked(PROBLEM, "problem", "time_us", "gain", "torch_over_best", "evaluated", "config")
    return {
        "table": str(path),
        "resumed": run.resumed,
        "problems": [
            {
                **data_of(fields, one),
                "ties": [f.config.as_dict() for f in one.finalists[1:] if f.tied],
                "circumstances": one.environment.as_dict(),
            }
            for one in run.table.problems
        ],
        "untuned": [
            {"problem": one.problem.as_dict(), "reason": one.reason} for one in run.untuned
        ],
    }


# ------------------------------------------------------------------ for a terminal


def print_tuned(run: TuneRun, path: Path, console: Console) -> None:
    """Print a line a problem, the means, and where the table is."""
    with_torch = any(one.torch_us for one in run.table.problems)
    fields = [field for field in PROBLEM if with_torch or field.heading != "torch"]
    print_table(table_of(fields, run.table.problems), console)
    console.print(notes(_notes(run, path, with_torch=with_torch)))


def _notes(run: TuneRun, path: Path, *, with_torch: bool) -> list[tuple[str, str]]:
    problems = run.table.problems
    kernels = sum(len(one.timed) + len(one.failed) for one in problems)
    gain = _mean("The heuristic of the day of the measurement took", [p.gain for p in problems])
    if table_file(path).resolve() in {file.resolve() for file in shipped_tables().values()}:
        gain += "; explorer guide slow-cases has today's"
    torch = _mean("Torch's own function took", [p.torch_over_best for p in problems])
    lines = {
        "gain": f"{gain}.",
        "torch": f"{torch}." if with_torch else "",
        "kernels": f"{kernels} verified or rejected on {counted(len(problems), 'problem')}",
        "resumed": run.resumed and f"{counted(run.resumed, 'problem')} of an earlier run",
        "not tuned": run.untuned and f"{counted(len(run.untuned), 'problem')}; stderr says why",
        "table": str(path),
    }
    return [(label, str(text)) for label, text in lines.items() if text]


def _mean(who: str, ratios: list[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    mean = geometric_mean(known)
    if mean is None:
        return "Not known: it has a time on no problem"
    return f"{who} {mean:.3f} × the time of the best in geometric mean, {max(known):.3f} × at worst"


# ------------------------------------------------------------------ whether a table can be taken


def print_check(table: TunedTable, faults: Sequence[Fault]) -> None:
    """Print each fault on a line of its own, or that there is none."""
    kernels = sum(len(one.timed) for one in table.problems)
    what = f"{table.gpu.name}: {counted(len(table.problems), 'problem')}, {kernels} kernels timed"
    if not faults:
        print(f"{what}; nothing keeps this table from being contributed")
        return
    print(f"{what}; {counted(len(faults), 'thing')} to mend before it can be contributed:")
    for fault in faults:
        print(f"  {fault}")


def check_data(table: TunedTable, faults: Sequence[Fault]) -> dict[str, Any]:
    """Return what `--json` prints of a check."""
    return {
        "gpu": table.gpu.name,
        "problems": len(table.problems),
        "faults": [
            {"fault": fault.sentence, "problems": [one.as_dict() for one in fault.problems]}
            for fault in faults
        ],
    }


# ------------------------------------------------------------------ tables of the package


Shipped = tuple[str, Path, TunedTable]
"""A table that comes with the package: its name, its file, and what it has."""

SHIPPED: tuple[Field[Shipped], ...] = (
    Field("name", lambda t: t[0], "name", kind=Kind.WORD),
    Field("gpu", lambda t: t[2].gpu.name, "GPU", kind=Kind.WORD),
    Field("problems", lambda t: len(t[2].problems), "problems", count),
    Field(
        "kernels",
        lambda t: sum(len(one.timed) + len(one.failed) for one in t[2].problems),
        "kernels",
        count,
    ),
    Field(
        "measured",
        lambda t: max((one.environment.date[:10] for one in t[2].problems), default=""),
        "measured",
        kind=Kind.WORD,
    ),
    Field("path", lambda t: str(t[1])),
)


# ------------------------------------------------------------------ families and neighbours


FAMILIES = (
    "a thread a row",
    "a warp or less a row",
    "a few warps a row",
    "a block a row",
    "a cluster of blocks a row",
    "several launches",
)
"""Families of kernels, from the least of the GPU that works on one row to the most."""


def family(config: Config) -> str:
    """Return the one of FAMILIES of a kernel: how much of the GPU works on one row."""
    thread, warp, warps, block, cluster, launches = FAMILIES
    if config.launches != "one":
        return launches
    if config.cluster > 1:
        return cluster
    if config.core != "none":
        return block
    if config.threads_per_row <= 32:
        return thread if config.threads_per_row == 1 else warp
    return block if config.rows_per_block == 1 else warps


def kinds(table: TunedTable) -> dict[str, list[TunedProblem]]:
    """Return the problems by op, element type, mask and axis, the largest group first.

    A kernel of one of them can serve another one of the same kind.
    """
    found: dict[str, list[TunedProblem]] = {}
    for one in table.problems:
        problem = one.problem
        mask = f" {problem.mask}" if str(problem.mask) != "none" else ""
        along = f" inner {problem.inner}" if problem.inner > 1 else ""
        found.setdefault(f"{problem.op} {problem.dtype}{mask}{along}", []).append(one)
    return dict(sorted(found.items(), key=lambda kind: -len(kind[1])))


def times_of(one: TunedProblem) -> dict[Config, float]:
    """Return the time of each config that was timed: of the finals where it was in them."""
    return {t.config: t.time_us for t in one.timed} | {f.config: f.time_us for f in one.finalists}


BANDS = (64, 256, 1024, 4096, 16384, 65536)
"""Upper ends of the bands of columns of the family matrix; the last band has none."""


def family_losses(problems: Sequence[TunedProblem]) -> list[Row]:
    """Return how much the best kernel of each family loses, in each band of columns.

    The value is the geometric mean over the problems of the band of which the family has a timed
    kernel.
    """
    names = [*(f"to {end}" for end in BANDS), f"above {BANDS[-1]}"]
    found: dict[tuple[str, str], list[float]] = {}
    for one in problems:
        band = names[sum(one.problem.cols > end for end in BANDS)]
        best: dict[str, float] = {}
        for config, time_us in times_of(one).items():
            name = family(config)
            best[name] = min(time_us, best.get(name, time_us))
        for name, time_us in best.items():
            found.setdefault((band, name), []).append(time_us / min(best.values()))
    losses = {key: 100 * ((geometric_mean(ratios) or 1.0) - 1) for key, ratios in found.items()}
    return [
        {"x": band, "y": name, "value": losses[band, name], "told": f"{losses[band, name]:.1f} %"}
        for band in names
        for name in FAMILIES
        if (band, name) in losses
    ]


NEIGHBOURS = 2
"""Problems beside each whose kernels are tried on it."""


def neighbour_losses(problems: Sequence[TunedProblem]) -> tuple[list[Row], int]:
    """Return the losses of the best kernels of each problem's neighbours, and how many there are.

    A neighbour is one of the NEIGHBOURS problems of the nearest columns and rows, by logarithms.
    Its best kernel has a loss where it was timed on this problem.
    """
    rows, pairs = [], 0
    for one in problems:
        near = sorted(
            (other for other in problems if other is not one),
            key=lambda other: (_distance(one.problem, other.problem), str(other.problem)),
        )[:NEIGHBOURS]
        known = times_of(one)
        pairs += len(near)
        rows += [
            {
                "problem": str(one.problem),
                "neighbour": str(other.problem),
                "label": f"{_shape(one.problem)} with {_shape(other.problem)}'s",
                "loss": 100 * (known[other.best.config] / min(known.values()) - 1),
                "what": brief_words(other.best.config),
            }
            for other in near
            if other.best.config in known
        ]
    return sorted(rows, key=lambda row: -row["loss"]), pairs


def _distance(one: Problem, other: Problem) -> float:
    return abs(log(one.cols / other.cols)) + abs(log(one.rows / other.rows))


def _shape(problem: Problem) -> str:
    return f"{problem.rows}x{problem.cols}"


# ------------------------------------------------------------------ as a page


LEAST_PROBLEMS = 10
"""A kind of fewer problems stands in the table of all alone."""

MOST_LOSSES = 15
"""How many of the greatest losses are listed."""


def table_page(table: TunedTable) -> KeptPage:
    """Return the page of a tuned table. Raises InvalidInput where it has no problem."""
    if not table.problems:
        raise InvalidInput("this table has no problem; name another file")
    large = {kind: of for kind, of in kinds(table).items() if len(of) >= LEAST_PROBLEMS}
    kernels = sum(len(one.timed) for one in table.problems)
    dates = sorted(one.environment.date[:10] for one in table.problems)
    lead = (
        f"The best of {kernels} timed kernels for {counted(len(table.problems), 'problem')} on "
        f"{table.gpu.name}, {dates[0]}{f' to {dates[-1]}' if dates[-1] != dates[0] else ''}."
    )
    sections = {
        "What the table has": _found(table),
        "Which kernel family is the fastest where": _families(large),
        "What the neighbours' kernels lose": _neighbours(large),
        "What is lost without a search": _untuned(table),
        "The best kernel of each problem": _best(table),
        "Environment of the table": _made(table),
    }
    return KeptPage.of(f"Tuned kernels of {table.gpu.name}", lead, sections)


_MAPS = (
    "A map shows the family of the best kernel of each problem. Below it, each row is a family and "
    "each column a band of row lengths. A cell says how much more time the best timed kernel of "
    "the family takes than the best of all, in geometric mean over the problems of the band on "
    "which one was timed. In an empty cell none was. Finalists have the times of the finals, in "
    "which kernels are timed in turn; other kernels those that they took by themselves."
)


def _large_numbers(table: TunedTable) -> list[tuple[str, str, str]]:
    found = [(count(len(table.problems)), "", f"problems tuned on {table.gpu.name}")]
    if shares := [share for one in table.problems if (share := of_limit(one)) is not None]:
        said = f"of the speed of {limit_word(table.problems)}, in the median"
        found.append((f"{100 * median(shares):.1f}", "%", said))
    if gain := geometric_mean(one.gain for one in table.problems if one.gain is not None):
        found.append((f"{gain:.3f}", "×", "as fast as without a search, in the mean"))
    return found


def _found(table: TunedTable) -> Blocks:
    yield tiles(_large_numbers(table))
    one = max(table.problems, key=lambda one: one.problem.bytes)
    yield f"This command writes the best kernel for the largest problem, {one.problem}:"
    yield command(config_command(one.best.config, one.problem, one.environment.accuracy))


def _families(large: Mapping[str, Sequence[TunedProblem]]) -> Blocks:
    if not large:
        yield f"No kind of problem has {LEAST_PROBLEMS} problems or more, so that no map is drawn."
    for kind, problems in large.items():
        rows = [
            {
                "cols": one.problem.cols,
                "rows": one.problem.rows,
                "family": family(one.best.config),
                "told": brief_words(one.best.config),
            }
            for one in problems
        ]
        wins = Counter(str(row["family"]) for row in rows)
        told = "; ".join(f"{name} on {number}" for name, number in wins.most_common())
        says = f"The family of the best kernel of each of {len(rows)} problems: {told}."
        yield Figure(f"Best family, {kind}", says, map_chart(rows, kind, FAMILIES))
        yield _losses_figure(kind, problems)
    yield Folded("How to read the maps", [_MAPS])


def _losses_figure(kind: str, problems: Sequence[TunedProblem]) -> Figure:
    losses = family_losses(problems)
    worst = max(losses, key=lambda row: row["value"])
    says = (
        "How much more time each family takes than the best. The greatest loss is of "
        f"{worst['y']}, for rows of {worst['x'].replace('to ', 'up to ')} columns: "
        f"{worst['told']}."
    )
    cells = [{**row, "figure": f"{row['value']:.{int(row['value'] < 99.95)}f}"} for row in losses]
    chart = matrix_chart(cells, "columns", (kind, "% more time than the best family"), FAMILIES)
    table = Table([*words("family", "columns"), *numbers("loss")])
    table.rows += [[row["y"], row["x"], row["told"]] for row in losses]
    return Figure(f"What another family loses, {kind}", says, chart, table)


def _neighbours(large: Mapping[str, Sequence[TunedProblem]]) -> Blocks:
    yield (
        f"For each problem the best kernels of its {NEIGHBOURS} nearest problems (by the "
        "logarithms of columns and rows) are looked up among the kernels that were timed on it. "
        "This says what it costs to tune one shape and use its kernel for the next."
    )
    for kind, problems in large.items():
        rows, pairs = neighbour_losses(problems)
        if not rows:
            yield f"{kind}: no neighbour's kernel was timed on another problem."
            continue
        mean = 100 * ((geometric_mean(1 + row["loss"] / 100 for row in rows) or 1.0) - 1)
        half = median(row["loss"] for row in rows)
        says = (
            f"Of {pairs} pairs of a problem and a neighbour, {len(rows)} were timed. They lose "
            f"{mean:.1f} % in geometric mean, {half:.1f} % in the median and {rows[0]['loss']:.1f} "
            "% at most. Those that were not timed may lose more."
        )
        shown = [{**r, "told": f"{r['loss']:.1f} %", "kind": "loss"} for r in rows[:MOST_LOSSES]]
        table = Table([*words("problem", "kernel of"), *numbers("loss"), prose("that kernel")])
        table.rows += [[r["problem"], r["neighbour"], r["told"], r["what"]] for r in shown]
        table.title = f"The {len(shown)} greatest losses, {kind}"
        drawn = [{**row, "value": row["loss"]} for row in shown]
        chart = above_chart(drawn, "% more time than the best")
        yield Figure(f"Greatest losses, {kind}", says, chart, table)


def _untuned(table: TunedTable) -> Blocks:
    known = [(one.gain, one) for one in table.problems if one.gain is not None]
    if not known:
        yield "What was taken without a search has no time in this table."
        return
    mean = geometric_mean(gain for gain, _ in known) or 1.0
    yield (
        "What was taken without a search when the table was made (the heuristic) takes "
        f"{mean:.3f} × the best's time in geometric mean over {counted(len(known), 'problem')}. "
        "It loses most on these:"
    )
    listed = Table([*words("problem"), *numbers("loss"), prose("best"), prose("heuristic")])
    for gain, one in sorted(known, key=lambda pair: -pair[0])[:MOST_LOSSES]:
        best, heuristic = brief_words(one.best.config), brief_words(one.untuned)
        listed.add(str(one.problem), percent(gain - 1), best, heuristic)
    yield listed
    with_torch = [one.torch_over_best for one in table.problems if one.torch_over_best]
    over = geometric_mean(with_torch)
    yield (
        "Torch was not timed beside these kernels."
        if over is None
        else f"Torch's own function takes {over:.2f} × the best's time in geometric mean over "
        f"{counted(len(with_torch), 'problem')}."
    )


_FAMILY: Field[TunedProblem] = Field("", lambda p: family(p.best.config), "family", kind=Kind.PROSE)


def _best(table: TunedTable) -> Blocks:
    shares = sorted(share for one in table.problems if (share := of_limit(one)) is not None)
    limit = limit_word(table.problems)
    yield (
        f"The best kernel of a problem has {percent(shares[0])} to {percent(shares[-1])} of "
        f"{limit}'s speed, {percent(median(shares))} in the median over "
        f"{counted(len(shares), 'problem')}. A problem that takes a few microseconds is far from "
        f"{limit}'s speed, whatever its kernel."
        if shares
        else f"{limit.capitalize()} was not timed beside these kernels."
    )
    fields = [*picked(PROBLEM, "problem", "time_us", "of_limit", "ties"), _FAMILY]
    title = "The best kernel of each problem, with its time"
    yield table_of([*fields, *picked(PROBLEM, "config")], table.problems, title)


def _made(table: TunedTable) -> Blocks:
    made = [one.environment for one in table.problems]

    def each(of: Callable[[Environment], object]) -> str:
        return ", ".join(dict.fromkeys(str(of(one)) for one in made))

    clocks = f"SM {each(lambda c: c.sm_clock_mhz)} MHz, memory {each(lambda c: c.memory_clock_mhz)}"
    throttled = sum(bool(one.throttle_reasons) for one in made)
    lines = [
        ("GPU", f"{table.gpu.name}, {table.gpu.arch}, {table.gpu.sm_count} SMs"),
        ("driver", each(lambda c: c.driver)),
        ("NVRTC", each(lambda c: c.nvrtc)),
        ("clocks", f"{clocks} MHz"),
        ("throttled", f"on {throttled} of {len(made)} problems"),
        ("L2", each(lambda c: c.timing)),
        ("accuracy", each(lambda c: c.accuracy)),
        ("effort", ", ".join(dict.fromkeys(one.effort for one in table.problems))),
        ("without a time", counted(sum(len(one.failed) for one in table.problems), "kernel")),
        ("templates", each(lambda c: c.template_digest)),
        ("explorer", each(lambda c: c.explorer)),
    ]
    yield definitions(lines)
