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


@pytest.mark.exhaustive
def test_each_of_two_files_has_a_launch_of_its_own():
    two = [explorer.OwnLaunch(args=OWN.args, block=block) for block in (64, 96)]
    files = (f"{FILE}:thread_per_row", f"{FILE}:online")
    difference = explorer.diff(*files, cols=64, rows=9, own=two)
    assert [side.variant.launches[0].block for side in difference.sides] == [64, 96]
    with pytest.raises(
        explorer.InvalidInput, match="own has 3 launches, and there are 2 files; give one"
    ):
        explorer.diff(*files, cols=64, rows=9, own=[OWN] * 3)


def test_files_beside_others_are_read_before_anything_is_measured():
    with pytest.raises(explorer.InvalidInput, match=r"right\.cu has no kernel 'none'"):
        explorer.compare(cols=64, rows=9, with_=f"{FILE}:none", own=OWN)
    with pytest.raises(explorer.InvalidInput, match=r"wrong\.cu has no kernel 'none'"):
        explorer.journey(cols=64, rows=9, with_=[f"{FILE}:online", f"{WRONG}:none"], own=OWN)
    with pytest.raises(explorer.InvalidInput, match="and no file of one is named"):
        explorer.compare(cols=64, rows=9, own=OWN)


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


def test_a_launch_may_be_a_dict_and_arguments_a_list():
    listed = {"args": ["input", "output", "rows", "cols"]}
    assert explorer.verify(f"{FILE}:online", cols=64, rows=9, own=listed).status == "verified"
    for own in ({"arguments": "x"}, 7):
        with pytest.raises(explorer.InvalidInput, match=r"own is .*; give explorer.OwnLaunch"):
            explorer.verify(f"{FILE}:online", cols=64, own=own)
    with pytest.raises(explorer.InvalidInput, match=r"args is .*; it must be text"):
        explorer.OwnLaunch(args={"a": 1})


ROW = """
#include <cmath>
__device__ void softmax(const float* x, float* y, int row, int cols) {
  x += row * cols, y += row * cols;
  float m = -INFINITY, s = 0;
  for (int i = 0; i < cols; i++) m = fmaxf(m, x[i]);
  for (int i = 0; i < cols; i++) s += expf(x[i] - m);
  for (int i = 0; i < cols; i++) y[i] = expf(x[i] - m) / s;
}
__global__ void k(const float* x, float* y, int rows, int cols) {
  BODY
}
int main() { k<<<GRID>>>(nullptr, nullptr, 256, 100); }
"""
THREAD = "int row = blockIdx.x * blockDim.x + threadIdx.x;"
GUARDED = f"{THREAD} if (row < rows) softmax(x, y, row, cols);"
STRIDING = f"""{THREAD}
  for (; row < rows; row += gridDim.x * blockDim.x) softmax(x, y, row, cols);"""
A_BLOCK = "int row = blockIdx.x; if (threadIdx.x == 0) softmax(x, y, row, cols);"


@pytest.mark.parametrize(
    ("body", "grid", "status"),
    [
        (GUARDED, "4, 64", "wrong"),  # no row from 256 on
        (GUARDED, "(256 + 63) / 64, 64", "verified"),
        (STRIDING, "4, 64", "verified"),
        (A_BLOCK, "256, 32", "verified"),
    ],
)
def test_a_grid_of_an_examples_rows_is_in_rows_and_another_is_taken_as_it_is(
    tmp_path, body, grid, status
):
    path = tmp_path / "k.cu"
    path.write_text(ROW.replace("BODY", body).replace("GRID", grid))
    assert explorer.verify(path, cols=16, rows=3000).status == status


def test_what_is_missing_is_asked_for():
    with pytest.raises(explorer.InvalidInput, match="give --cols 1000"):
        explorer.verify(FILE)
    with pytest.raises(explorer.InvalidInput, match="is no file"):
        explorer.profile("heuristic", cols=64, own=OWN)
