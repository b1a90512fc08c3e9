"""Benchmark search strategies on recorded spaces, in which the best kernel is known.

A recording has every config of a sub-space, so its best is known, whatever a search would have
tried. Each strategy searches it with many seeds, and is judged by its regret: how much slower the
best kernel so far is than the best of the sub-space.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count as count_from
from statistics import mean, median, quantiles

from explorer.devices.recording import RecordedComparison, Recording
from explorer.evaluate.device_evaluator import AHEAD_OF_A_CATALOGUE
from explorer.model.config import Config, Value
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Measured
from explorer.space import Space
from explorer.tuning.objective import Goal
from explorer.tuning.proposer import Proposal, Proposer, RecordedCandidates
from explorer.tuning.search import HANDED_OVER
from explorer.tuning.seeds import seeds_of
from explorer.tuning.surrogate import OptunaSampler

# ------------------------------------------------------------------ measured spaces


@dataclass(frozen=True)
class MeasuredSpace:
    """A sub-space of which every config was measured."""

    name: str
    space: Space
    """The sub-space."""
    times_us: dict[Config, float]
    """Median times that a search gets; infinite for a rejected config."""
    true_us: dict[Config, float]
    """Times by which a search is judged, and which it does not get. For configs that were timed in
    turn they are the medians of these samples; for the others they are `times_us`, multiplied by
    the median change of the former."""
    digests: dict[Config, str]

    @classmethod
    def of(cls, recording: Recording) -> "MeasuredSpace":
        """Return a recording's sub-space; raises InvalidInput for a recording without one."""
        header = recording.header
        if not header.sub_space:
            raise InvalidInput(
                f"recording '{recording.name}' has no sub-space of which every config was "
                "measured; make one by explorer record --where"
            )
        space = Space.searched(header.problem, header.gpu, dict(header.sub_space))
        kernels = [k for k in recording.kernels if space.is_legal(k.config)]
        outcomes = {k.config: k.outcome for k in kernels}
        times = {c: o.time_us if isinstance(o, Measured) else math.inf for c, o in outcomes.items()}
        digests = {kernel.config: kernel.digest for kernel in kernels}
        true = _true_us(times, digests, recording.comparison)
        return cls(recording.name, space, times, true, digests)

    @cached_property
    def best_us(self) -> float:
        """The time of the fastest config."""
        return min(self.true_us.values())

    def regret(self, config: Config) -> float:
        """Return how much slower a config is than the best, as a share: 0.01 is 1 %."""
        return self.true_us[config] / self.best_us - 1.0


def _true_us(
    times_us: dict[Config, float],
    digests: dict[Config, str],
    compared: RecordedComparison | None,
) -> dict[Config, float]:
    if compared is None:
        return times_us
    in_turn = {d: median(s) for d, s in zip(compared.digests, compared.samples_us, strict=True)}
    known = {c: in_turn[digest] for c, digest in digests.items() if digest in in_turn}
    change = median(us / times_us[config] for config, us in known.items()) if known else 1.0
    return {config: known.get(config, us * change) for config, us in times_us.items()}


# ------------------------------------------------------------------ strategies


Tries = Iterator[Config]
"""Configs in the order in which a strategy evaluates them, until none is left."""

Strategy = Callable[[MeasuredSpace, int], Tries]
"""Searches a measured space with a seed."""

AHEAD = AHEAD_OF_A_CATALOGUE
"""Proposals that wait while one is evaluated."""

COMPILING = 8
"""Evaluations, of 20 ms each, during the 165 ms in which a kernel compiles on an H200's host."""

AHEAD_OF_COMPILING = COMPILING + 6
"""Proposals that compile or wait there while one is evaluated (`DeviceEvaluator.ahead`)."""


def ours(measured: MeasuredSpace, seed: int) -> Tries:
    """Search as `explorer search` does when it replays a recording."""
    return _proposed(measured, seed, with_seeds=True)


def ours_without_seeds(measured: MeasuredSpace, seed: int) -> Tries:
    """Search as `ours` does, but begin with random configs."""
    return _proposed(measured, seed, with_seeds=False)


def ours_while_compiling(measured: MeasuredSpace, seed: int) -> Tries:
    """Search without seeds as on a GPU, where kernels compile while others are evaluated."""
    return _proposed(
        measured, seed, with_seeds=False, ahead=AHEAD_OF_COMPILING, compiling=COMPILING
    )


def _proposed(
    measured: MeasuredSpace, seed: int, *, with_seeds: bool, ahead: int = AHEAD, compiling: int = 0
) -> Tries:
    """Yield the configs of a search that proposes and chooses others while one is evaluated.

    A kernel can be chosen `compiling` evaluations after it was proposed, or if no other can be.
    """
    candidates = _candidates(measured)
    first = seeds_of(Goal(), measured.space, random.Random(seed)) if with_seeds else []
    proposer = Proposer(candidates, measured.digests.__getitem__, first, seed, lambda *_: None)
    waiting: dict[Proposal, int] = {}
    begun: deque[Proposal] = deque()

    for evaluated in count_from():
        has_more = True
        while has_more:
            room = HANDED_OVER - len(begun)
            for _ in range(min(room, len(waiting)) if room >= HANDED_OVER // 2 else 0):
                ready = [one for one, since in waiting.items() if since + compiling <= evaluated]
                begun.append(proposer.most_promising(ready or list(waiting)[:1]))
                del waiting[begun[-1]]
            has_room = len(waiting) + len(begun) <= ahead
            proposal = proposer.propose() if has_room else None
            if has_more := proposal is not None:
                waiting[proposal] = evaluated
        if not begun:
            return
        done = begun.popleft()
        yield done.config
        proposer.learn(done.config, done.digest, (measured.times_us[done.config],))


def random_order(measured: MeasuredSpace, seed: int) -> Tries:
    """Return all configs in random order."""
    configs = list(measured.times_us)
    random.Random(seed).shuffle(configs)
    return iter(configs)


def hill_climb(measured: MeasuredSpace, seed: int) -> Tries:
    """Move from a random config to the first faster neighbour; without one, begin at random."""
    rng, candidates = random.Random(seed), _candidates(measured)
    while (base := candidates.draw(rng)) is not None:
        candidates.take(base)
        yield base
        steps = candidates.steps(base, rng)
        while steps:
            step = steps.pop()
            if candidates.is_tried(step):
                continue
            candidates.take(step)
            yield step
            if measured.times_us[step] < measured.times_us[base]:
                base, steps = step, candidates.steps(step, rng)


def plain_tpe(measured: MeasuredSpace, seed: int) -> Tries:
    """Search by Optuna's TPE with its defaults; a proposal becomes the nearest untried config."""
    rng, candidates = random.Random(seed), _candidates(measured)
    tpe = OptunaSampler(candidates.values, seed)
    for _ in range(len(measured.times_us)):
        wanted = tpe.ask()
        config = candidates.adopt(wanted, rng)
        if config is None:
            return
        if config != wanted:
            tpe.forget(wanted)
        candidates.take(config)
        yield config
        tpe.tell(config, (measured.times_us[config],))


STRATEGIES: dict[str, Strategy] = {
    "explorer": ours,
    "explorer-without-seeds": ours_without_seeds,
    "explorer-while-compiling": ours_while_compiling,
    "hill-climb": hill_climb,
    "tpe": plain_tpe,
    "random": random_order,
}
"""The strategies of `explorer benchmark`, by name."""


def _candidates(measured: MeasuredSpace) -> RecordedCandidates:
    values: dict[str, tuple[Value, ...]] = measured.space.parameters
    return RecordedCandidates(list(measured.times_us), values)


# ------------------------------------------------------------------ scores


WITHIN = 0.01
"""Largest regret of a kernel that a user would call the best."""

AT = (8, 15, 30, 60, 150)
"""Numbers of evaluations at which regret is reported."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a strategy on one measured space."""

    strategy: str
    recording: str
    evaluations: tuple[int, ...]
    """For each seed, the evaluations until regret was at most WITHIN; the limit plus 1 if never."""
    regrets: tuple[tuple[float, ...], ...]
    """For each seed, the regret after each of AT."""
    selection_errors: tuple[float, ...]
    """For each seed, the regret of the config that was the fastest by the search's times."""

    @property
    def median_evaluations(self) -> float:
        """Evaluations that were enough for half of the searches."""
        return median(self.evaluations)

    @property
    def evaluations_of_most(self) -> float:
        """Evaluations that were enough for nine of ten searches."""
        if len(self.evaluations) < 2:
            return self.evaluations[0]
        return quantiles(self.evaluations, n=10, method="inclusive")[-1]

    def mean_regret(self, number: int) -> float:
        """Return the mean regret of all seeds after AT[number] evaluations."""
        return mean(regret[number] for regret in self.regrets)

    @property
    def mean_selection_error(self) -> float:
        """Mean selection error of all seeds."""
        return mean(self.selection_errors)


def score(measured: MeasuredSpace, name: str, seeds: Sequence[int]) -> Score:
    """Search a measured space by a strategy, once for each seed."""
    runs = [_run(measured, STRATEGIES[name](measured, seed)) for seed in seeds]
    return Score(
        name,
        measured.name,
        tuple(reached for reached, _, _ in runs),
        tuple(regrets for _, regrets, _ in runs),
        tuple(measured.regret(chosen) for _, _, chosen in runs),
    )


def _run(measured: MeasuredSpace, tries: Tries) -> tuple[int, tuple[float, ...], Config]:
    """Return the evaluations to WITHIN, the regrets at AT, and the fastest config of a search."""
    best_us, regret, reached, regrets = math.inf, math.inf, AT[-1] + 1, []
    chosen = next(iter(measured.times_us))
    for number, config in enumerate(tries, 1):
        if measured.times_us[config] < best_us:
            best_us, chosen = measured.times_us[config], config
        regret = min(regret, measured.regret(config))
        if regret <= WITHIN:
            reached = min(reached, number)
        if number in AT:
            regrets.append(regret)
        if number == AT[-1]:
            break
    regrets += [regrets[-1] if regrets else math.inf] * (len(AT) - len(regrets))
    return reached, tuple(regrets), chosen
