"""A Dask scheduler and its workers, each a process of its own, as the guide has them started."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from explorer.tuning.cluster import ALLOWED_FAILURES, WORKER_TTL_S

SCHEDULER = "DASK_DISTRIBUTED__SCHEDULER__"


class Processes:
    """Ends all of them at the end; use as a context manager."""

    def __init__(
        self, folder: Path, mean_s: float = 0.0, more: Mapping[str, str] | None = None
    ) -> None:
        self.file = folder / "scheduler.json"
        self._folder = folder
        self._all: list[subprocess.Popen[str]] = []
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            f"{SCHEDULER}WORKER_TTL": f"{WORKER_TTL_S}s",
            f"{SCHEDULER}ALLOWED_FAILURES": str(ALLOWED_FAILURES),
            "MEAN_S": str(mean_s),
            **(more or {}),
        }

    def scheduler(self, *more: str) -> subprocess.Popen[str]:
        self.file.unlink(missing_ok=True)
        place = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        place += ("--scheduler-file", str(self.file))
        started = self._started("dask", "scheduler", *place, *more)
        wait_until(self.file.is_file)
        return started

    def worker(
        self, *more: str, gpus: int = 1, threads: int = 2, preload: str = "slow_worker"
    ) -> subprocess.Popen[str]:
        how = ("--no-nanny", "--no-dashboard", "--nthreads", str(threads), "--preload", preload)
        has = ("--resources", f"GPU={gpus}") if gpus else ()
        return self._started(
            "dask", "worker", "--scheduler-file", str(self.file), *how, *has, *more
        )

    def explorer(self, *words: str, at: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Run a command on the cluster, or on what `at` says instead."""
        return self._started("explorer", *words, *(at or ("--cluster", str(self.file))))

    def _started(self, *words: str) -> subprocess.Popen[str]:
        output = self._folder / f"{len(self._all)}.log"
        with output.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # as a terminal has it
            )
        process.log = output
        self._all.append(process)
        return process

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
        for process in self._all:
            process.wait()


def wait_until(holds, limit_s=30.0):
    """Wait until `holds()` is true, and return that."""
    deadline = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found
