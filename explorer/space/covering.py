"""Few configs in which every choice occurs: what a test of the templates needs."""

import random
from itertools import combinations

from explorer.config import Config
from explorer.space.parameters import Value
from explorer.space.space import Space

Choice = tuple[str, Value]
Combination = tuple[Choice, ...]

CANDIDATES = 12
"""Legal completions tried for each combination; the one that covers most is taken."""


def covering_array(space: Space, strength: int = 1, seed: int = 0) -> list[Config]:
    """Legal configs in which each combination of `strength` values occurs that any legal has.

    Greedy, as in AETG (Cohen et al. 1997): each config is chosen to cover one combination that
    is still missing, and as many others as it can.
    """
    rng = random.Random(seed)
    missing = _combinations(space, strength)
    rng.shuffle(missing)
    covered: set[Combination] = set()
    array: list[Config] = []
    for wanted in missing:
        if wanted in covered:
            continue
        candidates = _completions(space, wanted, rng)
        if candidates:
            best = max(candidates, key=lambda c: len(_in(c, strength) - covered))
            covered |= _in(best, strength)
            array.append(best)
    return array


def _combinations(space: Space, strength: int) -> list[Combination]:
    """Every combination of values of `strength` different parameters, legal or not."""
    result: list[Combination] = []
    for names in combinations(space.parameters, strength):
        partial: list[Combination] = [()]
        for name in names:
            partial = [(*c, (name, value)) for c in partial for value in space.parameters[name]]
        result += partial
    return result


def _in(config: Config, strength: int) -> set[Combination]:
    return set(combinations(config.as_dict().items(), strength))


def _completions(space: Space, wanted: Combination, rng: random.Random) -> list[Config]:
    """Some legal configs with the wanted values; none if no legal config has them."""
    values = {**space.parameters, **{name: (value,) for name, value in wanted}}
    narrowed = Space(space.problem, space.gpu, values)
    drawn = [narrowed.draw(rng) for _ in range(40 * CANDIDATES)]
    legal = [c for c in drawn if narrowed.broken_rule(c) is None][:CANDIDATES]
    if not legal:
        counted = (narrowed.legal_draw(rng) for _ in range(CANDIDATES))
        legal = [config for config in counted if config is not None]
    return legal


def sampled(space: Space, number: int, seed: int = 0) -> list[Config]:
    """Different legal configs drawn at random; fewer than `number` where there are hardly more."""
    rng = random.Random(seed)
    drawn: dict[Config, None] = {}
    for _ in range(20 * number):
        drawn[space.sample(rng)] = None
        if len(drawn) == number:
            break
    return list(drawn)
