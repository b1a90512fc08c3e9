"""The record of the GPU tests: a run replaces an earlier one, or adds what had not passed in it."""

from dataclasses import replace

import gpu_suite
import pytest
from gpu_suite import RECORD, SuiteRun, code_digest, read_runs, sentence, write_run

FULL = SuiteRun(
    gpu="A GPU",
    date="2026-01-01T00:00:00+00:00",
    driver="1",
    nvrtc="2",
    code="abc",
    passed=7,
    failed=("a", "b"),
    skipped={"no ncu": 1},
    seconds=100.0,
    workers=16,
    not_run=("c",),
    figures={"same": 5},
)
LATER = replace(FULL, date="2026-01-02T00:00:00+00:00", passed=2, failed=(), not_run=(), skipped={})
ALL = frozenset("abcdefghij")


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "gpu-suite.json"
    write_run(path, FULL, ALL)
    return path


def test_what_is_read_is_what_was_written(record):
    assert read_runs(record) == (FULL,)


def test_tests_that_had_not_passed_are_added(record):
    write_run(record, LATER, frozenset("ac"))
    (run,) = read_runs(record)
    assert (run.passed, run.passed_later, run.failed, run.not_run) == (9, 2, ("b",), ())
    assert (run.seconds, run.skipped, run.date) == (100.0, {"no ncu": 1}, LATER.date)
    assert run.figures == {"same": 10}
    assert "9 passed, 2 of them in a later run, 1 failed, the code has changed" in sentence((run,))


def test_a_test_that_fails_again_is_still_there(record):
    write_run(record, replace(LATER, passed=0, failed=("a",)), frozenset("a"))
    (run,) = read_runs(record)
    assert (run.passed, run.passed_later, run.failed) == (7, 0, ("a", "b"))


@pytest.mark.parametrize(
    ("run", "chosen"),
    [(LATER, ALL), (LATER, frozenset("ad")), (replace(LATER, code="other"), frozenset("a"))],
    ids=["all tests", "one that had passed", "other code"],
)
def test_any_other_run_replaces_the_earlier_one(record, run, chosen):
    write_run(record, run, chosen)
    assert read_runs(record) == (run,)


def test_each_gpu_has_its_own(record):
    write_run(record, replace(LATER, gpu="Another"), frozenset("a"))
    assert [run.gpu for run in read_runs(record)] == ["A GPU", "Another"]


def test_there_is_a_record():
    assert read_runs(RECORD) and not read_runs(RECORD.with_name("no such file"))


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """The digest of a folder of templates and a package that is one file."""
    monkeypatch.setattr(gpu_suite, "PACKAGE", tmp_path)
    monkeypatch.setattr(gpu_suite, "template_dir", lambda: tmp_path / "templates")
    monkeypatch.setattr(gpu_suite, "TESTED", ("code",))
    for name in ("templates", "code"):
        (tmp_path / name).mkdir()

    def of(name, text):
        (tmp_path / name).write_text(text)
        found = code_digest.__wrapped__()
        (tmp_path / name).unlink()
        return found

    return of


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        (
            "code/a.py",
            ["x = 1\n", "# why\nx = 1  # and how\n", '"""What.\n\nAnd why."""  # so\n\nx = 1\n'],
        ),
        ("code/a.cu", ["int x;\n", "// why\nint x;  // and how\n", "\n\nint x;\n"]),
        ("templates/a.j2", ["{{ x }}\n", "{# why\n   so #}\n{{ x }}\n", "{{ x }}{# how #}\n"]),
    ],
)
def test_comments_are_not_in_the_digest_of_the_code(digest, name, texts):
    assert len({digest(name, text) for text in texts}) == 1


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("code/a.py", ["x = 1\n", "x = 2\n", "x = '# 1'\n", "x = '# 2'\n", "if y:\n    x = 1\n"]),
        (
            "code/a.py",
            ["def f(x): ...\n", "def f(y): ...\n", "def f(y): 1\n", "def f(y):\n    ...\n"],
        ),
        ("code/a.py", ["class A: 'x'\n", "class A: 'y'\n", "f(\n    'x'\n)\n", "f(\n    'y'\n)\n"]),
        ("code/a.cu", ["int x;\n", "int y;\n", "int x; int y;\n"]),
        ("templates/a.j2", ["{{ x // 2 }}\n", "{{ x // 3 }}\n", "// x\n", "// y\n"]),
    ],
)
def test_all_else_is_in_it(digest, name, texts):
    assert len({digest(name, text) for text in texts}) == len(texts)
