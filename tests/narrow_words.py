"""Blocks of few rows that 16 bytes do not divide: threads of a row times bytes of an access.

`python -m tests.narrow_words FILE` times them in turn on the first GPU, which takes a minute and a
half, and writes what each took. tests/choose/test_narrow_words.py holds the heuristic to the files
that are committed. The tables know few of these kernels: their candidates load 8 or 16 bytes.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from explorer.choose import config_for
from explorer.devices.cuda.device import CudaDevice
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.config import Config
from explorer.model.gpu_spec import WARP
from explorer.model.outcome import Measured
from explorer.model.problem import Problem
from explorer.space import Space

FOLDER = Path(__file__).resolve().parents[1] / "studies" / "results"

COLS_OF_ONE_ROW = (401, 501, 601, 701, 901, 1031, 1153, 1301, 1701, 2049, 2501, 3333, 4097, 5001)
PROBLEMS = (
    *(Problem(1, cols, "bf16") for cols in (*COLS_OF_ONE_ROW, 7001, 1154, 2502)),
    *(Problem(rows, 601, "bf16") for rows in (16, 100)),
    *(Problem(rows, cols, "bf16") for rows in (16, 100, 264, 528) for cols in (1153, 2501)),
    Problem(132, 4097, "bf16"),
    Problem(100, 1154, "bf16"),
    *(Problem(1, cols, "f32") for cols in (601, 1153, 3071)),
    Problem(100, 1153, "f32"),
    *(Problem(1, cols, "bf16") for cols in (1526, 2050, 3554, 4098, 5002, 6002)),
    *(Problem(rows, 3554, "bf16") for rows in (2, 4, 264)),
    *(Problem(*shape, "bf16") for shape in ((8, 2998), (54, 1626), (132, 4098))),
    Problem(2, 3554, "f32"),
)

ROUNDS = 11

SIZES = (32, 64, 128, 192, 256, 320, 384, 512, 768)
"""Threads of a row."""

MOST_ELEMENTS = 40
"""Of a thread."""


def blocks(problem: Problem, first: Config) -> Iterator[Config]:
    """The heuristic's kernel, and what differs from it in a row's threads and its words."""
    yield first
    size = problem.dtype.itemsize
    plain = replace(first, algorithm="online-block-max", staging="direct", min_blocks=1)
    pairs = (4,) if problem.row_bytes % 4 == 0 else ()
    for threads in SIZES:
        if not 1 <= problem.cols / threads <= MOST_ELEMENTS:
            continue
        block = max(threads, 4 * WARP) if 4 * WARP % threads == 0 else threads
        idea = replace(plain, threads=block, threads_per_row=threads)
        for width in sorted({size, *pairs, 8, 16}):
            yield replace(idea, vector_bytes=width, reduction="shuffle-redux")
        yield replace(idea, vector_bytes=size, reduction="shuffle")


def timed(problem: Problem, device: CudaDevice) -> dict:
    """What each of the problem's kernels that are right takes, in microseconds, in turn."""
    with DeviceEvaluator(problem, device, keep_device=True) as live:
        space = Space(problem, live.gpu)
        ideas = dict.fromkeys(blocks(problem, config_for(problem, live.gpu)))
        legal = [idea for idea in ideas if space.is_legal(idea)]
        for idea in legal:
            live.submit(idea)
        right = [idea for idea in legal if isinstance(live.evaluate(idea), Measured)]
        contest = live.compare(right, ROUNDS)
        kernels = [
            [config.threads_per_row, config.vector_bytes, config.reduction, round(median(row), 4)]
            for config, row in zip(right, contest.samples_us, strict=True)
        ]
        return {
            "rows": problem.rows,
            "cols": problem.cols,
            "dtype": str(problem.dtype),
            "limit_us": round(median(contest.limit_us), 4),
            "kernels": kernels,
            "date": live.environment.date,
            "driver": live.environment.driver,
            "throttle_reasons": live.environment.throttle_reasons,
        }


def main(path: Path) -> None:
    """Time all problems and write the file, one problem a line."""
    with CudaDevice(0) as device:
        found = [timed(problem, device) for problem in PROBLEMS]
        gpu = device.gpu.name
    write_timed(path, gpu, found)


def write_timed(path: Path, gpu: str, found: list[dict]) -> None:
    """Write what was found out about problems on a GPU, one problem a line."""
    lines = ",\n".join(json.dumps(one) for one in found)
    path.write_text(f'{{"gpu": "{gpu}", "problems": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
