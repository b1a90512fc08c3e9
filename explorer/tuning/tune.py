"""Tune a list of problems into a table that is kept, and check whether a table can be taken.

All problems have one list of candidates (`space.candidates`), so that the table tells what a config
loses on a problem that another one is best for. Beside them each problem tries what was best on the
problems most like it, and then small changes to its own best.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from explorer.choose import config_for
from explorer.codegen.units import emit
from explorer.evaluate.space_version import is_of_today
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import NotFound
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Contender, Measured, Rejected, Stage
from explorer.model.peer import Entered, PeerBench, PeerName
from explorer.model.problem import Problem
from explorer.model.tuned_table import (
    TimedConfig,
    TunedProblem,
    TunedTable,
    journal_line,
    read_journal,
)
from explorer.space.candidates import candidates, listed, residencies, variations
from explorer.space.space import Space
from explorer.system.user_files import append_line
from explorer.tuning.contest import Contest, close_to_best
from explorer.tuning.objective import Effort, Where, where_words
from explorer.tuning.peer_comparison import StopWatch, Unmeasured
from explorer.tuning.recorder import Kernels, evaluate_each
from explorer.tuning.runs import Benches, Run, RunProgress
from explorer.tuning.seeds import into

if TYPE_CHECKING:
    from explorer.tuning.cluster_device import ClusterBenches

NEIGHBOURS = 3
"""Problems whose best is tried on one more: the most alike of those that are tuned already."""

VARIED = {Effort.QUICK: 0, Effort.DEFAULT: 1, Effort.FULL: 6}
"""How often the best few are varied, each time from what is best by then."""

VARIED_CONFIGS = 3

FINALISTS = 6
ROUNDS = 15
"""Of the finals of one problem: a table has hundreds of problems."""

TORCH_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class TuneRun:
    """What a command came to."""

    table: TunedTable
    """The problems of this command alone."""
    untuned: tuple[Unmeasured, ...]
    resumed: int
    """Problems that an earlier run had finished."""


# ------------------------------------------------------------------ a list of problems


def tune(
    benches: "Benches | ClusterBenches",
    problems: Sequence[Problem],
    journal: Path,
    *,
    effort: Effort = Effort.DEFAULT,
    where: Mapping[Problem, Where] | None = None,
    torch: PeerName | None = None,
    resumes: Callable[[TunedProblem], bool] = lambda _: True,
    known: Iterable[TunedProblem] = (),
    notice: Callable[[str], None] = lambda _: None,
    tell: Callable[[RunProgress], None] | None = None,
) -> TuneRun:
    """Tune each problem that `journal` does not have yet, and append it there once it is done.

    `where` has what the kernels of a problem are restricted to; the others are free. The problems
    of the journal, and those that are `known` from a table, count as finished where
    `resumes` holds for them; the others are tuned anew. `notice` is called with what cannot be
    measured, and with what was measured while the GPU was throttled. Raises InvalidInput for a
    damaged journal; KeyboardInterrupt leaves what was finished in it.
    """
    from explorer.tuning.cluster_device import ClusterBenches

    gpu, only = benches.gpu, where or {}

    def keep(one: TunedProblem) -> None:
        run.kernels += len(one.timed) + len(one.failed)
        append_line(journal, journal_line(one, gpu), "make room for it")

    def given(problem: Problem) -> Callable[[], list[Config]]:
        return partial(_candidates, problem, gpu, only.get(problem, {}))

    def compile_ahead(problem: Problem) -> None:
        if problem != run.waiting[0]:  # its kernels are compiled as they are evaluated
            benches.compile_ahead(problem, given(problem)())

    def work(problem: Problem) -> Callable[[PeerBench], TunedProblem]:
        near, kept_to = _best_nearby(run.done, problem), only.get(problem, {})
        return partial(tune_problem, more=near, effort=effort, torch=torch, where=kept_to)

    def measure(bench: PeerBench, _: StopWatch) -> TunedProblem:
        return work(bench.problem)(bench)

    before = filter(resumes, [*known, *read_journal(journal, gpu)])
    run = Run(problems, before, keep, notice=notice, progress=tell)
    if isinstance(benches, ClusterBenches) and len(run.waiting) >= len(benches.cluster.gpus):
        run.spread(benches, work, given)
    else:
        run.measure(benches, measure, ahead=compile_ahead)
    for one in run.done:
        if one.environment.throttle_reasons:
            notice(f"throttled: {one.problem}: {one.environment.throttle_reasons}")
    return TuneRun(TunedTable(gpu, ()).with_(run.done), tuple(run.left_out), run.resumed)


def _best_nearby(tuned: Iterable[TunedProblem], problem: Problem) -> list[Config]:
    """Return what was best on the problems that are most like this one."""
    alike = sorted(tuned, key=lambda one: distance(one.problem, problem))[:NEIGHBOURS]
    return [one.best.config for one in alike if distance(one.problem, problem) < math.inf]


def distance(one: Problem, other: Problem) -> float:
    """How unlike two problems are: in doublings of columns, and quarters of doublings of rows.

    The number of columns decides what a thread keeps, that of rows only whether they fill the GPU.
    It is infinite where kernels differ for another reason: op, type, mask, or axis.
    """
    if (one.op, one.dtype, one.output_dtype, one.mask) != (
        other.op,
        other.dtype,
        other.output_dtype,
        other.mask,
    ) or (one.inner > 1) != (other.inner > 1):
        return math.inf
    return abs(math.log2(one.cols / other.cols)) + abs(math.log2(one.rows / other.rows)) / 4


# ------------------------------------------------------------------ one problem


def tune_problem(
    bench: PeerBench,
    more: Sequence[Config] = (),
    effort: Effort = Effort.DEFAULT,
    torch: PeerName | None = None,
    where: Where | None = None,
) -> TunedProblem:
    """Evaluate all candidates and `more`, vary the best, then time the best in turn.

    The best few are also evaluated with the residencies around their own. With `where` a candidate
    that it leaves out gives way to one with the values that are left.

    Raises NotFound where no kernel could be measured, DeviceLost.
    """
    problem, gpu = bench.problem, bench.gpu
    only = where or {}
    space = Space(problem, gpu, dict(only))

    def left(configs: Iterable[Config]) -> list[Config]:
        return [one for one in configs if space.is_legal(one)] if only else [*configs]

    given = dict.fromkeys([*_candidates(problem, gpu, only), *filter(space.is_legal, more)])
    seen = Kernels(bench, None, 0)
    evaluate_each(bench, list(given), seen)
    for _ in range(VARIED[effort]):
        before = _timed(seen)[:VARIED_CONFIGS]
        varied = left(v for config, _ in before for v in variations(config, problem, gpu))
        evaluate_each(bench, varied, seen)
        if _timed(seen)[:1] == before[:1]:
            break
    best = [(config, outcome.resources) for config, outcome in _timed(seen)[:VARIED_CONFIGS]]
    evaluate_each(bench, left(r for one in best for r in residencies(*one, problem, gpu)), seen)
    judged = _judged(bench, seen, config_for(problem, gpu), torch)
    return replace(judged, effort=str(effort), where=where_words(only))


def _candidates(problem: Problem, gpu: GpuSpec, where: Where) -> list[Config]:
    """Return the candidates; those that a restriction leaves out give way to its values."""
    every = candidates(problem, gpu, config_for(problem, gpu))
    if not where:
        return every
    space, rng = Space(problem, gpu, dict(where)), random.Random(0)
    return list(dict.fromkeys(space.repair(into(space, one), rng) for one in every))


def _timed(seen: Kernels) -> list[tuple[Config, Measured]]:
    """Return the kernels that have a time, the fastest first."""
    found = [(k.config, k.outcome) for k in seen.kernels if isinstance(k.outcome, Measured)]
    return sorted(found, key=lambda one: one[1].time_us)


def _judged(
    bench: PeerBench, seen: Kernels, untuned: Config, torch: PeerName | None
) -> TunedProblem:
    """Time the best in turn with what is taken without a search, with copy and with torch."""
    timed = _timed(seen)
    failed = {k.config: k.outcome.why for k in seen.kernels if isinstance(k.outcome, Rejected)}
    if not timed:
        first = next((f", the first since it fell at {why}" for why in failed.values()), "")
        raise NotFound(f"none of {len(failed)} kernels could be measured{first}")
    entered = close_to_best(timed, lambda one: one[1].time_us, most=FINALISTS)
    entered += [one for one in timed if one[0] == untuned and one not in entered]
    beside = torch is not None and isinstance(bench.enter(torch, TORCH_LIMIT_S), Entered)
    configs = [config for config, _ in entered]
    times = bench.compare([*configs, configs[0]], ROUNDS)
    contest = Contest.of([Contender.of((), *one) for one in entered], times)
    torch_us = times.peers.get(torch.name, ()) if torch is not None and beside else ()
    return TunedProblem(
        problem=bench.problem,
        environment=replace(bench.environment, limit_us=contest.limit_time_us),
        finalists=contest.ranked(),
        untuned=untuned,
        timed=tuple(TimedConfig(c, o.time_us, o.resources.registers) for c, o in timed),
        failed=failed,
        torch_us=median(torch_us) if torch_us else 0.0,
    )


# ------------------------------------------------------------------ whether a table can be taken

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
    met = {_plain(t.config) for t in one.timed} | {_plain(config) for config in one.failed}
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
    return any(why.partition(":")[0] in GRAVE for why in one.failed.values())
