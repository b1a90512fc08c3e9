"""What `explorer journey` prints: the story from the slowest kernel to the fastest."""

import math

from rich.console import Console
from rich.table import Table

from explorer.presets import ReportedRatio
from explorer.report.circumstances import measurement_lines
from explorer.report.console import cell, notes, plain_table, print_titled
from explorer.report.figures import (
    counted,
    microseconds,
    percent,
    share_of_copy,
    times_as_fast,
    with_spread,
)
from explorer.report.journey_data import beside_reported, pairs, source_words
from explorer.report.words import brief_words, change_words
from explorer.tuning.journey_results import Journey, Step

BAR_WIDTH = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_journey(journey: Journey, console: Console, *, kept: bool = False) -> None:
    """Times and bars, what changed at each step, reported ratios, what was left out, and how.

    `kept` journeys were measured earlier; that is said.
    """
    console.print(cell(f"{journey.problem}: {counted(len(journey.steps), 'kernel')}"), style="bold")
    console.print()
    console.print(_times(journey))
    print_titled("What changed from the step before", _story(journey), console)
    if beside_reported(journey):
        print_titled("Reported, and here", _reported(journey), console)
    if journey.left_out:
        print_titled("Left out", _left_out(journey), console)
    console.print()
    console.print(notes([*_notes(journey), *_measured(journey, kept=kept)]))


def log_share(journey: Journey, time_us: float) -> float:
    """A time's place between copy, or the fastest step, and the slowest: 0 to 1, by logarithms."""
    least = min([*([journey.copy_time_us] if journey.copy_us else []), journey.steps[-1].time_us])
    span = math.log(journey.steps[0].time_us / least)
    return math.log(time_us / least) / span if span > 0 else 1.0


def _times(journey: Journey) -> Table:
    table = plain_table()
    table.add_column("kernel", no_wrap=True)
    for heading in ("µs", "GB/s", "of copy", "× first"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("µs, logarithmic", no_wrap=True)
    for before, step in pairs(journey):
        tied = " =" if before is not None and journey.is_tie(before, step) else ""
        name = cell(f"{step.name}{tied}")
        name.stylize("bold green" if step.is_best else "")
        table.add_row(name, *_figures(journey, step), bar(log_share(journey, step.time_us)))
    if journey.copy_us:
        gbps = f"{journey.problem.gbps(journey.copy_time_us):.0f}"
        over = times_as_fast(journey.steps[0].time_us / journey.copy_time_us)
        table.add_row("copy", microseconds(journey.copy_time_us), gbps, "100.0 %", over, "")
    return table


def _figures(journey: Journey, step: Step) -> list[str]:
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
    table = plain_table()
    table.add_column("kernel", no_wrap=True)
    table.add_column("×", justify="right", no_wrap=True)
    table.add_column("what changed, and where it is from", overflow="fold")
    for before, step in pairs(journey):
        ratio, change = "", brief_words(step.config)
        if before is not None:
            ratio = times_as_fast(journey.speedup(before, step).median)
            change = change_words(before.config, step.config)
        texts = [change or "nothing", f"from {source_words(journey, step)}"]
        if len(step.names) > 1:
            texts.append(f"the same code here: {', '.join(step.names[1:])}")
        table.add_row(cell(step.name), ratio, cell("\n".join(texts)))
    return table


def _reported(journey: Journey) -> Table:
    table = plain_table()
    table.add_column("from", no_wrap=True)
    table.add_column("to", no_wrap=True)
    table.add_column("reported", justify="right", no_wrap=True)
    table.add_column("here", justify="right", no_wrap=True)
    table.add_column("reported for", overflow="fold")
    for beside in beside_reported(journey):
        reported = beside.reported
        span = f"{reported_span(reported)} ×"
        where = cell(f"{reported.where}: {reported.publication}")
        table.add_row(reported.slower, reported.faster, span, f"{beside.ours:.2f} ×", where)
    return table


def reported_span(reported: ReportedRatio) -> str:
    """A published ratio, or the least and the greatest of several."""
    if reported.high > reported.low:
        return f"{reported.low:.2f} to {reported.high:.2f}"
    return f"{reported.low:.2f}"


def _left_out(journey: Journey) -> Table:
    table = plain_table()
    table.add_column("preset", no_wrap=True)
    table.add_column("why", overflow="fold")
    for entry in journey.left_out:
        table.add_row(entry.name, cell(entry.reason))
    return table


def _notes(journey: Journey) -> list[tuple[str, str]]:
    rounds = len(journey.steps[0].samples_us)
    how = f"{rounds} rounds, interleaved"
    if not journey.interleaved:
        how = f"{rounds} samples each, recorded one after another"
    tied = f"= cannot be told from the step before; noise {percent(journey.noise, 2)}; {how}."
    lines = [("ties", tied)]
    if journey.best_from:
        lines.append(("best", journey.best_from))
    return lines


def _measured(journey: Journey, *, kept: bool) -> list[tuple[str, str]]:
    return measurement_lines(journey.circumstances, replayed=kept or not journey.interleaved)
