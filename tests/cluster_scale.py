"""How many GPUs one coordinator can keep busy: simulated workers, whose answers take a drawn time.

    python -m tests.cluster_scale [--output OUT.json]

The coordinator, Dask's scheduler and the tasks are real. The workers, of one process, answer after
a latency that is drawn: with what a tuned table has of a problem, and a kernel's time by a model.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "tuning")]

WORKERS, PROBLEMS = 64, 1000
COMPILE_S = 0.2
"""What a core of an H200's host takes for a kernel."""

TABLES = ("nvidia-h200", "held-out/nvidia-h200")


def drawn(mean_s):
    """A latency: half of the mean at least, and now and then a few times as much."""
    return mean_s * (0.5 + random.expovariate(2.0))


# ------------------------------------------------------------------ in the workers' process


def simulate(mean_s):
    """Have the workers of this process answer after a drawn time."""
    from distributed import get_worker
    from fake_evaluator import GPU, model_ulp, model_us

    from explorer.compile.compiler import Kernel
    from explorer.devices.device import Facts
    from explorer.evaluate import station
    from explorer.evaluate.device_evaluator import environment_of
    from explorer.model.outcome import Measured, Resources
    from explorer.model.tuned_table import read_table

    tuned = {one.problem: one for table in TABLES for one in read_table(Path(table)).problems}
    resources = Resources(registers=32, code_bytes=2000)

    turns = defaultdict(Lock)

    class Simulated:
        def described(self, device, threads):
            found = station.Described("host", "", "", station.code_digests(), "13.0")
            return replace(found, gpu=GPU, offers=bool(device))

        def opened(self, device, setting):
            facts = Facts("580", limit_us=60.0, buffers=8)
            return GPU, replace(facts, environment=environment_of(GPU, setting, facts, "13.0"))

        def compiled(self, arch, source):
            time.sleep(drawn(COMPILE_S))
            return Kernel(source.encode()[-6000:], "", "", resources)

        def all_compiled(self, arch, problem, configs):
            return ()

        def evaluated(self, device, setting, job):
            with turns[get_worker().address]:
                time.sleep(drawn(mean_s))
            samples = (model_us(job.config),) * 9
            return Measured(samples, 1e-7, resources, job.digest, model_ulp(job.config)), 60.0

        def compared(self, device, setting, peers, jobs, rounds, seed):
            from explorer.devices.device import Compared

            rows = tuple((model_us(job.config),) * rounds for job in jobs)
            return Compared(rows, (60.0,) * rounds, limit_name="copy")

        def measured(self, device, setting, work, kernels):
            time.sleep(drawn(mean_s))
            return tuned[setting.problem]

    from explorer.tuning import cluster

    cluster.STATION = Simulated()


async def serve(number, file, threads):
    """Run so many workers, each with some threads, until this process is ended."""
    from distributed import Worker

    workers = [
        await Worker(scheduler_file=file, nthreads=threads, resources={"GPU": 1}, dashboard=False)
        for _ in range(number)
    ]
    print("ready", flush=True)
    await asyncio.gather(*(worker.finished() for worker in workers))


# ------------------------------------------------------------------ the coordinator


class Up:
    """A scheduler and simulated workers, in two processes."""

    def __init__(self, folder, number, mean_s, threads):
        file = str(folder / f"{number}-{mean_s}.json")
        scheduler = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
        scheduler |= {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "4s"}
        place = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file)
        quiet = {"stderr": subprocess.DEVNULL, "cwd": ROOT, "text": True}
        command = [sys.executable, "-m", "dask", "scheduler", *place]
        self.scheduler = subprocess.Popen(command, env={**os.environ, **scheduler}, **quiet)
        while not Path(file).exists():
            time.sleep(0.1)
        me = [sys.executable, "-m", "tests.cluster_scale", "--serve", str(number), str(mean_s)]
        me += [file, str(threads)]
        self.workers = subprocess.Popen(me, stdout=subprocess.PIPE, **quiet)
        assert self.workers.stdout.readline() == "ready\n"
        self.file = file

    def cpu_s(self):
        """Seconds of CPU: of this process, of the scheduler, and of all workers' process."""
        return [time.process_time(), *map(cpu_of, (self.scheduler.pid, self.workers.pid))]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.workers.kill()
        self.scheduler.kill()


def cpu_of(process):
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(up, number, run):
    """What a run cost: `run` returns how many rows it wrote."""
    from explorer.model.accuracy import Accuracy
    from explorer.tuning.cluster_device import open_cluster_benches

    opening = open_cluster_benches("auto", "cold", 0, Accuracy.DEFAULT, None, up.file, print)
    with opening as benches:
        began, before = time.monotonic(), up.cpu_s()
        rows = run(benches)
        seconds = time.monotonic() - began
        cpu = [(now - then) / seconds for now, then in zip(up.cpu_s(), before, strict=True)]
        busy_s = sum(one.busy_s for one in benches.cluster._workers.values())
        return {
            "workers": number,
            "rows": rows,
            "seconds": round(seconds, 2),
            "rows_per_s": round(rows / seconds, 1),
            "coordinator": round(cpu[0], 2),
            "scheduler": round(cpu[1], 2),
            "simulated_workers": round(cpu[2], 2),
            "idle": round(max(0.0, 1 - busy_s / (number * seconds)), 3),
        }


def of_problems(folder, number, mean_s):
    """Tune a thousand problems, each of which takes a GPU `mean_s`."""
    from explorer.model.tuned_table import read_table
    from explorer.tuning.tune import tune

    wanted = [one.problem for table in TABLES for one in read_table(Path(table)).problems]
    journal = folder / f"{number}-{mean_s}.jsonl"
    with Up(folder, number, mean_s, 2) as up:
        return {
            "mean_s": mean_s,
            **measured(
                up,
                number,
                lambda benches: len(tune(benches, wanted[:PROBLEMS], journal).table.problems),
            ),
        }


def of_kernels(folder, number, mean_s, trials=300):
    """Search one problem, of which each kernel takes a GPU `mean_s`."""
    from explorer.model.problem import Problem
    from explorer.tuning.search import run_search
    from explorer.tuning.storage import open_storage

    storage = open_storage(str(folder / f"{number}-{mean_s}.db"))

    def run(benches):
        with benches.on(Problem(8192, 4096)) as evaluator:
            found = run_search(evaluator, storage, trials=trials)
        return found.measured

    with Up(folder, number, mean_s, 16) as up:
        return {"mean_s": mean_s, **measured(up, number, run)}


def main():
    """Print the figures, and write them."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", nargs=4)
    asked = parser.parse_args()
    if asked.serve:
        number, mean_s, file, threads = asked.serve
        simulate(float(mean_s))
        asyncio.run(serve(int(number), file, int(threads)))
        return
    found = {"cores": os.cpu_count(), "problems": [], "kernels": []}
    with tempfile.TemporaryDirectory() as folder:
        for mean_s in (3.0, 1.0, 0.3, 0.1):
            found["problems"].append(of_problems(Path(folder), WORKERS, mean_s))
            print(found["problems"][-1], flush=True)
        for number, mean_s in ((1, 0.02), (2, 0.02), (1, 0.2), (4, 0.2), (8, 0.2)):
            found["kernels"].append(of_kernels(Path(folder), number, mean_s))
            print(found["kernels"][-1], flush=True)
    if asked.output:
        asked.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
