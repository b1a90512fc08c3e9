"""Tests on a GPU: skipped, with the reason, where there is none; side by side, but for timings.

`pytest -m gpu` runs a sample of some minutes, and `pytest -m exhaustive tests/gpu` all the rest.
"""

import fcntl
import os
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from explorer.compile.compiler import nvrtc_version
from explorer.devices.cuda.device import CudaDevice
from explorer.devices.cuda.program import driver_problem

FOLDER = Path(__file__).parent

# Otherwise PyTorch's compiler starts a process for each core, in each worker of xdist that compiles
# anything by it. With 1 it compiles in the worker's own process.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

LOCK = Path(tempfile.gettempdir()) / f"softmax-explorer-gpu-{os.getuid()}.lock"
"""Held by every GPU test of this user's, in whatever process."""


def pytest_collection_modifyitems(items):
    problem = driver_problem()
    for item in items:
        if FOLDER in item.path.parents:
            if item.get_closest_marker("exhaustive") is None:
                item.add_marker(pytest.mark.gpu)
            if problem is not None:
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {problem}"))
    items.sort(key=turn)


LONGEST = ("test_documents_on_gpu.py", "test_peers.py")
"""Files of tests that take one to three minutes beside others, for what they wait for: commands
that time kernels, and frameworks that compile. All others take up to one."""


def turn(item):
    """By which tests are sorted: the longest first, so that nobody waits for them in the end.

    Those that want the GPU alone are last, when no other test is there to wait for.
    """
    return item.get_closest_marker("alone") is not None, item.path.name not in LONGEST


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """The GPU is shared with other tests; a test marked `alone` has it for itself.

    Tests that are timed, or take most of the memory, would be disturbed by others.
    """
    if driver_problem() is not None:
        return (yield)
    with held(LOCK, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def held(path, *, alone):
    """A lock between processes. Who wants the GPU alone keeps others from coming in meanwhile."""
    with path.open("a") as lock, path.with_suffix(".queue").open("a") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield


@pytest.fixture(scope="session")
def device():
    """The process that works on the GPU, one for all problems: to start one takes seconds.

    What it verifies may share the GPU with other tests.
    """
    with CudaDevice(0, kernel_limit_s=30, takes_turns=False) as opened:
        yield opened


@pytest.fixture(autouse=True)
def recorded_facts(record_property):
    """The GPU's name, driver and compiler, for the record."""
    if driver_problem() is None:
        name, driver = _gpu()
        record_property("gpu.name", name)
        record_property("gpu.driver", driver)
        record_property("gpu.nvrtc", nvrtc_version())


@cache
def _gpu():
    """Name and driver version, by NVIDIA's tool: without a context in this process."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    name, driver = told.strip().split(", ")
    return name, driver
