"""Counts, draws and covering arrays agree with plain enumeration of the legal points."""

import random
from itertools import combinations

import pytest

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.space import RULES, Space
from explorer.space.covering import covering_array
from explorer.space.rules import Point
from explorer.space.space import Count

H200 = known_gpu("NVIDIA H200")

NARROW = {
    # Of each parameter the values at which some rule turns, so that every rule excludes something.
    "algorithm": ("three-pass", "online", "online-block-max"),
    "threads": (96, 1024),
    "threads_per_row": (1, 96, 1024),
    "vector_bytes": (4, 16),
    "reduction": ("shuffle", "shared-tree"),
    "exp": ("expf",),
    "normalise": ("divide",),
    "unroll": (1, 8),
    "load_hint": ("default",),
    "store_hint": ("default",),
    "min_blocks": (1, 4),
    "rows_per_thread": (1, 2),
    "launches": ("one", "three", "two"),
    "persistent": (0, 2),
    "cluster": (1, 16),
    "staging": ("direct", "span", "bulk"),
    "stages": (1, 4),
    "arrangement": ("striped", "replicated"),
    "row_order": ("ascending",),
}


FEWER = {
    # What rules say of these is counted by the exhaustive test.
    "algorithm": ("three-pass", "online"),
    "threads": (96,),
    "unroll": (1,),
    "min_blocks": (4,),
    "stages": (1,),
    "arrangement": ("striped",),
}


@pytest.mark.parametrize(
    ("cols", "narrow"),
    [
        *((cols, NARROW | FEWER) for cols in (1, 33, 4096, 40000)),
        pytest.param(40000, NARROW, marks=pytest.mark.exhaustive),
    ],
)
def test_count_equals_enumeration(cols, narrow):
    space = Space(Problem(8, cols, DType.F32), known_gpu("NVIDIA H200"), narrow)
    draft = Config()
    point = Point(space.problem, space.gpu, draft)
    rules = strictest_first(space)
    legal = sum(
        all(rule.holds(point) for rule in rules)
        for _ in every_choice(draft, list(space.parameters.items()))
    )
    assert space.legal_count() == Count(legal)


def strictest_first(space):
    """All rules, first those that exclude most of some points: of most points one is asked."""
    rng = random.Random(0)
    points = [Point(space.problem, space.gpu, space.draw(rng)) for _ in range(500)]
    return sorted(RULES, key=lambda rule: sum(rule.holds(point) for point in points))


def every_choice(draft, parameters):
    """Assign each combination of values in place: a million Configs would take seconds."""
    if not parameters:
        yield
        return
    *rest, (name, values) = parameters
    if len(values) == 1:
        object.__setattr__(draft, name, values[0])
        yield from every_choice(draft, rest)
        return
    for _ in every_choice(draft, rest):
        for value in values:
            object.__setattr__(draft, name, value)
            yield


def test_where_nothing_is_legal_none_is_counted_and_none_drawn():
    space = Space(Problem(8, 37), H200, NARROW | {"launches": ("two",), "threads": (32, 256)})
    assert space.legal_count() == Count(0)
    with pytest.raises(InvalidInput, match="no config is legal"):
        space.sample(random.Random(0))


def test_an_estimate_is_as_close_as_it_says(monkeypatch):
    space = Space(Problem(8, 4096), H200, NARROW | FEWER)
    exact = space.legal_count()
    assert exact.error == 0 and exact.number == sum(1 for _ in space.legal()) > 100
    monkeypatch.setattr("explorer.space.space.FEW", 0)
    estimate = space.legal_count()
    assert 0 < estimate.error < 0.3
    assert abs(estimate.number / exact.number - 1) < 1.5 * estimate.error


def test_draws_reach_every_legal_value():
    space = Space(Problem(8, 4096), H200, NARROW | FEWER)
    rng = random.Random(0)
    drawn = [space.sample(rng) for _ in range(300)]
    assert all(map(space.is_legal, drawn)) and len(set(drawn)) > 100
    legal = list(space.legal())
    for name in space.parameters:
        assert {getattr(c, name) for c in drawn} == {getattr(c, name) for c in legal}, name


def test_a_space_that_descents_miss_is_enumerated(monkeypatch):
    monkeypatch.setattr(Space, "_descend", lambda *_: (None, 0))
    space = Space(Problem(8, 4096), H200, NARROW | FEWER)
    rng = random.Random(0)
    drawn = {space.sample(rng) for _ in range(5)}
    assert len(drawn) > 1 and all(map(space.is_legal, drawn))


def test_an_array_covers_what_is_legal_and_nothing_else():
    space = Space(Problem(8, 4096), H200, NARROW | FEWER)
    legal, array = list(space.legal()), covering_array(space, 2)
    assert all(map(space.is_legal, array)) and len(array) < len(legal) / 4
    assert pairs(array) == pairs(legal)


def pairs(configs):
    return {pair for config in configs for pair in combinations(config.as_dict().items(), 2)}
