"""How good a strategy is: searches of recorded spaces, in which the best kernel is known.

A recording holds every config of a sub-space, so that the best of it is known and nothing depends
on what a search would have tried. Each strategy searches it with many seeds. What counts is regret:
how much slower the best kernel found so far is than the best there is.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count as count_from
from statistics import mean, median, quantiles

from explorer.devices.recorded import RecordedComparison, Recording
from explorer.evaluate.replay import ReplayEvaluator
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Measured
from explorer.model.parameters import Value
from explorer.space import Space
from explorer.tuning.candidates import Catalogue
from explorer.tuning.objective import Goal
from explorer.tuning.proposer import Proposal, Proposer
from explorer.tuning.search import HANDED_OVER
from explorer.tuning.seeds import seeds_of
from explorer.tuning.surrogate import OptunaSampler

# ------------------------------------------------------------------ the truth


@dataclass(frozen=True)
class Truth:
    """What every config of a brute-forced sub-space came to."""

    name: str
    space: Space
    """The sub-space."""
    times_us: dict[Config, float]
    """Medians, which a search is told; infinite for what was rejected."""
    true_us: dict[Config, float]
    """What it is judged by: of those that were timed in turn with the best, the medians of these
    samples, which its choices have not seen; of the others the same as above, times what the times
    of the former changed by."""
    digests: dict[Config, str]

    @classmethod
    def of(cls, recording: Recording) -> "Truth":
        """Raises InvalidInput for a recording without a whole sub-space."""
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
        """The least time there is."""
        return min(self.true_us.values())

    def regret(self, config: Config) -> float:
        """How much slower a config is than the best, as a share: 0.01 is 1 %."""
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
"""Configs in the order in which a strategy evaluates them; it ends where nothing is left."""

Strategy = Callable[[Truth, int], Tries]
"""A strategy searches a truth with a seed."""

AHEAD = ReplayEvaluator.ahead
"""Proposals that wait while one is evaluated."""

COMPILING = 8
"""Evaluations, of 20 ms each, that pass on an H200's host while a kernel compiles for 165 ms."""

AHEAD_OF_COMPILING = COMPILING + 6
"""Proposals that compile or wait there while one is evaluated (`LiveEvaluator.ahead`)."""


def ours(truth: Truth, seed: int) -> Tries:
    """The search as `explorer search` replays a recording."""
    return _proposed(truth, seed, with_seeds=True)


def ours_without_seeds(truth: Truth, seed: int) -> Tries:
    """The same, but it begins with random configs."""
    return _proposed(truth, seed, with_seeds=False)


def ours_while_compiling(truth: Truth, seed: int) -> Tries:
    """The same as on a GPU, where kernels compile while others are evaluated, without seeds."""
    return _proposed(truth, seed, with_seeds=False, ahead=AHEAD_OF_COMPILING, compiling=COMPILING)


def _proposed(
    truth: Truth, seed: int, *, with_seeds: bool, ahead: int = AHEAD, compiling: int = 0
) -> Tries:
    """The configs of a search, in which others are proposed and chosen while one is evaluated.

    A kernel can be chosen `compiling` evaluations after it was proposed, or where none other can.
    """
    offer = _offer(truth)
    first = seeds_of(Goal(), truth.space, random.Random(seed)) if with_seeds else []
    proposer = Proposer(offer, truth.digests.__getitem__, first, seed, lambda *_: None)
    waiting: dict[Proposal, int] = {}
    begun: deque[Proposal] = deque()

    def begin(evaluated: int) -> None:
        while waiting and len(begun) < HANDED_OVER:
            ready = [one for one, since in waiting.items() if since + compiling <= evaluated]
            chosen = proposer.most_promising(ready or list(waiting)[:1])
            del waiting[chosen]
            begun.append(chosen)

    def fill(evaluated: int) -> None:
        begin(evaluated)
        while len(waiting) + len(begun) <= ahead and (proposal := proposer.propose()) is not None:
            waiting[proposal] = evaluated
        begin(evaluated)

    fill(0)
    for evaluated in count_from(1):
        if not begun:
            return
        done = begun.popleft()
        yield done.config
        proposer.learn(done.config, done.digest, (truth.times_us[done.config],))
        fill(evaluated)


def random_order(truth: Truth, seed: int) -> Tries:
    """Every config as likely as any other, none twice."""
    configs = list(truth.times_us)
    random.Random(seed).shuffle(configs)
    return iter(configs)


def hill_climb(truth: Truth, seed: int) -> Tries:
    """From a random config to the first faster neighbour, and from a top to another random one."""
    rng, offer = random.Random(seed), _offer(truth)
    while (base := offer.draw(rng)) is not None:
        offer.take(base)
        yield base
        steps = offer.steps(base, rng)
        while steps:
            step = steps.pop()
            if offer.is_tried(step):
                continue
            offer.take(step)
            yield step
            if truth.times_us[step] < truth.times_us[base]:
                base, steps = step, offer.steps(step, rng)


def plain_tpe(truth: Truth, seed: int) -> Tries:
    """Optuna's TPE as it is by default; what it proposes is the nearest untried config."""
    rng, offer = random.Random(seed), _offer(truth)
    tpe = OptunaSampler(offer.values, seed)
    for _ in range(len(truth.times_us)):
        wanted = tpe.ask()
        config = offer.adopt(wanted, rng)
        if config is None:
            return
        if config != wanted:
            tpe.forget(wanted)
        offer.take(config)
        yield config
        tpe.tell(config, (truth.times_us[config],))


STRATEGIES: dict[str, Strategy] = {
    "explorer": ours,
    "explorer-without-seeds": ours_without_seeds,
    "explorer-while-compiling": ours_while_compiling,
    "hill-climb": hill_climb,
    "tpe": plain_tpe,
    "random": random_order,
}
"""What `explorer benchmark` compares, by name."""


def _offer(truth: Truth) -> Catalogue:
    values: dict[str, tuple[Value, ...]] = truth.space.parameters
    return Catalogue(list(truth.times_us), values)


# ------------------------------------------------------------------ the result


WITHIN = 0.01
"""Regret that is no more than what a user would call the best."""

AT = (8, 15, 30, 60, 150)
"""Evaluations at which regret is told."""


@dataclass(frozen=True, slots=True)
class Score:
    """How a strategy did on one truth."""

    strategy: str
    recording: str
    evaluations: tuple[int, ...]
    """For each seed, the evaluations until the best was within WITHIN; the limit and 1 if never."""
    regrets: tuple[tuple[float, ...], ...]
    """For each seed, the regret after each of AT."""
    selection_errors: tuple[float, ...]
    """For each seed, the regret of the config which was fastest by what the search was told."""

    @property
    def median_evaluations(self) -> float:
        """Half of the searches needed no more."""
        return median(self.evaluations)

    @property
    def evaluations_of_most(self) -> float:
        """Nine of ten searches needed no more."""
        if len(self.evaluations) < 2:
            return self.evaluations[0]
        return quantiles(self.evaluations, n=10, method="inclusive")[-1]

    def mean_regret(self, number: int) -> float:
        """Over all seeds, after AT[number] evaluations."""
        return mean(regret[number] for regret in self.regrets)

    @property
    def mean_selection_error(self) -> float:
        """Over all seeds."""
        return mean(self.selection_errors)


def score(truth: Truth, name: str, seeds: Sequence[int]) -> Score:
    """Search a truth by a strategy, once for each seed."""
    runs = [_run(truth, STRATEGIES[name](truth, seed)) for seed in seeds]
    return Score(
        name,
        truth.name,
        tuple(reached for reached, _, _ in runs),
        tuple(regrets for _, regrets, _ in runs),
        tuple(truth.regret(chosen) for _, _, chosen in runs),
    )


def _run(truth: Truth, tries: Tries) -> tuple[int, tuple[float, ...], Config]:
    """Evaluations to WITHIN, regrets at AT, and the fastest config of a search."""
    best_us, regret, reached, regrets = math.inf, math.inf, AT[-1] + 1, []
    chosen = next(iter(truth.times_us))
    for number, config in enumerate(tries, 1):
        if truth.times_us[config] < best_us:
            best_us, chosen = truth.times_us[config], config
        regret = min(regret, truth.regret(config))
        if regret <= WITHIN:
            reached = min(reached, number)
        if number in AT:
            regrets.append(regret)
        if number == AT[-1]:
            break
    regrets += [regrets[-1] if regrets else math.inf] * (len(AT) - len(regrets))
    return reached, tuple(regrets), chosen
