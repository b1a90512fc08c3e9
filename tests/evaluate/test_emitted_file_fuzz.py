"""Files made hostile at random: one sentence, and never a traceback or a hang."""

import string
import time
from functools import cache

import pytest
from hostile_values import quick, thorough
from hypothesis import given
from hypothesis import strategies as st
from test_emitted_file import CONFIGS

from explorer.codegen.units import emit
from explorer.devices.program_under_test import read_emitted
from explorer.devices.runs import emulated_runs
from explorer.model.errors import InvalidInput

LIMIT_S = 5.0
"""How long reading a file may take, on a busy machine: emitted ones take a hundredth of it."""

HOSTILE = [
    *("0", "-1", "1e9", "9" * 400, "NaN", "null", '"', "'", "\\", "{", "}" * 50, "[" * 3000, "("),
    *("kThreads", "kRowsPerBlock", "rows - rows", "rows / (cols - cols)", "1 << 40", "f(rows)"),
    *("\x00", "\u2028", "é", "\r", "//", "/*", "<<<", ">>>", "#ifdef __NVCC__\n#endif\n", "--cols"),
    *(
        '"algorithm":"nope"',
        '"threads":true',
        '"cluster":3',
        "--inner 3",
        "--mask causal",
        "=" * 80,
    ),
]
"""What has broken readers of text before, and what means something in these files."""


@cache
def sources():
    return [emit(problem, config).source for problem, config in CONFIGS]


EDIT = st.tuples(
    st.booleans(),  # in the head, or anywhere
    st.floats(0, 1),  # where, as a share of that
    st.integers(0, 60),  # characters cut out
    st.sampled_from(HOSTILE) | st.text(st.sampled_from(string.printable), max_size=20) | st.none(),
)
"""One place cut out and overwritten; None: written twice."""

FILES = st.tuples(st.integers(0, len(CONFIGS) - 1), st.lists(EDIT, min_size=1, max_size=4))


def edited(number, edits):
    text = sources()[number]
    for in_head, share, length, inserted in edits:
        end = text.find("// -----") if in_head else len(text)
        start = int(share * max(0, end))
        cut = text[start : start + length]
        text = text[:start] + (2 * cut if inserted is None else inserted) + text[start + length :]
    return text


def read_and_plan(path, text):
    """Whatever the text: a program whose runs can be worked out, or InvalidInput."""
    path.write_text(text, errors="surrogateescape")
    begun = time.monotonic()
    try:
        program = read_emitted(path)
        for run in emulated_runs(program):
            program.launches(run.problem)
            program.scratch_bytes(run.problem)
    except InvalidInput as error:
        assert path.name in str(error) and len(str(error)) < 2000
    assert time.monotonic() - begun < LIMIT_S


@quick(100)
@given(file=FILES)
def test_a_hostile_file_is_refused_in_a_sentence(file, tmp_path_factory):
    read_and_plan(tmp_path_factory.getbasetemp() / "hostile.cu", edited(*file))


@pytest.mark.exhaustive
@thorough(5_000)
@given(file=FILES)
def test_many_hostile_files(file, tmp_path_factory):
    read_and_plan(tmp_path_factory.getbasetemp() / "hostile.cu", edited(*file))
