"""A journey as Markdown, for documents."""

from collections.abc import Sequence

from explorer.report.circumstances import measurement_lines
from explorer.report.figures import microseconds, percent, share_of_copy, times_as_fast, with_spread
from explorer.report.journey_data import Beside, beside_reported, pairs, source_words
from explorer.report.journey_report import reported_span
from explorer.report.words import brief_words, change_words
from explorer.tuning.journey_results import Journey, Step

_HEADINGS = ("kernel", "µs", "GB/s", "of copy", "× first", "× step", "what changed", "from")
_NUMBERS = {"µs", "GB/s", "of copy", "× first", "× step"}


def journey_markdown(journey: Journey) -> str:
    """The table of steps, reported ratios beside ours, what was left out, and the circumstances."""
    blocks = [_table(_HEADINGS, [_cells(journey, *pair) for pair in pairs(journey)])]
    if journey.copy_us:
        copy = microseconds(journey.copy_time_us)
        gbps = f"{journey.problem.gbps(journey.copy_time_us):.0f} GB/s"
        blocks.append(f"The fastest plain copy of the same bytes took {copy} µs, {gbps}.")
    blocks.append(f"`=`: not to be told from the step before; noise {percent(journey.noise, 2)}.")
    beside = beside_reported(journey)
    if beside:
        rows = [_reported_cells(entry) for entry in beside]
        blocks.append(_table(("from", "to", "reported ×", "here ×", "reported for"), rows))
    if journey.left_out:
        named = "; ".join(f"{entry.name} ({entry.reason})" for entry in journey.left_out)
        blocks.append(f"Left out: {named}.")
    lines = measurement_lines(journey.circumstances, replayed=not journey.interleaved)
    blocks.append("; ".join(f"{label}: {text}" for label, text in lines))
    return "\n\n".join(blocks) + "\n"


def _cells(journey: Journey, before: Step | None, step: Step) -> list[str]:
    share = share_of_copy(step.time_us, journey.copy_time_us)
    tied = before is not None and journey.is_tie(before, step)
    change = brief_words(step.config)
    if before is not None:
        change = change_words(before.config, step.config)
    return [
        ", ".join(step.names) + (" =" if tied else ""),
        with_spread(step.time_us, step.spread),
        f"{journey.problem.gbps(step.time_us):.0f}",
        percent(share) if share is not None else "-",
        times_as_fast(journey.speedup(journey.steps[0], step).median),
        "" if before is None else times_as_fast(journey.speedup(before, step).median),
        change,
        source_words(journey, step),
    ]


def _reported_cells(beside: Beside) -> list[str]:
    reported = beside.reported
    return [
        reported.slower,
        reported.faster,
        reported_span(reported),
        f"{beside.ours:.2f}",
        f"{reported.where}: {reported.publication}",
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = "|" + "|".join("---:" if name in _NUMBERS else "---" for name in headings) + "|"
    return "\n".join([_line(headings), rule, *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"
