"""Journeys through published kernels, slowest first: printed, as data, and as a page."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from explorer.model.config import brief_words, change_words
from explorer.model.outcome import Contender
from explorer.model.query import command_of
from explorer.presets.published import REPORTED, ReportedRatio, find_preset
from explorer.report.charts import Chart, above_chart
from explorer.report.page import Block, Figure, Folded, KeptPage, command, definitions, tiles
from explorer.report.table import (
    Field,
    Kind,
    Table,
    as_markdown,
    data_of,
    notes,
    numbers,
    print_table,
    prose,
    table_of,
    words,
)
from explorer.report.text import (
    TIMED,
    TimedRow,
    config_command,
    counted,
    limit_cells,
    measurement_lines,
    microseconds,
    percent,
    share_of_limit,
    times_as_fast,
)
from explorer.report.tune import FAMILIES, family
from explorer.system.user_files import JOURNEY, read_kept
from explorer.tuning.journey import BEST, Journey


def read_journey(path: Path) -> Journey:
    """Return the journey that a file keeps; raises InvalidInput for a file that keeps none."""
    return read_kept(path, Journey.from_dict, JOURNEY, "journey")


# ------------------------------------------------------------------ the fields of a step


@dataclass(frozen=True, slots=True)
class Step(TimedRow):
    """A kernel of a journey, and the one before it."""

    kernel: Contender
    journey: Journey
    before: Contender | None

    def over(self, slower: Contender | None) -> float | None:
        """Return how many times as fast it is as another; None without one."""
        return None if slower is None else self.journey.speedup(slower, self.kernel).median

    @property
    def is_tied(self) -> bool:
        """Whether it cannot be told from the one before it."""
        return self.before is not None and self.journey.is_tie(self.before, self.kernel)

    @property
    def changes(self) -> dict[str, list[Any]]:
        """The parameters that changed since the one before it, with both values."""
        config = self.kernel.kernel
        before = config if self.before is None else self.before.kernel
        if config is None or before is None:
            return {}
        return {name: list(values) for name, values in before.differences(config).items()}

    @property
    def change(self) -> str:
        """What changed, in words; of the first step its config."""
        if self.kernel.kernel is None:
            return self.kernel.note
        if self.before is None or self.before.kernel is None:
            return brief_words(self.kernel.config)
        return change_words(self.before.config, self.kernel.config) or "nothing"

    @property
    def source(self) -> str:
        """Where the kernel is from: the publication, or the study."""
        kernel, journey = self.kernel, self.journey
        if kernel.kernel is None:
            return f"your own, {kernel.version}"
        return journey.best_from if kernel.name == BEST else str(find_preset(kernel.name).source)


BAR_WIDTH = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """Return blocks for a share of `width` columns, to an eighth of one; never none at all."""
    whole, rest = divmod(max(1, round(share * width * 8)), 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


STEP: tuple[Field[Step], ...] = (
    Field("", lambda s: _name(s), "kernel", Text.copy, kind=Kind.WORD),
    *TIMED,
    Field("over_first", lambda s: s.over(s.journey.steps[0]), "× first", times_as_fast),
    Field(
        "", lambda s: log_share(s.journey, s.kernel.time_us), "µs, logarithmic", bar, kind=Kind.WORD
    ),
    Field("over_previous", lambda s: s.over(s.before), "× step", times_as_fast),
    Field("tied_with_previous", lambda s: s.is_tied),
    Field("tied_with_fastest", lambda s: s.journey.is_tie(s.kernel, s.journey.steps[-1])),
    Field("changed", lambda s: s.changes),
    Field("", lambda s: s.change, "what changed", kind=Kind.PROSE),
    Field("source", lambda s: s.source, "from", kind=Kind.PROSE),
)
"""What follows from a step's samples, beside what the file keeps."""

_TIMES, _STORY, _WITHOUT_BARS = (0, 1, 2, 3, 4, 5), (0, 6, 7, 8), (0, 1, 2, 3, 4, 6, 7, 8)
"""Columns of the first and the second table of a terminal, and of a document's table."""


def _name(step: Step) -> Text:
    """Return its names, and whether it ties; the search's best stands out."""
    names = ", ".join(step.kernel.names) + (" =" if step.is_tied else "")
    return Text(names, "bold green" if BEST in step.kernel.names else "")


def steps(journey: Journey) -> list[Step]:
    """Return each step with the one before it, the slowest first."""
    pairs = zip(journey.steps, (None, *journey.steps), strict=False)
    problem, limit_us = journey.problem, journey.limit_time_us
    return [Step(kernel, problem, limit_us, journey, before) for kernel, before in pairs]


def steps_table(journey: Journey) -> Table:
    """Return the steps, then the limit."""
    table = table_of(STEP, steps(journey))
    limit = journey.problem.limit
    if limit_us := journey.limit_time_us:
        over_first = times_as_fast(journey.steps[0].time_us / limit_us)
        cells = limit_cells(journey.problem, limit_us)
        table.add_under(cells | {"kernel": limit, "× first": over_first})
    return table


def log_share(journey: Journey, time_us: float) -> float:
    """Return a time's place from the limit, or the fastest step, to the slowest, by logarithms."""
    fastest_us = journey.steps[-1].time_us
    least = min(journey.limit_time_us or fastest_us, fastest_us)
    span = math.log(journey.steps[0].time_us / least)
    return math.log(time_us / least) / span if span > 0 else 1.0


# ------------------------------------------------------------------ reported ratios


def beside_reported(journey: Journey) -> Iterator[tuple[ReportedRatio, float]]:
    """Yield the published ratios of which the journey has both kernels, and ours of each."""
    for reported in REPORTED:
        slower, faster = journey.find(reported.slower), journey.find(reported.faster)
        if slower is not None and faster is not None and slower is not faster:
            yield reported, journey.speedup(slower, faster).median


def _reported(journey: Journey) -> Table:
    columns = [*words("from", "to"), *numbers("reported ×", "here ×"), prose("reported for")]
    table = Table(columns, title="Reported, and here")
    for one, ours in beside_reported(journey):
        span = f"{one.low:.2f}" + (f" to {one.high:.2f}" if one.high > one.low else "")
        where = f"{one.where}: {one.publication}"
        table.add(one.slower, one.faster, span, f"{ours:.2f}", where)
    return table


# ------------------------------------------------------------------ as data


def journey_data(journey: Journey) -> dict[str, Any]:
    """Return `Journey.as_dict` with times, ratios and ties for each step, and reported ratios.

    Times are microseconds (`_us`), bandwidths 1e9 bytes a second, shares fractions of 1.
    """
    data = journey.as_dict()
    for entry, step in zip(data["steps"], steps(journey), strict=True):
        entry |= data_of(STEP, step)
    return {
        **data,
        "noise": journey.contest.noise,
        "limit": journey.problem.limit,
        "limit_time_us": journey.limit_time_us or None,
        "reported": [{**asdict(one), "ours": ours} for one, ours in beside_reported(journey)],
    }


def journey_rows(journey: Journey) -> list[dict[str, Any]]:
    """Return a row a kernel, from the slowest to the fastest, then the limit."""
    data, made = journey_data(journey), journey.environment
    common = {"problem": data["problem"], "gpu": made.gpu, "timing": made.timing, "date": made.date}
    left_out = ("config", "samples_us", "changed")
    rows = [
        {
            **common,
            **{key: value for key, value in step.items() if key not in left_out},
            "config": step["config"],
        }
        for step in data["steps"]
    ]
    limit = {"names": [data["limit"]], "time_us": data["limit_time_us"], "of_limit": 1.0}
    return [*rows, {**common, **limit}]


# ------------------------------------------------------------------ for a terminal and a document


def print_journey(journey: Journey, console: Console, *, kept: bool = False) -> None:
    """Print times and bars, what changed at each step, reported ratios, and what was left out.

    `kept` journeys were measured earlier; that is said.
    """
    table = steps_table(journey)
    console.print(f"{journey.problem}: {counted(len(journey.steps), 'kernel')}", style="bold")
    console.print()
    print_table(table.only(_TIMES), console)
    story = table.only(_STORY, "What changed from the step before")
    story.rows = story.rows[: len(journey.steps)]
    left_out = Table([*words("preset"), prose("why")], title="Left out")
    left_out.rows += [[entry.name, entry.why] for entry in journey.left_out]
    for more in (story, _reported(journey), left_out):
        if more.rows:
            print_table(more, console)
    console.print()
    console.print(notes(_notes(journey, kept=kept)))


def _notes(journey: Journey, *, kept: bool = False) -> list[tuple[str, str]]:
    rounds = len(journey.steps[0].samples_us)
    how = f"{rounds} rounds, interleaved"
    if not journey.interleaved:
        how = f"{rounds} samples each, recorded one after another"
    tied = (
        "= marks a kernel whose time cannot be told from that of the row above; the noise was "
        f"{percent(journey.contest.noise, 2)}; {how}"
    )
    best = [("best", journey.best_from)] if journey.best_from else []
    replayed = kept or not journey.interleaved
    where = measurement_lines(journey.environment, journey.problem, replayed=replayed)
    return [("ties", tied), *best, *where]


def journey_markdown(journey: Journey) -> str:
    """Return the table of steps, reported ratios beside ours, what was left out, and notes."""
    blocks = [as_markdown(steps_table(journey).only(_WITHOUT_BARS))]
    reported = _reported(journey)
    blocks += [as_markdown(reported)] if reported.rows else []
    if journey.left_out:
        named = "; ".join(f"{entry.name} ({entry.why})" for entry in journey.left_out)
        blocks.append(f"Left out: {named}.")
    blocks.append("; ".join(f"{label}: {text}" for label, text in _notes(journey)))
    return "\n\n".join(blocks) + "\n"


# ------------------------------------------------------------------ as a chart and a page


OWN = "your own kernel"


def _tied(journey: Journey) -> list[Contender]:
    """Return the kernels that cannot be told from the fastest, without that."""
    *others, fastest = journey.steps
    return [step for step in others if journey.is_tie(step, fastest)]


def journey_chart(journey: Journey, title: str = "") -> Chart:
    """Return the chart of a journey: its last third, where it is decided, has room.

    One with a title is for a file.
    """
    fastest = journey.steps[-1]
    reference_us = journey.limit_time_us or fastest.time_us
    limit = f"{journey.problem.limit}'s time, {microseconds(reference_us)} µs"
    tied = _tied(journey)
    rows = [
        {
            "label": step.name,
            "value": 100 * (step.time_us / reference_us - 1),
            "told": f"{microseconds(step.time_us)} µs" + " =" * (step in tied),
            "kind": family(step.config) if step.kernel else OWN,
        }
        for step in journey.steps
    ]
    above = limit if journey.limit_us else "the fastest"
    chart = above_chart(rows, f"% above {above}", step=24, kinds=(*FAMILIES, OWN))
    return chart.properties(title=title) if title else chart


def journey_picture(journey: Journey) -> Chart:
    """Return the picture of a journey for a file."""
    made = journey.environment
    title = f"{journey.problem} on {made.gpu}, {made.timing} L2, {made.date[:10]}"
    return journey_chart(journey, title)


def _large_numbers(journey: Journey) -> list[tuple[str, str, str]]:
    slowest, fastest = journey.steps[0], journey.steps[-1]
    found = [(microseconds(fastest.time_us), "µs", f"with {fastest.name}, the fastest")]
    if share := share_of_limit(fastest.time_us, journey.limit_time_us):
        found.append((f"{100 * share:.1f}", "%", f"of the speed of {journey.problem.limit}"))
    over = times_as_fast(journey.speedup(slowest, fastest).median)
    return [*found, (over, "×", f"as fast as {slowest.name}, the slowest")]


def _take(journey: Journey) -> Iterator[Block]:
    """Yield the commands that write the fastest kernel, and the fastest that has a name."""
    problem, accuracy = journey.problem, journey.environment.accuracy
    written = [step for step in journey.steps if step.kernel]
    named = [step for step in written if step.name != BEST]
    for step in dict.fromkeys([*written[-1:], *named[-1:]]):
        yield f"This command writes {step.name} ({microseconds(step.time_us)} µs) to a file:"
        by_config = config_command(step.config, problem, accuracy)
        yield command(by_config if step.name == BEST else command_of("emit", step.name, problem))


def journey_page(journey: Journey) -> KeptPage:
    """Return the page of a journey."""
    told = [f"{step.name} ({microseconds(step.time_us)} µs)" for step in journey.steps]
    which = f"{counted(len(told), 'kernel')} on {journey.environment.gpu}"
    lead = f"{which}, from {told[0]} to {told[-1]}."
    tied = len(_tied(journey))
    ties = f"{counted(tied, 'other kernel')} {'ties' if tied == 1 else 'tie'} (=)"
    says = (
        f"Time above {journey.problem.limit}, on an axis that is logarithmic above 0.5 %. With the "
        f"fastest {ties if tied else 'no other kernel ties'}."
    )
    table = steps_table(journey).only(_WITHOUT_BARS)
    left_out = [(f"left out: {entry.name}", entry.why) for entry in journey.left_out]
    about = [("problem", str(journey.problem)), *_notes(journey), *left_out]
    sections: dict[str, Iterable[Block]] = {
        "From the slowest kernel to the fastest": [
            tiles(_large_numbers(journey)),
            *_take(journey),
            Figure("The journey", says, journey_chart(journey), table),
        ],
        "Environment of the journey": [Folded("All of it", [definitions(about)])],
    }
    return KeptPage.of(f"{journey.problem}: published kernels", lead, sections)
