"""What `explorer studies` prints: one line a study."""

from collections.abc import Sequence

from rich.console import Console

from explorer.report.console import plain_table
from explorer.report.figures import count, microseconds, percent, share_of_copy
from explorer.tuning.objectives import Objectives
from explorer.tuning.results import StudySummary


def print_studies(summaries: Sequence[StudySummary], console: Console) -> None:
    """A table of all studies of a storage: kernels measured of trials, what was best."""
    table = plain_table()
    table.add_column("problem", no_wrap=True)
    table.add_column("GPU", overflow="fold", min_width=8)
    table.add_column("L2", no_wrap=True)
    for heading in ("measured", "best µs", "of copy"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("date", no_wrap=True)
    table.add_column("", overflow="fold", min_width=8)
    for summary in summaries:
        share = share_of_copy(summary.best_us, summary.copy_us) if summary.best_us else None
        table.add_row(
            str(summary.problem).removeprefix("softmax "),
            summary.gpu.removeprefix("NVIDIA "),
            summary.timing,
            f"{count(summary.measured)}/{count(summary.trials)}",
            microseconds(summary.best_us) if summary.best_us else "-",
            percent(share) if share is not None else "-",
            summary.date[:10],
            remark(summary),
        )
    console.print(table)


def remark(summary: StudySummary) -> str:
    """What a reader of a study's line must know: what was asked, replayed, of an older space."""
    two = summary.objectives is not Objectives.TIME
    remarks = ["time against error"] if two else []
    remarks += [] if summary.goal.is_usually_exact else [str(summary.accuracy)]
    remarks += ["replayed"] if summary.replayed else []
    remarks += [] if summary.is_current else ["older space"]
    return ", ".join(remarks)
