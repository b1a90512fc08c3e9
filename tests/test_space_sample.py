"""The sample that quick tests compile, format and emulate is one of the whole space."""

import pytest
from space_sample import COMMAND, KINDS, SOME_BOUNDS, drawn, space_sample, templates, templates_of

from explorer.model.element import DType
from explorer.ops import OPERATORS, Op
from explorer.space import parameters

ANEW = f"draw the sample anew: {COMMAND}"


def test_each_is_legal():
    assert [str(kernel) for kernel in space_sample() if not kernel.is_legal] == [], ANEW


def test_every_kind_is_there():
    assert {kernel.kind for kernel in space_sample()} == set(KINDS), ANEW


@pytest.mark.parametrize("name", parameters(DType.BF16))
def test_every_value_is_there(name):
    values = {value for dtype in DType for value in {**parameters(dtype), **SOME_BOUNDS}[name]}
    over_rows = (kernel for kernel in space_sample() if not kernel.problem.attends)
    assert {getattr(kernel.config, name) for kernel in over_rows} == values, ANEW


@pytest.mark.parametrize(
    "name", ["core", "lanes_per_key", "probabilities", "unroll", "launches", "cache"]
)
def test_every_value_of_attention_is_there(name):
    values = parameters(DType.BF16, OPERATORS[Op.DECODE_ATTENTION])[name]
    of_keys = (kernel for kernel in space_sample() if kernel.problem.attends)
    assert {getattr(kernel.config, name) for kernel in of_keys} == set(values), ANEW


def test_every_template_is_there():
    emitted = set().union(*(templates_of(kernel) for kernel in space_sample()))
    assert templates() - emitted == set(), f"no kernel has these: {ANEW}, or mend its KINDS"


@pytest.mark.exhaustive
def test_it_is_what_would_be_drawn_today():
    """Rules may have made legal what the sample has nothing of."""
    assert space_sample() == drawn(), ANEW
