"""What `explorer doctor` says of the residency of tuned kernels."""

from io import StringIO

import pytest
from rich.console import Console
from tables_of_one import OTHER, table_of_one

from explorer.model.gpu_spec import known_gpu
from explorer.model.tuned_table import tables_of
from explorer.report.machine import MOST_COMPILED, _sampled, checks, print_machine

H200 = known_gpu("NVIDIA H200")


@pytest.fixture
def residency(monkeypatch):
    """Return what is found where these are the tuned tables of a GPU."""

    def found(*tables):
        name, there = "explorer.report.machine.tables_of", {H200.name: [*tables]}
        monkeypatch.setattr(name, lambda gpu: there.get(gpu.name, []))
        monkeypatch.setattr("explorer.report.machine.list_recordings", list)  # read for 1 s
        (check,) = [check for check in checks() if check.name == "residency"]
        assert not check.required
        return check

    return found


def test_it_says_that_tuned_kernels_have_the_residency_they_were_measured_with(residency, tmp_path):
    check = residency(table_of_one(tmp_path / "mine.json", registers=32))
    assert check.ok
    said = "1 of 1 kernel of tuned table mine have the residency that they were measured with"
    assert check.detail.startswith("with NVRTC ") and check.detail.endswith(f", {said}")


def test_it_says_which_kernels_have_another_and_what_to_do(residency, tmp_path):
    check = residency(table_of_one(tmp_path / "mine.json", registers=40))
    assert not check.ok and check.detail.endswith(OTHER)
    name = "softmax bf16 7000x5120"
    said = f"they were measured with, but not {name}. Of {name}: NVRTC "
    assert ", 0 of 1 kernel of tuned table mine have" in check.detail and said in check.detail
    stream = StringIO()
    print_machine([check], Console(file=stream, width=200))
    assert stream.getvalue().splitlines()[1].split()[:2] == ["differs", "residency"]


def test_registers_within_the_same_eight_are_no_difference(residency, tmp_path):
    assert residency(table_of_one(tmp_path / "mine.json", registers=25)).ok


def test_another_gpu_without_a_table_has_the_default_gpus(residency, tmp_path, monkeypatch):
    monkeypatch.setattr("explorer.report.machine.gpu_limits", lambda _: known_gpu("Tesla T4"))
    assert "1 kernel" in residency(table_of_one(tmp_path / "mine.json", registers=32)).detail


def test_nothing_is_compared_where_no_table_is_of_this_version(residency, tmp_path):
    check = residency()
    assert check.ok and check.detail == "nothing to compare: there is no tuned table"
    path = table_of_one(tmp_path / "older.json", 32, template_digest="0123456789ab")
    check = residency(path)
    assert check.ok and "tuned table older is of another version" in check.detail
    assert residency(table_of_one(tmp_path / "bare.json", 0)).ok


def test_a_damaged_table_is_said(residency, tmp_path):
    path = tmp_path / "damaged.json"
    path.write_text("{}")
    check = residency(path)
    assert not check.ok and "damaged.json" in check.detail


def test_the_sample_has_every_op_and_more_than_one_type():
    table = tables_of(H200)[0]
    sample = _sampled(table, H200)
    assert sample == _sampled(table, H200) and len(sample) == MOST_COMPILED
    assert len({problem.op for problem, _ in sample}) == 5
    assert len({(problem.op, problem.dtype) for problem, _ in sample}) >= 8
