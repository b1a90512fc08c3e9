"""The fast count of legal points equals plain enumeration."""

import os
import random

import pytest

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.space import RULES, Space, legal_points
from explorer.space.legal_points import LegalPoints
from explorer.space.rules import Point

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


MANY = [pytest.param(cols, NARROW, marks=pytest.mark.exhaustive) for cols in (33, 40000)]


@pytest.mark.parametrize(
    ("cols", "narrow"), [*((cols, NARROW | FEWER) for cols in (1, 33, 4096, 40000)), *MANY]
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
    assert space.legal_count() == legal


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
    space = Space(Problem(8, 37), known_gpu("NVIDIA H200"), {"launches": ("two",)})
    assert space.legal_count() == 0 and space.legal_draw(random.Random(0)) is None


def test_count_equals_the_legal_iterator():
    fixed = {**NARROW, "threads": (128, 256), "threads_per_row": (128, 256)}
    space = Space(Problem(8, 1000, DType.BF16), known_gpu("Tesla T4"), fixed)
    assert space.legal_count() == sum(1 for _ in space.legal())


def of_narrow_space(cols):
    """Legal points that nobody has counted yet."""
    parameters = Space(Problem(8, cols), H200, NARROW | FEWER).parameters
    return LegalPoints(Problem(8, cols), H200, parameters)


def test_another_process_counts_the_same(monkeypatch):
    here, elsewhere = of_narrow_space(4096), of_narrow_space(4096)
    with elsewhere.counted_elsewhere():
        pass
    counted = here.count(), [here.draw(random.Random(seed)) for seed in range(20)]
    monkeypatch.setattr(LegalPoints, "_completions", None)  # what would count here
    assert counted == (
        elsewhere.count(),
        [elsewhere.draw(random.Random(seed)) for seed in range(20)],
    )


def test_what_another_process_did_not_count_is_counted_here(monkeypatch):
    monkeypatch.setattr(legal_points, "_tell_known", _ended)
    points = of_narrow_space(4096)
    with points.counted_elsewhere():
        pass
    assert points.count() == of_narrow_space(4096).count() > 0


def _ended(connection, *asked):
    """As a process that is ended before it tells anything."""
    os._exit(1)
