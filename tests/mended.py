"""Legal configs at random, without counting how many there are."""

import random

from explorer.config import Config
from explorer.space import Space


def mended(space: Space, number: int, seed: int = 0) -> list[Config]:
    """Different legal configs: random points, mended where they break a rule.

    They are not drawn uniformly, as `explorer.space.covering.sampled` draws them: that counts all
    legal points, 1.5 CPU seconds for each problem and architecture, where a config compiles in a
    quarter of one. Fewer than `number` where there are hardly more.
    """
    rng = random.Random(seed)
    drawn: dict[Config, None] = {}
    for _ in range(20 * number):
        drawn[space.repair(space.draw(rng), rng)] = None
        if len(drawn) == number:
            break
    return list(drawn)
