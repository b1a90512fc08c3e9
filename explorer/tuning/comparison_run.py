"""Compare a list of problems with peers, so that a run that is cut off goes on.

Each problem that is done is appended to a journal. The same command then takes from it what was
measured by the same code in the same way, and measures the rest.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from explorer.choose import config_for
from explorer.evaluate.space_version import template_version
from explorer.model.accuracy import Accuracy
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import Entered, NotEntered, PeerBench, PeerName
from explorer.model.problem import Problem
from explorer.system.plain_data import parse_json, read_fields, read_object
from explorer.system.user_files import append_line, whole_lines
from explorer.tuning.peer_comparison import (
    PEER_LIMIT_S,
    ROUNDS,
    Ours,
    PeerComparison,
    PeerRun,
    StopWatch,
    Tell,
    Unmeasured,
    compare_with_peers,
)
from explorer.tuning.tune import Benches, Pace, TuneProgress

AHEAD = 2
"""Problems that compile in the background while one is prepared and timed."""


class PeersAhead(Protocol):
    """Compiles for peers in the background; failures are not told.

    Nothing of it may run on the GPU, since another problem is timed meanwhile.
    """

    def submit(self, problem: Problem, peers: Sequence[PeerName]) -> None:
        """Begin to compile what these peers need for a problem."""

    def begin(self, problem: Problem) -> None:
        """Tell that the GPU's worker is at a problem: what waits for earlier ones is late."""


# ------------------------------------------------------------------ what is kept while it runs


@dataclass(frozen=True, slots=True)
class Asked:
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


def journal_line(asked: Asked, one: PeerComparison) -> str:
    """Return a comparison and how it was asked for, as JSON on one line."""
    return json.dumps({"asked": asdict(asked), "comparison": one.as_dict()})


def read_journal(path: Path, asked: Asked, gpu: GpuSpec) -> list[PeerComparison]:
    """Return the comparisons that a run which was cut off had finished in the same way.

    None where there is no such file. Raises InvalidInput for a file that is damaged.
    """
    found = []
    for number, line in enumerate(whole_lines(path), 1):
        try:
            values = read_object(parse_json(line, "it", of="line"), "entry")
            before = read_fields(Asked, values.get("asked"), "asked")
            one = PeerComparison.from_dict(values.get("comparison"))
        except InvalidInput as error:
            raise InvalidInput(
                f"{path}, line {number}, is no comparison of this version: {error}; move the file "
                "away to begin anew"
            ) from None
        if before == asked and asked.resumes(one, gpu):
            found.append(one)
    return found


# ------------------------------------------------------------------ a list of problems


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told what, while problems are compared."""

    notice: Callable[[str], None] = lambda _: None
    """Sentences that a person reads."""
    peer: Tell | None = None
    """What became of each peer."""
    run: Callable[[PeerRun], None] = lambda _: None
    """The run so far, after each problem."""
    progress: Callable[[TuneProgress], None] | None = None


def compare_all(
    benches: Benches,
    problems: Sequence[Problem],
    asked: Asked,
    ours: Callable[[PeerBench], Ours],
    *,
    journal: Path | None = None,
    ahead: PeersAhead | None = None,
    limit_s: float = PEER_LIMIT_S,
    tell: Listeners = Listeners(),
) -> PeerRun:
    """Compare each problem that `journal` does not have yet, and append it there once it is done.

    A problem that cannot be measured is left out with its reason, and the others go on. Raises
    InvalidInput for a damaged journal; KeyboardInterrupt leaves what was finished in it.
    """
    run = _Run(benches.gpu, problems, asked, journal, tell)
    later = iter(run.waiting)
    for place, problem in enumerate(run.waiting):
        for coming in islice(later, 1 if place else 1 + AHEAD):
            _compile_ahead(benches, ahead, coming, asked)
        if ahead is not None:
            ahead.begin(problem)
        run.begin(problem)
        clock = StopWatch()
        try:
            with benches.on(problem) as bench:
                clock.lap("opening")
                told = run.listening(problem)
                one = compare_with_peers(
                    bench, ours(bench), asked.peers, rounds=asked.rounds, limit_s=limit_s, tell=told
                )
            run.add(replace(one, spent=(*clock.laps, *one.spent)))
        except ExplorerError as error:
            run.leave_out(problem, str(error))
    return run.so_far


def _compile_ahead(
    benches: Benches, ahead: PeersAhead | None, problem: Problem, asked: Asked
) -> None:
    """Begin to compile for a problem; what fails now fails again, and is told, in its turn."""
    if ahead is not None:
        ahead.submit(problem, asked.peers)
    with suppress(ExplorerError):
        config = config_for(problem, benches.gpu, accuracy=asked.accuracy)
        benches.compile_ahead(problem, [config])


class _Run:
    """The problems that are compared, that wait and that cannot be compared."""

    def __init__(
        self,
        gpu: GpuSpec,
        problems: Sequence[Problem],
        asked: Asked,
        journal: Path | None,
        tell: Listeners,
    ) -> None:
        self._wanted = list(dict.fromkeys(problems))
        self._asked, self._journal, self._tell = asked, journal, tell
        before = read_journal(journal, asked, gpu) if journal is not None else []
        self._done = {one.problem: one for one in before if one.problem in self._wanted}
        self._left_out: list[Unmeasured] = []
        self.waiting = [problem for problem in self._wanted if problem not in self._done]
        self._pace = Pace(len(self._done), len(self.waiting), tell.progress)
        if self._done:
            tell.notice(f"{len(self._done)} of {len(self._wanted)} taken from {journal}")
            tell.run(self.so_far)

    @property
    def so_far(self) -> PeerRun:
        """Return what is measured, in the order of the command."""
        done = (self._done[problem] for problem in self._wanted if problem in self._done)
        return PeerRun(
            self._asked.seed, self._asked.rounds, tuple(done), unmeasured=tuple(self._left_out)
        )

    def begin(self, problem: Problem) -> None:
        """Say which problem is at work, and how long the rest takes."""
        number = len(self._done) + len(self._left_out) + 1
        self._tell.notice(f"{number}/{len(self._wanted)} {problem}")
        self._pace.say(problem)

    def listening(self, problem: Problem) -> Tell:
        """Return who is told of the peers of a problem: the caller, and its line of progress."""

        def told(reply: Entered | NotEntered) -> None:
            self._pace.say(problem, doing=f"{reply.name} is ready")
            if self._tell.peer is not None:
                self._tell.peer(reply)

        return told

    def add(self, one: PeerComparison) -> None:
        """Keep a problem, on disk as well; a disk that is full costs what could go on, no times."""
        self._done[one.problem] = one
        if self._journal is not None:
            try:
                append_line(self._journal, journal_line(self._asked, one), "make room for it")
            except InvalidInput as error:
                self._tell.notice(f"this run cannot go on where it is stopped: {error}")
                self._journal = None
        self._ended()

    def leave_out(self, problem: Problem, reason: str) -> None:
        """Note why a problem has no times."""
        self._tell.notice(f"not compared: {reason}")
        self._left_out.append(Unmeasured(problem, reason))
        self._ended()

    def _ended(self) -> None:
        self._pace.ended += 1
        self._tell.run(self.so_far)
