"""Searches, studies, verdicts, comparisons, journeys, profiles and tables, as programs get them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from explorer.devices import verdict
from explorer.evaluate import profile as profiled
from explorer.evaluate import verify
from explorer.model.outcome import Environment
from explorer.model.problem import Problem
from explorer.model.tuned_table import TunedTable
from explorer.report.compare import compare_data, compare_rows
from explorer.report.compare import tables as compare_tables
from explorer.report.journey import journey_data, journey_rows, steps_table
from explorer.report.profile import profile_data, profile_tables
from explorer.report.records import Tabular
from explorer.report.studies import (
    effects_table,
    finals_table,
    search_data,
    study_data,
    trial_rows,
    unpaired_table,
)
from explorer.report.table import Table, table_of
from explorer.report.text import counted, microseconds
from explorer.report.tune import PROBLEM, tuned_data, tuned_rows
from explorer.report.verification import (
    timed_file_data,
    verdict_rows,
    verdict_tables,
    verification_data,
)
from explorer.tuning import journey, peer_comparison, results
from explorer.tuning.tune import TuneRun

Data = dict[str, Any]


def _trials(
    attempts: Iterable[results.Attempt], problem: Problem, environment: Environment
) -> list[Data]:
    trials = {attempt.number: attempt.trial for attempt in attempts}
    return trial_rows(trials, problem, environment.limit_us)


@dataclass(frozen=True, slots=True, repr=False)
class SearchResult(results.SearchResult, Tabular):
    """A search that ended with at least one measured kernel; its records are the study's trials."""

    storage: str | None = field(default=None, kw_only=True)
    """Where its study is; None: where `explorer` keeps studies."""

    def to_dict(self) -> Data:
        """Return what `explorer search --json` prints."""
        return search_data(self, self.storage, self.verification)

    def records(self) -> list[Data]:
        """Return every finished trial of the study: its measurement, or its rejection."""
        return _trials(self.attempts, self.problem, self.environment)

    def tables(self) -> list[Table]:
        """Return the finals, or the Pareto front."""
        two = self.objectives.is_front
        return [finals_table(self.finals, self.problem, self.environment, two=two)]


@dataclass(frozen=True, slots=True, repr=False)
class StudyHistory(results.StudyHistory, Tabular):
    """A study, with every finished trial as a record."""

    storage: str | None = None
    """Where it is; None: where `explorer` keeps studies."""

    def __repr__(self) -> str:
        """Return a line for a notebook."""
        return f"StudyHistory({self.view.summary.name}: {len(self.attempts)} trials)"

    def to_dict(self) -> Data:
        """Return what `explorer show --json` prints."""
        return study_data(self.view, self.storage)

    def records(self) -> list[Data]:
        """Return every finished trial: its measurement, or its rejection."""
        return _trials(self.attempts, self.view.summary.problem, self.view.environment)

    def tables(self) -> list[Table]:
        """Return the finals, and what each parameter does."""
        view, two = self.view, self.view.summary.objectives.is_front
        shown = [effects_table(view.effects)] if view.effects else []
        shown += [unpaired_table(view)] if view.unpaired else []
        if view.finals is None:
            return shown
        return [finals_table(view.finals, view.summary.problem, view.environment, two=two), *shown]


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(verdict.Verdict, Tabular):
    """The result of checking one program; its records are the emulated runs."""

    def to_dict(self) -> Data:
        """Return what `explorer verify --json` prints."""
        return verification_data([self])

    def records(self) -> list[Data]:
        """Return a row for each emulated run; one row where a GPU checked the program."""
        return verdict_rows(self)

    def tables(self) -> list[Table]:
        """Return the runs, and what was found."""
        return verdict_tables(self)


@dataclass(frozen=True, slots=True, repr=False)
class TimedFile(verify.TimedFile, Tabular):
    """The verdict and the times of the kernel of a file."""

    path: Path

    def __repr__(self) -> str:
        """Return a line for a notebook, without the source and the samples."""
        timed = self.measured
        took = f"{microseconds(timed.time_us)} µs" if timed else "not timed"
        return f"TimedFile({self.path}, {self.problem}: {self.verdict.status}, {took})"

    def to_dict(self) -> Data:
        """Return what `explorer time --json` prints."""
        return timed_file_data(self, self.path)

    def records(self) -> list[Data]:
        """Return one record, of all that is known."""
        return [self.to_dict()]

    def tables(self) -> list[Table]:
        """Return what was found of it."""
        return verdict_tables(self.verdict)


@dataclass(frozen=True, repr=False)
class Journey(journey.Journey, Tabular):
    """Published kernels and the search's best; its records are the steps, and the limit."""

    def __repr__(self) -> str:
        """Return a line for a notebook."""
        return f"Journey({self.problem} on {self.environment.gpu}: {len(self.steps)} kernels)"

    def to_dict(self) -> Data:
        """Return what `explorer journey --json` prints."""
        return journey_data(self)

    def records(self) -> list[Data]:
        """Return a row for each kernel, and one for the limit."""
        return journey_rows(self)

    def tables(self) -> list[Table]:
        """Return the steps, and what changed at each."""
        return [steps_table(self)]


@dataclass(frozen=True, slots=True, repr=False)
class PeerRun(peer_comparison.PeerRun, Tabular):
    """The comparisons of one call; its records are problems and contenders."""

    def to_dict(self) -> Data:
        """Return what `explorer compare --json` prints."""
        return compare_data(self)

    def records(self) -> list[Data]:
        """Return a row for each problem and contender."""
        return compare_rows(self)

    def tables(self) -> list[Table]:
        """Return a table for each op and element type."""
        return compare_tables(self)


@dataclass(frozen=True, slots=True, repr=False)
class Profile(profiled.Profile, Tabular):
    """What a kernel does, counted by the emulator."""

    def __repr__(self) -> str:
        """Return a line for a notebook."""
        return f"Profile({self.variant.problem} on {self.gpu.name}: {self.resources})"

    def to_dict(self) -> Data:
        """Return what `explorer profile --json` prints."""
        return profile_data(self, None)

    def records(self) -> list[Data]:
        """Return one record, of all that was counted."""
        return [self.to_dict()]

    def tables(self) -> list[Table]:
        """Return the traffic of both memories, and the instructions."""
        return profile_tables(self)


@dataclass(frozen=True, slots=True, repr=False)
class Tuned(Tabular):
    """A tuned table, where it is, and what a run of `explorer.tune` came to."""

    run: TuneRun
    path: Path
    notices: tuple[str, ...] = ()

    @property
    def table(self) -> TunedTable:
        """All that was measured."""
        return self.run.table

    def __repr__(self) -> str:
        """Return a line for a notebook, without the times."""
        table, untuned = self.table, len(self.run.untuned)
        left = f", {untuned} not tuned" if untuned else ""
        problems = counted(len(table.problems), "problem")
        return f"Tuned({problems} on {table.gpu.name}{left}, {self.path})"

    def to_dict(self) -> Data:
        """Return what `explorer table show --json` prints."""
        return tuned_data(self.run, self.path)

    def records(self) -> list[Data]:
        """Return a row a problem."""
        return tuned_rows(self.run)

    def tables(self) -> list[Table]:
        """Return the best kernel of each problem."""
        return [table_of(PROBLEM, self.table.problems)]
