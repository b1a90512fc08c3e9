"""The fast count of legal points equals plain enumeration."""

import random
from itertools import product

import pytest

from explorer.config import Config
from explorer.dtype import DType
from explorer.gpu_spec import known_gpu
from explorer.problem import Problem
from explorer.space import Space

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
    "persistent": (0, 2),
    "cluster": (1, 16),
}


@pytest.mark.parametrize("cols", [1, 33, 4096, 40000])
def test_count_equals_enumeration(cols):
    space = Space(Problem(8, cols, DType.F32), known_gpu("NVIDIA H200"), NARROW)
    names, values = zip(*space.parameters.items(), strict=True)
    configs = (Config(**dict(zip(names, point, strict=True))) for point in product(*values))
    assert space.legal_count() == sum(space.broken_rule(config) is None for config in configs)


def test_where_nothing_is_legal_none_is_counted_and_none_drawn():
    space = Space(Problem(8, 37), known_gpu("NVIDIA H200"), {"launches": ("two",)})
    assert space.legal_count() == 0 and space.legal_draw(random.Random(0)) is None


def test_count_equals_the_legal_iterator():
    fixed = {**NARROW, "threads": (128, 256), "threads_per_row": (128, 256)}
    space = Space(Problem(8, 1000, DType.BF16), known_gpu("Tesla T4"), fixed)
    assert space.legal_count() == sum(1 for _ in space.legal())
