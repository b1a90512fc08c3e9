"""Whether a tuned table can stand for its GPU: whole, verified, of this version, not throttled."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from explorer.codegen import emit
from explorer.evaluate.space_version import is_of_today
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.outcome import Stage
from explorer.model.problem import Problem
from explorer.model.tuned_table import TunedProblem, TunedTable
from explorer.space.candidates import listed

GRAVE = (Stage.VERIFY, Stage.CRASH, Stage.TIMEOUT)
"""Failures that a legal candidate must not have: its numbers are wrong, or it does not end."""

SHOWN = 3
"""Problems that a sentence names; it counts the others."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What keeps a table from being taken, and the problems that it is about."""

    sentence: str
    problems: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        if not self.problems:
            return self.sentence
        named = ", ".join(str(problem) for problem in self.problems[:SHOWN])
        more = len(self.problems) - SHOWN
        return f"{self.sentence}: {named}{f' and {more} more' if more > 0 else ''}"


def table_faults(table: TunedTable, wanted: Sequence[Problem]) -> list[Fault]:
    """Return what keeps a table from being taken; `wanted` are problems that each must have."""
    has = {one.problem for one in table.problems}
    missing = tuple(problem for problem in wanted if problem not in has)
    faults = [Fault(f"{len(missing)} of {len(wanted)} problems are missing", missing)]
    faults = faults if missing else []
    return [*faults, *_of_each(table), *_of_all(table)]


def _of_each(table: TunedTable) -> Iterator[Fault]:
    """Faults that problems have one by one, each kind once."""
    checks = {
        "was tuned with other templates or another space than this version's": _is_of_another_code,
        "was measured while the GPU was throttled": _was_throttled,
        "was not timed cold at the default accuracy": _was_asked_otherwise,
        "lacks a candidate of this version": lambda one: _lacks_candidates(one, table),
        "has a candidate that is wrong, crashes or does not end": _has_grave_failures,
    }
    for sentence, applies in checks.items():
        found = tuple(one.problem for one in table.problems if applies(one))
        if found:
            yield Fault(f"{len(found)} problems: each {sentence}", found)


def _of_all(table: TunedTable) -> Iterator[Fault]:
    """Faults of the table as a whole."""
    drivers = Counter(one.environment.driver for one in table.problems)
    if len(drivers) > 1:
        yield Fault(f"drivers differ between problems: {', '.join(drivers)}")
    others = {one.environment.gpu for one in table.problems} - {table.gpu.name}
    if others:
        yield Fault(f"it is of {table.gpu.name}, and has problems of {', '.join(sorted(others))}")


def _is_of_another_code(one: TunedProblem) -> bool:
    return not is_of_today(one.environment, one.problem)


def _was_throttled(one: TunedProblem) -> bool:
    return bool(one.environment.throttle_reasons)


def _was_asked_otherwise(one: TunedProblem) -> bool:
    made = one.environment
    return made.timing != "cold" or made.accuracy is not Accuracy.DEFAULT


def _lacks_candidates(one: TunedProblem, table: TunedTable) -> bool:
    """By code, not by config: what emits the same code was evaluated once.

    A candidate may have been evaluated with any hints: the heuristic chooses them, whose rules
    change more often than tables are measured.
    """
    met = {_plain(t.config) for t in one.timed} | {_plain(f.config) for f in one.failed}
    unmet = [config for config in listed(one.problem, table.gpu) if config not in met]
    if not unmet:
        return False
    digests = {emit(one.problem, config).digest for config in met}
    return any(emit(one.problem, config).digest not in digests for config in unmet)


def _plain(config: Config) -> Config:
    """Return the config without cache hints and row order."""
    usual = Config()
    return replace(
        config,
        load_hint=usual.load_hint,
        store_hint=usual.store_hint,
        row_order=usual.row_order,
    )


def _has_grave_failures(one: TunedProblem) -> bool:
    return any(failed.reason.partition(":")[0] in GRAVE for failed in one.failed)
