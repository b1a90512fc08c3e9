"""What every test shares: which are quick, where kernels are kept, the record of the GPU tests."""

import fcntl
import gc
import itertools
import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from gpu_suite import RECORD, SuiteRun, code_digest, read_runs, sentence, write_run

KERNELS = "EXPLORER_CACHE_DIR"
NO_BYTECODE, BYTECODE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"

_NUMBERS = (f"{os.getpid()}-{number}" for number in itertools.count())
"""One for each test of all processes of a session."""


def pytest_addoption(parser):
    parser.addoption(
        "--record",
        action="store_true",
        help="with -m gpu: put what the GPU tests came to into studies/results/gpu-suite.json",
    )


def pytest_report_header(config):
    """Return a line on whether the GPU tests were run on today's code."""
    return f"GPU tests: {sentence(read_runs(RECORD))}"


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # the process that collects all results
        config.pluginmanager.register(Recorder(config), "gpu-suite-recorder")
        keep_kernels_of_this_session(config)
        keep_bytecode_of_this_session(config)
        share_out(config)
        set_up_workers(config)


def share_out(config):
    """Choose how xdist gives tests to workers, where the command does not.

    Neighbours share what their module has made, so that a worker gets a stretch of the list. GPU
    tests are given out one by one in their order: those that want the GPU alone are last, and would
    make all others wait for them again and again if a worker began with them.
    """
    if config.getoption("dist", "no") != "load":
        return
    if "gpu" in config.option.markexpr.replace("not gpu", ""):
        config.option.maxschedchunk = 1
    else:
        config.option.dist = "worksteal"


def keep_kernels_of_this_session(config):
    """Keep compiled kernels in a folder that is empty at the start of the session.

    The workers of xdist inherit the variable, so that a kernel is compiled once for all of them,
    and no test depends on what the user's own cache holds.
    """
    before, folder = os.environ.get(KERNELS), tempfile.mkdtemp(prefix="explorer-kernels-")
    os.environ[KERNELS] = folder

    def restore():
        os.environ.pop(KERNELS)
        if before is not None:
            os.environ[KERNELS] = before
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(restore)


def keep_bytecode_of_this_session(config):
    """Where Python is told to write no bytecode, keep that of this session in its folder.

    Tests start hundreds of processes. Without bytecode each compiles all modules that it imports
    anew: twenty commands in an environment of its own took 40 s instead of 16 s.
    """
    before = os.environ.pop(NO_BYTECODE, None)
    if before is None or BYTECODE in os.environ:
        return
    os.environ[BYTECODE] = f"{os.environ[KERNELS]}/bytecode"

    def restore():
        os.environ[NO_BYTECODE] = before
        os.environ.pop(BYTECODE)

    config.add_cleanup(restore)


OF_WORKERS = {
    "OMP_NUM_THREADS": 1,
    "MALLOC_MMAP_THRESHOLD_": 2**31 - 1,
    "MALLOC_TRIM_THRESHOLD_": 2**31 - 1,
}
"""Variables of xdist's workers, unless the user has set them.

Their libraries compute in one thread, since the workers fill all cores. PyTorch's threads wait for
each other by spinning: 381 tests took 116 s of CPU time instead of 96 s.

The last two are glibc's. A worker keeps the memory that it has freed for the next arrays. The
emulator makes thousands of arrays of a megabyte and more: the system took 34 s to map and clear
their memory in two files of tests, and takes 11 s with memory kept.
"""


def set_up_workers(config):
    """Set the variables that the workers of xdist inherit when they start."""
    if config.getoption("dist", "no") == "no":
        return
    for name, value in OF_WORKERS.items():
        if name not in os.environ:
            os.environ[name] = str(value)
            config.add_cleanup(lambda name=name: os.environ.pop(name, None))


@pytest.fixture
def is_read(monkeypatch):
    """Make reading the limit of every problem."""
    from explorer.model.problem import Problem
    from explorer.ops import Limit

    monkeypatch.setattr(Problem, "limit", Limit.READ)


@pytest.fixture(autouse=True)
def own_data_folder(monkeypatch):
    """Let each test keep studies in a data folder of its own, not in the user's."""
    monkeypatch.setenv("XDG_DATA_HOME", f"{os.environ[KERNELS]}/data-{next(_NUMBERS)}")
    monkeypatch.delenv("EXPLORER_STORAGE", raising=False)


@pytest.fixture(autouse=True)
def no_share_of_the_cores(monkeypatch):
    """Let tests say how many cores there are, whatever the container that they run in may use."""
    monkeypatch.setattr("explorer.system.processes.QUOTA", Path("/no/such/file"))


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Return a function that has a folder filled once in a session, by the first worker to ask.

    `once(name, fill)` calls `fill(folder)` under a lock if nobody has yet, and returns the folder.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def folder_of(name, fill):
        folder, finished = shared / name, shared / f"{name}.finished"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not finished.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed at it
                folder.mkdir()
                fill(folder)
                finished.touch()
        return folder

    return folder_of


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as exhaustive the parameters that `sampled` leaves out of the quick tests.

    A test's parameters are quick where their places in the lists that they are from add up to a
    multiple of `every`. Of two lists that are multiplied these are diagonals of the table: each
    value of one list is met if the other is as long as `every`.
    """
    places = {}
    for item in items:
        for mark in item.iter_markers("sampled"):
            (every,) = mark.args
            if sum(places_of(item, places)) % every:
                item.add_marker(pytest.mark.exhaustive)


def pytest_collection_finish():
    """Keep the garbage collector from what was collected: thousands of tests, and their modules.

    All of that lives until the end. To walk through it again and again took a tenth of the time; to
    look for garbage every 700 objects, which the emulator makes in a millisecond, took 7 %.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)


def places_of(item, places):
    """For each list of parameters, how many other values of it have come before this item's."""
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.replace(" ", "").split(",") if isinstance(names, str) else names
        values = tuple(id(item.callspec.params[name]) for name in names)
        known = places.setdefault((item.path, item.originalname, *names), {})
        yield known.setdefault(values, len(known))


class Recorder:
    """Counts what became of GPU tests, and their figures, in all worker processes."""

    def __init__(self, config):
        self.config = config
        self.outcomes = defaultdict(set)
        self.skipped = Counter()
        self.figures = Counter()
        self.facts = {}
        self.chosen = frozenset()
        self.started = time.monotonic()

    def pytest_collection_finish(self, session):
        self.chosen = frozenset(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        self.chosen = frozenset(ids)

    def pytest_runtest_logreport(self, report):
        if "gpu" not in report.keywords:
            return
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self.outcomes[report.outcome].add(report.nodeid)
        elif report.when == "teardown" and report.failed:
            self.outcomes["failed"].add(report.nodeid)
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self.skipped[str(reason).removeprefix("Skipped: ")] += 1
        if report.when == "call":
            for name, value in report.user_properties:
                if name.startswith("gpu."):
                    self.facts[name.removeprefix("gpu.")] = value
                elif name.startswith("figure.") and report.passed:
                    self.figures[name.removeprefix("figure.")] += value

    def pytest_sessionfinish(self, session):
        if not self.config.getoption("--record"):
            return
        if not self.outcomes["passed"] or "name" not in self.facts:
            raise pytest.UsageError("--record: no GPU test was run; run pytest -m gpu on a GPU")
        workers = self.config.getoption("numprocesses", None) or 1
        failed = self.outcomes["failed"]
        ended = set().union(*self.outcomes.values())
        run = SuiteRun(
            gpu=self.facts["name"],
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            driver=self.facts["driver"],
            nvrtc=self.facts["nvrtc"],
            code=code_digest(),
            passed=len(self.outcomes["passed"] - failed),
            failed=tuple(sorted(failed)),
            skipped=dict(sorted(self.skipped.items())),
            seconds=round(time.monotonic() - self.started, 1),
            workers=os.cpu_count() if workers in ("auto", "logical") else int(workers),
            not_run=tuple(sorted(self.chosen - ended)),
            figures=dict(sorted(self.figures.items())),
        )
        write_run(RECORD, run, self.chosen)
        from documents import write_generated

        write_generated()
