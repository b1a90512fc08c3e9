"""A Markdown table of studies, for the README."""

from collections.abc import Sequence

from explorer.report.figures import microseconds, percent, share_of_copy, with_spread
from explorer.report.study_report import winner
from explorer.report.words import brief_words
from explorer.search.results import StudyView

_COLUMNS = {
    # heading: alignment
    "rows × cols": "---",
    "dtype": "---",
    "µs": "---:",
    "copy µs": "---:",
    "GB/s": "---:",
    "of copy": "---:",
    "config": "---",
    "ties": "---:",
    "GPU": "---",
    "date": "---",
}


def markdown_table(views: Sequence[StudyView]) -> str:
    """One line a study: the finals' winner where there were finals, else the fastest trial."""
    lines = [_line(list(_COLUMNS)), "|" + "|".join(_COLUMNS.values()) + "|"]
    lines += [_line(_cells(view)) for view in views]
    return "\n".join(lines) + "\n"


def _cells(view: StudyView) -> list[str]:
    problem, finals = view.summary.problem, view.finals
    if finals is None:
        time_us, spread = view.best.outcome.time_us, view.best.outcome.spread
        copy_us, ties = view.circumstances.copy_us, "no finals"
    else:
        time_us, spread = finals.winner.time_us, finals.winner.spread
        copy_us, ties = finals.copy_us, str(len(finals.ties) - 1)
    share = share_of_copy(time_us, copy_us)
    return [
        f"{problem.rows} × {problem.cols}",
        str(problem.dtype),
        with_spread(time_us, spread),
        microseconds(copy_us) if copy_us else "-",
        f"{problem.gbps(time_us):.0f}",
        percent(share) if share is not None else "-",
        brief_words(winner(view).config),
        ties,
        view.summary.gpu + (" (replayed)" if view.summary.replayed else ""),
        view.circumstances.date[:10],
    ]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
