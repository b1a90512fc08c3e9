"""What several GPUs of one host gain: lists of problems, one long search, and a worker that dies.

    python -m tests.several_gpus [--gpus N] [--output OUT.json]

Each GPU has a worker, with its share of the cores. There are five runs: a third of the problems on
one GPU, all of them on all GPUs, a list of problems during which a worker is killed, and the same
search on one GPU and on all. The figures of each run are written when it ends, so that a later run
that takes too long costs none of them.
`--preload fake_gpu` has the workers pretend to have a GPU, which says only that the script runs.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from signal import SIGKILL

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "tuning")]

from dask_processes import Processes, wait_until  # noqa: E402
from databases import digests, trials_of  # noqa: E402

from explorer.devices.names import gpus_here  # noqa: E402
from explorer.model.tuned_table import read_table  # noqa: E402
from tests.cluster_scale import cpu_of  # noqa: E402

COLS = tuple(round(64 * 2 ** (step / 4)) for step in range(48))
"""With two types these make 96 problems, from 64 to 220 thousand columns."""

TYPES = ("f32", "bf16")
ON_ONE = 3
"""One GPU has every third problem, since ten minutes are too few for all of them on it."""

TRIALS = 2000
LOST_WITHIN_S = 10.0


class Host:
    """Runs commands on some of the GPUs of this host, each time by new workers."""

    def __init__(self, folder, gpus, preload):
        self.folder, self.gpus = folder, gpus
        self._preload = preload
        self._threads = max(1, (os.cpu_count() or 1) // gpus)

    def up(self, gpus, name):
        """Return processes with a worker for each of so many GPUs; use as a context manager."""
        folder = self.folder / name
        folder.mkdir()
        cache = {"EXPLORER_CACHE_DIR": str(folder / "cache")}
        return _Up(folder, cache, gpus, self._threads, self._preload)

    def run(self, gpus, name, *words):
        """Run a command; return the seconds that it took, and those of its process's CPU."""
        with self.up(gpus, name) as up:
            began, cpu_s = time.monotonic(), 0.0
            asked = up.explorer(*words)
            while asked.poll() is None:
                cpu_s = max(cpu_s, cpu_of(asked.pid))
                time.sleep(0.1)
            text = asked.log.read_text()
            assert asked.returncode == 0, text
            return time.monotonic() - began, cpu_s, text


class _Up(Processes):
    def __init__(self, folder, cache, gpus, threads, preload):
        super().__init__(folder, more=cache)
        self._gpus, self._threads, self._preload = gpus, threads, preload

    def __enter__(self):
        self.scheduler()
        self.workers = []
        for gpu in range(self._gpus):
            self._environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
            self.workers.append(self.worker(threads=self._threads, preload=self._preload))
        return self


# ------------------------------------------------------------------ the runs


def tuned(host, gpus, cols, name):
    """Tune a list of problems; return what that took, and the table."""
    table = host.folder / f"{name}.json"
    words = ("tune", "--cols", ",".join(map(str, cols)), "--dtype", ",".join(TYPES))
    words += ("--effort", "quick", "--no-torch", "--output", str(table))
    seconds, cpu_s, _ = host.run(gpus, name, *words)
    problems = len(read_table(table).problems)
    assert problems == len(cols) * len(TYPES)
    told = {"gpus": gpus, "problems": problems, "seconds": round(seconds, 1)}
    told |= {"an_hour": round(3600 * problems / seconds), "coordinator_s": round(cpu_s, 1)}
    return told, table


def apart(one, all_):
    """How far the winner's time, over the limit's, is from that of the table of one GPU."""
    others = {known.problem: known for known in read_table(all_).problems}
    ratios = []
    for known in read_table(one).problems:
        there = others[known.problem]
        ours, theirs = (k.best.time_us / k.environment.limit_us for k in (known, there))
        ratios.append(round(theirs / ours, 4))
    within = sum(abs(ratio - 1) <= 0.01 for ratio in ratios)
    median = round(statistics.median(ratios), 4)
    return {"problems": len(ratios), "within_1_percent": within, "median": median, "all": ratios}


def searched(host, gpus, trials):
    """Search one problem; return what that took from the first trial to the last."""
    name = f"search-{gpus}"
    url = str(host.folder / f"{name}.db")
    words = ("search", "--cols", "4096", "--dtype", "bf16", "--trials", str(trials))
    seconds, cpu_s, text = host.run(gpus, name, *words, "--storage", url)
    kept = [trial for trial in trials_of(url) if trial.user_attrs["digest"]]
    found = digests(kept)
    first, last = min(t.datetime_start for t in kept), max(t.datetime_complete for t in kept)
    return {
        "gpus": gpus,
        "trials": len(kept),
        "duplicates": len(found) - len(set(found)),
        "seconds": round(seconds, 1),
        "first_to_last_s": round((last - first).total_seconds(), 1),
        "coordinator_ms_a_trial": round(1000 * cpu_s / len(kept), 2),
        "best_us": min(trial.value for trial in kept if trial.value is not None),
        "said": [line.strip() for line in text.splitlines() if "GPUs" in line or "apart" in line],
    }


def killed(host, cols):
    """Tune a list of problems, and kill a worker in the middle; return what became of it."""
    table = host.folder / "killed.json"
    with host.up(host.gpus, "killed") as up:
        words = ("tune", "--cols", ",".join(map(str, cols)), "--dtype", TYPES[0])
        asked = up.explorer(*words, "--effort", "quick", "--no-torch", "--output", str(table))

        def finished():
            journals = host.folder.glob("killed*.jsonl")
            return sum(len(path.read_text().splitlines()) for path in journals)

        wait_until(lambda: finished() >= max(1, len(cols) // 4), 200)
        up.workers[0].send_signal(SIGKILL)
        began = time.monotonic()
        wait_until(lambda: "is lost" in asked.log.read_text(), 60)
        lost_s = time.monotonic() - began
        assert asked.wait(300) == 0, asked.log.read_text()
    problems = len(read_table(table).problems)
    return {"asked": len(cols), "tuned": problems, "requeued_after_s": round(lost_s, 1)}


# ------------------------------------------------------------------ all of it


def bars(found):
    """Say what was asked of each figure, and whether it is reached."""
    one, many = found["tune"]
    n = many["gpus"]
    first, all_ = (search["first_to_last_s"] for search in found["search"])
    least = {2: 1.7, 4: 3.0}.get(n, 0.75 * n)
    gain, faster = many["an_hour"] / one["an_hour"], first / all_
    costs = max(search["coordinator_ms_a_trial"] for search in found["search"])
    killed = found["killed"]
    yield f"problems an hour: {gain:.2f} x one GPU's", gain >= 0.9 * n
    yield f"search: {faster:.2f} x as fast as on one GPU", faster >= least
    yield f"coordinator: {costs} ms a trial", costs <= 5
    yield "no kernel twice", all(not search["duplicates"] for search in found["search"])
    winners = found["winners"]
    share = f"{winners['within_1_percent']} of {winners['problems']}"
    yield f"winners within 1 %: {share}", winners["within_1_percent"] == winners["problems"]
    lost = killed["requeued_after_s"]
    whole = killed["tuned"] == killed["asked"]
    yield f"a killed worker's work is done again after {lost} s", whole and lost <= LOST_WITHIN_S


def measure(host, cols, trials, tell):
    """Do all runs, and tell what is found so far each time one has ended."""
    found = {"gpus": host.gpus, "cores": os.cpu_count(), "tune": [], "search": []}
    fewer, one = tuned(host, 1, cols[::ON_ONE], "one")
    found["tune"].append(fewer)
    tell(found)
    every, table = tuned(host, host.gpus, cols, "all")
    found["tune"].append(every)
    found["winners"] = apart(one, table)
    found["environment"] = read_table(table).problems[0].environment.as_dict()
    tell(found)
    found["killed"] = killed(host, cols[::2])
    tell(found)
    for gpus in (1, host.gpus):
        found["search"].append(searched(host, gpus, trials))
        tell(found)
    found["bars"] = [{"says": says, "reached": bool(reached)} for says, reached in bars(found)]
    tell(found)


def written(output, found):
    """Print what is found so far, and write it down."""
    text = json.dumps(found, indent=1)
    print(text, flush=True)
    if output:
        output.write_text(text + "\n")


def main():
    """Print the figures, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--preload", default="slow_worker")
    parser.add_argument("--cols", default=",".join(map(str, COLS)))
    parser.add_argument("--trials", type=int, default=TRIALS)
    asked = parser.parse_args()
    cols = [int(number) for number in asked.cols.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder), asked.gpus or gpus_here(), asked.preload)
        measure(host, cols, asked.trials, partial(written, asked.output))


if __name__ == "__main__":
    main()
