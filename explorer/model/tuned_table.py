"""Tuned tables: what every candidate took on each of a list of problems, on one GPU, as one file.

A table is JSON with one problem a line, so that a version control system shows which problems were
measured anew. Configs and environment that many problems share stand once, before the problems,
which name them by their place.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Contender, Environment
from explorer.model.problem import Problem
from explorer.system.plain_data import (
    read_list,
    read_number,
    read_object,
    read_text,
    read_time_us,
    read_whole,
    shown,
)
from explorer.system.user_files import (
    TUNED_TABLE,
    check_kind,
    is_there,
    read_json,
    read_lines,
    shipped_folder,
    studies_folder,
    write_file,
)

Read = TypeVar("Read")

FORMAT = 1
"""Of the file; a reader refuses any other."""

OF_ONE_PROBLEM = (
    "date",
    "limit_us",
    "limit_name",
    "buffers",
    "launches_per_sample",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "throttle_reasons",
)
"""The environment that differ from one problem of a table to the next."""


# ------------------------------------------------------------------ what was measured


@dataclass(frozen=True, slots=True)
class TimedConfig:
    """A config that was verified and timed by itself."""

    config: Config
    time_us: float
    registers: int


@dataclass(frozen=True, slots=True)
class TunedProblem:
    """What was measured of one problem."""

    problem: Problem
    environment: Environment
    """`limit_us` is of the finals: timed in the same rounds."""
    finalists: tuple[Contender, ...]
    """The best first, as `Contest.ranked` has them; of each the median of its samples is kept."""
    untuned: Config
    """What is taken without a table or a search; it is a finalist unless it failed."""
    timed: tuple[TimedConfig, ...]
    """Every config that has a time, the fastest first."""
    failed: Mapping[Config, str] = field(default_factory=dict)
    """Every config that has no time, and why: after the stage at which it fell, `verify: ...`."""
    torch_us: float = 0.0
    """The time of torch's own function in the finals; 0 where it was not timed."""
    effort: str = "default"
    """How often the best were varied: quick, default or full."""
    where: str = ""
    """What its kernels were restricted to, as `cache=shared`; empty without a restriction."""

    @property
    def best(self) -> Contender:
        """The config to take."""
        return self.finalists[0]

    @property
    def gain(self) -> float | None:
        """The time of what is taken without a search over the fastest's; None if it failed.

        The best is the simplest of those that tie with the fastest, and may have a longer time.
        """
        times = {f.config: f.time_us for f in self.finalists}
        untuned_us = times.get(self.untuned)
        return None if untuned_us is None else untuned_us / min(times.values())

    @property
    def torch_over_best(self) -> float | None:
        """Torch's time over the best's; None where torch was not timed."""
        return self.torch_us / self.best.time_us if self.torch_us else None


@dataclass(frozen=True, slots=True)
class TunedTable:
    """All that was tuned on one GPU."""

    gpu: GpuSpec
    problems: tuple[TunedProblem, ...]

    def with_(self, later: Iterable[TunedProblem]) -> "TunedTable":
        """Return the table with other problems, in the place of what it has of the same ones."""
        merged = {one.problem: one for one in self.problems}
        merged.update({one.problem: one for one in later})
        return replace(self, problems=tuple(sorted(merged.values(), key=_order)))


def _order(one: TunedProblem) -> tuple[Any, ...]:
    problem = one.problem
    return problem.op, problem.dtype, problem.inner, problem.cols, problem.rows, str(problem)


def table_path(gpu: GpuSpec) -> Path:
    """Return where the table of a GPU goes, such as studies/tuned/nvidia-h200.json."""
    return studies_folder() / "tuned" / f"{gpu.name.lower().replace(' ', '-')}.json"


# ------------------------------------------------------------------ written


def write_table(table: TunedTable, path: Path) -> None:
    """Write a table, whole or not at all. Raises InvalidInput."""
    write_file(path, table_text(table), "name another --output")


def table_text(table: TunedTable) -> str:
    """Return the text of a table's file."""
    configs, machines = _Places(), _Places()
    lines = [_dumped(_problem_data(one, configs, machines)) for one in table.problems]
    head = [
        f'"format":{FORMAT}',
        f'"gpu":{_dumped({name: getattr(table.gpu, name) for name in table.gpu.__slots__})}',
        f'"circumstances":{_listed(machines.texts)}',
        f'"configs":{_listed(configs.texts)}',
        f'"problems":{_listed(lines)}',
    ]
    return "{" + ",\n".join(head) + "}\n"


class _Places:
    """Texts, each once, and the place of each."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}

    def of(self, text: str) -> int:
        """Return the place of a text, which is added if it is new."""
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]


def _problem_data(one: TunedProblem, configs: _Places, machines: _Places) -> dict[str, Any]:
    made = one.environment.as_dict()
    own = {name: made.pop(name) for name in OF_ONE_PROBLEM}

    def place(config: Config) -> int:
        return configs.of(config.to_json(brief=True))

    return {
        "problem": one.problem.as_dict(),
        "circumstances": machines.of(_dumped(made)),
        **{name: value for name, value in own.items() if value},
        "finalists": [
            [
                place(f.config),
                _rounded(f.time_us),
                _rounded(f.ratio_low),
                _rounded(f.ratio_high),
                f.tied,
            ]
            for f in one.finalists
        ],
        "untuned": place(one.untuned),
        "timed": [[place(t.config), _rounded(t.time_us), t.registers] for t in one.timed],
        "failed": [[place(config), why] for config, why in one.failed.items()],
        "torch_us": _rounded(one.torch_us),
        "effort": one.effort,
        **({"where": one.where} if one.where else {}),
    }


def _rounded(value: float) -> float:
    """Return a number to five digits: repeats of a time differ in the third."""
    return float(f"{value:.5g}")


def _dumped(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))


def _listed(texts: list[str]) -> str:
    return "[\n" + ",\n".join(texts) + "]"


# ------------------------------------------------------------------ read


HELD_OUT = "held-out"
"""The folder of tables by which the choice without a search is judged."""


def shipped_tables() -> dict[str, Path]:
    """Return the tables that come with the package, by name, such as held-out/nvidia-h200."""
    folder = shipped_folder("tuned", "studies/tuned")
    found = sorted(folder.rglob("*.json"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}


def table_file(named: str | Path) -> Path:
    """Return the file of a table that is named by its path, or by the name of a shipped table."""
    path = Path(named)
    return path if is_there(path) else shipped_tables().get(str(named), path)


def read_table(named: str | Path) -> TunedTable:
    """Read a table, named by its path or by the name of a shipped one.

    Raises InvalidInput for a file that is none of this version.
    """
    return _read(table_file(named), _table)


def _read(path: Path, of_values: Callable[[Any], Read]) -> Read:
    """Return what a function makes of a table's values; raises InvalidInput naming the file."""
    remedy = "name a table that explorer tune wrote, or one that explorer table list shows"
    values = read_json(path, remedy)
    check_kind(path, values, TUNED_TABLE)
    try:
        return of_values(values)
    except InvalidInput as error:
        raise InvalidInput(f"{path} is no tuned table of this version: {error}; {remedy}") from None


def _checked(values: Any) -> dict[str, Any]:
    """Return a table's values; raises InvalidInput for another format and for what is missing."""
    given = read_object(values, "table")
    if given.get("format") != FORMAT:
        raise InvalidInput(f"format is {shown(given.get('format'))}; it must be {FORMAT}")
    _check_names(given, "table", ("gpu", "circumstances", "configs", "problems"))
    return given


def _table(values: Any) -> TunedTable:
    given = _checked(values)
    configs = [Config.from_dict(c) for c in read_list(given["configs"], "configs")]
    machines = read_list(given["circumstances"], "circumstances")
    problems = []
    for place, one in enumerate(read_list(given["problems"], "problems")):
        try:
            problems.append(_problem(read_object(one, "problem"), configs, machines))
        except InvalidInput as error:
            raise InvalidInput(f"problems[{place}]: {error}") from None
    return TunedTable(GpuSpec.from_dict(given["gpu"]), tuple(problems))


def _problem(values: dict[str, Any], configs: list[Config], machines: list[Any]) -> TunedProblem:
    def config(place: Any) -> Config:
        return configs[read_whole(place, "config", most=len(configs) - 1)]

    needed = ("problem", "circumstances", "date", "finalists", "untuned", "timed")
    _check_names(values, "it", needed)
    finalists = _rows(values, "finalists", 5)
    if not finalists:
        raise InvalidInput("finalists is empty; a problem that was tuned has one at least")
    return TunedProblem(
        problem=Problem.from_dict(values["problem"]),
        environment=_environment(values, machines),
        finalists=tuple(
            Contender(
                kernel=config(place),
                samples_us=(read_time_us(time, "time"),),
                ratio_low=read_number(low, "ratio"),
                ratio_high=read_number(high, "ratio"),
                tied=bool(tied),
            )
            for place, time, low, high, tied in finalists
        ),
        untuned=config(values["untuned"]),
        timed=tuple(
            TimedConfig(config(place), read_time_us(time, "time"), read_whole(count, "registers"))
            for place, time, count in _rows(values, "timed", 3)
        ),
        failed={
            config(place): read_text(reason, "reason")
            for place, reason in _rows(values, "failed", 2)
        },
        torch_us=read_time_us(values.get("torch_us", 0), "torch_us", or_zero=True),
        effort=read_text(values.get("effort", "default"), "effort"),
        where=read_text(values.get("where", ""), "where"),
    )


def _environment(one: dict[str, Any], machines: list[Any]) -> Environment:
    """Return the environment of a problem: that of several, and what is its own."""
    place = read_whole(one.get("circumstances"), "circumstances", most=len(machines) - 1)
    return Environment.from_dict({**read_object(machines[place], "circumstances"), **one})


def _check_names(values: dict[str, Any], what: str, names: tuple[str, ...]) -> None:
    missing = next((name for name in names if name not in values), "")
    if missing:
        raise InvalidInput(f"{what} has no {missing}")


def _rows(values: dict[str, Any], name: str, length: int) -> list[list[Any]]:
    """Return the entries of a list, of `length` values each. Raises InvalidInput."""
    rows = [read_list(row, name) for row in read_list(values.get(name, []), name)]
    other = next((row for row in rows if len(row) != length), None)
    if other is not None:
        raise InvalidInput(f"{name} has an entry of {len(other)} values; it must have {length}")
    return rows


# ------------------------------------------------------------------ the best of one problem


def tables_of(gpu: GpuSpec) -> list[Path]:
    """Return the tables of a GPU that there are: the user's, then those of the package.

    Problems that are held out have kernels as if nobody had measured them.
    """
    own = table_path(gpu)
    named = shipped_tables().items()
    shipped = [path for name, path in named if path.name == own.name and HELD_OUT not in name]
    return [path for path in dict.fromkeys((own.absolute(), *shipped)) if path.is_file()]


@dataclass(frozen=True, slots=True)
class TunedBest:
    """The best config of a problem, and how it was measured."""

    config: Config
    environment: Environment
    registers: int
    """Of a thread; 0 where the table does not have them."""


def best_in_table(path: Path, gpu: GpuSpec, problem: Problem) -> TunedBest | None:
    """Return the best config of exactly a problem, at whatever scale, in a table of a GPU.

    None where the table does not have the problem, or is of another GPU. Raises InvalidInput for a
    file that is none of this version.
    """
    opened = _opened(path, _stamp(path))
    return opened.best(replace(problem, scale=None)) if opened.gpu == gpu.name else None


def problems_in_table(path: Path) -> list[Problem]:
    """Return the problems of a table, none with a scale; raises InvalidInput."""
    return [*_opened(path, _stamp(path)).problems]


def check_table(path: Path) -> None:
    """Raise InvalidInput for a file that is no tuned table of this version."""
    _opened(path, _stamp(path))


def _stamp(path: Path) -> tuple[int, int]:
    """Return a file's size and time, by which it is known again; zeros where there is none."""
    try:
        return path.stat().st_size, path.stat().st_mtime_ns
    except OSError:  # the reader says what is wrong
        return 0, 0


@dataclass(frozen=True, slots=True)
class _Opened:
    """A table's values, of which one problem at a time is read: all of them take a second."""

    gpu: str
    configs: list[Any]
    machines: list[Any]
    problems: dict[Problem, dict[str, Any]]

    @classmethod
    def of(cls, values: Any) -> "_Opened":
        """Return the values of a table's file; raises InvalidInput."""
        given = _checked(values)
        listed = [read_object(one, "problem") for one in read_list(given["problems"], "problems")]
        return cls(
            GpuSpec.from_dict(given["gpu"]).name,
            read_list(given["configs"], "configs"),
            read_list(given["circumstances"], "circumstances"),
            {replace(Problem.from_dict(one.get("problem")), scale=None): one for one in listed},
        )

    def best(self, problem: Problem) -> TunedBest | None:
        """Return the best config of a problem, None if it is not here; raises InvalidInput."""
        one = self.problems.get(problem)
        if one is None:
            return None
        (first, *_), *_ = _rows(one, "finalists", 5) or [[None]]
        config = self.configs[read_whole(first, "config", most=len(self.configs) - 1)]
        timed = _rows(one, "timed", 3)
        registers = next((number for place, _, number in timed if place == first), 0)
        return TunedBest(
            Config.from_dict(config),
            _environment(one, self.machines),
            read_whole(registers, "registers"),
        )


@lru_cache(maxsize=16)
def _opened(path: Path, stamp: tuple[int, int]) -> _Opened:
    """Return a table as its file was at a time.

    A GPU has three in the package, and its user's own: a problem that none has is looked for in
    all of them, which must not read any again.
    """
    return _read(path, _Opened.of)


# ------------------------------------------------------------------ one problem a line, appended


def journal_line(one: TunedProblem, gpu: GpuSpec) -> str:
    """Return a table of one problem, on one line: what is kept while a run goes on."""
    return table_text(TunedTable(gpu, (one,))).replace("\n", "")


def read_journal(path: Path, gpu: GpuSpec) -> list[TunedProblem]:
    """Return the problems that were finished on a GPU; cut off what follows the last whole line.

    None where there is no such file. Raises InvalidInput for a file that cannot be read, or that is
    damaged elsewhere.
    """
    tables = read_lines(path, _table, "tuned problem")
    return [one for table in tables if table.gpu == gpu for one in table.problems]
