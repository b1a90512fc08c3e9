"""Operators are objects that are asked for facts: nothing else knows one by its name."""

import ast
from collections import Counter
from dataclasses import fields

import pytest
from test_floors import MODULES, PACKAGE

from explorer.ops import OPERATORS, Op, Operator

NAMES = {str(op) for op in Op}

TABLES = {
    "peers/": "which functions of another library compute an operator is a fact of that library",
    "presets/": "which operators a published kernel computes is a fact of its publication",
}
"""Folders that may name operators, as data, and why."""

FUNCTIONS = {
    "__init__.py": "the public functions have the names of operators",
    "runtime/": "the public functions, and the operators of PyTorch that they replace",
}
"""Where a function of the same name is meant, not an operator."""


def names_of_operators(module):
    """Lines of a module that name an operator: as a member of Op, or as a text that is a name."""
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        is_member = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if is_member and node.value.id == "Op" and node.attr in Op.__members__:
            yield node.lineno
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield node.lineno


@pytest.mark.parametrize("module", [m for m in MODULES if not m.startswith("ops/")])
def test_only_their_own_package_names_operators(module):
    if not module.startswith((*TABLES, *FUNCTIONS)):
        assert list(names_of_operators(module)) == []


def test_what_is_excepted_names_operators():
    for place in (*TABLES, *FUNCTIONS):
        assert any(list(names_of_operators(m)) for m in MODULES if m.startswith(place)), place


def test_templates_ask_for_facts():
    for path in (PACKAGE.parent / "templates").rglob("*.j2"):
        text = path.read_text()
        assert not [name for name in NAMES if f'"{name}"' in text], path


def test_no_fact_is_true_of_one_operator_only():
    facts = [name for name in vars(Operator) if isinstance(vars(Operator)[name], property)]
    facts += [field.name for field in fields(Operator)]
    for name in facts:
        values = [getattr(operator, name) for operator in OPERATORS.values()]
        if isinstance(values[0], bool):
            assert Counter(values)[True] != 1, name


def test_every_operator_has_an_object():
    assert list(OPERATORS) == list(Op)
    assert all(operator.forward in OPERATORS for operator in OPERATORS.values())
