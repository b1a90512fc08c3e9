"""`explorer emit --for`: a program beside the file, or a sentence."""

import json

import pytest

EMIT = ("emit", '{"threads_per_row":64}', "--cols", "512", "--no-verify")
ENDINGS = {"torch": "_torch.py", "cupy": "_cupy.py", "jax": "_jax.py", "cpp": "_main.cu"}


@pytest.mark.parametrize("framework", ENDINGS)
def test_a_program_is_written_beside_the_file(explorer, tmp_path, framework):
    (tmp_path / "here").mkdir()
    ran = explorer(*EMIT, "--output", "here/k.cu", "--for", framework)
    path = f"here/k{ENDINGS[framework]}"
    assert ran.code == 0, ran.err
    assert ran.out == f"here/k.cu: written\n{path}: written\n"
    assert '"k.cu"' in (tmp_path / path).read_text()
    again = explorer(*EMIT, "--output", "here/k.cu", "--for", framework, "--json")
    program = json.loads(again.out)["program"]
    assert program == {"file": path, "written": "already there, unchanged"}


def test_without_it_there_is_none(explorer, tmp_path):
    ran = explorer(*EMIT, "--json")
    assert json.loads(ran.out)["program"] is None
    assert [path.suffix for path in (tmp_path / "generated").iterdir()] == [".cu"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--for", "numpy"), "for is 'numpy'; choose one of torch, cupy, jax, cpp"),
        (
            ("--for", "torch", "--output", "-"),
            "error: --for writes a program beside a file; name one",
        ),
        (("--for", "torch", "--output", "k.txt"), "output is 'k.txt'; name a FILE.cu"),
        (("--for", "cupy", "--dtype", "bf16"), "CuPy's own functions know no bf16"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(explorer, tmp_path, words, says):
    ran = explorer(*EMIT, *words)
    assert (ran.code, ran.out) == (2, "") and says in ran.err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_another_program_is_not_replaced_unless_forced(explorer, tmp_path):
    (tmp_path / "k_torch.py").write_text("mine = 1\n")
    words = (*EMIT, "--output", "k.cu", "--for", "torch")
    ran = explorer(*words)
    assert ran.code == 2 and "k_torch.py exists and holds another text" in ran.err
    assert not (tmp_path / "k.cu").exists()
    assert explorer(*words, "--force").out.endswith("k_torch.py: written over\n")
