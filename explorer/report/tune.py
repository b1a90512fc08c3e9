"""What `explorer tune` and `explorer table` print: progress, gains, and the faults of a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from explorer.model.config_words import brief_words
from explorer.model.tuned_table import TunedProblem, TunedTable, shipped_tables, table_file
from explorer.report.compare import geometric_mean
from explorer.report.progress import LiveLine
from explorer.report.table import (
    Table,
    notes,
    number,
    numbers,
    print_table,
    prose,
    word,
    words,
)
from explorer.report.text import count, counted, microseconds, percent, seconds, share_of_copy
from explorer.tuning.runs import RunProgress
from explorer.tuning.table_check import Fault
from explorer.tuning.tune import TuneRun

# ------------------------------------------------------------------ while it runs


class TuneLine(LiveLine):
    """Shows each RunProgress it is called with."""

    def __call__(self, progress: RunProgress) -> None:
        """Show where the run stands."""
        self.show(progress_text(progress))


def progress_text(progress: RunProgress) -> str:
    """`12/40 problems · 530 kernels · softmax f32 8192x4096 · 4.2 s each · 1 min 20 s left`."""
    parts = [f"{progress.done}/{counted(progress.total, 'problem')}"]
    parts += [counted(progress.kernels, "kernel")] if progress.kernels else []
    parts += [str(progress.problem)]
    parts += [progress.doing] if progress.doing else []
    parts += [f"{progress.each_s:.1f} s each"] if progress.each_s is not None else []
    if progress.remaining_s is not None:
        parts += [f"{seconds(progress.remaining_s)} left"]
    return " · ".join(parts)


# ------------------------------------------------------------------ at the end


def print_tuned(run: TuneRun, path: Path, console: Console) -> None:
    """Print a line a problem, the means, and where the table is."""
    with_torch = any(one.torch_us for one in run.table.problems)
    headings = [word("problem"), number("µs"), number("copy µs"), number("of copy")]
    headings += [number("gain")] + ([number("torch")] if with_torch else [])
    table = Table((*headings, number("ties"), prose("best")))
    for one in run.table.problems:
        table.add(*_cells(one, with_torch=with_torch))
    print_table(table, console)
    console.print(notes(_notes(run, path, with_torch=with_torch)))


def _cells(one: TunedProblem, *, with_torch: bool) -> list[str]:
    best, copy_us = one.best, one.environment.copy_us
    share = share_of_copy(best.time_us, copy_us)
    cells = [str(one.problem), microseconds(best.time_us), microseconds(copy_us)]
    cells += [percent(share) if share is not None else "", times(one.gain)]
    cells += [times(one.torch_over_best)] if with_torch else []
    ties = sum(f.tied for f in one.finalists) - 1
    return [*cells, str(ties), brief_words(best.config)]


def times(ratio: float | None) -> str:
    """A ratio of two times, such as `1.043 ×`; nothing where one of them is not known."""
    return "" if ratio is None else f"{ratio:.3f} ×"


def _notes(run: TuneRun, path: Path, *, with_torch: bool) -> list[tuple[str, str]]:
    problems = run.table.problems
    kernels = sum(len(one.timed) + len(one.failed) for one in problems)
    gain = _mean("The heuristic of the day of the measurement took", [p.gain for p in problems])
    if table_file(path).resolve() in {file.resolve() for file in shipped_tables().values()}:
        gain += "; explorer guide slow-cases has today's"
    lines = [("gain", f"{gain}.")]
    if with_torch:
        mean = _mean("Torch's own function took", [p.torch_over_best for p in problems])
        lines += [("torch", f"{mean}.")]
    lines += [("kernels", f"{kernels} verified or rejected on {counted(len(problems), 'problem')}")]
    if run.resumed:
        lines += [("resumed", f"{counted(run.resumed, 'problem')} of an earlier run")]
    if run.untuned:
        lines += [("not tuned", f"{counted(len(run.untuned), 'problem')}; stderr says why")]
    return [*lines, ("table", str(path))]


def _mean(who: str, ratios: list[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    mean = geometric_mean(known)
    if mean is None:
        return "Not known: it has a time on no problem"
    return f"{who} {mean:.3f} × the time of the best in geometric mean, {max(known):.3f} × at worst"


def tuned_data(run: TuneRun, path: Path) -> dict[str, Any]:
    """What `--json` prints: the best of each problem; the table has all that was timed."""
    return {
        "table": str(path),
        "resumed": run.resumed,
        "problems": [_problem_data(one) for one in run.table.problems],
        "untuned": [
            {"problem": one.problem.as_dict(), "reason": one.reason} for one in run.untuned
        ],
    }


def _problem_data(one: TunedProblem) -> dict[str, Any]:
    return {
        "problem": one.problem.as_dict(),
        "config": one.best.config.as_dict(),
        "time_us": one.best.time_us,
        "ties": [f.config.as_dict() for f in one.finalists[1:] if f.tied],
        "gain": one.gain,
        "torch_over_best": one.torch_over_best,
        "evaluated": len(one.timed) + len(one.failed),
        "circumstances": one.environment.as_dict(),
    }


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
    """What `--json` prints of a check."""
    return {
        "gpu": table.gpu.name,
        "problems": len(table.problems),
        "faults": [
            {"fault": fault.sentence, "problems": [one.as_dict() for one in fault.problems]}
            for fault in faults
        ],
    }


# ------------------------------------------------------------------ tables of the package


def shipped_data(tables: Mapping[str, tuple[Path, TunedTable]]) -> list[dict[str, Any]]:
    """Return each table that comes with the package as data, by its name."""
    return [
        {
            "name": name,
            "gpu": table.gpu.name,
            "problems": len(table.problems),
            "kernels": sum(len(one.timed) + len(one.failed) for one in table.problems),
            "measured": max((one.environment.date[:10] for one in table.problems), default=""),
            "path": str(path),
        }
        for name, (path, table) in tables.items()
    ]


def shipped_table(tables: Mapping[str, tuple[Path, TunedTable]]) -> Table:
    """Return them as a table to print."""
    table = Table([*words("name", "GPU"), *numbers("problems", "kernels"), *words("measured")])
    for row in shipped_data(tables):
        problems, kernels = count(row["problems"]), count(row["kernels"])
        table.add(row["name"], row["gpu"], problems, kernels, row["measured"])
    return table
