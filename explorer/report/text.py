"""Numbers, commands and environments as text; the fields of a problem and of a time in results."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from explorer.codegen.units import emit
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.outcome import Environment, Stage, Timed, TrialRecord
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery
from explorer.report.table import Cell, Field
from explorer.space import can_emit
from explorer.tuning.objective import Goal, where_words
from explorer.tuning.results import StudySummary

# ------------------------------------------------------------------ numbers


def microseconds(time_us: float) -> str:
    """Return four significant digits or more, without an exponent; the unit is the caller's."""
    return f"{time_us:.{_decimals(time_us)}f}"


def with_spread(time_us: float, spread: float) -> str:
    """Return a median in microseconds and, to as many decimals, half its interquartile range."""
    half_us = time_us * spread / 2
    return f"{microseconds(time_us)} ± {half_us:.{_decimals(time_us)}f}"


def ulps(error: float | None) -> str:
    """Return three significant digits of an error in ulps; a dash where it was not recorded."""
    return "-" if error is None else f"{error:.3g}"


def percent(fraction: float, digits: int = 1) -> str:
    """Return a fraction as a percentage: 0.973 is 97.3 %."""
    return f"{100 * fraction:.{digits}f} %"


def seconds(duration_s: float) -> str:
    """Return a duration, rounded for the eye: 8 s, 2 min 05 s, 1 h 20 min."""
    whole = round(duration_s)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def times_as_fast(ratio: float) -> str:
    """Return a ratio of times to three digits or more: 1.08, 30.4, 1019."""
    decimals = next((i for i, limit in enumerate((100, 10)) if ratio >= limit), 2)
    return f"{ratio:.{decimals}f}"


def share_of_limit(time_us: float, limit_us: float) -> float | None:
    """Return the limit's time over this one's: 1 at its speed; None where it was not measured."""
    return limit_us / time_us if limit_us > 0 else None


class OfProblem(Protocol):
    """Whatever is of one problem, such as a row of a table."""

    @property
    def problem(self) -> Problem:
        """What is computed."""


def limit_word(rows: Iterable[OfProblem]) -> str:
    """Return the name of the limit of all rows' problems, or both names where they differ."""
    return " or ".join(sorted({row.problem.limit for row in rows})) or "limit"


def of_limit_heading(rows: Iterable[OfProblem]) -> str:
    """Return the heading of shares: `of copy`, `of read`, or `of copy or read`."""
    return f"of {limit_word(rows)}"


def limit_us_heading(rows: Iterable[OfProblem]) -> str:
    """Return the heading of limits: `copy µs`, `read µs`, or `copy or read µs`."""
    return f"{limit_word(rows)} µs"


def _decimals(time_us: float) -> int:
    return next((i for i, limit in enumerate((1000, 100, 10)) if time_us >= limit), 3)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun: 1 kernel, 2 kernels, 2 losses."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def count(number: int) -> str:
    """Return a count with thin groups of three digits: 11 199 744."""
    return f"{number:,}".replace(",", " ")


def as_json(data: Any) -> str:
    """Return indented JSON, as it goes to stdout."""
    return json.dumps(data, indent=2, ensure_ascii=False)


# ------------------------------------------------------------------ what was timed


@dataclass(frozen=True, slots=True)
class TimedRow:
    """A kernel or a library that was timed, as a row of a table."""

    kernel: Timed
    problem: Problem
    limit_us: float
    """The limit's time in the same run; 0 where it was not timed."""

    @property
    def time(self) -> str:
        """Its time in microseconds with the spread."""
        return with_spread(self.kernel.time_us, self.kernel.spread)

    @property
    def of_limit(self) -> float | None:
        """The limit's time over its time; None where the limit was not timed."""
        return share_of_limit(self.kernel.time_us, self.limit_us)

    @property
    def speed(self) -> str:
        """Its time, its bandwidth and its share of the limit's speed, in words."""
        time_us = self.kernel.time_us
        told = f"{self.time} µs", f"{self.problem.gbps(time_us):.0f} GB/s"
        return ", ".join(filter(None, (*told, self.problem.of_limit(time_us, self.limit_us))))


TIMED: tuple[Field[TimedRow], ...] = (
    Field("time_us", lambda r: r.kernel.time_us, "µs", cell=lambda r: r.time),
    Field("spread", lambda r: r.kernel.spread),
    Field("gbps", lambda r: r.problem.gbps(r.kernel.time_us), "GB/s", "{:.0f}".format),
    Field("of_limit", lambda r: r.of_limit, of_limit_heading, percent),
)
"""What is known of whatever was timed."""


def limit_cells(problem: Problem, limit_us: float, spread: float | None = None) -> dict[str, Cell]:
    """Return the cells of the limit below those of TIMED."""
    time = microseconds(limit_us) if spread is None else with_spread(limit_us, spread)
    share = f"of {problem.limit}"
    return {"µs": time, "GB/s": f"{problem.gbps(limit_us):.0f}", share: "100.0 %"}


# ------------------------------------------------------------------ environment


def environment_line(environment: Environment) -> str:
    """Return what is known of GPU, driver, NVRTC, clocks, throttling, timing, accuracy and date."""
    c = environment
    parts = [c.gpu, f"driver {c.driver}", f"NVRTC {c.nvrtc}", _clocks(c)]
    parts += [_throttling(c)]
    parts += [f"{c.timing} L2" if c.timing in ("cold", "warm") else c.timing]
    parts += [] if c.accuracy is Accuracy.DEFAULT else [f"{c.accuracy} accuracy"]
    parts += [short_date(c.date)]
    return " · ".join(part for part in parts if part)


def limit_line(environment: Environment) -> str:
    """Say what is the fastest of the limit, and how launches are timed; empty where not known."""
    c = environment
    if not c.limit_name:
        return ""
    sample = f", {c.launches_per_sample} a sample" if c.launches_per_sample else ""
    if c.buffers > 1:
        return f"{c.limit_name}; launches rotate over {c.buffers} pairs of buffers{sample}"
    return f"{c.limit_name}; launches stay on one pair of buffers{sample}"


def measurement_lines(
    environment: Environment, problem: Problem, *, replayed: bool
) -> list[tuple[str, str]]:
    """Return notes with their labels: where and when it was measured; the limit beside it."""
    origin = "replayed" if replayed else "measured"
    limit = limit_line(environment)
    return [(origin, environment_line(environment)), *([(problem.limit, limit)] if limit else [])]


def replay_notice(environment: Environment, why: str | None = None) -> str:
    """Return the first line of a replay: whose times these are, and `why` no GPU is used."""
    origin = f"a recording made on {environment.gpu} on {environment.date[:10]}"
    return f"{why + ': ' if why else ''}replaying {origin}; nothing is timed here"


def short_date(date: str) -> str:
    """Return the day and the minute of an ISO 8601 date in UTC."""
    return f"{date[:10]} {date[11:16]} UTC" if len(date) >= 16 else date


def _clocks(c: Environment) -> str:
    clocks = [f"SM {c.sm_clock_mhz} MHz"] if c.sm_clock_mhz else []
    clocks += [f"memory {c.memory_clock_mhz} MHz"] if c.memory_clock_mhz else []
    return ", ".join(clocks)


def _throttling(c: Environment) -> str:
    if c.throttle_reasons:
        return f"held back by {c.throttle_reasons}"
    return "not throttled" if c.sm_clock_mhz else ""


# ------------------------------------------------------------------ commands to go on with


CHANGED = "the templates have changed since: the command writes what they emit now for its config"
"""What to say of a trial that is not reproducible."""


IN_MEMORY = ("sqlite://", "sqlite:///", "sqlite:///:memory:", ":memory:")
"""Storages that end with the process, so that no later command finds a study in them."""


def reproducing_command(
    trial: TrialRecord, problem: Problem, goal: Goal, storage: str | None = None
) -> str:
    """Return the `explorer emit` of a trial of the study with that goal: by number.

    By config where templates have changed since, and where the storage was in memory.
    """
    if is_reproducible(trial, problem) and storage not in IN_MEMORY:
        return _command("emit", str(trial.number), problem, storage, goal.study_options)
    return config_command(trial.config, problem, goal.accuracy)


def config_command(config: Config, problem: Problem, accuracy: Accuracy) -> str:
    """Return the `explorer emit` of a config, which needs no study and works on any machine."""
    more = Goal(accuracy=accuracy).options  # all that a config by itself has of a goal
    return _command("emit", config.to_json(brief=True), problem, more=more)


def is_reproducible(trial: TrialRecord, problem: Problem) -> bool:
    """Return whether the templates still emit the code that the trial measured."""
    if not can_emit(problem, trial.config):
        return False
    return emit(problem, trial.config).digest == trial.outcome.digest


def search_command(study: StudySummary, storage: str | None = None) -> str:
    """Return the `explorer search` that continues a study."""
    where = [word for one in where_words(study.where).split() for word in ("--where", one)]
    return _command("search", None, study.problem, storage, [*study.goal.options, *where])


def _command(
    name: str,
    what: str | None,
    problem: Problem,
    storage: str | None = None,
    more: Sequence[str] = (),
) -> str:
    words = ["explorer", name, *([what] if what is not None else [])]
    words += [*ProblemQuery.of(problem).options, *more]
    words += ["--storage", storage] if storage else []
    return shlex.join(words)


_REJECTED_BY = {
    Stage.INVALID: "by a rule",
    Stage.COMPILE: "by the compiler",
    Stage.RESOURCES: "for lack of resources",
    Stage.VERIFY: "by verification",
    Stage.CRASH: "for a crash",
    Stage.TIMEOUT: "for a timeout",
}


def rejections(rejected: Mapping[Stage, int]) -> str:
    """Return `41 rejected by a rule, 3 by the compiler`; empty where nothing was rejected."""
    counts = [(rejected.get(stage, 0), by) for stage, by in _REJECTED_BY.items()]
    told = [f"{number} {by}" for number, by in counts if number]
    return ", ".join(told).replace(" ", " rejected ", 1)


# ------------------------------------------------------------------ problems as data


def problem_data(problem: Problem) -> dict[str, Any]:
    """Return op, rows, cols, dtype and the model's bytes."""
    return {
        "op": problem.op,
        "rows": problem.rows,
        "cols": problem.cols,
        "dtype": str(problem.dtype),
        "bytes": problem.bytes,
    }
