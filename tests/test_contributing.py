"""CONTRIBUTING says where changes begin: what it names is there, and its lists leave nothing out.

Whoever adds an element type, or a field of the problem, gets from these tests the list of the
tables and the places that lack it.
"""

import ast
import re
from dataclasses import fields
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from test_floors import MODULES, PACKAGE, imports

from explorer.devices.cuda.tools import CacheQuestion, Question
from explorer.devices.emulated import device as emulated
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.ptx_emulator import arithmetic, memory, program

ROOT = PACKAGE.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
FENCED = re.compile(r"^ *```.*?^ *```$", re.S | re.M)
PARAGRAPHS = [
    " ".join(paragraph.split())
    for paragraph in re.split(r"\n\n|\n(?=- )", FENCED.sub("", CONTRIBUTING))
]
"""Those of CONTRIBUTING, each on one line, without its blocks of code, which other tests run."""

# ------------------------------------------------------------------ names and files


CODE = re.compile(r"`([^`]+)`")
FILE = re.compile(r"[\w./-]+\.(py|j2|cu|c|md|json|csv|toml)|\.ci/run")
NAME = re.compile(r'[A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[A-Z]+\["\w+"\]')
"""A name of the code, of a member of a class, or of an entry of a table."""

PLACES = [
    ROOT,
    PACKAGE,
    PACKAGE / "model",
    PACKAGE / "system",
    ROOT / "templates",
    ROOT / "studies" / "tuned",
]


def files_named(paragraph):
    """Each file that a paragraph names: where, the text as it stands, and the path or None.

    `conversions.py` after `ptx_emulator/program.py`, or after the folder alone, is in that folder.
    """
    folders = list(PLACES)
    for found in CODE.finditer(paragraph):
        word = found[1]
        folders += [at / word for at in PLACES if len(word) < 80 and (at / word).is_dir()]
        if FILE.fullmatch(word):
            path = next((at / word for at in folders if (at / word).is_file()), None)
            folders += [] if path is None else [path.parent]
            yield found, word, path


MADE = {"templates/reduce/butterfly.cu.j2"}
"""What a reader is told to write himself."""


def test_every_file_that_is_named_exists():
    named = [found for paragraph in PARAGRAPHS for found in files_named(paragraph)]
    assert len(named) > 100
    assert {word for _, word, path in named if path is None} == MADE


LIST = r"`[^`]+`(?:(?:, and |, | and )`[^`]+`)*"
BEFORE = re.compile(rf"({LIST})(?: each)? (?:in|of) $")
AFTER = re.compile(rf" \(({LIST})[),]")


def pairs(paragraph):
    """Names with the file that they are said to be in: `A` and `B` in `path`, `path` (`A`)."""
    for found, _, path in files_named(paragraph):
        if path is None:
            continue
        before = BEFORE.search(paragraph[: found.start()])
        after = AFTER.match(paragraph, found.end())
        listed = (before[1] if before else "") + (after[1] if after else "")
        for name in CODE.findall(listed):
            if NAME.fullmatch(name) and not FILE.fullmatch(name):
                yield name, path


def test_every_name_is_in_the_file_that_is_named_with_it():
    found = dict.fromkeys(pair for paragraph in PARAGRAPHS for pair in pairs(paragraph))
    assert len(found) > 70
    lacking = []
    for name, path in found:
        words = set(re.findall(r"\w+", path.read_text()))
        if not set(re.findall(r"\w+", name)) <= words:
            lacking.append(f"{name} is not in {path.relative_to(ROOT)}")
    assert lacking == []


def test_every_name_of_code_is_somewhere():
    """Also one with no file beside it."""
    files = [p for kind in ("*.py", "*.j2", "*.cu", "*.c") for p in PACKAGE.rglob(kind)]
    files += [*(ROOT / "templates").rglob("*.j2"), *(ROOT / "tests").rglob("*.py")]
    text = "\n".join(path.read_text() for path in [*files, ROOT / "pyproject.toml"])
    named = {name for paragraph in PARAGRAPHS for name in CODE.findall(paragraph)}
    named = {name for name in named if NAME.fullmatch(name) and not FILE.fullmatch(name)}
    assert len(named) > 100
    assert [name for name in sorted(named) if re.findall(r"\w+", name)[-1] not in text] == []


def test_whoever_imports_the_cuda_device_is_named():
    """The first list that somebody needs who brings GPUs of another vendor."""
    (section,) = (one for one in PARAGRAPHS if one.startswith("**A GPU of another vendor**"))
    users = [
        module
        for module in MODULES
        if not module.startswith("devices/cuda/")
        and any(name.startswith("explorer.devices.cuda") for name in imports(module))
    ]
    assert len(users) > 3
    assert [
        m for m in users if f"`{m}`" not in section and f"`{Path(m).name}`" not in section
    ] == []


# ------------------------------------------------------------------ an element type


@pytest.mark.parametrize("dtype", DType)
def test_every_type_is_one_of_the_emulator(dtype):
    of_numpy = dtype.numpy
    assert program.DTYPES[dtype] == of_numpy and dtype in program.FLOATS
    assert np.isnan(memory.poisoned((3,), of_numpy).astype(float)).all()
    assert float(arithmetic._SMALLEST_NORMAL[of_numpy]) == dtype.smallest_normal
    assert dtype in emulated._FLOATS


# ------------------------------------------------------------------ a field of the problem


FIELDS = [field.name for field in fields(Problem)]

SAID = {
    "op": {"operator"},
    "out_dtype": {"output_dtype"},
    "input_stride": {"is_dense"},
    "output_stride": {"is_dense"},
    "also": {"results"},
    "ignore_index": {"options", "_unusual_options", "has_target"},
    "label_smoothing": {"options", "_unusual_options"},
    "z_loss": {"options", "_unusual_options"},
    "softcap": {"options", "_unusual_options"},
    "head_dim": {"options", "_unusual_options", "of_head"},
    "group": {"options", "_unusual_options", "of_group", "heads"},
    "key_heads": {"options", "_unusual_options", "heads"},
    "layout": {"options", "_unusual_options"},
}
"""Properties of a problem by which a place names a field."""

OF_LOSSES = ("ignore_index", "label_smoothing", "z_loss", "softcap")
"""The fields that losses alone have."""

OF_CACHES = ("head_dim", "group", "key_heads", "layout")
"""The fields of a problem of attention alone."""

NOT_NAMED = {
    "model/problem.py:inputs,results,scalars,elements_of,_ids_dtype": {
        "in_place": "the output then has the input's address",
        "layout": "the strides of a cache say it",
        **dict.fromkeys(OF_LOSSES, "it is no argument: kernels are emitted for one"),
    },
    "codegen/variant.py": {
        **dict.fromkeys(OF_LOSSES, "it is no argument: kernels are emitted for one"),
        "layout": "the strides of a cache say it",
    },
    "codegen/traits.py": dict.fromkeys(OF_CACHES, "codegen/attention.py names it"),
    "devices/cuda/tools.py": {
        "in_place": "the addresses say it",
        "ids_per_row": "a result's columns say it",
        "out_dtype": "a result's type says it",
        "layout": "the strides of a cache say it",
    },
    "model/problem.py:_particulars,_strides": {
        name: "a problem's name begins with it" for name in ("rows", "cols", "dtype", "op")
    }
    | {"out_dtype": "it stands beside dtype"},
    "reference/inputs.py": {
        "out_dtype": "what is read does not depend on it, but what masks hide",
        **dict.fromkeys(OF_LOSSES[1:3], "what is read does not depend on them"),
        **dict.fromkeys(OF_CACHES, "reference/attention.py names it"),
    },
    "reference/truth.py": {
        "out_dtype": "a truth is float64",
        **dict.fromkeys(
            ("inner", "input_stride", "output_stride", "in_place"),
            "a truth is of a dense matrix of rows",
        ),
        **dict.fromkeys(
            ("ids_per_row", "ids_dtype", "ids_stride"), "a truth is of the ids that are given"
        ),
    },
    "reference/inputs.py:with_other_arguments": {
        name: "kernels are emitted for one"
        for name in ("op", "out_dtype", "ids_dtype", "also", *OF_LOSSES, *OF_CACHES)
    },
    "../templates/host/semantics.cu.j2": {
        **dict.fromkeys(
            ("op", "dtype", "out_dtype", "rows", "ids_per_row", "ids_dtype"),
            "the line before tells it",
        ),
        **dict.fromkeys(
            ("inner", "input_stride", "output_stride"),
            "where an element lies does not change what it counts as",
        ),
        **dict.fromkeys(OF_CACHES, "templates/host/attention.cu.j2 tells it"),
    },
    "runtime/functions.py": {
        "op": "there is a function for each",
        "out_dtype": "its argument is called dtype, as PyTorch's is",
        "mask_rows": "the mask that is given says it",
        **dict.fromkeys(
            ("rows", "cols", "inner", "input_stride", "output_stride", "in_place"),
            "the arrays that are given say it",
        ),
        **dict.fromkeys(
            ("ids_per_row", "ids_dtype", "ids_stride"), "the index that is given says it"
        ),
        **dict.fromkeys(OF_CACHES, "the arrays of runtime/attention.py say it"),
    },
    "runtime/recipes.py:_problem": {},
    "export/programs.py": dict.fromkeys(
        ("label_smoothing", "z_loss", "softcap", *OF_CACHES),
        "templates/programs, templates/host and export/caches.py say it",
    ),
}
"""Modules, functions of them and templates that must name every field; those that they need not,
and why. Of several functions one must name it."""


def names_in(place):
    """Names, members, keywords and words in quotes of a module or function; a template's words."""
    module, _, functions = place.partition(":")
    if module.endswith(".j2"):
        yield from re.findall(r"\w+", (PACKAGE / module).read_text())
        return
    module_tree = ast.parse((PACKAGE / module).read_text())
    trees = [
        next(node for node in ast.walk(module_tree) if getattr(node, "name", None) == name)
        for name in functions.split(",")
        if name
    ] or [module_tree]
    for node in chain.from_iterable(map(ast.walk, trees)):
        for attribute in ("attr", "arg", "id", "value"):
            word = getattr(node, attribute, None)
            if isinstance(word, str):
                yield word


@pytest.mark.parametrize("place", NOT_NAMED)
def test_every_field_of_a_problem_is_named_where_it_must_be(place):
    named, excepted = set(names_in(place)), NOT_NAMED[place]
    lacking = {name for name in FIELDS if not named & {name, *SAID.get(name, ())}}
    assert lacking == set(excepted)


@pytest.mark.parametrize(
    ("source", "question"), [("truth", Question), ("attention_truth", CacheQuestion)]
)
def test_a_question_to_the_gpu_has_the_fields_of_its_struct(source, question):
    """ctypes would pass a field that stands elsewhere without a word."""
    text = (PACKAGE / f"devices/cuda/{source}.cu").read_text()
    struct = re.search(r"struct Question \{(.*?)\n\};", text, re.S)[1]
    members = re.findall(r"^  ([\w ]+[ *]+)(\w+);", struct, re.M)
    kinds = {"double": "c_double", "float": "c_float", "int": "c_int"}
    kinds |= dict.fromkeys(("long", "long long"), "c_longlong")
    mirrored = [
        (name, "c_void_p" if "*" in kind else kinds[kind.strip()]) for kind, name in members
    ]
    names = {"c_long": "c_longlong"}  # what ctypes calls it where both have 64 bits
    fields_ = [(name, names.get(kind.__name__, kind.__name__)) for name, kind in question._fields_]
    assert fields_ == mirrored and len(fields_) > 12
