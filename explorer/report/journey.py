"""What `explorer journey` prints: published kernels, slowest first, and the search's best."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from explorer.model.config_words import brief_words, change_words
from explorer.model.outcome import Contender
from explorer.presets import REPORTED, ReportedRatio, find_preset
from explorer.report.table import (
    Cell,
    Styled,
    Table,
    as_markdown,
    cell,
    notes,
    numbers,
    print_table,
    prose,
    words,
)
from explorer.report.text import (
    counted,
    measurement_lines,
    microseconds,
    percent,
    share_of_copy,
    times_as_fast,
    with_spread,
)
from explorer.system.user_files import JOURNEY, read_kept
from explorer.tuning.journey import BEST, Journey

# ------------------------------------------------------------------ as JSON


@dataclass(frozen=True, slots=True)
class Beside:
    """A published ratio and ours."""

    reported: ReportedRatio
    ours: float


def beside_reported(journey: Journey) -> list[Beside]:
    """The published ratios of which the journey has both kernels, as steps of their own."""
    found = []
    for reported in REPORTED:
        slower, faster = journey.find(reported.slower), journey.find(reported.faster)
        if slower is not None and faster is not None and slower is not faster:
            found.append(Beside(reported, journey.speedup(slower, faster).median))
    return found


def source_words(journey: Journey, step: Contender) -> str:
    """Where a step's kernel is from: the publication, or the study."""
    return journey.best_from if step.name == BEST else str(find_preset(step.name).source)


def pairs(journey: Journey) -> Iterator[tuple[Contender | None, Contender]]:
    """Each step with the one before it; the first with None."""
    return zip((None, *journey.steps), journey.steps, strict=False)


def journey_data(journey: Journey) -> dict[str, Any]:
    """What `Journey.as_dict` has, with times, ratios and ties for each step, and reported ratios.

    Times are microseconds (`_us`), bandwidths 1e9 bytes a second, shares fractions of 1.
    """
    data = journey.as_dict()
    for entry, (before, step) in zip(data["steps"], pairs(journey), strict=True):
        entry |= _derived(journey, before, step)
    return {
        **data,
        "noise": journey.contest.noise,
        "copy_time_us": journey.copy_time_us or None,
        "reported": [
            {
                "slower": beside.reported.slower,
                "faster": beside.reported.faster,
                "low": beside.reported.low,
                "high": beside.reported.high,
                "where": beside.reported.where,
                "publication": beside.reported.publication,
                "ours": beside.ours,
            }
            for beside in beside_reported(journey)
        ],
    }


def _derived(journey: Journey, before: Contender | None, step: Contender) -> dict[str, Any]:
    first, best = journey.steps[0], journey.steps[-1]
    changed = {} if before is None else before.config.differences(step.config)
    return {
        "time_us": step.time_us,
        "spread": step.spread,
        "gbps": journey.problem.gbps(step.time_us),
        "of_copy": share_of_copy(step.time_us, journey.copy_time_us),
        "over_first": journey.speedup(first, step).median,
        "over_previous": None if before is None else journey.speedup(before, step).median,
        "tied_with_previous": before is not None and journey.is_tie(before, step),
        "tied_with_fastest": journey.is_tie(step, best),
        "changed": {name: list(values) for name, values in changed.items()},
        "source": source_words(journey, step),
    }


def read_journey(path: Path) -> Journey:
    """The journey that a file keeps; raises InvalidInput for a file that keeps none."""
    return read_kept(path, Journey.from_dict, JOURNEY, "journey")


# ------------------------------------------------------------------ as Markdown


def journey_markdown(journey: Journey) -> str:
    """The table of steps, reported ratios beside ours, what was left out, and the environment."""
    figures = numbers("µs", "GB/s", "of copy", "× first", "× step")
    rows = [_cells(journey, *pair) for pair in pairs(journey)]
    blocks = [
        as_markdown(Table([*words("kernel"), *figures, *words("what changed", "from")], rows))
    ]
    if journey.copy_us:
        copy = microseconds(journey.copy_time_us)
        gbps = f"{journey.problem.gbps(journey.copy_time_us):.0f} GB/s"
        blocks.append(f"The fastest plain copy of the same bytes took {copy} µs, {gbps}.")
    blocks.append(
        "`=` marks a kernel whose time cannot be told from that of the row above; the noise was "
        f"{percent(journey.contest.noise, 2)}."
    )
    beside = beside_reported(journey)
    if beside:
        columns = words("from", "to", "reported ×", "here ×", "reported for")
        blocks.append(as_markdown(Table(columns, [_reported_cells(entry) for entry in beside])))
    if journey.left_out:
        named = "; ".join(f"{entry.name} ({entry.why})" for entry in journey.left_out)
        blocks.append(f"Left out: {named}.")
    lines = measurement_lines(journey.environment, replayed=not journey.interleaved)
    blocks.append("; ".join(f"{label}: {text}" for label, text in lines))
    return "\n\n".join(blocks) + "\n"


def _cells(journey: Journey, before: Contender | None, step: Contender) -> Sequence[Cell]:
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


def _reported_cells(beside: Beside) -> Sequence[Cell]:
    reported = beside.reported
    return [
        reported.slower,
        reported.faster,
        reported_span(reported),
        f"{beside.ours:.2f}",
        f"{reported.where}: {reported.publication}",
    ]


# ------------------------------------------------------------------ as a table


BAR_WIDTH = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_journey(journey: Journey, console: Console, *, kept: bool = False) -> None:
    """Times and bars, what changed at each step, reported ratios, what was left out, and how.

    `kept` journeys were measured earlier; that is said.
    """
    console.print(cell(f"{journey.problem}: {counted(len(journey.steps), 'kernel')}"), style="bold")
    console.print()
    print_table(_times(journey), console)
    for table in (_story(journey), _reported(journey), _left_out(journey)):
        if table.rows:
            print_table(table, console)
    console.print()
    console.print(notes([*_notes(journey), *_measured(journey, kept=kept)]))


def log_share(journey: Journey, time_us: float) -> float:
    """A time's place between copy, or the fastest step, and the slowest: 0 to 1, by logarithms."""
    least = min([*([journey.copy_time_us] if journey.copy_us else []), journey.steps[-1].time_us])
    span = math.log(journey.steps[0].time_us / least)
    return math.log(time_us / least) / span if span > 0 else 1.0


def _times(journey: Journey) -> Table:
    figures = numbers("µs", "GB/s", "of copy", "× first")
    table = Table([*words("kernel"), *figures, *words("µs, logarithmic")])
    for before, step in pairs(journey):
        tied = " =" if before is not None and journey.is_tie(before, step) else ""
        name = Styled(f"{step.name}{tied}", "bold green" if BEST in step.names else "")
        table.add(name, *_figures(journey, step), bar(log_share(journey, step.time_us)))
    if journey.copy_us:
        gbps = f"{journey.problem.gbps(journey.copy_time_us):.0f}"
        over = times_as_fast(journey.steps[0].time_us / journey.copy_time_us)
        table.add("copy", microseconds(journey.copy_time_us), gbps, "100.0 %", over, "")
    return table


def _figures(journey: Journey, step: Contender) -> list[str]:
    share = share_of_copy(step.time_us, journey.copy_time_us)
    return [
        with_spread(step.time_us, step.spread),
        f"{journey.problem.gbps(step.time_us):.0f}",
        percent(share) if share is not None else "",
        times_as_fast(journey.speedup(journey.steps[0], step).median),
    ]


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """Blocks for a share of `width` columns, to an eighth of one; never none at all."""
    eighths = max(1, round(share * width * 8))
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def _story(journey: Journey) -> Table:
    columns = [*words("kernel"), *numbers("×"), prose("what changed, and where it is from")]
    table = Table(columns, title="What changed from the step before")
    for before, step in pairs(journey):
        ratio, change = "", brief_words(step.config)
        if before is not None:
            ratio = times_as_fast(journey.speedup(before, step).median)
            change = change_words(before.config, step.config)
        texts = [change or "nothing", f"from {source_words(journey, step)}"]
        if len(step.names) > 1:
            texts.append(f"the same code here: {', '.join(step.names[1:])}")
        table.add(step.name, ratio, "\n".join(texts))
    return table


def _reported(journey: Journey) -> Table:
    columns = [*words("from", "to"), *numbers("reported", "here"), prose("reported for")]
    table = Table(columns, title="Reported, and here")
    for beside in beside_reported(journey):
        reported = beside.reported
        span = f"{reported_span(reported)} ×"
        where = f"{reported.where}: {reported.publication}"
        table.add(reported.slower, reported.faster, span, f"{beside.ours:.2f} ×", where)
    return table


def reported_span(reported: ReportedRatio) -> str:
    """A published ratio, or the least and the greatest of several."""
    if reported.high > reported.low:
        return f"{reported.low:.2f} to {reported.high:.2f}"
    return f"{reported.low:.2f}"


def _left_out(journey: Journey) -> Table:
    table = Table([*words("preset"), prose("why")], title="Left out")
    for entry in journey.left_out:
        table.add(entry.name, entry.why)
    return table


def _notes(journey: Journey) -> list[tuple[str, str]]:
    rounds = len(journey.steps[0].samples_us)
    how = f"{rounds} rounds, interleaved"
    if not journey.interleaved:
        how = f"{rounds} samples each, recorded one after another"
    tied = (
        "= marks a kernel whose time cannot be told from that of the row above; the noise was "
        f"{percent(journey.contest.noise, 2)}; {how}."
    )
    lines = [("ties", tied)]
    if journey.best_from:
        lines.append(("best", journey.best_from))
    return lines


def _measured(journey: Journey, *, kept: bool) -> list[tuple[str, str]]:
    return measurement_lines(journey.environment, replayed=kept or not journey.interleaved)
