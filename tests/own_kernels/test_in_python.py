"""Kernels of one's own and emitted files in Python: as the command line takes them."""

from pathlib import Path

import pytest

import explorer

FILE = Path(__file__).with_name("right.cu")
WRONG = Path(__file__).with_name("wrong.cu")
OWN = explorer.OwnLaunch(args="input,output,rows,cols")


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    path = tmp_path_factory.mktemp("emitted") / "softmax.cu"
    path.write_text(explorer.emit("heuristic", cols=64, rows=9).source)
    return path


def test_a_kernel_is_verified_profiled_and_held_against_another():
    named = f"{FILE}:online"
    assert explorer.verify(named, cols=64, rows=9, own=OWN).status == "verified"
    assert explorer.profile(named, cols=64, rows=9, own=OWN).resources.registers > 0
    difference = explorer.diff(named, "heuristic", cols=64, rows=9, own=OWN)
    assert difference.names[0] == named


def test_a_mistake_is_found():
    verdict = explorer.verify(f"{WRONG}:identity_of_max", cols=100, own=OWN)
    assert verdict.status == "wrong"


def test_a_file_that_was_emitted_says_the_rest(emitted):
    assert explorer.verify(emitted).status == "verified"
    assert explorer.verify(emitted, cols=64, rows=3).status == "verified"
    problem = explorer.Problem(9, 64)
    for words, given in (
        ("dtype", {"dtype": "f32", "cols": 64}),
        ("problem", {"problem": problem}),
    ):
        with pytest.raises(explorer.InvalidInput, match=f"{words} says nothing of an emitted file"):
            explorer.verify(emitted, **given)
    with pytest.raises(explorer.InvalidInput, match="--args says how a kernel of your own"):
        explorer.verify(emitted, own=OWN)


def test_what_is_missing_is_asked_for():
    with pytest.raises(explorer.InvalidInput, match="give --cols 1000"):
        explorer.verify(FILE)
    with pytest.raises(explorer.InvalidInput, match="is no file"):
        explorer.profile("heuristic", cols=64, own=OWN)
