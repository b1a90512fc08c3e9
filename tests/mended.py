"""Legal configs at random, without counting how many there are."""

import random

from explorer.model.config import Config
from explorer.space import Space


class Stuck(Exception):
    """A point that was not mended in as many steps as a space tries."""


class Uncounted(Space):
    """A space that draws no config where mending fails."""

    def sample(self, rng: random.Random) -> Config:
        raise Stuck


def mended(space: Space, number: int, seed: int = 0) -> list[Config]:
    """Different legal configs: random points, mended where they break a rule.

    Fewer than `number` where there are hardly more.
    """
    rng = random.Random(seed)
    uncounted = Uncounted(space.problem, space.gpu, space.parameters)
    drawn: dict[Config, None] = {}
    for _ in range(100 * number):
        try:
            drawn[uncounted.repair(uncounted.draw(rng), rng)] = None
        except Stuck:
            continue
        if len(drawn) == number:
            break
    assert drawn, f"no point of {space.problem} could be mended: draw with sampled"
    return list(drawn)
