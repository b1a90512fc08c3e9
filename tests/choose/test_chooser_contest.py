"""The contest of two choosers, as far as it needs no GPU: problems, choices and figures."""

import subprocess
import sys

import pytest

from explorer.choose import config_for
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask
from tests.chooser_contest import (
    LEAST_BYTES,
    MOST_BYTES,
    ROOT,
    Timed,
    accepted,
    checkout_of,
    choices,
    drawn,
    kind_of,
    report,
    summary,
)

H200 = known_gpu("NVIDIA H200")


def timed(ratio: float) -> Timed:
    return Timed("softmax f32 short", "softmax f32 8x8", 10, 10 * ratio, "{}", "{}", "{}")


def test_one_problem_in_five_has_a_particular():
    problems = drawn(1000, seed=3)
    particular = [one for one in problems if "," in kind_of(one)]
    assert 150 <= len(particular) <= 270
    assert {one.mask for one in problems} == set(Mask)
    assert any(one.inner > 1 for one in problems)
    assert any(one.input_stride > one.cols for one in problems)
    assert all(LEAST_BYTES < one.bytes < MOST_BYTES for one in problems)
    assert problems == drawn(1000, seed=3) != drawn(1000, seed=4)


def test_problems_that_agree_count_in_the_mean():
    figures = summary([timed(1.21), timed(1.0)], 4)
    assert figures["mean"] == pytest.approx(1.21**0.25)
    assert figures["slower"] == 0.25
    assert figures["faster"] == 0
    assert summary([timed(0.9)], 10)["faster"] == 0.1


def test_a_chooser_is_accepted_that_loses_little_on_few_problems():
    assert accepted(summary([timed(1.09)], 100))
    assert not accepted(summary([timed(1.2)], 100))
    assert not accepted(summary([timed(1.06), timed(1.06), timed(0.8)], 100))  # the mean gains
    assert "accepted" in next(report([timed(1.09)], 100))
    assert "refused" in next(report([timed(1.2)], 100))
    assert next(report([], 100)).startswith("0 of 100 problems differ: new over old +0.000%")


def test_a_checkout_chooses_in_a_process_of_its_own():
    problems = drawn(12, seed=1)
    assert choices(ROOT, problems, H200) == [config_for(one, H200) for one in problems]


def test_an_older_explorer_is_a_folder_or_a_commit(tmp_path):
    (tmp_path / "explorer").mkdir()
    assert checkout_of(str(tmp_path), tmp_path / "other") == tmp_path
    with pytest.raises(SystemExit, match="no folder with an explorer, and no commit"):
        checkout_of("no-such-commit", tmp_path / "other")


def test_the_command_says_what_it_takes():
    command = [sys.executable, "-m", "tests.chooser_contest", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0
    assert "--seconds" in done.stdout
