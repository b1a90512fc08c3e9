"""Only the objects of the element types know of them: no other place names or lists types."""

import ast
import re

import pytest
from test_floors import MODULES, PACKAGE

from explorer.model.element import DType, IndexType

HOME = "model/element.py"

NAMING = {
    "codegen/attention.py": "as in codegen/traits.py",
    "codegen/traits.py": "what templates call `in_double` is `f64`",
    "peers/attention.py": "as in peers/registry.py",
    "peers/cudnn.py": "cuDNN's own number of each type that it takes",
    "peers/flashinfer_decode.py": "as in peers/registry.py",
    "presets/ladder.py": "the type that language models mostly decode in",
    "peers/registry.py": "the types that a library takes are a fact of the library",
    "presets/preset.py": "the types that a published kernel takes are a fact of that kernel",
    "presets/published.py": "as in presets/preset.py",
}
"""Modules that may name types, and why."""

OF_PTX = "ptx_emulator/"
"""What has PTX's own types, some of which have the same names, and imports nothing of the rest."""

NAMES = {name for dtype in DType for name in (dtype, dtype.array_name)}


def types_named(tree):
    """The lines and texts in which a module names a type: a member, or a literal of its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "DType":
            if node.attr in DType.__members__:
                yield node.lineno, f"DType.{node.attr}"
        elif isinstance(node, ast.Constant) and node.value in NAMES:
            yield node.lineno, repr(node.value)


def test_no_module_names_a_type():
    named = {
        module: found
        for module in MODULES
        if module != HOME and not module.startswith(OF_PTX)
        if (found := [*types_named(ast.parse((PACKAGE / module).read_text()))])
    }
    lines = [f"{m}, line {n}: {what}" for m in named.keys() - NAMING for n, what in named[m]]
    assert sorted(lines) == []
    assert named.keys() == NAMING.keys(), "an exception that is no longer needed"


def test_a_named_type_is_seen():
    text = "a = {DType.F16: 1}\nb = ['f32', 'float64']\nc = DType.parse('a half')"
    assert [*types_named(ast.parse(text))] == [
        (1, "DType.F16"),
        (2, "'f32'"),
        (2, "'float64'"),
    ]


WORDS = {"access/words.cu.j2": 1}
"""Templates that name a type, and how often: PTX has registers of its own for fp32."""


def test_no_template_names_a_type():
    root = PACKAGE.parent / "templates"
    names = "|".join(NAMES)
    named = re.compile(rf'dtype == "({names})"|"({names})": ')  # a comparison, the key of a table
    found = {
        path.relative_to(root).as_posix(): len(named.findall(path.read_text()))
        for path in root.rglob("*.j2")
    }
    assert {name: count for name, count in found.items() if count} == WORDS


@pytest.mark.parametrize("dtype", [*DType, *IndexType])
def test_an_element_takes_as_many_bytes_in_every_library(dtype):
    assert dtype.numpy.itemsize == dtype.itemsize and dtype.numpy.name == dtype.array_name


def test_a_problem_is_of_floating_point_types_alone():
    assert not {*DType} & {*IndexType}
    assert DType.meant_by("int32") is None and DType.meant_by("int64") is None
