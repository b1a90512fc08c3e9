"""Tune a list of problems: every candidate on each of them, finals, and a table that is kept.

All problems have one list of candidates (`space.candidates`), so that the table tells what a config
loses on a problem that another one is best for. Beside them each problem tries what was best on the
problems most like it, and then small changes to its own best.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Protocol

from explorer.choose import config_for
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, NotFound
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Measured, Rejected
from explorer.model.peer import Entered, PeerBench, PeerName
from explorer.model.problem import Problem
from explorer.model.tuned_table import (
    FailedConfig,
    Finalist,
    TimedConfig,
    TunedProblem,
    TunedTable,
    journal_line,
    read_journal,
)
from explorer.space.candidates import candidates, variations
from explorer.space.space import Space
from explorer.system.user_files import append_line
from explorer.tuning.contest import Contest, ratio
from explorer.tuning.objective import Effort
from explorer.tuning.recorder import Kernels, evaluate_each

NEIGHBOURS = 3
"""Problems whose best is tried on one more: the most alike of those that are tuned already."""

VARIED = {Effort.QUICK: 0, Effort.DEFAULT: 1, Effort.FULL: 6}
"""How often the best few are varied, each time from what is best by then."""

VARIED_CONFIGS = 3

FINALISTS = 6
WITHIN = 0.03
"""Finalists are at most this much slower than the best, by their own medians."""

AHEAD = 2
"""Problems whose candidates compile while one is measured: on an H200's host a problem's candidates
take 10 s of one core to compile, and 1.5 s of the GPU."""

ROUNDS = 15
TORCH_LIMIT_S = 60.0


class Benches(Protocol):
    """Opens problems on one GPU, one after the other."""

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that times come from."""

    def on(self, problem: Problem) -> AbstractContextManager[PeerBench]:
        """The bench of a problem; raises InvalidInput where it does not fit, DeviceLost."""

    def compile_ahead(self, problem: Problem, configs: Iterable[Config]) -> None:
        """Compile, in the background, what will be evaluated later; failures are not told."""


@dataclass(frozen=True, slots=True)
class Untuned:
    """A problem of which nothing was measured, and why."""

    problem: Problem
    reason: str


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """How far a run over a list of problems has come."""

    done: int
    """Problems that are finished, those of earlier runs included, or that cannot be measured."""
    total: int
    kernels: int
    """Kernels that this run has evaluated; 0 where they are not counted."""
    elapsed_s: float
    problem: Problem
    """The one at work."""
    remaining_s: float | None
    """By the pace of this run; None before its first problem is done."""
    doing: str = ""
    """What was done last for the problem, in words."""

    @property
    def each_s(self) -> float | None:
        """Seconds that a problem takes, by the pace of this run; None before one is done."""
        left = self.total - self.done
        return self.remaining_s / left if self.remaining_s is not None and left else None


class Pace:
    """Tells how far a run over a list of problems has come; `ended` counts its own problems."""

    def __init__(
        self, resumed: int, waiting: int, tell: Callable[[TuneProgress], None] | None
    ) -> None:
        self.ended = 0
        self._resumed, self._waiting, self._tell = resumed, waiting, tell
        self._start = time.monotonic()

    def say(self, problem: Problem, kernels: int = 0, doing: str = "") -> None:
        """Tell that `problem` is at work."""
        if self._tell is None:
            return
        elapsed, left = time.monotonic() - self._start, self._waiting - self.ended
        self._tell(
            TuneProgress(
                done=self._resumed + self.ended,
                total=self._resumed + self._waiting,
                kernels=kernels,
                elapsed_s=elapsed,
                problem=problem,
                remaining_s=elapsed / self.ended * left if self.ended else None,
                doing=doing,
            )
        )


@dataclass(frozen=True, slots=True)
class TuneRun:
    """What a command came to."""

    table: TunedTable
    """The problems of this command alone."""
    untuned: tuple[Untuned, ...]
    resumed: int
    """Problems that an earlier run had finished."""


# ------------------------------------------------------------------ a list of problems


def tune(
    benches: Benches,
    problems: Sequence[Problem],
    journal: Path,
    *,
    effort: Effort = Effort.DEFAULT,
    torch: PeerName | None = None,
    resumes: Callable[[TunedProblem], bool] = lambda _: True,
    known: Iterable[TunedProblem] = (),
    tell: Callable[[TuneProgress], None] | None = None,
) -> TuneRun:
    """Tune each problem that `journal` does not have yet, and append it there once it is done.

    The problems of the journal, and those that are `known` from a table, count as finished where
    `resumes` holds for them; the others are tuned anew. A problem that cannot be measured is left
    out with its reason, and the rest goes on. Raises InvalidInput for a damaged journal;
    KeyboardInterrupt leaves what was finished in it.
    """
    before = [*known, *read_journal(journal, benches.gpu)]
    run = _Run(benches, problems, journal, filter(resumes, before), tell)
    later = iter(run.waiting[1:])
    for place, problem in enumerate(run.waiting):
        for one in islice(later, 1 if place else AHEAD):
            untuned = config_for(one, benches.gpu)
            benches.compile_ahead(one, candidates(one, benches.gpu, untuned))
        run.say(problem)
        try:
            with benches.on(problem) as bench:
                run.add(tune_problem(bench, run.neighbours(problem), effort, torch, run.counted))
        except ExplorerError as error:
            run.untuned.append(Untuned(problem, str(error)))
    return TuneRun(run.table, tuple(run.untuned), run.resumed)


class _Run:
    """The problems that are tuned, that wait and that cannot be tuned."""

    def __init__(
        self,
        benches: Benches,
        problems: Sequence[Problem],
        journal: Path,
        before: Iterable[TunedProblem],
        tell: Callable[[TuneProgress], None] | None,
    ) -> None:
        wanted = list(dict.fromkeys(problems))
        taken = (one for one in before if one.problem in wanted)
        self.table = TunedTable(benches.gpu, ()).with_(taken)
        tuned = {one.problem for one in self.table.problems}
        self.waiting = [problem for problem in wanted if problem not in tuned]
        self.untuned: list[Untuned] = []
        self.resumed = len(tuned)
        self._journal, self._kernels = journal, 0
        self._pace = Pace(self.resumed, len(self.waiting), tell)

    def add(self, one: TunedProblem) -> None:
        """Keep a problem, on disk as well."""
        append_line(self._journal, journal_line(one, self.table.gpu))
        self.table = self.table.with_([one])

    def counted(self, number: int) -> None:
        """Count kernels."""
        self._kernels += number

    def neighbours(self, problem: Problem) -> list[Config]:
        """What was best on the problems that are most like this one."""
        alike = sorted(self.table.problems, key=lambda one: distance(one.problem, problem))
        near = [one for one in alike[:NEIGHBOURS] if distance(one.problem, problem) < math.inf]
        return [one.best.config for one in near]

    def say(self, problem: Problem) -> None:
        """Tell how far the run has come."""
        self._pace.ended = len(self.table.problems) - self.resumed + len(self.untuned)
        self._pace.say(problem, self._kernels)


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
    counted: Callable[[int], None] = lambda _: None,
) -> TunedProblem:
    """Evaluate all candidates and `more`, vary the best, then time the best in turn.

    Raises NotFound where no kernel could be measured, DeviceLost.
    """
    problem, gpu = bench.problem, bench.gpu
    space = Space(problem, gpu)
    listed = candidates(problem, gpu, config_for(problem, gpu))
    given = dict.fromkeys([*listed, *(one for one in more if space.is_legal(one))])
    seen = _Seen(bench)
    seen.evaluate(list(given))
    for _ in range(VARIED[effort]):
        before = seen.best_us
        best = [one.config for one in seen.timed[:VARIED_CONFIGS]]
        seen.evaluate([varied for one in best for varied in variations(one, problem, gpu)])
        if seen.best_us == before:
            break
    counted(len(seen.kernels))
    return replace(_judged(bench, seen, listed[0], torch), effort=str(effort))


class _Seen:
    """The kernels of one problem; code that was met is not evaluated again."""

    def __init__(self, bench: PeerBench) -> None:
        self._bench = bench
        self._kernels = Kernels(bench, None, 0)

    def evaluate(self, configs: Sequence[Config]) -> None:
        """Evaluate what is new of these."""
        evaluate_each(self._bench, configs, self._kernels)

    @property
    def kernels(self) -> list[tuple[Config, Measured | Rejected]]:
        """All so far."""
        return [(kernel.config, kernel.outcome) for kernel in self._kernels.kernels]

    @property
    def timed(self) -> list[TimedConfig]:
        """Those that have a time, the fastest first."""
        found = [
            TimedConfig(config, outcome.time_us, outcome.resources.registers)
            for config, outcome in self.kernels
            if isinstance(outcome, Measured)
        ]
        return sorted(found, key=lambda one: one.time_us)

    @property
    def failed(self) -> list[FailedConfig]:
        """Those that have none."""
        return [
            FailedConfig(config, f"{outcome.stage}: {outcome.reason}")
            for config, outcome in self.kernels
            if isinstance(outcome, Rejected)
        ]

    @property
    def best_us(self) -> float:
        """The least time; infinite before there is one."""
        return min((one.time_us for one in self.timed), default=math.inf)


def _judged(bench: PeerBench, seen: _Seen, untuned: Config, torch: PeerName | None) -> TunedProblem:
    """Time the best in turn with what is taken without a search, with copy and with torch."""
    timed = seen.timed
    if not timed:
        failed = seen.failed
        first = f", the first since it fell at {failed[0].reason}" if failed else ""
        raise NotFound(f"none of {len(failed)} kernels could be measured{first}")
    close = [t for t in timed if t.time_us <= timed[0].time_us * (1 + WITHIN)][:FINALISTS]
    entered = list(dict.fromkeys([*(t.config for t in close)]))
    if untuned not in entered and any(t.config == untuned for t in timed):
        entered.append(untuned)
    beside = torch is not None and isinstance(bench.enter(torch, TORCH_LIMIT_S), Entered)
    times = bench.compare_with_peers([*entered, entered[0]], ROUNDS)
    contest = Contest.of(times.ours)
    torch_us = times.peers.get(torch.name, ()) if torch is not None and beside else ()
    return TunedProblem(
        problem=bench.problem,
        environment=replace(bench.environment, copy_us=contest.copy_time_us),
        finalists=_ranked(entered, contest, {t.config: t.registers for t in timed}),
        untuned=untuned,
        timed=tuple(timed),
        failed=tuple(seen.failed),
        torch_us=median(torch_us) if torch_us else 0.0,
    )


def _ranked(
    entered: Sequence[Config], contest: Contest, registers: dict[Config, int]
) -> tuple[Finalist, ...]:
    """Ties with the fastest first, of these the one of fewest registers; then by time."""
    medians = [median(row) for row in contest.rows]
    fastest = contest.rows[medians.index(min(medians))]
    others = max(1, len(entered) - 1)
    found = []
    for config, row, middle in zip(entered, contest.rows, medians, strict=True):
        over = ratio(row, fastest, others)
        tied = over.is_tie(contest.noise)
        found.append(Finalist(config, middle, over.low, over.high, tied))
    return tuple(
        sorted(found, key=lambda f: (not f.tied, registers[f.config] if f.tied else 0, f.time_us))
    )
