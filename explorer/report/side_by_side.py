"""Two or more results side by side: of several GPUs, studies or versions, in one table and chart.

A result is a comparison, a tuned table or a study. Each has the best kernel of each of its
problems, and the limit of its GPU, which was timed in the same run. Times of two GPUs say little
beside one another, so what is compared is the share of each GPU's own limit that a kernel reaches.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from explorer.model.config import Config, difference_words
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.outcome import Environment
from explorer.model.problem import Problem
from explorer.model.tuned_table import TunedTable, read_table, table_file
from explorer.report.charts import Chart, bars_chart, shares_chart, stacked
from explorer.report.compare import few_of, geometric_mean, read_compared
from explorer.report.journey import read_journey
from explorer.report.page import Block, Figure, Folded, KeptPage, definitions, tiles
from explorer.report.records import Tabular
from explorer.report.studies import best_standing
from explorer.report.table import (
    Field,
    Kind,
    Table,
    as_markdown,
    data_of,
    notes,
    print_table,
    table_of,
)
from explorer.report.text import (
    counted,
    environment_line,
    limit_word,
    microseconds,
    percent,
    share_of_limit,
)
from explorer.system.user_files import (
    COMPARISON,
    JOURNEY,
    TUNED_TABLE,
    is_there,
    kept_file,
    kind_of,
    read_json,
)
from explorer.tuning.contest import Ratio
from explorer.tuning.journey import Journey
from explorer.tuning.peer_comparison import PeerRun
from explorer.tuning.results import StudyHistory
from explorer.tuning.storage import open_storage
from explorer.tuning.study_reader import history_of, study_named

# ------------------------------------------------------------------ results by their names


Result = PeerRun | TunedTable | Journey | StudyHistory
"""What a file keeps, or a study has."""


def read_result(named: str, storage: str | None = None) -> Result:
    """Return a result by its file, by the name of a shipped table, or by the name of a study.

    A study is looked for in the storage, and may be named by a part of its name that no other has.
    Raises InvalidInput for a file of another kind, and where several studies fit, NotFound where
    none does.
    """
    path = kept_file(table_file(named))
    if not is_there(path) and path.suffix != ".json":
        try:
            return history_of(study_named(open_storage(storage, read_only=True), named))
        except NotFound as error:
            raise NotFound(f"{named} is no file and no table of the package, and {error}") from None
    kind = kind_of(read_json(path, "name a comparison, a journey or a tuned table"))
    if kind == COMPARISON:
        return read_compared(path)
    if kind == JOURNEY:
        return read_journey(path)
    if kind == TUNED_TABLE:
        return read_table(path)
    raise InvalidInput(
        f"{path} is none of the files that a report shows; name what explorer compare --save, "
        "explorer journey --save or explorer tune wrote"
    )


# ------------------------------------------------------------------ sides


@dataclass(frozen=True, slots=True)
class Best:
    """The best kernel of a problem in one result."""

    problem: Problem
    config: Config
    time_us: float
    limit_us: float
    """The time of the limit of its GPU, in the same run; 0 where it was not timed."""
    environment: Environment
    over_limit: Ratio | None = None
    """Its time over the limit's, round by round; None where medians alone were kept."""
    noise: float = 0.0
    """What its contest cannot resolve, relative."""

    @property
    def of_limit(self) -> float | None:
        """The limit's time over its time; None where the limit was not timed."""
        return share_of_limit(self.time_us, self.limit_us)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the results."""

    label: str
    """Short, and unlike that of another side: the GPU, with the day or the name where needed."""
    named: str
    best: Mapping[Problem, Best]

    @property
    def environment(self) -> Environment:
        """The environment of its first problem."""
        return next(iter(self.best.values())).environment


def _bests(named: str, result: Result) -> list[Best]:
    """Return the best kernel of each problem of a result. Raises InvalidInput where it has none."""
    if isinstance(result, Journey):
        raise InvalidInput(
            f"{named} is a journey, which has many kernels of one problem; name a comparison, a "
            "tuned table or a study"
        )
    if isinstance(result, PeerRun):
        found = [
            Best(c.problem, c.config, c.time_us, c.limit_time_us, c.environment, *c.over_limit)
            for c in result.comparisons
        ]
    elif isinstance(result, TunedTable):
        found = [
            Best(p.problem, p.best.config, p.best.time_us, p.environment.limit_us, p.environment)
            for p in result.problems
        ]
    else:
        best, made = best_standing(result.view), result.view.environment
        found = [Best(best.problem, best.kernel.config, best.kernel.time_us, best.limit_us, made)]
    if not found:
        raise InvalidInput(f"{named} has no problem that was measured; name another")
    return found


def _name(named: str, result: Result) -> str:
    """Return a study's whole name; of another result what names it."""
    return result.view.summary.name if isinstance(result, StudyHistory) else named


def _labels(results: Sequence[tuple[str, Environment]]) -> list[str]:
    """Return the shortest words that tell results apart, each with its name."""
    ways: list[Callable[[str, Environment], str]] = [
        lambda _, made: _first_word(made.gpu),
        lambda _, made: made.gpu,
        lambda _, made: f"{made.gpu} {made.timing}",
        lambda _, made: f"{made.gpu} {made.date[:10]}",
        lambda named, made: f"{made.gpu} {Path(named).stem}",
    ]
    for way in ways:
        labels = [way(*result).removeprefix("NVIDIA ") for result in results]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, 1)]


def _first_word(gpu: str) -> str:
    """Return H100 for NVIDIA H100 80GB HBM3; all of a name that says no more by its first word."""
    word, *_ = gpu.removeprefix("NVIDIA ").split(" ")
    return word if any(map(str.isdigit, word)) else gpu


# ------------------------------------------------------------------ side by side


@dataclass(frozen=True, slots=True)
class Pair:
    """The best kernel of a problem on one side, beside that of the first side."""

    label: str
    """Of the side."""
    best: Best
    first: Best

    @property
    def over_first(self) -> float | None:
        """Its share of its GPU's limit over the first's: above 1 where it is nearer to its limit.

        None where a limit was not timed.
        """
        one, other = self.best.of_limit, self.first.of_limit
        return None if one is None or other is None else one / other

    @property
    def is_tie(self) -> bool | None:
        """Whether the shares cannot be told apart; None where it is not known.

        They are told apart where the 95 % intervals of both are apart by more than the noise of
        both contests.
        """
        one, other = self.best.over_limit, self.first.over_limit
        if one is None or other is None:
            return None
        noise = 1 + self.best.noise + self.first.noise
        return one.low <= other.high * noise and other.low <= one.high * noise

    @property
    def is_same_config(self) -> bool:
        """Whether both kernels have one config."""
        return self.best.config == self.first.config

    @property
    def ratio(self) -> str:
        """The ratio of the shares, marked where it cannot be told from 1."""
        over = self.over_first
        return "" if over is None else f"{over:.3f}{' =' if self.is_tie else ''}"

    @property
    def difference(self) -> str:
        """How its kernel differs from the first's, in words."""
        if self.is_same_config:
            return "the same"
        return difference_words(self.best.config, self.first.config, DIFFERENCE_WIDTH)


DIFFERENCE_WIDTH = 40
"""Characters of a line that says how a kernel differs from that of the first side."""


@dataclass(frozen=True, slots=True)
class Line:
    """A problem that all sides have, on each of them; the first side is beside itself."""

    problem: Problem
    pairs: tuple[Pair, ...]

    @property
    def ratios(self) -> list[float]:
        """The ratios to the first side that are known."""
        return [pair.over_first for pair in self.pairs[1:] if pair.over_first is not None]

    @property
    def difference(self) -> str:
        """How the kernels of the other sides differ from the first's, in words."""
        _, *others = self.pairs
        if len(others) == 1:
            return others[0].difference
        return "; ".join(f"{pair.label}: {pair.difference}" for pair in others)


@dataclass(frozen=True, slots=True)
class SideBySide(Tabular):
    """Two or more results, of which the first is the one that the others are held against."""

    sides: tuple[Side, ...]
    lines: tuple[Line, ...]
    """Of the problems that all sides have, in the order of the first."""

    @classmethod
    def of(cls, results: Iterable[tuple[str, Result]]) -> "SideBySide":
        """Return results, each with its name. Raises InvalidInput where no problem is in all."""
        bests = [(_name(named, result), _bests(named, result)) for named, result in results]
        labels = _labels([(named, found[0].environment) for named, found in bests])
        sides = tuple(
            Side(label, named, {one.problem: one for one in found})
            for label, (named, found) in zip(labels, bests, strict=True)
        )
        lines = tuple(
            Line(problem, tuple(Pair(side.label, side.best[problem], best) for side in sides))
            for problem, best in sides[0].best.items()
            if all(problem in side.best for side in sides)
        )
        if not lines:
            raise InvalidInput(
                f"{' and '.join(named for named, _ in bests)} have no problem in common; name "
                "results of the same op, sizes and element types"
            )
        return cls(sides, lines)

    def __repr__(self) -> str:
        """Return a line for a notebook."""
        return f"SideBySide({self.title}: {counted(len(self.lines), 'problem')})"

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return side_data(self)

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each problem and side."""
        return side_rows(self)

    def tables(self) -> list[Table]:
        """Return the table."""
        return [side_table(self)]

    @property
    def title(self) -> str:
        """The results in words, such as `H200 beside H100 80GB HBM3`."""
        return " beside ".join(side.label for side in self.sides)

    @property
    def groups(self) -> dict[str, list[Line]]:
        """The lines by op and element type, in their order."""
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            found.setdefault(f"{line.problem.op} {line.problem.dtype}", []).append(line)
        return found


def beside(named: Iterable[str], storage: str | None = None) -> SideBySide:
    """Return results side by side. Raises as `read_result` and `SideBySide.of`."""
    return SideBySide.of([(one, read_result(one, storage)) for one in named])


# ------------------------------------------------------------------ as data


PAIR: tuple[Field[Pair], ...] = (
    Field("problem", lambda p: p.best.problem.as_dict()),
    Field("side", lambda p: p.label),
    Field("gpu", lambda p: p.best.environment.gpu),
    Field("timing", lambda p: p.best.environment.timing),
    Field("date", lambda p: p.best.environment.date),
    Field("time_us", lambda p: p.best.time_us),
    Field("limit", lambda p: p.best.problem.limit),
    Field("limit_us", lambda p: p.best.limit_us or None),
    Field("of_limit", lambda p: p.best.of_limit),
    Field("of_limit_over_first", lambda p: p.over_first),
    Field("is_tie", lambda p: p.is_tie),
    Field("is_same_config", lambda p: p.is_same_config),
    Field("config", lambda p: p.best.config.as_dict()),
)
"""What is known of each problem on each side."""


def side_rows(of: SideBySide) -> list[dict[str, Any]]:
    """Return a row for each problem and side."""
    return [data_of(PAIR, pair) for line in of.lines for pair in line.pairs]


def side_data(of: SideBySide) -> dict[str, Any]:
    """Return the sides, each problem on each of them, and the geometric means, for JSON."""
    sides = [
        {
            "side": side.label,
            "named": side.named,
            "problems": len(side.best),
            "circumstances": side.environment.as_dict(),
        }
        for side in of.sides
    ]
    means = [
        {
            "of": label,
            "problems": len(lines),
            "of_limit": _means(lines, _SHARE),
            "of_limit_over_first": _means(lines, _RATIO),
        }
        for label, lines in of.groups.items()
    ]
    return {"sides": sides, "rows": side_rows(of), "geometric_means": means}


_SHARE, _RATIO = attrgetter("best.of_limit"), attrgetter("over_first")


def _means(lines: Sequence[Line], value: Callable[[Pair], float | None]) -> dict[str, float]:
    """Return geometric means by side; a side of which nothing is known has none."""
    columns = zip(*(line.pairs for line in lines), strict=True)
    means = {pairs[0].label: geometric_mean(filter(None, map(value, pairs))) for pairs in columns}
    return {label: mean for label, mean in means.items() if mean is not None}


# ------------------------------------------------------------------ the table and its notes


def _pair_fields(place: int, first: str, side: Side) -> tuple[list[Field[Line]], list[Field[Line]]]:
    """Return the columns of a side: its time and share, and its ratio to the first."""

    def of_pair(value: Callable[[Pair], Any]) -> Callable[[Line], Any]:
        return lambda line: value(line.pairs[place])

    heading = f"{side.label} µs"
    times: list[Field[Line]] = [
        Field("", of_pair(attrgetter("best.time_us")), heading, microseconds),
        Field("", of_pair(_SHARE), lambda lines: f"of its {limit_word(lines)}", percent),
    ]
    ratio: Field[Line] = Field("", of_pair(attrgetter("ratio")), f"{side.label} / {first}")
    return times, [ratio] if place else []


FARTHEST = 5
"""Problems at either end of the ratios that are printed of many, which the JSON has all."""


def side_table(of: SideBySide, *, whole: bool = True) -> Table:
    """Return a line a problem: the time and the share of each side, ratios, and both kernels.

    Unless it is to be `whole`, it has of many problems those of the least and the greatest ratio.
    """
    lines, title = of.lines, of.title
    ranked = sorted(filter(attrgetter("ratios"), lines), key=attrgetter("ratios"))
    if not whole and len(ranked) > 2 * FARTHEST:
        lines = (*ranked[:FARTHEST], *ranked[-FARTHEST:])
        title = (
            f"{title}: of {counted(len(of.lines), 'problem')} the {FARTHEST} with the least and "
            f"the {FARTHEST} with the greatest ratio; --all prints every one"
        )
    name = attrgetter("problem")
    fields: list[Field[Line]] = [Field("", name, "problem", kind=Kind.WORD)]
    columns = [_pair_fields(at, of.sides[0].label, side) for at, side in enumerate(of.sides)]
    fields += [field for times, _ in columns for field in times]
    fields += [field for _, ratios in columns for field in ratios]
    if _same_kernels(of) < len(of.lines):
        fields.append(Field("", attrgetter("difference"), _differs(of), kind=Kind.PROSE))
    return table_of(fields, lines, title)


def _differs(of: SideBySide) -> str:
    _, *others = of.sides
    return f"{others[0].label}'s differs by" if len(others) == 1 else "the others differ by"


def side_notes(of: SideBySide) -> list[tuple[str, str]]:
    """Return what the figures mean, the means of each group, ties, and each side's environment."""
    first, limit = of.sides[0].label, limit_word(of.lines)
    lines = [
        (
            "ratio",
            f"share of {limit}'s speed that a kernel reaches on its own GPU, over the share of the "
            f"kernel of {first} on its GPU: above 1 it is nearer to its {limit}",
        ),
        *_mean_notes(of),
    ]
    lines += [("ties", _ties(of)), ("kernels", _kernels(of))]
    both = {line.problem for line in of.lines}
    for side in of.sides:
        lines.append((side.label, f"{side.named}: {environment_line(side.environment)}"))
        if alone := [str(one) for one in side.best if one not in both]:
            lines.append(("alone", f"{side.label} alone has {few_of(alone)}"))
    return lines


def _mean_notes(of: SideBySide) -> list[tuple[str, str]]:
    first, found = of.sides[0].label, []
    for label, lines in of.groups.items():
        ratios = {name: mean for name, mean in _means(lines, _RATIO).items() if name != first}
        told = [f"{name} / {first} {mean:.3f}" for name, mean in ratios.items()]
        if len(lines) > 1 and (shares := _shares_words(lines)):
            means = ", ".join([shares, *told])
            found.append(("mean", f"{label}: {means}, over {counted(len(lines), 'problem')}"))
    return found


def _shares_words(lines: Sequence[Line]) -> str:
    """Return the geometric mean of the shares of each side in words."""
    return ", ".join(f"{name} {percent(mean)}" for name, mean in _means(lines, _SHARE).items())


def _ties(of: SideBySide) -> str:
    known = [p for line in of.lines for p in line.pairs[1:] if p.is_tie is not None]
    if not known:
        return "not known, since these results keep medians and no rounds"
    ties = sum(bool(pair.is_tie) for pair in known)
    return f"{ties} of {counted(len(known), 'ratio')} cannot be told from 1 (=)"


def _same_kernels(of: SideBySide) -> int:
    """Return for how many problems one config is the best of all sides."""
    return sum(all(pair.is_same_config for pair in line.pairs) for line in of.lines)


def _kernels(of: SideBySide) -> str:
    same, problems = _same_kernels(of), counted(len(of.lines), "problem")
    return f"one config is the best on all sides for {same} of {problems}"


def print_side_by_side(of: SideBySide, console: Console, *, whole: bool = True) -> None:
    """Print the table, `whole` or as `side_table` shortens it, and the notes."""
    print_table(side_table(of, whole=whole), console)
    console.print()
    console.print(notes(side_notes(of)))


def side_markdown(of: SideBySide) -> str:
    """Return the same for documents."""
    listed = "\n".join(f"- {label}: {text}" for label, text in side_notes(of))
    return f"**{of.title}**\n\n{as_markdown(side_table(of))}\n\n{listed}\n"


# ------------------------------------------------------------------ the chart and the page


def _chart(of: SideBySide, label: str, lines: Sequence[Line]) -> Chart | None:
    """Return the shares of one op and type; None where no limit was timed."""
    limit, across = limit_word(lines), lines[0].problem.operator.across
    rows = [
        {
            "cols": line.problem.cols,
            "share": round(100 * pair.best.of_limit, 2),
            "who": pair.label,
            "problem": str(line.problem),
            "is_large": True,
        }
        for line in lines
        for pair in line.pairs
        if pair.best.of_limit is not None
    ]
    if not rows:
        return None
    if len(lines) > 1:
        return shares_chart(rows, label, [side.label for side in of.sides], limit, across)
    bars = [{"label": r["who"], "value": r["share"], "told": f"{r['share']:.1f} %"} for r in rows]
    return bars_chart(bars, f"% of {limit}'s speed: {lines[0].problem}")


def side_chart(of: SideBySide) -> Chart:
    """Return the picture for a file. Raises InvalidInput where no limit was timed."""
    charts = [_chart(of, f"{label}, {of.title}", lines) for label, lines in of.groups.items()]
    if drawn := [chart for chart in charts if chart is not None]:
        return stacked(drawn)
    raise InvalidInput("no limit was timed in these results, so that no share of it can be drawn")


def side_page(of: SideBySide) -> KeptPage:
    """Return the page of results side by side."""
    limit = limit_word(of.lines)
    figures: list[Block] = []
    for label, lines in of.groups.items():
        if (chart := _chart(of, label, lines)) is not None:
            says = (
                f"The share of {limit}'s speed that the best kernel reaches, each on its own GPU, "
                f"where {limit} has 100 %. Geometric means over {counted(len(lines), 'problem')}: "
                f"{_shares_words(lines)}."
            )
            figures.append(Figure(f"{label}, {of.title}", says, chart))
    large = [
        (f"{100 * share:.1f}", "%", f"of {limit}'s speed in the mean, {name}")
        for name, share in _means(of.lines, _SHARE).items()
    ]
    lead = (
        f"{counted(len(of.lines), 'problem')} of all. Each kernel is held against {limit} of its "
        f"own GPU. {_kernels(of).capitalize()}."
    )
    sections: dict[str, Iterable[Block]] = {
        f"Share of {limit}'s speed": [tiles(large), *figures]
        if figures
        else ["No limit was timed in these results."],
        "Every problem": [side_table(of)],
        "Figures and environments": [Folded("All of them", [definitions(side_notes(of))])],
    }
    return KeptPage.of(of.title, lead, sections)
