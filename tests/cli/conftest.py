"""A folder with a recording of 60 kernels, made by hand, and a way to run commands in it."""

import random
from dataclasses import dataclass

import pytest
from by_hand import EXACT, GPU, KERNELS, PROBLEM
from typer.testing import CliRunner

from explorer import __version__
from explorer.circumstances import Circumstances
from explorer.cli import app
from explorer.codegen import emit, template_digest
from explorer.devices.recorded.recording import RecordedKernel, Recording, RecordingHeader
from explorer.devices.recorded.recording_file import write_recording
from explorer.evaluate.space_version import space_version
from explorer.outcome import Measured, Rejected, Resources, Stage
from explorer.space import Space


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def explorer(tmp_path, monkeypatch):
    """Run `explorer ARGS` in a folder of its own, with no driver whatever this machine has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    without = "no NVIDIA driver (libcuda.so.1 is not found)"
    for name in ("driver.driver_problem", "supervisor.driver_problem", "driver_problem"):
        monkeypatch.setattr(f"explorer.devices.cuda.{name}", lambda: without)
    monkeypatch.setattr("explorer.evaluate.open_evaluator.driver_problem", lambda: without)

    def run(*args):
        result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="explorer")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def kernels():
    """Sixty kernels: the further from a warp a row, the slower; every seventh does not verify."""
    rng = random.Random(5)
    space = Space(PROBLEM, GPU, EXACT)
    found = {}
    while len(found) < KERNELS:
        config = space.sample(rng)
        digest = emit(PROBLEM, config).digest
        time_us = 2.0 + abs(config.threads_per_row - 32) / 100 + rng.random() / 10
        samples = tuple(time_us * (1 + rng.gauss(0, 0.002)) for _ in range(20))
        outcome = Measured(samples, 1e-7, Resources(registers=32, code_bytes=1000), digest)
        if len(found) % 7 == 6:
            outcome = Rejected(Stage.VERIFY, "relative error 0.5 exceeds 4e-06")
        found.setdefault(digest, RecordedKernel(config, digest, outcome))
    return tuple(found.values())


@pytest.fixture
def recording(explorer, tmp_path, kernels):
    """The path of the recording, where commands look for it."""
    circumstances = Circumstances(
        gpu=GPU.name,
        arch=GPU.arch,
        driver="570.86",
        nvrtc="13.0",
        timing="cold",
        date="2026-03-04T05:06:07+00:00",
        space_version=space_version(),
        template_digest=template_digest(),
        explorer=__version__,
        copy_us=1.9,
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        peak_gbps=GPU.peak_gbps,
    )
    header = RecordingHeader(PROBLEM, GPU, circumstances, "60 kernels made by hand", len(kernels))
    path = tmp_path / "studies" / "recorded" / "by-hand.json.gz"
    write_recording(Recording("by-hand", header, kernels), path)
    return path
