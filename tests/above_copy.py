"""Tuned kernels that beat the copies of their day, timed anew beside today's.

`python -m tests.above_copy FILE` times them in turn on the first GPU, two seconds a problem, and
writes the file. The guide `measurement` shows what the committed files of each GPU say.
"""

import sys
from pathlib import Path
from statistics import median

from explorer.devices.cuda.device import CudaDevice
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.outcome import Measured, spread
from explorer.model.tuned_table import TunedProblem, read_table, table_path
from tests.narrow_words import write_timed

ABOVE = 1.005
"""Problems whose kernel took less than this share of copy's time are timed anew."""

ROUNDS = 30


def share(one: TunedProblem) -> float:
    """Copy's time over the kernel's, as its table has them."""
    return one.environment.limit_us / one.best.time_us


def timed(one: TunedProblem, device: CudaDevice) -> dict:
    """What the problem's kernel takes, and the fastest copy beside it, in microseconds."""
    problem, config = one.problem, one.best.config
    with DeviceEvaluator(problem, device, keep_device=True) as live:
        outcome = live.evaluate(config)
        assert isinstance(outcome, Measured), (problem, outcome)
        contest = live.compare([config], ROUNDS)
        (kernel,) = contest.samples_us
        return {
            "problem": str(problem),
            "of_limit_before": round(share(one), 4),
            "limit_name_before": one.environment.limit_name,
            "kernel_us": round(median(kernel), 4),
            "limit_us": round(median(contest.limit_us), 4),
            "of_limit": round(
                median(c / k for c, k in zip(contest.limit_us, kernel, strict=True)), 4
            ),
            "limit_spread": round(spread(contest.limit_us), 4),
            "limit_name": live.environment.limit_name,
            "date": live.environment.date,
            "driver": live.environment.driver,
            "throttle_reasons": live.environment.throttle_reasons,
        }


def main(path: Path) -> None:
    """Time all of them and write the file."""
    with CudaDevice(0) as device:
        table = read_table(table_path(device.gpu))
        above = sorted(filter(lambda one: share(one) > ABOVE, table.problems), key=share)
        found = [timed(one, device) for one in reversed(above)]
        gpu = device.gpu.name
    write_timed(path, gpu, found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
