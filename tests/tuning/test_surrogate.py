"""The surrogate picks what the measured ones near it promise."""

import random

import numpy as np
from fake_evaluator import FakeEvaluator, model_us

from explorer.space import Space
from explorer.tuning.surrogate import (
    KEPT,
    LEAST,
    MOST_MULTIPLIED,
    REFIT_EVERY,
    Surrogate,
    _Fit,
    _inverted,
    _product,
    pick_between,
)


def test_the_inverse_and_determinant_are_right():
    rng = np.random.default_rng(0)
    half = rng.normal(size=(40, 40))
    matrix = half @ half.T + np.eye(40)
    inverse, log_determinant = _inverted(matrix)
    assert np.allclose(inverse @ matrix, np.eye(40), atol=1e-8)
    assert np.isclose(log_determinant, np.linalg.slogdet(matrix)[1])


def test_a_product_in_parts_is_the_product():
    rng = np.random.default_rng(0)
    for rows, columns in ((128, 411), (3, 1), (700, 30)):
        matrix, other = rng.normal(size=(rows, rows)), rng.normal(size=(rows, columns))
        parts = _product(matrix, other)
        assert parts.shape == (rows, columns)
        assert np.allclose(parts, matrix @ other)
    assert 128 * 128 * 16 <= MOST_MULTIPLIED < 700 * 700, "some in several parts, one by columns"


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


def test_what_is_added_one_by_one_is_known_as_if_all_were_fitted_together():
    """Also where it looks at a part of what was learnt."""
    evaluator, rng = FakeEvaluator(), random.Random(0)
    space = Space(evaluator.problem, evaluator.gpu)
    for number in (2 * LEAST, KEPT + 10):
        surrogate = Surrogate(space.parameters, random.Random(1))
        configs = [space.sample(rng) for _ in range(number + REFIT_EVERY - 1)]
        for config in configs[:number]:
            surrogate.learn(config, model_us(config))
        before = surrogate._up_to_date()
        for config in configs[number:]:
            surrogate.learn(config, model_us(config))
        one_by_one = surrogate._up_to_date()
        assert len(one_by_one.rows) == len(before.rows) + REFIT_EVERY - 1
        distances = surrogate._distances(one_by_one.rows, one_by_one.rows)
        logs = np.append(before._logs, np.log([model_us(one) for one in configs[number:]]))
        together = _Fit.of(one_by_one.rows, logs, distances, before.length)
        assert np.allclose(one_by_one.inverse, together.inverse, atol=1e-6)
        assert np.allclose(one_by_one.weights, together.weights, atol=1e-6)
        assert np.isclose(one_by_one.scale, together.scale)
        assert np.isclose(one_by_one.likelihood, together.likelihood)
        assert surrogate._up_to_date() is one_by_one
