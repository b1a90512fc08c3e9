"""Time our best, copy and every peer in one interleaved run, problem by problem."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from statistics import median

from explorer.config import Config
from explorer.errors import WrongKernel
from explorer.outcome import Rejected
from explorer.peer import Entered, NotEntered, PeerBench, PeerName, PeerTimes
from explorer.space import config_for
from explorer.tuning.peer_results import PeerComparison, PeerOut, PeerTime

ROUNDS = 30
PEER_LIMIT_S = 180.0
"""For a peer to import, compile, tune and verify."""

Tell = Callable[[Entered | NotEntered], None]
"""Told of each peer what became of it."""


@dataclass(frozen=True, slots=True)
class Ours:
    """The config that stands for us, and where it comes from, in words."""

    config: Config
    origin: str


def unsearched(bench: PeerBench) -> Ours:
    """What is taken where nothing was searched: the heuristic's config."""
    config = config_for(bench.problem, bench.gpu, accuracy=bench.circumstances.accuracy)
    return Ours(config, "the heuristic's config; nothing was searched")


def compare_with_peers(
    bench: PeerBench,
    ours: Ours,
    peers: Iterable[PeerName],
    *,
    rounds: int = ROUNDS,
    limit_s: float = PEER_LIMIT_S,
    tell: Tell | None = None,
) -> PeerComparison:
    """Verify ours and each peer, then time all that passed, ours twice, and copy in turn.

    Where ours is of a search, what would be taken without one is timed as well.

    Raises WrongKernel where ours cannot be used, DeviceLost where the GPU fails while they are
    timed.
    """
    beside, rejected = _heuristic(bench, ours)
    outcome = bench.evaluate(ours.config)
    if isinstance(outcome, Rejected):
        raise WrongKernel(f"ours ({ours.origin}): {outcome.stage}: {outcome.reason}")
    entered, left_out = _enter_all(bench, peers, limit_s, tell)
    times = bench.compare_with_peers([ours.config, ours.config, *beside], rounds)
    peer_times, lost = _timed(entered, times)
    ours_us, again_us, *rest = times.ours.samples_us
    copy_us = times.ours.copy_us
    return PeerComparison(
        problem=bench.problem,
        circumstances=replace(bench.circumstances, copy_us=median(copy_us)),
        config=ours.config,
        origin=ours.origin,
        digest=outcome.digest,
        error=outcome.error,
        max_ulp=outcome.max_ulp,
        registers=outcome.resources.registers,
        ours_us=ours_us,
        again_us=again_us,
        copy_us=copy_us,
        peers=tuple(peer_times),
        left_out=(*rejected, *left_out, *lost),
        heuristic=beside[0] if beside else None,
        heuristic_us=rest[0] if rest else (),
    )


def _heuristic(bench: PeerBench, ours: Ours) -> tuple[list[Config], list[PeerOut]]:
    """What would be taken without a search, if that is another config; why it cannot be timed."""
    config = unsearched(bench).config
    if config == ours.config:
        return [], []
    outcome = bench.evaluate(config)
    if isinstance(outcome, Rejected):
        return [], [PeerOut("heuristic", outcome.stage, outcome.reason)]
    return [config], []


def _enter_all(
    bench: PeerBench, peers: Iterable[PeerName], limit_s: float, tell: Tell | None
) -> tuple[list[Entered], list[PeerOut]]:
    """Peers one after another; why others have no time."""
    entered: list[Entered] = []
    left_out = []
    for peer in peers:
        reply = bench.enter(peer, limit_s)
        if tell is not None:
            tell(reply)
        if isinstance(reply, Entered):
            entered.append(reply)
        else:
            left_out.append(PeerOut(reply.name, reply.stage, reply.reason))
    return entered, left_out


def _timed(entered: list[Entered], times: PeerTimes) -> tuple[list[PeerTime], list[PeerOut]]:
    """Peers with their samples; those that a new worker could not prepare again have none."""
    timed = [
        PeerTime(**asdict(one), samples_us=times.peers[one.name])
        for one in entered
        if one.name in times.peers
    ]
    lost = [one.name for one in entered if one.name not in times.peers]
    reason = "another peer brought the worker down, and it did not enter again in a new one"
    return timed, [PeerOut(name, "crash", reason) for name in lost]
