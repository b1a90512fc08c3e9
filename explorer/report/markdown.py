"""A Markdown table of studies, for the README."""

from collections.abc import Sequence

from explorer.report.figures import microseconds, percent, share_of_copy, with_spread
from explorer.report.studies_report import remark
from explorer.report.words import brief_words
from explorer.tuning.results import StudySummary, StudyView

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


def markdown_notices(summaries: Sequence[StudySummary], views: Sequence[StudyView]) -> list[str]:
    """What a reader of the table alone would not know: studies left out, nothing but replays."""
    lines = []
    left_out = len(summaries) - len(views)
    if left_out:
        studies = "1 study is" if left_out == 1 else f"{left_out} studies are"
        lines.append(
            f"{studies} left out: of an older space, of time and error, or with no kernel measured"
        )
    if all(view.summary.replayed for view in views):
        what = "every row is a replay of a recording" if views else "no study has results"
        lines.append(f"{what}: nothing was measured here; search where there is a GPU")
    return lines


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
        brief_words(view.best.config),
        ties,
        view.summary.gpu + (f" ({remark(view.summary)})" if remark(view.summary) else ""),
        view.circumstances.date[:10],
    ]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
