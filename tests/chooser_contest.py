"""Two commits' choosers beside each other on fresh random problems, on one GPU.

`python -m tests.chooser_contest OLD` draws problems, lets the chooser of OLD and that of this
checkout choose, and times both kernels in turn where they differ. OLD is a commit, or a folder that
has an older `explorer`. Kernels are emitted by this checkout: the choices alone differ.

A rule stays if it gains here, on problems that nobody has looked at: name a new `--seed`. Pairs are
written to a CSV as they are timed. Where `--seconds` end the run, the figures are of the problems
that were drawn until then. Needs a GPU and torch; the exit status is 1 if the new one is refused.
"""

import argparse
import csv
import json
import math
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Mask, Problem
from explorer.ops import OPERATORS, Extent

ROOT = Path(__file__).resolve().parents[1]

MOST_MEAN, MOST_SLOWER_SHARE, SLOWER = 1.001, 0.01, 1.05
"""A chooser is accepted at 0.1 % more time over all drawn, and 1 % of them more than 5 % slower."""

LEAST_BYTES, MOST_BYTES = 2e5, 4e8
"""Of a drawn problem: shorter launches tell little, and larger matrices take long."""

COMMON_TYPES = (DType.F32, DType.BF16, DType.F16)
OPS = [
    op
    for op, operator in OPERATORS.items()
    if {operator.extent, *operator.operands.values()} == {Extent.MATRIX}
]
"""Operators that read and write matrices alone: what is drawn stays when others are added."""

# ------------------------------------------------------------------ problems


def drawn(count: int, seed: int) -> list[Problem]:
    """Return random problems, each size log-uniform; one in five has a particular."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        rows = int(math.exp(rng.uniform(0, math.log(300_000))))
        cols = int(math.exp(rng.uniform(math.log(2), math.log(262_144))))
        if rng.random() < 0.35:
            cols = max(8, cols // 8 * 8)
        plain = Problem(rows, cols, rng.choice(COMMON_TYPES), rng.choice(OPS))
        problem = with_particular(plain, rng) if rng.random() < 0.2 else plain
        if LEAST_BYTES < problem.bytes < MOST_BYTES:
            found.append(problem)
    return found


def with_particular(plain: Problem, rng: random.Random) -> Problem:
    """Return a problem of about the size that has a mask, a middle axis, strides or two types."""
    rows, cols, dtype, op = plain.rows, plain.cols, plain.dtype, plain.op
    kind = rng.choice(("mask", "axis", "strides", "types"))
    if kind == "mask":
        mask, forward = rng.choice([m for m in Mask if m is not Mask.NONE]), OPERATORS[op].forward
        if mask is Mask.LENGTHS:
            return Problem(rows, cols, dtype, forward, mask=mask)
        repeats = rng.choice((1, 8, 64)) if mask is Mask.ADDITIVE else cols
        repeats = min(repeats, rows)
        return Problem(
            rows // repeats * repeats, cols, dtype, forward, mask=mask, mask_rows=repeats
        )
    if kind == "axis":
        inner = min(rows, int(math.exp(rng.uniform(math.log(2), math.log(32_768)))))
        return Problem(max(1, rows // inner) * inner, cols, dtype, op, inner=inner)
    if kind == "strides":
        gaps = [rng.choice((0, 1, 8, 64, cols)) for _ in range(2)]
        strides = {"input_stride": cols + gaps[0], "output_stride": cols + gaps[1]}
        return Problem(rows, cols, dtype, op, **strides)
    other = rng.choice([one for one in COMMON_TYPES if one is not dtype])
    return Problem(rows, cols, dtype, op, out_dtype=other)


def kind_of(problem: Problem) -> str:
    """Return the kind of a problem: its operator, type and length, and what is particular."""
    if problem.inner > 1:
        more = ", middle axis"
    elif problem.mask is not Mask.NONE:
        more = f", mask {problem.mask}"
    elif problem.output_dtype is not problem.dtype:
        more = ", two types"
    else:
        more = "" if problem.is_dense else ", strides"
    length = "short" if problem.cols <= 400 else "middle" if problem.cols < 8192 else "wide"
    return f"{problem.op} {'16 bits' if problem.dtype.is_half else 'f32'} {length}{more}"


# ------------------------------------------------------------------ choices

CHOOSE = """
import json, sys
try:
    from explorer.model.gpu_spec import GpuSpec
    from explorer.model.problem import Problem
except ImportError:
    from explorer.gpu_spec import GpuSpec
    from explorer.problem import Problem
try:
    from explorer.choose import config_for
except ImportError:
    from explorer.space import config_for
given = json.load(sys.stdin)
gpu = GpuSpec.from_dict(given["gpu"])
problems = [Problem.from_dict(one) for one in given["problems"]]
json.dump([config_for(one, gpu).as_dict() for one in problems], sys.stdout)
"""
"""A program of any checkout: problems in, configs out, as JSON."""


def choices(checkout: Path, problems: Sequence[Problem], gpu: GpuSpec) -> list[Config]:
    """Return what the chooser of a checkout takes for each problem."""
    given = {"gpu": asdict(gpu), "problems": [one.as_dict() for one in problems]}
    done = subprocess.run(
        [sys.executable, "-c", CHOOSE],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the chooser of {checkout} failed:\n{done.stderr}")
    return [Config.from_dict(one) for one in json.loads(done.stdout)]


def checkout_of(old: str, folder: Path) -> Path:
    """Return the folder that has an older `explorer`; a commit's is unpacked into `folder`."""
    if (Path(old) / "explorer").is_dir():
        return Path(old).resolve()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", old, "explorer"], capture_output=True, check=False
    )
    if archive.returncode:
        raise SystemExit(f"{old} is no folder with an explorer, and no commit of {ROOT}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


# ------------------------------------------------------------------ times

Pair = tuple[Problem, Config, Config]


def built(job: tuple[GpuSpec, Problem, Config]) -> Any:
    """Return the kernel of a config, ready to be loaded, or the sentence that says why not."""
    from explorer.compile.compiler import Compiler
    from explorer.model.errors import ExplorerError
    from explorer.runtime.kernels import ReadyKernel, alignment, variant_on

    gpu, problem, config = job
    try:
        variant = variant_on(gpu, problem, config)
        cubin = Compiler(gpu.arch).compile(variant.source).cubin
    except ExplorerError as error:
        return str(error)
    return ReadyKernel(cubin, variant.launches, variant.scratch_bytes, alignment(problem, config))


class Arrays:
    """A problem's matrices on the GPU, so many of each that no cache holds them."""

    def __init__(self, problem: Problem, l2_bytes: int) -> None:
        import torch

        types = {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.F16: torch.float16}
        self.number = math.ceil(4 * l2_bytes / problem.bytes) + 1
        self.alive: list[Any] = []

        def addresses(values: Any) -> list[int]:
            """Copy values as often as there are matrices, at multiples of 256 bytes."""
            size = -(-values.numel() * values.element_size() // 256) * 256
            arena = torch.empty(self.number * size, dtype=torch.uint8, device="cuda")
            flat = values.reshape(-1).view(torch.uint8)
            arena.view(self.number, size)[:, : flat.numel()] = flat
            self.alive.append(arena)
            return [arena.data_ptr() + place * size for place in range(self.number)]

        def random_of(elements: int, dtype: DType) -> Any:
            return torch.randn(elements, device="cuda").to(types[dtype])

        dense = problem.rows * problem.cols
        elements = problem.input_elements if problem.inner == 1 else dense
        output = problem.output_elements if problem.inner == 1 else dense
        self.input = addresses(random_of(elements, problem.dtype))
        self.output = addresses(random_of(output, problem.output_dtype))
        self.others: dict[str, list[int]] = {}
        if problem.operator.is_gradient:
            self.others["grad"] = addresses(random_of(elements, problem.dtype))
        if problem.mask is Mask.ADDITIVE:
            mask = random_of(problem.mask_rows * problem.cols, problem.dtype)
            self.others["mask"] = addresses(mask)
        if problem.mask is Mask.LENGTHS:
            lengths = torch.randint(1, problem.cols + 1, (problem.rows,), device="cuda")
            self.others["lengths"] = addresses(lengths.to(torch.int32))


def graph_of(problem: Problem, kernel: Any, arrays: Arrays, launches: int, on: Any) -> Any:
    """Return a CUDA graph of so many launches, which go through all matrices."""
    import torch

    from explorer.runtime.launcher import plan_of

    plan = plan_of(on.load(problem, kernel))
    scratch = {}
    if kernel.scratch_bytes:
        space = torch.empty(kernel.scratch_bytes, dtype=torch.uint8, device="cuda")
        arrays.alive.append(space)
        scratch["scratch"] = space.data_ptr()

    def launch(number: int) -> None:
        place = number % arrays.number
        others = {name: addresses[place] for name, addresses in arrays.others.items()}
        stream = torch.cuda.current_stream().cuda_stream
        plan.launch(stream, arrays.input[place], arrays.output[place], **others, **scratch)

    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(launches):
            launch(number)
    return graph


def timed_us(problem: Problem, kernels: Sequence[Any], on: Any, rounds: int = 11) -> list[float]:
    """Return the median time of each kernel, microseconds a launch, timed in turn."""
    import torch

    arrays = Arrays(problem, on.spec.l2_bytes)
    estimate_us = max(2.0, problem.bytes / 4e6)
    launches = max(arrays.number, min(600, math.ceil(1200 / estimate_us)))
    graphs = [graph_of(problem, kernel, arrays, launches, on) for kernel in kernels]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples: list[list[float]] = [[] for _ in kernels]
    for number in range(rounds):
        for place, graph in enumerate(graphs):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number > 1:
                samples[place].append(begin.elapsed_time(end) * 1000 / launches)
    return [median(row) for row in samples]


# ------------------------------------------------------------------ results


@dataclass(frozen=True, slots=True)
class Timed:
    """Both choices for a problem, and what they take."""

    kind: str
    problem: str
    old_us: float
    new_us: float
    old: str
    new: str
    details: str
    """The problem's fields, as JSON."""

    @property
    def ratio(self) -> float:
        """The new time over the old one."""
        return self.new_us / self.old_us


def summary(pairs: Sequence[Timed], count: int) -> dict[str, float]:
    """Return the mean ratio over all problems, those that agree included, and shares beyond 5 %."""
    logs = sum(math.log(one.ratio) for one in pairs)
    return {
        "mean": math.exp(logs / count) if count else 1.0,
        "slower": sum(one.ratio > SLOWER for one in pairs) / max(1, count),
        "faster": sum(one.ratio < 1 / SLOWER for one in pairs) / max(1, count),
    }


def accepted(figures: dict[str, float]) -> bool:
    """Whether the new chooser may take the old one's place."""
    return figures["mean"] <= MOST_MEAN and figures["slower"] <= MOST_SLOWER_SHARE


def report(pairs: Sequence[Timed], count: int) -> Iterator[str]:
    """Yield the lines that say what the new chooser gains or loses, by kind of problem."""
    figures = summary(pairs, count)
    yield (
        f"{len(pairs)} of {count} problems differ: new over old {figures['mean'] - 1:+.3%} in the "
        f"geometric mean over all; {figures['slower']:.2%} more than 5 % slower, "
        f"{figures['faster']:.2%} more than 5 % faster: "
        f"{'accepted' if accepted(figures) else 'refused'}"
    )
    kinds: dict[str, list[Timed]] = defaultdict(list)
    for one in pairs:
        kinds[one.kind].append(one)

    def share(of_kind: Iterable[Timed]) -> float:
        return sum(math.log(one.ratio) for one in of_kind) / max(1, count)

    for kind, some in sorted(kinds.items(), key=lambda item: -share(item[1])):
        ratios = [one.ratio for one in some]
        yield (
            f"{share(some):+.4%} of all: {kind}: {len(some)} differ, "
            f"{min(ratios):.3f} to {max(ratios):.3f}, {sum(r > SLOWER for r in ratios)} slower"
        )
    by_ratio = sorted(pairs, key=lambda one: -one.ratio)
    for one in [*by_ratio[:20], *by_ratio[20:][-6:]]:
        yield f"{one.ratio:.3f} {one.old_us:.2f} {one.new_us:.2f} {one.problem} {one.old} {one.new}"


def contest(
    pairs: Sequence[tuple[int, Pair]], on: Any, seconds: float, output: Path
) -> tuple[list[Timed], int | None]:
    """Time pairs in turn, and return them with the drawn problem at which time ran out, if any."""
    timed, until = [], time.monotonic() + seconds
    jobs = [(on.spec, problem, one) for _, (problem, *two) in pairs for one in two]
    context = get_context("spawn")
    with (
        ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool,
        output.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow([*Timed.__slots__, "ratio"])
        kernels = pool.map(built, jobs, chunksize=4)
        for place, (problem, old, new) in pairs:
            if time.monotonic() > until:
                pool.shutdown(wait=False, cancel_futures=True)
                return timed, place
            two = [next(kernels), next(kernels)]
            failure = next((one for one in two if isinstance(one, str)), None)
            if failure is not None:
                print(f"{problem} is left out: {failure}", flush=True)
                continue
            try:
                times = timed_us(problem, two, on)
            except Exception as error:  # a GPU's, of any library
                print(f"{problem} is left out: {error!r}", flush=True)
                continue
            texts = [one.to_json(brief=True) for one in (old, new)]
            details = json.dumps(problem.as_dict())
            timed.append(Timed(kind_of(problem), str(problem), *times, *texts, details))
            row = [getattr(timed[-1], name) for name in Timed.__slots__]
            writer.writerow([*row, f"{timed[-1].ratio:.4f}"])
            file.flush()
    return timed, None


def main(words: Sequence[str]) -> int:
    """Run the contest that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chooser_contest")
    parser.add_argument("old", help="a commit, or a folder that has an older explorer")
    parser.add_argument("--count", type=int, default=3000, help="problems to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the problems")
    parser.add_argument("--seconds", type=float, default=500, help="of timing, at most")
    parser.add_argument("--output", type=Path, default=Path("chooser-contest.csv"))
    given = parser.parse_args(words)
    from explorer.runtime.launcher import gpu

    on, problems = gpu(0), drawn(given.count, given.seed)
    with TemporaryDirectory() as folder:
        old = choices(checkout_of(given.old, Path(folder)), problems, on.spec)
    new = choices(ROOT, problems, on.spec)
    pairs = [
        (place, pair)
        for place, pair in enumerate(zip(problems, old, new, strict=True))
        if pair[1] != pair[2]
    ]
    print(f"{len(pairs)} of {len(problems)} problems differ on {on.spec.name}", flush=True)
    timed, stopped = contest(pairs, on, given.seconds, given.output)
    count = len(problems) if stopped is None else stopped
    for line in report(timed, count):
        print(line)
    return 0 if accepted(summary(timed, count)) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
