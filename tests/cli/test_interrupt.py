"""Ctrl-C, sent to a process that searches."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from by_hand import SHAPE

ROOT = Path(__file__).resolve().parents[2]

SLOW_SEARCH = """
import signal, sys, time
import explorer.devices.names
from explorer.cli import main
from explorer.evaluate.device_evaluator import DeviceEvaluator

fast = DeviceEvaluator.evaluate
def slow(self, config):
    time.sleep(0.05)
    return fast(self, config)
DeviceEvaluator.evaluate = slow
explorer.devices.names.driver_problem = lambda: "no driver"
sys.argv[0] = "explorer"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
main()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("again", "sent"),
    [
        (("--trials", "5"), signal.SIGTERM),
        (("--trials", "5"), signal.SIGINT),
        pytest.param((), signal.SIGINT, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="signals of a terminal")
def test_ctrl_c_and_sigterm_keep_finished_trials_and_leave_none_running(
    recording, tmp_path, explorer, again, sent
):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_SEARCH, "search", *SHAPE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while "kernels" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(sent)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and out == ""
    (kept,) = re.findall(
        r"^stopped; (\d+) trials? (?:is|are) kept; run the same command again to go on$",
        err,
        re.MULTILINE,
    )
    assert "Traceback" not in err
    (study,) = optuna.get_all_study_summaries("sqlite:///studies/explorer.db")
    trials = optuna.load_study(
        study_name=study.study_name, storage="sqlite:///studies/explorer.db"
    ).trials
    assert len(trials) == int(kept) and all(trial.state.is_finished() for trial in trials)
    assert explorer("search", *SHAPE, *again).code == 0
