"""Time our best kernel, its limit and every peer in turn, problem by problem, and compare."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any

from explorer.evaluate.without_search import without_search
from explorer.model.config import Config
from explorer.model.errors import InvalidInput, WrongKernel
from explorer.model.evaluator import Comparison
from explorer.model.outcome import Absent, Contender, Environment, Rejected
from explorer.model.peer import Entered, NotEntered, PeerBench, PeerName
from explorer.model.problem import Problem
from explorer.system.plain_data import read_fields, write_fields
from explorer.tuning.contest import ROUNDS, Contest, Entry, Ratio, check_rows, ratio

# ------------------------------------------------------------------ what a comparison gives


WIN, TIE, LOSS = "win", "tie", "loss"


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one step of a comparison."""

    step: str
    """The name of the peer that was prepared and verified, or opening, ours or timing."""
    seconds: float


class StopWatch:
    """Measures one step after another."""

    def __init__(self) -> None:
        self.laps: list[Spent] = []
        self._at = time.monotonic()

    def lap(self, step: str) -> None:
        """End a step, and begin the next one."""
        now = time.monotonic()
        self.laps.append(Spent(step, round(now - self._at, 3)))
        self._at = now


@dataclass(frozen=True)
class PeerComparison:
    """One problem; ratios pair samples of a round, and all of them hold together with 95 %."""

    problem: Problem
    environment: Environment = field(metadata={"key": "circumstances"})
    config: Config
    origin: str
    """Where our config comes from: a trial of a study, or the heuristic."""
    digest: str
    error: float
    max_ulp: float | None
    registers: int
    ours_us: tuple[float, ...]
    again_us: tuple[float, ...]
    """Ours once more: its two rows differ by what the contest cannot resolve."""
    limit_us: tuple[float, ...]
    """The problem's limit, timed in the same rounds."""
    peers: tuple[Contender, ...]
    """In the order in which they entered."""
    left_out: tuple[Absent, ...]
    heuristic: Config | None = None
    """What would have been taken without a search, where ours is of a search and another."""
    heuristic_us: tuple[float, ...] = ()
    spent: tuple[Spent, ...] = ()
    """What the steps of the comparison took, in their order; empty where that was not measured."""

    @property
    def heuristic_over_ours(self) -> float | None:
        """Its time over ours; None where it was not timed."""
        if not self.heuristic_us:
            return None
        return ratio(self.heuristic_us, self.ours_us).median

    @property
    def time_us(self) -> float:
        """Median microseconds of a launch of ours."""
        return median(self.ours_us)

    @cached_property
    def ours(self) -> Contender:
        """Our kernel."""
        return Contender(
            names=("ours",),
            samples_us=self.ours_us,
            kernel=self.config,
            digest=self.digest,
            error=self.error,
            max_ulp=self.max_ulp,
            registers=self.registers,
        )

    @cached_property
    def contest(self) -> Contest:
        """Ours, which is entered twice, the peers and the limit."""
        return Contest((self.ours, *self.peers), self.again_us, 0, self.limit_us)

    @property
    def limit_time_us(self) -> float:
        """Median microseconds of the limit."""
        return self.contest.limit_time_us

    @property
    def best(self) -> Contender | None:
        """The fastest peer; None where none was timed."""
        return min(self.peers, key=lambda peer: peer.time_us, default=None)

    def over_ours(self, peer: Contender) -> Ratio:
        """Return a peer's time over ours, with its interval: above 1 where ours is faster."""
        return self.contest.over(peer, self.ours)

    def result_against(self, peer: Contender) -> str:
        """Return WIN where ours is faster than a peer, LOSS where it is slower, else TIE."""
        over = self.over_ours(peer)
        if over.is_tie(self.contest.noise):
            return TIE
        return WIN if over.median > 1.0 else LOSS

    @property
    def over_limit(self) -> tuple[Ratio, float]:
        """Our time over the limit's, round by round, and the noise of the contest."""
        limit_us = self.limit_us  # of a run that kept one time it stands for all
        limit_us = limit_us if len(limit_us) > 1 else limit_us * len(self.ours_us)
        return ratio(self.ours_us, limit_us), self.contest.noise

    def find(self, name: str) -> Contender | None:
        """Return the peer of that name, if it was timed."""
        return next((peer for peer in self.peers if peer.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: what was measured, without what follows from it."""
        return write_fields(self)

    @classmethod
    def from_dict(cls, values: Any) -> "PeerComparison":
        """Read what `as_dict` wrote, whatever else is there. Raises InvalidInput for other data."""
        read = read_fields(cls, values, "comparison", ignore_unknown=True)
        timed = [peer.samples_us for peer in read.peers]
        timed += [read.heuristic_us] if read.heuristic_us else []
        check_rows([read.ours_us, read.again_us, *timed])
        if not read.limit_us:
            raise InvalidInput("limit_us is empty; a limit is timed beside every kernel")
        return read


CONDITIONS = ("gpu", "timing", "accuracy")
"""What of the environment two runs must share for one to be slower than the other."""


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A problem of a list of which nothing was measured, and why."""

    problem: Problem
    reason: str


@dataclass(frozen=True, slots=True)
class PeerRun:
    """The comparisons of one command, in its order."""

    seed: int
    """Of the inputs, of the order in each round, and of shapes that were drawn."""
    rounds: int
    comparisons: tuple[PeerComparison, ...]
    unmeasured: tuple[Unmeasured, ...] = ()
    drawn: str = ""
    """How the shapes were drawn, in words; empty where they were named."""

    def __repr__(self) -> str:
        """Return a line for a notebook, without the samples."""
        number, left = len(self.comparisons), len(self.unmeasured)
        gpus = dict.fromkeys(one.environment.gpu for one in self.comparisons)
        parts = [f"{number} problem{'' if number == 1 else 's'}"]
        parts += [f"on {', '.join(gpus)}"] if gpus else []
        parts += [f"beside {', '.join(self.peer_names)}"] if self.peer_names else []
        return f"PeerRun({' '.join(parts)}{f'; {left} not compared' if left else ''})"

    @property
    def peer_names(self) -> list[str]:
        """Every peer that has a time for some problem, in the order of entering."""
        return list(dict.fromkeys(p.name for one in self.comparisons for p in one.peers))

    @property
    def conditions(self) -> set[tuple[Any, ...]]:
        """The GPUs, timing modes and accuracies of its problems."""
        return {
            tuple(getattr(one.environment, name) for name in CONDITIONS) for one in self.comparisons
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return write_fields(self)

    @classmethod
    def from_dict(cls, values: Any) -> "PeerRun":
        """Read what `as_dict` wrote, whatever else is there. Raises InvalidInput for other data."""
        return read_fields(cls, values, "run", ignore_unknown=True)


# ------------------------------------------------------------------ losses


LOSS_THAT_COUNTS = 0.01
"""Share of a peer's time: the project's aim is to lose no problem to a right peer by more."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A problem that the fastest right peer computes faster than ours, by more than noise."""

    problem: Problem
    peer: str
    ours_us: float
    peer_us: float
    slower: float
    """How much more time ours takes, as a share of the peer's: 0.02 is 2 %."""
    least: float
    most: float
    """The 95 % confidence interval of `slower`."""
    wrong_rows: tuple[str, ...]
    """Rows of unusual numbers on which the peer is wrong, in words; none on the rows timed."""

    @property
    def counts(self) -> bool:
        """Whether it is a loss of more than `LOSS_THAT_COUNTS`."""
        return self.slower > LOSS_THAT_COUNTS


def losses(run: PeerRun) -> list[Loss]:
    """Return the problems that a right peer computes faster than ours beyond noise, worst first.

    A peer is right if every element of the matrix that was timed is as exact as ours must be. One
    that is wrong on rows of infinities alone still counts, so that we are not kinder to ourselves.
    """
    found = [loss for one in run.comparisons if (loss := _loss(one)) is not None]
    return sorted(found, key=lambda loss: -loss.slower)


def _loss(one: PeerComparison) -> Loss | None:
    right = [peer for peer in one.peers if not peer.inexact]
    lost = [peer for peer in right if one.result_against(peer) == LOSS]
    if not lost:
        return None
    peer = min(lost, key=lambda each: one.over_ours(each).median)
    over = one.over_ours(peer)
    return Loss(
        problem=one.problem,
        peer=peer.name,
        ours_us=one.time_us,
        peer_us=peer.time_us,
        slower=1 / over.median - 1,
        least=1 / over.high - 1,
        most=1 / over.low - 1,
        wrong_rows=peer.wrong_rows,
    )


# ------------------------------------------------------------------ beside an earlier run


@dataclass(frozen=True, slots=True)
class Regression:
    """A problem that ours takes longer for than in an earlier run, beyond what noise explains."""

    problem: Problem
    before: Ratio
    """Our time over the limit's, round by round, in the earlier run; with its 95 % interval."""
    now: Ratio

    @property
    def slower(self) -> float:
        """How much more time, as a share of what it was."""
        return self.now.median / self.before.median - 1

    def __str__(self) -> str:
        now, before = f"{self.now.median:.3f}", f"{self.before.median:.3f}"
        return (
            f"{self.problem} takes {100 * self.slower:.1f} % more time than before: "
            f"{now} of {self.problem.limit}'s time instead of {before}"
        )


def regressions(run: PeerRun, before: PeerRun) -> list[Regression]:
    """Return the problems of both runs for which ours is slower now, the greatest loss first.

    Times are taken over the limit's of the same rounds, so that a GPU whose memory is a little
    slower today is no regression. One is said where the two intervals are apart by more than the
    noise of both contests, so that a run beside itself has none. Raises InvalidInput for a problem
    that was measured on another GPU, or timed otherwise, before.
    """
    earlier = {one.problem: one for one in before.comparisons}
    slower = []
    for one in run.comparisons:
        other = earlier.get(one.problem)
        if other is None:
            continue
        _check_same_conditions(one, other)
        (now, noise), (then, noise_then) = one.over_limit, other.over_limit
        if now.low > then.high * (1 + noise + noise_then):
            slower.append(Regression(one.problem, then, now))
    return sorted(slower, key=lambda regression: -regression.slower)


def _check_same_conditions(one: PeerComparison, other: PeerComparison) -> None:
    for name in CONDITIONS:
        now, then = (getattr(each.environment, name) for each in (one, other))
        if now != then:
            raise InvalidInput(
                f"{one.problem} was compared before with {name} {then}, and is now with {name} "
                f"{now}; hold it against a run with {name} {now}, or see two kept runs side by "
                "side: explorer compare --from FILE --against FILE"
            )


# ------------------------------------------------------------------ the comparison


PEER_LIMIT_S = 180.0
"""For a peer to import, compile, tune and verify."""

Tell = Callable[[Entered | NotEntered], None]
"""Told of each peer what became of it."""


UNSEARCHED = "nothing was searched"
"""How the origin of a config ends that is taken without a search."""


def unsearched(bench: PeerBench) -> Entry:
    """Return what is taken where nothing was searched: a tuned table's best, or the heuristic's."""
    taken = without_search(bench.problem, bench.gpu, accuracy=bench.environment.accuracy)
    return Entry(taken.config, f"{taken.origin}; {UNSEARCHED}")


def compare_with_peers(
    bench: PeerBench,
    ours: Entry,
    peers: Iterable[PeerName],
    *,
    rounds: int = ROUNDS,
    limit_s: float = PEER_LIMIT_S,
    tell: Tell | None = None,
) -> PeerComparison:
    """Verify ours and each peer, then time all that passed, ours twice, and the limit in turn.

    Where ours is of a search, what would be taken without one is timed as well.

    Raises WrongKernel where ours cannot be used, DeviceLost where the GPU fails while they are
    timed.
    """
    clock = StopWatch()
    beside, rejected = _heuristic(bench, ours)
    outcome = bench.evaluate(ours.config)
    if isinstance(outcome, Rejected):
        raise WrongKernel(f"ours ({ours.origin}): {outcome.why}")
    clock.lap("ours")
    entered, left_out = enter_all(bench, peers, limit_s, tell, clock)
    times = bench.compare([ours.config, *beside, ours.config], rounds)
    clock.lap("timing")
    peer_times, lost = timed_peers(entered, times)
    ours_us, *rest, again_us = times.samples_us
    limit_us = times.limit_us
    return PeerComparison(
        problem=bench.problem,
        environment=replace(bench.environment, limit_us=median(limit_us)),
        config=ours.config,
        origin=ours.origin,
        digest=outcome.digest,
        error=outcome.error,
        max_ulp=outcome.max_ulp,
        registers=outcome.resources.registers,
        ours_us=ours_us,
        again_us=again_us,
        limit_us=limit_us,
        peers=tuple(fastest_forms(peer_times)),
        left_out=(*rejected, *left_out, *lost),
        heuristic=beside[0] if beside else None,
        heuristic_us=rest[0] if rest else (),
        spent=tuple(clock.laps),
    )


def fastest_forms(timed: Iterable[Contender]) -> list[Contender]:
    """Return each peer once: of several forms, such as `name.a` and `name.b`, the fastest.

    A right form comes before one that is too inexact. The least of several medians is a little less
    than the best form's own, which favours the peer.
    """
    forms: dict[str, list[Contender]] = {}
    for one in timed:
        forms.setdefault(one.name.partition(".")[0], []).append(one)
    found = []
    for name, several in forms.items():
        best, *slower = sorted(several, key=lambda one: (bool(one.inexact), one.time_us))
        found.append(
            replace(
                best,
                names=(name,),
                form=_form(best),
                other_forms=", ".join(f"{_form(one)} {one.time_us:.4g} µs" for one in slower),
            )
        )
    return found


def _form(one: Contender) -> str:
    return one.name.partition(".")[2]


def _heuristic(bench: PeerBench, ours: Entry) -> tuple[list[Config], list[Absent]]:
    """Return what would be taken without a search, if that differs; why it cannot be timed."""
    config = unsearched(bench).config
    if config == ours.config:
        return [], []
    outcome = bench.evaluate(config)
    if isinstance(outcome, Rejected):
        return [], [Absent("heuristic", outcome.reason, outcome.stage)]
    return [config], []


def enter_all(
    bench: PeerBench,
    peers: Iterable[PeerName],
    limit_s: float = PEER_LIMIT_S,
    tell: Tell | None = None,
    clock: StopWatch | None = None,
) -> tuple[list[Entered], list[Absent]]:
    """Return the peers that entered, one after another, and why others have no time."""
    entered: list[Entered] = []
    left_out = []
    for peer in peers:
        reply = bench.enter(peer, limit_s)
        if clock is not None:
            clock.lap(peer.name)
        if tell is not None:
            tell(reply)
        if isinstance(reply, Entered):
            entered.append(reply)
        else:
            left_out.append(Absent(reply.name, reply.reason, reply.stage))
    return entered, left_out


def timed_peers(
    entered: Sequence[Entered], times: Comparison
) -> tuple[list[Contender], list[Absent]]:
    """Return peers with their samples, and those that a new worker could not prepare again."""
    timed = [_contender(one, times.peers[one.name]) for one in entered if one.name in times.peers]
    lost = [one.name for one in entered if one.name not in times.peers]
    reason = "another peer brought the worker down, and it did not enter again in a new one"
    return timed, [Absent(name, reason, "crash") for name in lost]


def _contender(one: Entered, samples_us: tuple[float, ...]) -> Contender:
    known = asdict(one)
    return Contender(names=(known.pop("name"),), samples_us=samples_us, **known)
