"""The surrogate picks what the measured ones near it promise."""

import random

import numpy as np
from fake_evaluator import FakeEvaluator, model_us

from explorer.space import Space
from explorer.tuning.surrogate import LEAST, Surrogate, _inverted, pick_between


def test_the_inverse_and_determinant_are_right():
    rng = np.random.default_rng(0)
    half = rng.normal(size=(40, 40))
    matrix = half @ half.T + np.eye(40)
    inverse, log_determinant = _inverted(matrix)
    assert np.allclose(inverse @ matrix, np.eye(40), atol=1e-8)
    assert np.isclose(log_determinant, np.linalg.slogdet(matrix)[1])


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
    for _ in range(10):
        pool = [space.sample(rng) for _ in range(50)]
        (picked,) = pick_between([surrogate], pool, rng)
        ranks.append(sorted(map(model_us, pool)).index(model_us(picked)))
    assert sum(ranks) / 10 < 10
