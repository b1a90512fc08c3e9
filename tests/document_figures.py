"""What stands between marks in the README and the guides, by the name that a mark calls it.

Each function reads what is kept in studies/, or runs code that needs no GPU. `tests/documents.py`
says how a document calls one.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import ceil, isinf, prod
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from gpu_suite import RECORD, compared_sentences, read_runs
from heuristic_losses import TABLES, Loss, mean
from heuristic_losses import heuristic_losses as losses_in
from planted_bugs import counts, grouped

from explorer.choose import config_for
from explorer.codegen.units import emit
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.profile import inspect, profile
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config, brief_words, change_words, parameters
from explorer.model.element import DType
from explorer.model.gpu_spec import WARP, known_gpu
from explorer.model.problem import Mask, Problem
from explorer.model.tuned_table import read_table
from explorer.ops import Limit, Op
from explorer.presets.published import find_preset
from explorer.report.compare import read_compared, result_counts
from explorer.report.diff import Difference, figures_table
from explorer.report.guides import ORDER
from explorer.report.journey import read_journey
from explorer.report.ladder import ladder_steps
from explorer.report.profile import moved_bytes
from explorer.report.table import Table, as_markdown, numbers, words
from explorer.report.text import microseconds, percent, with_spread
from explorer.report.tune import of_limit
from explorer.runtime.shapes import read_shapes
from explorer.tuning.contest import CONFIDENCE
from explorer.tuning.journey import BEST
from explorer.tuning.peer_comparison import UNSEARCHED, PeerComparison, PeerRun
from explorer.tuning.peer_comparison import Loss as PeerLoss
from explorer.tuning.peer_comparison import losses as lost
from tests.tuned_problems import CHOSEN_CACHES, caches

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "studies" / "results"
TUNED = ROOT / "studies" / "tuned"
TYPES = ("f32", "bf16", "f16")
OF_FIVE = ("f32-1024", "f32-2048", "f32-4096", "f32-8192", "bf16-4096")
"""The searches whose results the guide on measurement shows."""

FIGURES: dict[str, Callable[..., str]] = {}


def figure(function: Callable[..., str]) -> Callable[..., str]:
    """Let documents call a function by its name."""
    FIGURES[function.__name__] = function
    return function


@cache
def compared(dtype: str) -> PeerRun:
    """The committed comparison with peers on an H200."""
    return read_compared(RESULTS / f"compare-h200-{dtype}.json")


@cache
def kept(name: str) -> Any:
    """A committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text())


# ------------------------------------------------------------------ beside peers


def over_ours(peer: str, dtype: str) -> float:
    """The median of a peer's time over ours: a few very long rows double the mean."""
    return median(
        one.time_us / of.time_us
        for of in compared(dtype).comparisons
        for one in of.peers
        if one.name == peer
    )


def span(peer: str) -> str:
    """`1.8 to 2.2`: over the element types."""
    medians = [over_ours(peer, dtype) for dtype in TYPES]
    return f"{min(medians):.1f} to {max(medians):.1f}"


@figure
def beside_torch() -> str:
    """The best figure of the project, with its conditions."""
    first = compared("f32").comparisons[0]
    versions = {peer.name: peer.version for peer in first.peers}
    shapes = {len(compared(dtype).comparisons) for dtype in TYPES}
    assert len(shapes) == 1
    where = first.environment
    return (
        f"On an {where.gpu}, eager PyTorch takes **{span('torch')} times** as long as these kernels"
        f"\nand torch.compile {span('torch-compile')} times. These are medians over "
        f"{shapes.pop()} shapes, chosen by hand, for each of\nf32, bf16 and f16 (version "
        f"{where.explorer} of this package, {versions['torch']}, driver {where.driver}, "
        f"{where.date[:10]}; what each\nlibrary computes was checked first, and all of them were "
        "timed in turn)."
    )


@figure
def wins() -> str:
    """Against the fastest peer of each problem."""
    found = result_counts(one for dtype in TYPES for one in compared(dtype).comparisons)
    total = sum(found.values())
    return (
        f"At these {total} problems, our kernel is faster than the fastest library "
        f"at\n{found['win']}, ties with it at {found['tie']}, and is slower at {found['loss']}."
    )


# ------------------------------------------------------------------ slow cases

SLOW = 0.8
"""A case is slow whose share of copy is less."""


def reason(one: PeerComparison) -> str:
    """Why a problem is far from copy."""
    if one.config.launches != "one":
        return "no cluster holds the row: two launches share it, and read it twice"
    return "few rows: a chain of latencies (launch, load, exchange, store) takes most of the time"


@figure
def slow_cases() -> str:
    """A table of the problems whose kernel is far from copy, the furthest first."""
    found = [one for dtype in TYPES for one in compared(dtype).comparisons]
    slow = [one for one in found if one.limit_time_us / one.time_us < SLOW]
    table = Table(
        [
            *words("rows × cols", "type"),
            *numbers("µs", "copy µs", "share of copy", "best peer takes"),
            *words("why"),
        ]
    )
    for one in sorted(slow, key=lambda one: one.limit_time_us / one.time_us):
        assert one.best is not None and one.best.time_us > one.time_us  # as the guide says
        table.add(
            f"{one.problem.rows} × {one.problem.cols}",
            str(one.problem.dtype),
            microseconds(one.time_us),
            microseconds(one.limit_time_us),
            percent(one.limit_time_us / one.time_us),
            f"{one.best.time_us / one.time_us:.2f} × ({one.best.name})",
            reason(one),
        )
    return as_markdown(table)


@figure
def slow_searches() -> str:
    """A table of the committed searches over axis 0, which ended far from copy."""
    table = Table([*words("problem"), *numbers("µs", "copy µs", "share of copy"), *words("date")])
    for path in sorted(RESULTS.glob("h200-*-axis0.json")):
        data = kept(path.stem)
        best, where, problem = data["best"], data["circumstances"], data["problem"]
        table.add(
            f"{problem['cols']} × {problem['rows']} {problem['dtype']}, axis 0",
            microseconds(best["time_us"]),
            microseconds(where["limit_us"]),
            percent(where["limit_us"] / best["time_us"]),
            where["date"][:10],
        )
    return as_markdown(table)


def cells_of(loss: PeerLoss) -> tuple[str, str, str, str]:
    """The shape, both times and the library of a problem at which that library is faster."""
    shape = f"{loss.problem.rows} × {loss.problem.cols}"
    return shape, microseconds(loss.ours_us), microseconds(loss.peer_us), loss.peer


def losses_in_runs(*runs: PeerRun) -> str:
    """A table of the problems at which another library is faster."""
    columns = [*words("rows × cols", "type"), *numbers("ours, µs", "theirs, µs"), *words("library")]
    table = Table(columns)
    for loss in (loss for run in runs for loss in lost(run)):
        shape, *faster = cells_of(loss)
        table.add(shape, str(loss.problem.dtype), *faster)
    return as_markdown(table)


@figure
def losses() -> str:
    """Those of the comparison on an H200."""
    return losses_in_runs(*map(compared, TYPES))


@figure
def losses_h100() -> str:
    """Those of the same shapes on an H100, and how many problems were compared."""
    run = read_compared(RESULTS / "compare-h100.json")
    found = result_counts(run.comparisons)
    where = run.comparisons[0].environment
    return (
        f"On an {where.gpu}, {len(run.comparisons)} of the problems in f32 and bf16 were compared "
        f"in {where.date[:7]}, without a search: {found['win']} wins, {found['tie']} ties and "
        f"{found['loss']} losses.\n\n{losses_in_runs(run)}"
    )


LATEST_DRAWN = "drawn-softmax-h200-registers"
"""Forty shapes in two types beside all libraries, by rules that none of them had a part in."""

DRAWN = {
    "H200": (
        "drawn-h200",
        "drawn-h200-later",
        "drawn-softmax-h200",
        "drawn-middle-softmax-h200",
        "drawn-softmax-h200-fresh",
        "drawn-softmax-h200-all",
        "drawn-softmax-h200-later",
        LATEST_DRAWN,
    ),
    "H100": ("drawn-h100", "drawn-softmax-h100", "drawn-softmax-h100-fresh"),
}
"""The comparisons at shapes that were drawn at random, by GPU: the names of their files."""

DRAWN_GRADIENTS = {
    "H200": (
        "drawn-gradients-h200-later",
        "drawn-short-gradients-h200",
        "drawn-middle-gradients-h200",
        "drawn-log-gradients-h200-later",
        "drawn-log-gradients-h200-fresh",
        "drawn-gradients-h200-fresh",
    ),
    "H100": (
        "drawn-gradients-h100-later",
        "drawn-short-gradients-h100",
        "drawn-log-gradients-h100-later",
        "drawn-gradients-h100-fresh",
    ),
}
"""The same of gradients. Earlier ones led to so many new rules that they say little about them."""


def drawn_run(names: Sequence[str]) -> PeerRun:
    """The comparisons of some files, as if they were of one run."""
    first, *others = (read_compared(RESULTS / f"{name}.json") for name in names)
    more = (one for run in others for one in run.comparisons)
    return replace(first, comparisons=(*first.comparisons, *more))


def chosen_today(one: PeerComparison) -> str:
    """Whether our kernel in a comparison is the one that the heuristic chooses now."""
    if not one.origin.endswith(UNSEARCHED):
        return "a search's best"
    today = config_for(one.problem, known_gpu(one.environment.gpu))
    return "the heuristic's" if one.config == today else "the heuristic's of that day"


def table_of_losses(files: Mapping[str, Sequence[str]]) -> str:
    """A table of the drawn problems at which another library is faster, and how many there are."""
    columns = [*words("GPU", "problem"), *numbers("ours, µs", "theirs, µs")]
    table = Table([*columns, *words("library", "our kernel")])
    measured = []
    for gpu, names in files.items():
        run = drawn_run(names)
        ours = {one.problem: chosen_today(one) for one in run.comparisons}
        measured.append(f"{len(run.comparisons)} on an {gpu}")
        for loss in lost(run):
            table.add(gpu, str(loss.problem), *cells_of(loss)[1:], ours[loss.problem])
    return f"{as_markdown(table)}\n\nThe problems that were measured: {' and '.join(measured)}."


@figure
def drawn_losses() -> str:
    """The losses of softmax at shapes that were drawn at random."""
    return table_of_losses(DRAWN)


@figure
def drawn_gradient_losses() -> str:
    """Those of gradients."""
    return table_of_losses(DRAWN_GRADIENTS)


def beside_triton(kind: str) -> str:
    """How many problems are won beside Triton's kernel alone, and a table of those that are not."""
    files = {gpu: (f"{kind}-beside-triton-{gpu.lower()}",) for gpu in ("H200", "H100")}
    return f"Ours is faster at {counted(files)}.\n\n{table_of_losses(files)}"


@figure
def latest_drawn() -> str:
    """The last comparison beside all libraries, and beside those that are right on every row."""
    run = read_compared(RESULTS / f"{LATEST_DRAWN}.json")
    found = result_counts(run.comparisons)
    ran = {name: sum(bool(one.find(name)) for one in run.comparisons) for name in ("quack", "cupy")}
    right = [
        one.result_against(peer)
        for one in run.comparisons
        for peer in one.peers
        if not peer.inexact and not peer.wrong_rows
    ]
    today = [chosen_today(one) for one in run.comparisons].count("the heuristic's")
    slower = [
        f" At {one.problem} it takes {100 * one.slower:.1f} % more time than {one.peer}, in the "
        f"median of the rounds."
        for one in lost(run)
    ]
    return (
        f"At {run.drawn.split(' by ')[0]} of softmax on an H200, in f32 and bf16, our kernel is "
        f"faster than the fastest library at {found['win']} of {len(run.comparisons)} problems, "
        f"ties at {found['tie']} and is slower at {found['loss']}.{''.join(slower)} "
        f"Libraries that are right on all rows are faster at {right.count('loss') or 'none'} of "
        f"the problems. The heuristic still chooses {today} of the kernels. QuACK ran at "
        f"{ran['quack']} of the problems, CuPy at {ran['cupy']}, JAX at none."
    )


@figure
def drawn_beside_triton() -> str:
    """The losses to Triton of all ops at shapes that were drawn at random."""
    return beside_triton("drawn")


@figure
def retimed_beside_triton() -> str:
    """The losses to Triton of problems that some library had won, or in the other type."""
    return beside_triton("retimed")


FEW_RESULTS_OF = (
    (131072, 1000),
    (32768, 4096),
    (4096, 128256),
    (16, 151936),
    (11323, 5215),
)
"""Rows and columns whose times beside other libraries' the guide shows."""


@figure
def few_results() -> str:
    """Our times of rows that have a few results, beside PyTorch's and Triton's."""
    run = read_compared(RESULTS / "few-results-h200.json")
    rivals, beside = ("torch", "triton-tuned"), [one for one in run.comparisons if one.peers]
    table = Table([*words("problem"), *numbers("µs", "of read", "Triton µs", "torch µs")])
    factors: dict[str, list[float]] = {name: [] for name in rivals}
    for one in beside:
        ours, read = median(one.ours_us), median(one.limit_us)
        theirs = {name: median(one.find(name).samples_us) for name in rivals}
        for name, us in theirs.items():
            factors[name].append(us / ours)
        if (one.problem.rows, one.problem.cols) in FEW_RESULTS_OF:
            shown = (microseconds(ours), percent(read / ours))
            table.add(str(one.problem), *shown, *(microseconds(theirs[n]) for n in rivals[::-1]))
    spans = {name: f"{min(of):.2f} to {max(of):.0f}" for name, of in factors.items()}
    compiled = [
        median(peer.samples_us) / median(one.ours_us)
        for one in read_compared(RESULTS / "few-results-compiled-h200.json").comparisons
        for peer in one.peers
    ]
    return (
        f"At all {len(beside)} problems of an H200's table whose rows are dense, PyTorch, which "
        f"converts 16 bits to f32 first, takes {spans['torch']} times as long as our kernel, and a "
        f"Triton kernel of one read, tuned for the problem, {spans['triton-tuned']} times. What "
        f"torch.compile makes takes {min(compiled):.1f} to {max(compiled):.1f} times as long at "
        f"{len(compiled)} of them, of log-probabilities. Some of them:\n\n{as_markdown(table)}"
    )


@figure
def cross_entropies() -> str:
    """Our times of cross-entropy and its gradients, in a table that `explorer tune` has made."""
    tuned = read_table(TUNED / "losses" / "nvidia-h200.json").problems
    titles = {
        Op.CROSS_ENTROPY: "loss",
        Op.CROSS_ENTROPY_BACKWARD: "gradient",
        Op.CROSS_ENTROPY_WITH_GRADIENT: "both in one pass",
    }
    of_shapes: dict[str, dict[Op, str]] = {}
    for one in sorted(tuned, key=lambda one: -one.problem.rows * one.problem.row_bytes):
        problem, share = one.problem, percent(of_limit(one) or 0.0)
        shape = f"{problem.rows} × {problem.cols} {problem.dtype}"
        if problem.inner > 1:
            shape += f", the classes {problem.inner} apart"
        told = f"{microseconds(one.best.time_us)} ({share})"
        of_shapes.setdefault(shape, {})[problem.op] = told
    table = Table([*words("logits"), *numbers(*(f"{title}, µs" for title in titles.values()))])
    for shape, told in of_shapes.items():
        table.add(shape, *(told.get(op, "–") for op in titles))
    factors = [
        one.torch_over_best
        for one in tuned
        if one.problem.op is Op.CROSS_ENTROPY and one.torch_over_best
    ]
    return (
        "Times of the fastest kernels found on an H200, and how much that is of the limit: of "
        "reading for the loss, of copying for what stores a gradient. PyTorch's "
        "`cross_entropy(x.float(), target)` takes "
        f"{min(factors):.1f} to {max(factors):.1f} times as long as the loss.\n\n"
        f"{as_markdown(table)}"
    )


STEPS = {
    "later": '`gradient="later"`',
    "with_loss": '`gradient="with_loss"`',
    "in_place": '`gradient="in_place"`',
    "torch": "PyTorch",
    "torch.compile": "torch.compile",
    "liger": "Liger",
}
"""Ways to a gradient of logits in studies/results/loss-steps-h200.json, and their titles."""


@figure
def nsight() -> str:
    """What Nsight Compute measured of three kernels, by its own names."""
    made = json.loads((RESULTS / "nsight-h200.json").read_text())
    kernels = made["kernels"]
    table = Table([*words(""), *numbers(*kernels)])
    for name, title in OF_NSIGHT.items():
        of_kernels = (kernel[name] for kernel in kernels.values())
        table.add(title, *("–" if number is None else f"{number:.4g}" for number in of_kernels))
    return (
        f"{as_markdown(table)}\n\nNsight Compute on an {made['gpu']}, driver {made['driver']}, "
        f"nvcc {made['nvcc']}, {made['date']}. A dash is a remark that ncu did not make."
    )


OF_NSIGHT = {
    "us": "Duration, µs",
    "sm_ghz": "SM Frequency, GHz",
    "dram": "DRAM Throughput, % of the peak",
    "compute": "Compute (SM) Throughput, %",
    "l1_hits": "L1/TEX Hit Rate, %",
    "l2_hits": "L2 Hit Rate, %",
    "excess": "excessive sectors, %",
    "waves": "Waves Per SM",
    "warps": "Achieved Active Warps Per SM, of 64",
    "eligible": "Eligible Warps Per Scheduler",
    "none": "No Eligible, % of cycles",
    "memory_stalls": "stalled for memory (L1TEX), % of stalls",
}
"""The rows of that table, by the names of its numbers."""


@figure
def loss_steps() -> str:
    """What steps of training take from the logits to their gradient, and what options add."""
    shapes = json.loads((RESULTS / "loss-steps-h200.json").read_text())["shapes"]
    titles = (f"{one.replace('x', ' × ')}, µs" for one in shapes)
    table = Table([*words("loss and backward pass"), *numbers(*titles)])
    for name, title in STEPS.items():
        of_shapes = (shape["ways"][name] for shape in shapes.values())
        table.add(title, *(microseconds(way.get("us") or way["looped_us"]) for way in of_shapes))
    added = Table([*words("option"), *numbers("loss", "loss and gradient, later")])
    for option in ("z_loss", "weight", "label_smoothing", "softcap"):
        factors = [
            [
                one["ways"][f"{way}, {option}"]["us"] / one["ways"][way]["us"]
                for one in shapes.values()
            ]
            for way in ("forward", "later")
        ]
        added.add(f"`{option}`", *(f"{min(each):.2f} to {max(each):.2f} ×" for each in factors))
    return (
        "Each was captured in a CUDA graph, but Liger's: it waits for the GPU, and its time is of "
        "calls one after another. PyTorch's losses are those of the logits as they are, in their "
        f"type.\n\n{as_markdown(table)}\n\nHow many times as long options make it take:\n\n"
        f"{as_markdown(added)}"
    )


@cache
def attended() -> PeerRun:
    """The committed comparison of attention with peers on an H200."""
    return read_compared(RESULTS / "compare-h200-attention.json")


def drawn_and_chosen() -> tuple[list[PeerComparison], list[PeerComparison]]:
    """Comparisons of attention at problems drawn at random, and at those that were chosen."""
    chosen = set(caches()[:CHOSEN_CACHES])
    of_drawn = [one for one in attended().comparisons if one.problem not in chosen]
    return of_drawn, [one for one in attended().comparisons if one.problem in chosen]


@figure
def attention_wins() -> str:
    """How our attention stands beside other libraries at drawn problems."""
    drawn, _ = drawn_and_chosen()
    found = result_counts(drawn)
    factors = [min(p.time_us for p in one.peers) / one.time_us for one in drawn if one.peers]
    return (
        f"At {len(drawn)} problems drawn at random on an H200, the kernel that is taken without a "
        "search is faster than PyTorch's fastest attention, FlashAttention 3 and FlashInfer at "
        f"{found['win']} (ties at {found['tie']}, slower at {found['loss']}): "
        f"{geometric_mean(factors):.2f} times as fast in the geometric mean."
    )


@figure
def attention_times() -> str:
    """Times of attention at problems that were chosen, beside reading and the fastest peer."""
    _, chosen = drawn_and_chosen()
    table = Table(
        [*words("heads", "keys"), *numbers("µs", "of read", "fastest other, µs"), *words("by")]
    )
    for one in chosen:
        problem, best = one.problem, min(one.peers, key=lambda p: p.time_us, default=None)
        sequences = problem.rows // problem.heads
        heads = f"{sequences} × {problem.heads} of {problem.key_heads}"
        table.add(
            f"{heads}, {problem.head_dim} {problem.dtype}",
            str(problem.cols),
            microseconds(one.time_us),
            percent(one.limit_time_us / one.time_us),
            microseconds(best.time_us) if best else "–",
            (best.note if best.name == "torch-sdpa" else best.name) if best else "–",
        )
    return (
        "Sequences × query heads of key heads, the head dimension and the type:\n\n"
        f"{as_markdown(table)}"
    )


@figure
def attention_tuned() -> str:
    """What share of reading the best kernels of attention reach in a table of `explorer tune`."""
    tuned = read_table(TUNED / "attention" / "nvidia-h200.json").problems
    shares = {one.problem: of_limit(one) or 0.0 for one in tuned}
    long = [shares[one.problem] for one in tuned if one.best.time_us > 100]
    short = [shares[one.problem] for one in tuned if one.best.time_us < 10]

    def reaching(share: float) -> int:
        return sum(one >= share for one in shares.values())

    return (
        f"`explorer tune` searched {len(tuned)} problems of attention on the H200, those of "
        f"this table among them. The best kernel that it found reaches 100 % of reading at "
        f"{reaching(1.0)} of them, "
        f"95 % at {reaching(0.95)}, 90 % at {reaching(0.9)} and 80 % at {reaching(0.8)}. At the "
        f"{len(long)} that take more than 100 µs it reaches {percent(min(long))} or more, at the "
        f"{len(short)} that take less than 10 µs {percent(min(short))} to {percent(max(short))}."
    )


@figure
def loss_of_a_vocabulary() -> str:
    """What a loss of a language model's vocabulary takes, beside PyTorch's."""
    (one,) = (
        one
        for one in read_table(TUNED / "losses" / "nvidia-h200.json").problems
        if one.problem.op is Op.CROSS_ENTROPY
        and one.problem.rows * one.problem.cols == 4096 * 151936
    )
    return (
        f"On an H200, the loss of 4096 × 151936 logits of bf16 takes "
        f"{microseconds(one.best.time_us)} µs, and PyTorch's of the same, in f32, "
        f"{one.torch_over_best:.0f} times that."
    )


RETIMED = {
    "H100": ("retimed-h100", "retimed-h100-again"),
    "H200": ("retimed-h200", "retimed-softmax-h200"),
}
"""Problems that were lost, or are like those, and were timed again, by GPU."""


@figure
def retimed() -> str:
    """A table of problems that were lost, or are like those, and were timed again."""
    columns = [*words("GPU", "problem"), *numbers("ours, µs", "theirs, µs")]
    table = Table([*columns, *words("library", "our kernel")])
    for gpu, names in RETIMED.items():
        for one in drawn_run(names).comparisons:
            times = map(microseconds, (one.time_us, one.best.time_us))
            table.add(gpu, str(one.problem), *times, one.best.name, chosen_today(one))
    return as_markdown(table)


def counted(files: Mapping[str, Sequence[str]]) -> str:
    """How many of the drawn problems are won on each GPU."""
    told = []
    for gpu, names in files.items():
        comparisons = drawn_run(names).comparisons
        found = result_counts(comparisons)
        told.append(
            f"{found['win']} of {len(comparisons)} problems on an {gpu} "
            f"(ties at {found['tie']}, slower at {found['loss']})"
        )
    return " and at ".join(told)


@figure
def drawn_wins() -> str:
    """How many of the shapes that were drawn at random are won, on both GPUs."""
    return (
        "At shapes drawn at\nrandom, in f32 and in bf16, the kernel that was then taken without a "
        f"search is faster than the fastest library at\n{counted(DRAWN)}."
    )


@figure
def gradient_wins() -> str:
    """Against the fastest peer of each gradient, of those chosen by hand and of drawn ones."""
    files = ("gradients-f32", "gradients-bf16", "log-gradients-f32")
    found = result_counts(one for name in files for one in compared(name).comparisons)
    return (
        f"At {sum(found.values())} gradients that were chosen by hand,\nit is faster than the "
        f"fastest library at {found['win']} (ties at {found['tie']}, slower at {found['loss']}); "
        f"of gradients that were drawn at random, at {counted(DRAWN_GRADIENTS)}."
    )


FEW_ROWS = 300
"""The most rows of the problems that studies/tuned/problems.csv lists as matrices of few rows."""


def kind_of(problem: Problem) -> str:
    """The kind of problem that a table of the heuristic's losses counts it with."""
    if problem.mask is not Mask.NONE:
        return {
            Mask.CAUSAL: "softmax under a causal mask",
            Mask.LENGTHS: "softmax under a mask of lengths",
            Mask.ADDITIVE: "softmax with an additive mask",
        }[problem.mask]
    if problem.inner > 1:
        return "softmax over an axis that is not the last"
    if problem.op in (Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD):
        return f"gradients, {problem.dtype}"
    if problem.op is Op.LOG_SOFTMAX:
        return "log_softmax"
    return f"softmax, {'at most' if problem.rows <= FEW_ROWS else 'more than'} {FEW_ROWS} rows"


@figure
def heuristic_losses() -> str:
    """A table of what the heuristic's kernel takes over the best, by the kind of problem."""
    losses = losses_in("of the H200's table")
    kinds: dict[str, list[Loss]] = {}
    for one in losses:
        kinds.setdefault(kind_of(one.problem), []).append(one)
    means = {kind: mean(one.ratio for one in found) for kind, found in kinds.items()}
    table = Table([*words("kind"), *numbers("problems", "mean", "worst"), *words("the worst is")])
    for kind in sorted(kinds, key=lambda kind: -means[kind]):
        worst = max(kinds[kind], key=lambda one: one.ratio)
        figures = f"{means[kind]:.3f}", f"{worst.ratio:.3f}"
        table.add(kind, str(len(kinds[kind])), *figures, str(worst.problem))
    tuned = read_table(TABLES["of the H200's table"])
    dates = sorted({one.environment.date[:10] for one in tuned.problems})
    judged = {name: losses_in(name) for name in CALLED}
    untimed = sum(not one.measured for some in judged.values() for one in some)
    return (
        f"{as_markdown(table)}\n\nThis is the same for all problems of each table (the H200's was "
        f"measured {', '.join(dates)}), with today's rules:\n\n"
        f"{as_markdown(losses_by_table(judged))}\n\nThe "
        f"heuristic's kernel has no time of its own at {untimed or 'none'} of all these problems. "
        "Where it has none, the timed kernel most like it stands for it."
    )


CALLED = {
    "of the H200's table": "of the table, H200",
    "held out, H200": "random ones, H200",
    "of the H100's table": "of the table, H100",
}
"""What the problems of a table are called."""


def losses_by_table(judged: Mapping[str, Sequence[Loss]]) -> Table:
    """A table of what the heuristic's kernel takes over the best, a row a tuned table."""
    table = Table([*words("problems"), *numbers("mean", "worst")])
    for name, called in CALLED.items():
        ratios = [one.ratio for one in judged[name]]
        table.add(f"{len(ratios)} {called}", f"{mean(ratios):.3f}", f"{max(ratios):.3f}")
    return table


# ------------------------------------------------------------------ searches


@figure
def searches() -> str:
    """A table of the best kernels of the committed searches."""
    columns = [*words("rows × cols", "type"), *numbers("µs", "copy µs", "GB/s", "share of copy")]
    table = Table([*columns, *words("config"), *numbers("ties")])
    for name in OF_FIVE:
        data = kept(f"h200-{name}")
        best, problem, finals = data["best"], data["problem"], data["finals"]
        table.add(
            f"{problem['rows']} × {problem['cols']}",
            problem["dtype"],
            with_spread(best["time_us"], best["spread"]),
            microseconds(finals["limit_us"]),
            f"{best['gbps']:.0f}",
            percent(best["of_limit"]),
            brief_words(Config.from_json(json.dumps(best["config"]))),
            str(sum(one["tied"] for one in finals["finalists"]) - 1),
        )
    where = kept(f"h200-{OF_FIVE[0]}")["circumstances"]
    environment = (
        where["gpu"],
        f"driver {where['driver']}",
        f"NVRTC {where['nvrtc']}",
        f"{where['sm_clock_mhz']} MHz",
        where["throttle_reasons"] or "not throttled",
        f"{where['timing']} L2",
        where["date"][:10],
    )
    trials = [kept(f"h200-{name}")["trials"] for name in OF_FIVE]
    return (
        f"{as_markdown(table)}\n\n{', '.join(environment)}. Each row is a search of its own, of "
        f"{min(trials)} to {max(trials)} trials."
    )


@figure
def above_copy() -> str:
    """The greatest share of copy of these searches, and the noise of its finals."""
    data = max((kept(f"h200-{name}") for name in OF_FIVE), key=lambda d: d["best"]["of_limit"])
    problem, finals = data["problem"], data["finals"]
    return (
        f"{problem['rows']} × {problem['cols']} in {problem['dtype']} reached "
        f"{percent(data['best']['of_limit'])} of copy, whose own samples spread by "
        f"± {percent(finals['limit_spread'], 1)}"
    )


ABOVE_COPY = 1.01
"""Problems whose share of copy is greater are counted as above copy."""


@figure
def above_copy_elsewhere() -> str:
    """A table of how many problems of the tuned tables, and of drawn shapes, are above copy."""
    table = Table([*words("problems"), *numbers("of", "above 101 %"), *words("the greatest share")])
    for name in ("of the H200's table", "of the H100's table"):
        gpu, problems, anew = name[7:11], read_table(TABLES[name]).problems, timed_anew(name[7:11])
        shares = {
            one.problem: one.environment.limit_us / one.best.time_us
            for one in problems
            if one.problem.limit is Limit.COPY
        }
        found = [(anew.get(str(each), share), each) for each, share in shares.items()]
        for kind in ("plain softmax", "softmax under a mask", "all others"):
            of_kind = [each for each in found if access_kind(each[1]) == kind]
            add_shares(table, f"{kind}, {gpu}'s tuned table", of_kind)
    for gpu, names in DRAWN.items():
        drawn = drawn_run(names).comparisons
        shares = [(one.limit_time_us / one.time_us, one.problem) for one in drawn]
        add_shares(table, f"shapes drawn at random, {gpu}", shares)
    return as_markdown(table)


def timed_anew(gpu: str) -> dict[str, float]:
    """Shares of copy that `python -m tests.above_copy` found on a GPU, by the problem's name."""
    problems = kept(f"above-copy-{gpu.lower()}")["problems"]
    return {one["problem"]: one["of_limit"] for one in problems}


def add_shares(table: Table, name: str, found: list[tuple[float, Problem]]) -> None:
    """Add a row of how many of some shares of copy are above copy, and which is the greatest."""
    share, problem = max(found, key=lambda each: each[0])
    above = sum(each > ABOVE_COPY for each, _ in found)
    table.add(name, str(len(found)), str(above), f"{percent(share)}, {problem}")


def access_kind(problem: Problem) -> str:
    """The kind of problem that a table of shares of copy counts it with."""
    if problem.mask is not Mask.NONE:
        return "softmax under a mask"
    return "plain softmax" if problem.op is Op.SOFTMAX and problem.inner == 1 else "all others"


@figure
def readings() -> str:
    """A table of the fastest readings of some sizes, and of what other ways to read take."""
    data = kept("readings-h200")
    told = numbers("MiB", "µs", "GB/s", "blocks that stride", "row by row", "rows with gaps")
    table = Table([*told, *words("the fastest")])
    for one in data["problems"]:
        others = [one[f"{name}_us"] for name in ("striding", "rows", "gaps")]
        table.add(
            str(one["mib"]),
            microseconds(one["us"]),
            f"{one['mib'] * 2**20 / one['us'] * 1e-3:.0f}",
            *(
                "–" if us is None else f"{round(100 * (us / one['us'] - 1), 1) + 0.0:+.1f} %"
                for us in others
            ),
            f"{one['words']} x 16 bytes a thread, {one['threads']} threads, load {one['load']}",
        )
    return f"{as_markdown(table)}\n\nOn an {data['gpu'].removeprefix('NVIDIA ')}, {data['date']}."


@figure
def accuracy_limits() -> str:
    """A table of what errors may come to."""
    types = (DType.F32, DType.BF16, DType.F64)
    table = Table(words("`--accuracy`", "f32", "f16, bf16", "f64"))
    for accuracy in Accuracy:
        cells = []
        for limits in (accuracy.tolerance(dtype) for dtype in types):
            of_all = f"{limits.max_ulp:g} ulp, and {limits.mean_ulp:g} on average"
            cells.append(limits.element_limit if isinf(limits.max_ulp) else of_all)
        table.add(f"`{accuracy}`", *cells)
    return as_markdown(table)


@figure
def parameter_count() -> str:
    """How many parameters there are to choose for softmax."""
    return str(sum(len(values) > 1 for values in parameters(DType.F32).values()))


@figure
def recording_count() -> str:
    """How many recordings come with the package."""
    return str(len(list((ROOT / "studies" / "recorded").glob("*.json.gz"))))


@figure
def tuned_count() -> str:
    """How many problems a table for everyone has."""
    return str(len(read_shapes(ROOT / "studies" / "tuned" / "problems.csv")))


@figure
def confidence() -> str:
    """How sure a difference must be."""
    return f"{CONFIDENCE * 100:.0f} %"


# ------------------------------------------------------------------ in a program


@figure
def runtime(group: str, name: str, what: str, digits: str = "0") -> str:
    """A figure of studies/results/runtime-h200.json."""
    found = kept("runtime-h200")[group][name]
    return f"{found[what]:.{digits}f}" if what else f"{found:.{digits}f}"


@figure
def runtime_uses() -> str:
    """A table of whole uses in a program."""
    table = Table([*words("what is computed"), *numbers("PyTorch", "with our kernels")])
    uses, model = kept("runtime-h200")["whole_uses"], kept("runtime-h200")["language_model"]["ms"]
    names = {
        "vocabulary": "log_softmax and its gradient, 1024 × 151936, bf16",
        "attention": "softmax of attention scores after `masked_fill`, 4 × 16 × 2048 × 2048, bf16",
    }
    for key, what in names.items():
        use = uses[key]
        table.add(what, f"{use['torch']:.0f} µs", f"{use['registered']:.0f} µs")
    ours = uses["attention"]["explorer.softmax, mask='causal'"]
    table.add(
        'the same by `explorer.softmax(x, mask="causal")`',
        f"{uses['attention']['torch']:.0f} µs",
        f"{ours:.0f} µs",
    )
    table.add(
        "a training step of GPT-2's smallest size, 4 × 1024 tokens, bf16",
        f"{model['torch']:.1f} ms",
        f"{model['registered']:.1f} ms",
    )
    return as_markdown(table)


@figure
def runtime_host() -> str:
    """A table of what a call costs the host."""
    data = kept("runtime-h200")
    times, plain = data["host_times"], data["compiled_calls"]
    compiled = data["under_torch_compile"]["f32"]
    with_gradient = "x requires a gradient"
    rows = {
        "a call with `out=`": (plain["out="]["torch"], plain["out="]["compiled"]),
        "a call without it": (plain["a new output"]["torch"], plain["a new output"]["compiled"]),
        "a tensor that requires a gradient": (
            times[f"torch.softmax, {with_gradient}"],
            times[f"explorer.softmax, {with_gradient}"],
        ),
        "through `torch.compile`": (compiled["inductor"], compiled["compiled"]),
    }
    table = Table([*words("host time"), *numbers("PyTorch, µs", "ours, µs")])
    for what, both in rows.items():
        table.add(what, *(f"{time_us:.1f}" for time_us in both))
    return as_markdown(table)


@figure
def registered_host() -> str:
    """What `register_torch()` adds to the host's time for small tensors, timed in turn."""
    data = kept("runtime-h100")
    both = {k: v for k, v in data["small_tensors"].items() if k.startswith("softmax")}
    ratios = [registered / alone for alone, registered in both.values()]
    sizes = [prod(map(int, re.findall(r"(\d+) x (\d+)", name)[0])) for name in both]
    return (
        f"In a loop of calls on an {data['gpu']} ({data['date']}), timed in turn, `torch.softmax` "
        f"of {min(sizes)} to {max(sizes)} elements in f32 and bf16 takes longer after "
        f"`register_torch()` than without it at {sum(ratio > 1 for ratio in ratios)} of "
        f"{len(both)} shapes. In the median over these shapes, it takes {median(ratios):.2f} times "
        f"as long, and at single shapes {min(ratios):.2f} to {max(ratios):.2f} times."
    )


@figure
def first_result() -> str:
    """How long a new process takes to its first result, of a kernel that is on disk."""
    found = kept("runtime-h200")["first_result_ms"]
    return f"{min(found):.0f} to {max(found):.0f} ms"


@figure
def runtime_where() -> str:
    """GPU, version of PyTorch and date of these figures."""
    data = kept("runtime-h200")
    return f"{data['gpu']}, PyTorch {data['torch']}, {data['date']}"


# ------------------------------------------------------------------ kernels, tests, guides


@figure
def source(config: str, cols: str, first: str, last: str) -> str:
    """Return lines of the file that a config, as JSON, or a preset emits.

    They begin with the first line that starts with `first`, and end with the next that starts with
    `last`.
    """
    problem = Problem(8192, int(cols))
    if config.startswith("{"):
        chosen = Config.from_json(config)
    else:
        chosen = find_preset(config).config(problem, known_gpu("NVIDIA H200"))
    return excerpt(emit(problem, chosen).source, first, last)


def excerpt(source: str, first: str, last: str) -> str:
    """Return the lines of a source from one that starts with `first` to the next with `last`."""
    lines = source.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(first))
    end = next(i for i, line in enumerate(lines) if i >= begin and line.startswith(last))
    return "```cuda\n" + "\n".join(lines[begin : end + 1]) + "\n```"


ONE_GROUP = Problem(4, 1024, DType.BF16, Op.DECODE_ATTENTION, group=4)
"""The four query heads of one key head of a sequence."""

ATTENTION_JOURNEY = RESULTS / "journey-h200-attention-bf16-4096.json"


@figure
def attention_source(preset: str, first: str, last: str) -> str:
    """Return lines of the file that a preset of attention emits, as `source` does."""
    config = find_preset(preset).config(ONE_GROUP, known_gpu("NVIDIA H200"))
    return excerpt(emit(ONE_GROUP, config).source, first, last)


@figure
def attention_ladder() -> str:
    """A table: what the published forms of attention move, execute, hold and take; and the best."""
    gpu, journey = known_gpu("NVIDIA H200"), read_journey(ATTENTION_JOURNEY)
    steps, best = ladder_steps(journey.problem, gpu, journey), journey.find(BEST)
    ideas = {s.rung.preset: s.rung.idea.partition(":")[0].rstrip(".").lower() for s in steps}
    ideas[BEST] = change_words(steps[-1].config, best.config)
    counted = numbers("bytes moved", "instructions", "warps an SM", "µs", "of read")
    table = Table([*words("kernel", "idea"), *counted])
    for kernel in (*(step.timed for step in steps), best):
        of = profile(ProgramUnderTest.of_config(journey.problem, kernel.config), gpu)
        launch = of.variant.launches[0]
        blocks = min(of.occupancy.blocks_per_sm, ceil(launch.grid / gpu.sm_count))
        table.add(
            kernel.name,
            ideas[kernel.name],
            f"{moved_bytes(of) / of.elements:.0f}",
            f"{32 * of.counters.warp_instructions / of.elements:.0f}",
            str(blocks * launch.block // WARP),
            microseconds(kernel.time_us),
            percent(journey.limit_time_us / kernel.time_us),
        )
    return as_markdown(table)


@figure
def side_by_side(one: str, other: str, cols: str, rows: str, *names: str) -> str:
    """Return rows of the table of figures by which `explorer diff` compares two presets."""
    problem, gpu = Problem(int(rows), int(cols)), known_gpu("NVIDIA H200")
    sides = [
        inspect(ProgramUnderTest.of_config(problem, find_preset(name).config(problem, gpu)), gpu)
        for name in (one, other)
    ]
    table = figures_table(Difference((one, other), (sides[0], sides[1]), None))
    told = {str(row[0]): row for row in table.rows}
    return as_markdown(Table(table.columns, [told[name] for name in names]))


@figure
def emulator() -> str:
    """How the emulator compares with GPUs, from the last GPU tests."""
    return compared_sentences(read_runs(RECORD))


@figure
def failed_gpu_tests() -> str:
    """Which tests failed in the last GPU tests, and what their modules are about."""
    told = []
    for run in read_runs(RECORD):
        number = run.passed + len(run.failed)
        tests = Counter(name.partition("[")[0] for name in run.failed)
        names = [f"`{name}` ({subject(name)})" for name in tests]
        which = f"these failed: {'; '.join(names)}" if names else "none failed"
        skipped = sum(run.skipped.values())
        all_told = f"of {number} tests, {which}; {skipped} more were skipped"
        told.append(f"- {run.gpu}, {run.date[:10]}: {all_told}.")
    return "\n".join(told)


def subject(test: str) -> str:
    """What the module of a test is about, as the first clause of its docstring says."""
    path = ROOT / test.partition("::")[0]
    if not path.is_file():
        return "a test that is gone"
    said = ast.get_docstring(ast.parse(path.read_text())) or path.stem
    return re.split(r"[:,.]", said.splitlines()[0])[0]


@figure
def cluster_cores() -> str:
    """The cores that the simulation of a cluster had."""
    return f"{kept('cluster-scale')['cores']} cores"


@figure
def cluster_problems() -> str:
    """A table: how busy a cluster was whose workers take so long for a problem."""
    head = "| a problem takes | problems a second | coordinator | scheduler | GPUs idle |\n"
    rows = [
        f"| {one['mean_s']:g} s | {one['rows_per_s']:.0f} | {100 * one['coordinator']:.0f} % of a "
        f"core | {100 * one['scheduler']:.0f} % | {100 * one['idle']:.0f} % |"
        for one in kept("cluster-scale")["problems"]
    ]
    return "\n".join([f"{head}|---:|---:|---:|---:|---:|", *rows])


@figure
def cluster_cost() -> str:
    """What the coordinator's core has to do for a problem."""
    found = kept("cluster-scale")["problems"]
    each = [1000 * one["coordinator"] / one["rows_per_s"] for one in found]
    return f"{min(each):.0f} to {max(each):.0f} ms of a core"


@figure
def cluster_kernels() -> str:
    """A table: how many kernels of one problem a cluster evaluates in a second."""
    head = "| GPUs | a kernel takes | kernels a second | coordinator | GPUs idle |\n"
    rows = [
        f"| {one['workers']} | {1000 * one['mean_s']:g} ms | {one['rows_per_s']:.1f} | "
        f"{100 * one['coordinator']:.0f} % of a core | {100 * one['idle']:.0f} % |"
        for one in kept("cluster-scale")["kernels"]
    ]
    return "\n".join([f"{head}|---:|---:|---:|---:|---:|", *rows])


@figure
def planted_bugs() -> str:
    """How many bugs the tests plant."""
    return str(counts().total())


@figure
def planted_groups() -> str:
    """A table: groups of planted bugs, and how many of each verification finds."""
    head = "| kind of bug | planted | found |\n|---|---:|---:|"
    rows = (f"| {group} | {number} | {number} |" for group, number in grouped().items())
    return "\n".join([head, *rows])


@figure
def guides() -> str:
    """A link to each guide."""
    return ", ".join(f"[{name}](explorer/guide/{name}.md)" for name in ORDER)
