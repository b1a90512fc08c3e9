"""The nearest legal config, beside what trying all of a small space finds; and restrictions."""

import random

import pytest

from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.space import Space, restriction

PROBLEM, GPU = Problem(8192, 4096), known_gpu("NVIDIA H200")
SMALL = {
    "algorithm": ("three-pass",),
    "threads": (128, 256),
    "threads_per_row": (64, 128, 256),
    "vector_bytes": (8, 16),
    "reduction": ("shuffle", "shared-tree"),
    "cache": ("registers", "none"),
    "cache_holds": ("input", "exp"),
    "exp": ("expf",),
    "normalise": ("divide",),
    "unroll": (1, 4),
    "load_hint": ("default",),
    "store_hint": ("default",),
    "min_blocks": (1,),
    "static_cols": (True,),
    "rows_per_thread": (1,),
    "launches": ("one",),
    "staging": ("none",),
    "sum": ("plain",),
    "cluster": (1,),
    "exchange": ("barrier",),
    "row_order": ("forward",),
}


def small():
    """Return a space of few combinations of values."""
    whole = Space.searched(PROBLEM, GPU).parameters
    return Space(
        PROBLEM,
        GPU,
        {name: tuple(set(v) & set(whole[name])) or whole[name][:1] for name, v in SMALL.items()},
    )


def distance(one, other):
    return len(one.differences(other))


def test_no_legal_config_is_nearer_than_the_nearest():
    space = small()
    legal = list(space.legal())
    assert 1 < len(legal) < space.point_count / 4
    rng, tried = random.Random(3), set()
    for _ in range(60):
        wanted = space.draw(rng)
        found = space.nearest(wanted, lambda one: one not in tried, rng)
        left = [one for one in legal if one not in tried]
        assert found in left
        assert distance(found, wanted) == min(distance(one, wanted) for one in left)
        tried.add(found)


def test_in_the_whole_space_it_is_found_soon_and_by_the_seed_alone():
    space = Space.searched(PROBLEM, GPU)
    rng = random.Random(1)
    drawn = [space.draw(rng) for _ in range(20)]
    found = [space.nearest(one, lambda _: True, random.Random(5)) for one in drawn]
    assert all(map(space.is_legal, found))
    repaired = [space.repair(one, random.Random(5)) for one in drawn]
    assert sum(map(distance, found, drawn)) < 0.8 * sum(map(distance, repaired, drawn))
    assert found == [space.nearest(one, lambda _: True, random.Random(5)) for one in drawn]
    legal = found[0]
    assert space.nearest(legal, lambda _: True, rng) == legal
    other = space.nearest(legal, lambda one: one != legal, rng)
    assert other != legal and distance(other, legal) == 1


def test_where_nothing_is_wanted_none_is_found():
    assert small().nearest(Config(), lambda _: False, random.Random(0)) is None
    whole = Space.searched(PROBLEM, GPU)
    assert whole.nearest(whole.sample(random.Random(0)), lambda _: False, random.Random(0)) is None


# ------------------------------------------------------------------ restrictions


@pytest.mark.parametrize(
    "where",
    [
        ["cache=none,registers", "threads=128"],
        {"threads": 128, "cache": ["registers", "none"]},
        {"cache": ("none", "registers"), "threads": [128]},
        ("threads=128", "cache=registers,none"),
    ],
)
def test_a_restriction_is_the_same_however_it_is_said(where):
    assert restriction(where, PROBLEM) == {"threads": (128,), "cache": ("registers", "none")}
    assert list(restriction(where, PROBLEM)) == ["threads", "cache"]


def test_values_are_those_of_the_op():
    attention = Problem(1, 128, op=Op.DECODE_ATTENTION)
    assert restriction("lanes_per_key=8", attention) == {"lanes_per_key": (8,)}
    with pytest.raises(InvalidInput, match="lanes_per_key has no value '8'"):
        restriction("lanes_per_key=8", PROBLEM)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("threads", "where is 'threads'; write NAME=VALUE,VALUE"),
        ("thread=8", "there is no parameter 'thread'; the nearest"),
        (["threads=128", "threads=256"], "where has threads twice"),
        ({"threads": []}, "threads is left no value; it has"),
        ({"threads": 5}, "threads has no value '5'"),
        (5, "where is 5; write NAME=VALUE,VALUE"),
        ([5], "where is 5; write NAME=VALUE,VALUE"),
    ],
)
def test_what_is_no_restriction_is_refused(where, says):
    with pytest.raises(InvalidInput, match=says):
        restriction(where, PROBLEM)


def test_nothing_is_no_restriction():
    assert restriction(None, PROBLEM) == restriction([], PROBLEM) == {}
