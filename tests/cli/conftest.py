"""A folder with a recording of 60 kernels, made by hand, and a way to run commands in it."""

import hashlib
import pickle
import random
import shutil

import pytest
from by_hand import EXACT, GPU, KERNELS, PROBLEM, RECORDING, SEARCH
from command_line import command_line, keep_search, kept_search

from explorer import __version__
from explorer.codegen.units import emit
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.recording import (
    RecordedKernel,
    Recording,
    RecordingHeader,
    read_recording,
    write_recording,
)
from explorer.evaluate.space_version import space_version, template_version
from explorer.model.outcome import Environment, Measured, Rejected, Resources, Stage
from explorer.space import Space


@pytest.fixture
def explorer(tmp_path, monkeypatch):
    """Run `explorer ARGS` in a folder of its own."""
    return command_line(monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def one_verdict_a_kernel(once, request, monkeypatch):
    """In a quick run, emulate a kernel once: half of what these commands verify is the same again.

    A verdict is kept for this session, by all that it follows from. Exhaustive runs keep none.
    """
    if "not exhaustive" not in request.config.option.markexpr:
        return
    monkeypatch.setattr("explorer.evaluate.verify.SEEDS", 1)  # a fresh seed is another program
    emulate = Emulator.verify

    def verify(emulator, program, rows=None, then=(), told=None):
        environment = (emulator.arch, emulator._accuracy, emulator._step_limit)
        said = pickle.dumps((program, environment, rows))

        def fill(folder):
            verdict = emulate(emulator, program, rows, then, told)
            (folder / "verdict").write_bytes(pickle.dumps(verdict))

        folder = once(f"verdict-{hashlib.sha256(said).hexdigest()}", fill)
        return pickle.loads((folder / "verdict").read_bytes())

    monkeypatch.setattr(Emulator, "verify", verify)


def made_by_hand():
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


@pytest.fixture(scope="session")
def recorded(once):
    """Return a folder with the recording where commands look for it, made once in a session."""

    def fill(folder):
        kernels = made_by_hand()
        (folder / RECORDING).parent.mkdir(parents=True)
        write_recording(Recording("by-hand", header(len(kernels)), kernels), folder / RECORDING)

    return once("cli-recorded", fill)


@pytest.fixture(scope="session")
def kernels(recorded):
    """Return the recorded kernels."""
    return read_recording(recorded / RECORDING).kernels


def header(count):
    """Return what a recording says of itself."""
    environment = Environment(
        gpu=GPU.name,
        arch=GPU.arch,
        driver="570.86",
        nvrtc="13.0",
        timing="cold",
        date="2026-03-04T05:06:07+00:00",
        space_version=space_version(PROBLEM),
        template_digest=template_version(PROBLEM),
        explorer=__version__,
        limit_us=1.9,
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        peak_gbps=GPU.peak_gbps,
    )
    return RecordingHeader(PROBLEM, GPU, environment, "60 kernels made by hand", count)


@pytest.fixture
def recording(explorer, recorded, tmp_path):
    """Return the path of the recording, where commands look for it."""
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    return tmp_path / RECORDING


@pytest.fixture(scope="session")
def searched_once(once, recorded):
    """Make a folder with the recording, and a study of all that a search of 200 trials finds."""

    def fill(folder):
        shutil.copytree(recorded, folder, dirs_exist_ok=True)
        keep_search(folder, SEARCH)

    return once("cli-searched", fill)


@pytest.fixture
def searched(explorer, searched_once, tmp_path):
    """Return what the search printed; its study lies where commands look for it."""
    shutil.copytree(searched_once, tmp_path, dirs_exist_ok=True)
    return kept_search(tmp_path)
