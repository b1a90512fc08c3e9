"""Options of all tests: the record of the GPU tests."""

import os
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from explorer.evaluate.gpu_suite import (
    SuiteRun,
    code_digest,
    read_runs,
    record_path,
    sentence,
    write_run,
)


def pytest_addoption(parser):
    parser.addoption(
        "--record",
        action="store_true",
        help="with -m gpu: put what the GPU tests came to into studies/results/gpu-suite.json",
    )


def pytest_report_header(config):
    """A line on whether the GPU tests were run on today's code."""
    path = record_path()
    return [] if path is None else f"GPU tests: {sentence(read_runs(path))}"


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # the process that collects all results
        config.pluginmanager.register(Recorder(config), "gpu-suite-recorder")


class Recorder:
    """Counts what became of GPU tests, and their figures, in all worker processes."""

    def __init__(self, config):
        self.config = config
        self.outcomes = Counter()
        self.skipped = Counter()
        self.figures = Counter()
        self.facts = {}
        self.started = time.monotonic()

    def pytest_runtest_logreport(self, report):
        if "gpu" not in report.keywords:
            return
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self.outcomes[report.outcome] += 1
        elif report.when == "teardown" and report.failed:
            self.outcomes["failed"] += 1
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self.skipped[str(reason).removeprefix("Skipped: ")] += 1
        if report.when == "call":
            for name, value in report.user_properties:
                if name.startswith("gpu."):
                    self.facts[name.removeprefix("gpu.")] = value
                elif name.startswith("figure."):
                    self.figures[name.removeprefix("figure.")] += value

    def pytest_sessionfinish(self, session):
        if not self.config.getoption("--record"):
            return
        path = record_path()
        if path is None or not self.outcomes["passed"] or "name" not in self.facts:
            raise pytest.UsageError("--record: no GPU test was run; run pytest -m gpu on a GPU")
        workers = self.config.getoption("numprocesses", None) or 1
        run = SuiteRun(
            gpu=self.facts["name"],
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            driver=self.facts["driver"],
            nvrtc=self.facts["nvrtc"],
            code=code_digest(),
            passed=self.outcomes["passed"],
            failed=self.outcomes["failed"],
            skipped=dict(sorted(self.skipped.items())),
            seconds=round(time.monotonic() - self.started, 1),
            workers=os.cpu_count() if workers in ("auto", "logical") else int(workers),
            figures=dict(sorted(self.figures.items())),
        )
        write_run(path, run)
