"""Measure each problem of a list, so that a run that is cut off goes on.

Each problem that is done is appended to a journal. The same command then takes from it what was
measured by the same code in the same way, and measures the rest.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from explorer.evaluate.space_version import template_version
from explorer.evaluate.without_search import without_search
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import Entered, NotEntered, PeerBench, PeerName
from explorer.model.problem import Problem
from explorer.system.plain_data import read_fields, read_object, write_fields
from explorer.system.user_files import append_line, read_lines
from explorer.tuning.contest import ROUNDS, Entry
from explorer.tuning.peer_comparison import (
    PEER_LIMIT_S,
    PeerComparison,
    PeerRun,
    StopWatch,
    Tell,
    Unmeasured,
    compare_with_peers,
)

if TYPE_CHECKING:
    from explorer.tuning.cluster_device import ClusterBenches

AHEAD = 2
"""Problems whose kernels compile while one is measured: on an H200's host the candidates of a
problem take 10 s of one core to compile, and 1.5 s of the GPU."""


class Benches(Protocol):
    """Opens problems on one GPU, one after the other."""

    @property
    def gpu(self) -> GpuSpec:
        """The GPU that times come from."""

    def on(self, problem: Problem) -> AbstractContextManager[PeerBench]:
        """Return the bench of a problem; raises InvalidInput where it does not fit, DeviceLost."""

    def compile_ahead(self, problem: Problem, configs: Iterable[Config]) -> None:
        """Compile, in the background, what will be evaluated later; failures are not reported."""


class PeersAhead(Protocol):
    """Compiles for peers in the background; failures are not reported.

    Nothing of it may run on the GPU, since another problem is timed meanwhile.
    """

    def submit(self, problem: Problem, peers: Sequence[PeerName]) -> None:
        """Begin to compile what these peers need for a problem."""

    def begin(self, problem: Problem) -> None:
        """Tell that the GPU's worker is at a problem: what waits for earlier ones is late."""


# ------------------------------------------------------------------ a list of problems


@dataclass(frozen=True, slots=True)
class RunProgress:
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
    workers: tuple[str, ...] = ()
    """A line on each worker of a cluster."""

    @property
    def each_s(self) -> float | None:
        """Seconds that a problem takes, by the pace of this run; None before one is done."""
        left = self.total - self.done
        return self.remaining_s / left if self.remaining_s is not None and left else None


class MadeOfProblem(Protocol):
    """What a run makes of a problem."""

    @property
    def problem(self) -> Problem:
        """The problem."""


Made = TypeVar("Made", bound=MadeOfProblem)


class Run(Generic[Made]):
    """The problems of a list: those that are done, that wait, and that cannot be measured."""

    def __init__(
        self,
        problems: Sequence[Problem],
        before: Iterable[Made],
        keep: Callable[[Made], None],
        *,
        notice: Callable[[str], None] = lambda _: None,
        progress: Callable[[RunProgress], None] | None = None,
    ) -> None:
        """Take what an earlier run has done of `problems`; `keep` writes each that is done now."""
        self.wanted = list(dict.fromkeys(problems))
        self._done = {one.problem: one for one in before if one.problem in set(self.wanted)}
        self.resumed = len(self._done)
        self.waiting = [problem for problem in self.wanted if problem not in self._done]
        self.left_out: list[Unmeasured] = []
        self.kernels = 0
        self._keep: Callable[[Made], None] | None = keep
        self._notice, self._progress, self._start = notice, progress, time.monotonic()

    @property
    def done(self) -> list[Made]:
        """What was made of the problems, in the order of the list."""
        return [self._done[problem] for problem in self.wanted if problem in self._done]

    def say(self, problem: Problem, doing: str = "", workers: tuple[str, ...] = ()) -> None:
        """Say that a problem is at work, and how long the rest takes."""
        if self._progress is None:
            return
        ended = len(self._done) + len(self.left_out) - self.resumed
        elapsed, left = time.monotonic() - self._start, len(self.waiting) - ended
        remaining_s = elapsed / ended * left if ended else None
        done, total = self.resumed + ended, len(self.wanted)
        so_far = (done, total, self.kernels, elapsed, problem, remaining_s)
        self._progress(RunProgress(*so_far, doing, workers))

    def measure(
        self,
        benches: Benches,
        measure: Callable[[PeerBench, StopWatch], Made],
        *,
        ahead: Callable[[Problem], None],
        begin: Callable[[Problem], None] = lambda _: None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """Measure each problem that waits, and keep it; what compiles `ahead` begins before.

        A problem that cannot be measured is left out with its reason, and the others go on.
        """
        later = iter(self.waiting)
        for place, problem in enumerate(self.waiting):
            for coming in islice(later, 1 if place else 1 + AHEAD):
                ahead(coming)
            begin(problem)
            self.say(problem)
            clock = StopWatch()
            try:
                with benches.on(problem) as bench:
                    clock.lap("opening")
                    made = measure(bench, clock)
                self._add(made)
            except ExplorerError as error:
                self._leave_out(problem, error)
            end()

    def spread(
        self,
        benches: "ClusterBenches",
        work: Callable[[Problem], Callable[[PeerBench], Made]],
        configs: Callable[[Problem], Callable[[], list[Config]]],
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """Measure the problems that wait on all GPUs of a cluster, one on each, and keep those.

        `work` says what is done on a problem's bench, and `configs` what it needs compiled, which
        begins for one problem a GPU, and `AHEAD`, before. Both are carried out by workers. Raises
        DeviceLost where the cluster is gone.
        """
        later = iter(self.waiting)
        running: dict[Future[Any], Problem] = {}
        while True:
            room = 2 * len(benches.cluster.gpus) + AHEAD - len(running)
            for problem in islice(later, max(0, room)):
                try:
                    begun = benches.start(problem, work(problem), configs(problem))
                    running[begun] = problem
                except ExplorerError as error:
                    self._leave_out(problem, error)
            if not running:
                return
            self.say(next(iter(running.values())), workers=benches.cluster.lines)
            for one in wait(running, 1.0, FIRST_COMPLETED).done:
                problem = running.pop(one)
                try:
                    self._add(one.result().value)
                except ExplorerError as error:
                    if benches.cluster.gone is not None:
                        raise
                    self._leave_out(problem, error)
                end()

    def _leave_out(self, problem: Problem, error: ExplorerError) -> None:
        self._notice(f"not measured: {problem}: {error}")
        self.left_out.append(Unmeasured(problem, str(error)))

    def _add(self, made: Made) -> None:
        """Keep what is done; a disk that is full costs what could go on, and no times."""
        self._done[made.problem] = made
        try:
            if self._keep is not None:
                self._keep(made)
        except InvalidInput as error:
            self._notice(f"this run cannot go on where it is stopped: {error}")
            self._keep = None


# ------------------------------------------------------------------ comparisons with libraries


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run compares: a journal's entry of another way of comparing is measured anew."""

    peers: tuple[PeerName, ...]
    heuristic: bool
    """Whether our config is taken without a search, whatever is stored."""
    timing: str
    accuracy: Accuracy
    seed: int
    rounds: int = ROUNDS

    def resumes(self, one: PeerComparison, gpu: GpuSpec) -> bool:
        """Return whether a comparison that was asked for in this way is what would be measured."""
        made = one.environment
        return (made.gpu, made.timing, made.accuracy, made.template_digest) == (
            gpu.name,
            self.timing,
            self.accuracy,
            template_version(one.problem),
        )


def read_journal(path: Path, settings: RunSettings, gpu: GpuSpec) -> list[PeerComparison]:
    """Return the comparisons that a run which was cut off had finished in the same way.

    None where there is no such file. Raises InvalidInput for a file that is damaged.
    """

    def read(values: Any) -> tuple[RunSettings, PeerComparison]:
        entry = read_object(values, "entry")
        before = read_fields(RunSettings, entry.get("asked"), "asked")
        return before, PeerComparison.from_dict(entry.get("comparison"))

    found = read_lines(path, read, "comparison")
    return [one for before, one in found if before == settings and settings.resumes(one, gpu)]


@dataclass(frozen=True, slots=True)
class Listeners:
    """What is called with the progress, while problems are compared."""

    notice: Callable[[str], None] = lambda _: None
    """Sentences that a person reads."""
    peer: Tell | None = None
    """What became of each peer."""
    run: Callable[[PeerRun], None] = lambda _: None
    """The run so far, after each problem."""
    progress: Callable[[RunProgress], None] | None = None


def compare_all(
    benches: "Benches | ClusterBenches",
    problems: Sequence[Problem],
    settings: RunSettings,
    ours: Callable[[PeerBench], Entry],
    *,
    journal: Path | None = None,
    ahead: PeersAhead | None = None,
    limit_s: float = PEER_LIMIT_S,
    tell: Listeners = Listeners(),
) -> PeerRun:
    """Compare each problem that `journal` does not have yet, and append it there once it is done.

    Raises InvalidInput for a damaged journal; KeyboardInterrupt leaves what was finished in it.
    """
    from explorer.tuning.cluster_device import ClusterBenches

    before = read_journal(journal, settings, benches.gpu) if journal is not None else []

    def keep(one: PeerComparison) -> None:
        if journal is not None:
            entry = {"asked": write_fields(settings), "comparison": one.as_dict()}
            append_line(journal, json.dumps(entry), "make room for it")

    def so_far() -> PeerRun:
        return PeerRun(settings.seed, settings.rounds, tuple(run.done), tuple(run.left_out))

    def begin(problem: Problem) -> None:
        if ahead is not None:
            ahead.begin(problem)
        number = len(run.done) + len(run.left_out) + 1
        tell.notice(f"{number}/{len(run.wanted)} {problem}")

    def compare(bench: PeerBench, clock: StopWatch) -> PeerComparison:
        def on_reply(reply: Entered | NotEntered) -> None:
            run.say(bench.problem, f"{reply.name} is ready")
            if tell.peer is not None:
                tell.peer(reply)

        how = (bench, ours(bench), settings.peers)
        one = compare_with_peers(*how, rounds=settings.rounds, limit_s=limit_s, tell=on_reply)
        return replace(one, spent=(*clock.laps, *one.spent))

    run = Run(problems, before, keep, notice=tell.notice, progress=tell.progress)
    if run.resumed:
        tell.notice(f"{run.resumed} of {len(run.wanted)} taken from {journal}")
        tell.run(so_far())
    if isinstance(benches, ClusterBenches):
        work = partial(_comparing, benches, settings, ours, limit_s)
        configs = partial(partial, _unsearched, benches.gpu, settings)
        run.spread(benches, work, configs, lambda: tell.run(so_far()))
        return so_far()
    coming = partial(_compile_ahead, benches, ahead, settings)
    run.measure(benches, compare, ahead=coming, begin=begin, end=lambda: tell.run(so_far()))
    return so_far()


def _comparing(
    benches: "ClusterBenches",
    settings: RunSettings,
    ours: Callable[[PeerBench], Entry],
    limit_s: float,
    problem: Problem,
) -> Callable[[PeerBench], PeerComparison]:
    """Return what a worker does on a problem's bench; what is ours is looked up here."""
    return partial(
        compare_with_peers,
        ours=ours(benches.stand_in(problem)),
        peers=settings.peers,
        rounds=settings.rounds,
        limit_s=limit_s,
    )


def _compile_ahead(
    benches: Benches, ahead: PeersAhead | None, settings: RunSettings, problem: Problem
) -> None:
    """Begin to compile for a problem; what fails now fails again, with its reason, in its turn."""
    if ahead is not None:
        ahead.submit(problem, settings.peers)
    with suppress(ExplorerError):
        benches.compile_ahead(problem, _unsearched(benches.gpu, settings, problem))


def _unsearched(gpu: GpuSpec, settings: RunSettings, problem: Problem) -> list[Config]:
    return [without_search(problem, gpu, accuracy=settings.accuracy).config]
