"""Few configs in which every choice occurs: what a test of the templates needs."""

import random
from itertools import combinations

from explorer.config import Config
from explorer.space.legal_points import Choice
from explorer.space.space import Space

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
        candidates = space.legal_draws(dict(wanted), CANDIDATES, rng)
        if candidates:
            best = max(candidates, key=lambda c: len(_in(c, strength) - covered))
            covered |= _in(best, strength)
            array.append(best)
    return array


def _combinations(space: Space, strength: int) -> list[Combination]:
    """Every combination of values of `strength` different parameters of which each two are legal.

    That is every legal pair; of more values, some combinations may not be legal as a whole.
    """
    result: list[Combination] = []
    for names in combinations(space.parameters, strength):
        partial: list[Combination] = [()]
        for name in names:
            partial = [(*c, (name, value)) for c in partial for value in space.parameters[name]]
        result += partial
    if strength == 1:
        return result
    legal = space.legal_pairs()
    return [c for c in result if all(pair in legal for pair in combinations(c, 2))]


def _in(config: Config, strength: int) -> set[Combination]:
    return set(combinations(config.as_dict().items(), strength))


def sampled(space: Space, number: int, seed: int = 0) -> list[Config]:
    """Different legal configs drawn at random; fewer than `number` where there are hardly more."""
    rng = random.Random(seed)
    drawn: dict[Config, None] = {}
    for _ in range(20 * number):
        drawn[space.sample(rng)] = None
        if len(drawn) == number:
            break
    return list(drawn)
