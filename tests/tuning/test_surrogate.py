"""The surrogate picks what the measured ones near it promise."""

import random

import numpy as np
import pytest
from fake_evaluator import FakeEvaluator, model_us

from explorer.space import Space
from explorer.tuning.surrogate import KEPT, LEAST, Surrogate, pick_between


@pytest.mark.exhaustive
def test_what_it_picks_is_better_than_most():
    evaluator, rng = FakeEvaluator(), random.Random(0)
    space = Space(evaluator.problem, evaluator.gpu)
    surrogate = Surrogate(space.parameters, rng)
    assert not surrogate.is_ready
    for _ in range(200):
        config = space.sample(rng)
        surrogate.learn(config, model_us(config))
    assert LEAST <= 200 and surrogate.is_ready
    ranks = []
    for _ in range(5):
        pool = [space.sample(rng) for _ in range(50)]
        (picked,) = pick_between([surrogate], pool, rng)
        ranks.append(sorted(map(model_us, pool)).index(model_us(picked)))
    assert sum(ranks) / 5 < 10


def test_it_knows_the_values_that_it_learnt():
    """Where it looks at a part of them, too, and whatever it predicted before it learnt all."""
    evaluator, rng = FakeEvaluator(), random.Random(0)
    space = Space(evaluator.problem, evaluator.gpu)
    for number in (2 * LEAST, KEPT + 10):
        surrogate = Surrogate(space.parameters, random.Random(1))
        configs = [space.sample(rng) for _ in range(number)]
        for place, config in enumerate(configs):
            surrogate.learn(config, model_us(config))
            if surrogate.is_ready and place % 16 == 0:
                surrogate.bounds([config])
        fastest = sorted(configs, key=model_us)[:LEAST]
        logs = np.log([model_us(config) for config in fastest])
        mean = np.log([model_us(config) for config in configs]).mean()
        (bounds,) = surrogate.bounds(fastest)
        if number <= KEPT:
            assert np.allclose(bounds + mean, logs, atol=0.03)
        assert np.corrcoef(bounds, logs)[0, 1] > 0.9
