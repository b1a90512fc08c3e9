"""The table of finalists, with copy's row beside them."""

from rich.table import Table

from explorer.circumstances import Circumstances
from explorer.problem import Problem
from explorer.report.console import plain_table
from explorer.report.figures import percent, share_of_copy, with_spread
from explorer.report.words import difference_words
from explorer.search.results import Finalist, Finals

ROWS_AFTER_TIES = 5
"""How many finalists are shown after the tie set."""

MOST_ROWS = 15
"""How many finalists are shown at most: a large tie set is told by its count."""


def finals_table(finals: Finals, problem: Problem, circumstances: Circumstances) -> Table:
    """The best and its tie set (marked =), the next few, then copy and the datasheet."""
    table = plain_table()
    table.add_column("rank", no_wrap=True)
    for heading in ("trial", "µs", "GB/s", "of copy", "× best", "regs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("differs from the best by", overflow="fold", ratio=1)
    for rank, finalist in enumerate(shown(finals), start=1):
        table.add_row(*_finalist_row(rank, finalist, finals, problem))
    table.add_row(*_copy_row(finals, problem), end_section=True)
    if circumstances.peak_gbps:
        table.add_row("", "", "", f"{circumstances.peak_gbps:.0f}", "", "", "", "datasheet")
    return table


def shown(finals: Finals) -> tuple[Finalist, ...]:
    """The finalists that the table lists."""
    return finals.finalists[: min(MOST_ROWS, len(finals.ties) + ROWS_AFTER_TIES)]


def _finalist_row(rank: int, finalist: Finalist, finals: Finals, problem: Problem) -> list[str]:
    trial, best = finalist.trial, finals.winner.trial
    difference = difference_words(trial.config, best.config) or "nothing"
    share = share_of_copy(finalist.time_us, finals.copy_us)
    return [
        f"{rank:>2}{' =' if finalist.tied else ''}",
        str(trial.number),
        with_spread(finalist.time_us, finalist.spread),
        f"{problem.gbps(finalist.time_us):.0f}",
        percent(share) if share is not None else "",
        f"{finalist.ratio_to_best:.3f}",
        str(trial.outcome.resources.registers),
        "the best" if rank == 1 else difference,
    ]


def _copy_row(finals: Finals, problem: Problem) -> list[str]:
    if not finals.copy_us:
        return ["", "", "", "", "", "", "", "copy was not measured"]
    ratio = finals.copy_us / finals.winner.time_us
    time = with_spread(finals.copy_us, finals.copy_spread)
    gbps = f"{problem.gbps(finals.copy_us):.0f}"
    return ["", "", time, gbps, "100.0 %", f"{ratio:.3f}", "", "plain copy of the same bytes"]


def ties_sentence(finals: Finals) -> str:
    """Who is tied, how ties are broken, and what this run can resolve."""
    others = len(finals.ties) - 1
    if not others:
        tied = "No other finalist is tied with the best."
    else:
        configs = "1 other config" if others == 1 else f"{others} other configs"
        tied = (
            f"{configs} tied with the best (=): fewer registers, then shorter code, break the tie."
        )
    how = (
        f"{finals.rounds} interleaved rounds" if finals.interleaved else "recorded samples compared"
    )
    return f"{tied} Noise {percent(finals.noise, 2)}; {how}."
