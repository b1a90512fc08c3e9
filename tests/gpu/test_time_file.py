"""`explorer time` on a GPU: a file's time is that of its trial, and a wrong one has none."""

import json

import pytest
from typer.testing import CliRunner

from explorer.cli import app
from explorer.codegen.units import emit
from explorer.devices.cuda.device import CudaDevice
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.config import Config
from explorer.model.problem import Problem

CONFIG = Config(static_cols=False, cache="none", cache_holds="input")
PROBLEM = Problem(8192, 4096)


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "mine.cu"
    made.write_text(emit(PROBLEM, CONFIG).source)
    return made


def timed(path, *words):
    ran = CliRunner().invoke(app, ["time", str(path), "--json", *words])
    return ran.exit_code, json.loads(ran.stdout)


@pytest.mark.alone
def test_a_files_time_is_its_trials(path):
    code, data = timed(path)
    with DeviceEvaluator(PROBLEM, CudaDevice(0)) as live:
        trial = live.evaluate(CONFIG)
    assert code == 0 and data["verification"]["status"] == "verified"
    assert data["time_us"] == pytest.approx(trial.time_us, rel=0.05)
    assert 0 < data["of_limit"] < 1.1 and data["circumstances"]["limit_us"] == data["limit_us"]
    assert data["gbps"] == pytest.approx(PROBLEM.gbps(data["time_us"]))


@pytest.mark.alone
def test_an_edited_file_is_timed_at_other_rows_and_columns(path):
    path.write_text(path.read_text().replace("kUnroll = 1;", "kUnroll = 2;"))
    code, data = timed(path, "--rows", "100", "--cols", "1000", "--timing", "warm")
    assert code == 0 and data["is_edited"] and data["time_us"] > 0
    assert (data["problem"]["rows"], data["problem"]["cols"]) == (100, 1000)
    assert data["circumstances"]["timing"] == "warm"


def test_a_wrong_file_is_not_timed(path):
    source = path.read_text()
    path.write_text(source.replace("1.0f / ", "1.001f / "))
    assert path.read_text() != source
    code, data = timed(path)
    assert code == 1 and data["verification"]["status"] in ("wrong", "inaccurate")
    assert data["time_us"] is None


def test_a_file_that_does_not_compile_is_not_timed(path):
    path.write_text(path.read_text().replace("threadIdx.x", "nought"))
    code, data = timed(path)
    assert code == 2 and "does not compile" in data["verification"]["sentence"]
