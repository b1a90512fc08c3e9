"""What losses of `explorer.cross_entropy` and training steps take on a GPU, beside other libraries.

    python -m tests.loss_steps --output FILE.json [--shapes 8192x50257:bf16,...] [--device cpu]

A step is a loss, and its backward pass to the gradient of the logits, which are no leaf. `us` is
the time of the GPU alone: of a CUDA graph of one step on each of two matrices, each many times as
large as the L2, replayed in turn with all others. `looped_us` is the time of calls one after
another, with whatever the host adds; of what waits for the GPU, and so cannot be captured, there is
no other. Each gradient is compared with float64 first, in some rows. Ways that write over their
logits have matrices of their own, and then compute from what they wrote last. With `--device cpu`
times are the host's, and say only that the script runs.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

import explorer
from explorer.evaluate.open_evaluator import PeerBenches
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.ops import Op

SHAPES = "4096x151936:bf16,8192x50257:bf16,8192x32000:f32"
SETS, ROUNDS, LAPS, LOOPS = 2, 15, 10, 3
CHECKED_ROWS = 64
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Largest error of a gradient, relative to the largest element of some rows: PyTorch's loss of bf16
logits rounds each logarithm to bf16."""


class Way(NamedTuple):
    """A loss of logits and targets; what it is relative to the loss without options."""

    loss: Callable[[Any, Any], Any]
    options: Mapping[str, Any] = MappingProxyType({})
    backward: bool = True
    overwrites: bool = False
    is_captured: bool = True
    note: str = ""


# ------------------------------------------------------------------ ways


def ways(rows, cols, dtype, device):
    """Return all ways to compute the loss and its gradient, by their names."""
    weight = torch.rand(cols, device=device) + 0.5
    options = {
        "label_smoothing": {"label_smoothing": 0.1},
        "z_loss": {"z_loss": 1e-4},
        "weight": {"weight": weight},
        "softcap": {"softcap": 30.0},
    }
    torch._dynamo.reset()  # other shapes count against the limit of recompilations
    compiled = torch.compile(cross_entropy, dynamic=False)
    of_f32 = torch.compile(lambda x, target: cross_entropy(x.float(), target), dynamic=False)
    found = {
        "later": Way(explorer.cross_entropy),
        "with_loss": Way(partial(explorer.cross_entropy, gradient="with_loss")),
        "in_place": Way(partial(explorer.cross_entropy, gradient="in_place"), overwrites=True),
        "torch": Way(cross_entropy),
        "torch.compile": Way(compiled),
        "liger": Way(
            of_liger,
            overwrites=True,
            is_captured=False,
            note="it waits for the GPU in each forward and backward pass, which cannot be captured",
        ),
        "quack": Way(of_quack, note="targets unchecked"),
        "forward": Way(explorer.cross_entropy, backward=False),
    }
    if dtype is not torch.float32:
        found["torch of x.float()"] = Way(lambda x, target: cross_entropy(x.float(), target))
        found["torch.compile of x.float()"] = Way(of_f32)
    for name, given in options.items():
        loss = partial(explorer.cross_entropy, **given)
        found[f"forward, {name}"] = Way(loss, given, backward=False)
        found[f"later, {name}"] = Way(loss, given)
        if name != "softcap":
            at_once = partial(loss, gradient="with_loss")
            found[f"with_loss, {name}"] = Way(at_once, given)
    return found


def of_liger(x, target):
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return LigerCrossEntropyFunction.apply(x, target, None)[0]


def of_quack(x, target):
    from quack.cross_entropy import cross_entropy as of_rows

    return of_rows(x, target)


class Logits(torch.autograd.Function):
    """A tensor of a matrix's memory that is no leaf and no view, without a launch."""

    @staticmethod
    def forward(ctx, anchor, matrix):
        shape, strides = matrix.shape, matrix.stride()
        return matrix.new_empty(0).set_(matrix.untyped_storage(), 0, shape, strides)

    @staticmethod
    def backward(ctx, grad):
        raise AssertionError("the gradient of the logits ends here")


def call_of(way, anchor, target, matrix):
    """Compute a loss, and the gradient of the logits if the way has one; return what it made."""
    if not way.backward:
        with torch.no_grad():
            return way.loss(matrix, target)
    logits = Logits.apply(anchor, matrix)
    (gradient,) = torch.autograd.grad(way.loss(logits, target), logits)
    return gradient


def reference(rows, target, count, *, weight=None, softcap=None, z_loss=0.0, label_smoothing=0.0):
    """Return the gradient of some rows in float64, of the mean over all `count` rows."""
    wide = rows.double().requires_grad_()
    capped = wide if softcap is None else softcap * torch.tanh(wide / softcap)
    weights = None if weight is None else weight.double()
    kept = target[: len(rows)]
    loss = cross_entropy(capped, kept, weights, reduction="sum", label_smoothing=label_smoothing)
    loss = loss + z_loss * (torch.logsumexp(capped, -1) ** 2).sum()
    divisor = count if weights is None else weights[target].sum()
    return torch.autograd.grad(loss / divisor, wide)[0]


# ------------------------------------------------------------------ times


def each(calls):
    """Make each of the calls, and keep nothing."""
    for call in calls:
        call()


def replay_on(graph, calls):
    """Replay a graph, whose `calls` keep the memory that it reads."""
    graph.replay()


class Clock:
    """Times and captures calls on a device."""

    def __init__(self, device):
        self.is_gpu = device == "cuda"

    def us(self, call, before=None):
        """Microseconds of a call; on a GPU after `before`, during which the host puts it there."""
        if not self.is_gpu:
            begin = time.perf_counter()
            call()
            return (time.perf_counter() - begin) * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if before is not None:
            before()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    def captured(self, calls):
        """Return a function that replays the calls as a graph; on a CPU it makes them."""
        if not self.is_gpu:
            return partial(each, calls)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            each(calls)
        return partial(replay_on, graph, calls)

    def peak_bytes(self, call):
        """Return the most memory that a call takes beside what is there before it."""
        if not self.is_gpu:
            return None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def prepared(way, matrices, target, clock):
    """Check a way; return what is known of it, and the function that is timed, or None."""
    anchor = torch.zeros((), device=target.device, requires_grad=True)
    own = [matrix.clone() for matrix in matrices] if way.overwrites else matrices
    calls = [partial(call_of, way, anchor, target, matrix) for matrix in own]
    rows = own[0][:CHECKED_ROWS].clone()
    made = calls[0]()
    if way.backward:
        expected = reference(rows, target, len(target), **way.options)
        error = (made[:CHECKED_ROWS] - expected).abs().max() / expected.abs().max()
        assert error <= CLOSE[made.dtype], f"its gradient is wrong: off by {error:.1e}"
    del made
    each(calls)
    told = {"peak_bytes": clock.peak_bytes(calls[0]), "note": way.note}
    loops = [clock.us(partial(each, calls * LAPS)) for _ in range(LOOPS)]
    told["looped_us"] = round(median(loops) / (LAPS * SETS), 2)
    if not way.is_captured:
        return told, None
    try:
        return told, clock.captured(calls)
    except RuntimeError as failure:
        return {**told, "note": f"not captured: {failure}".splitlines()[0]}, None


def in_turn(replays, clock):
    """Return the times of each function a set, in turn: the median and the quartiles."""
    times = {name: [] for name in replays}
    for _ in range(ROUNDS):
        for name, replay in replays.items():
            times[name].append(clock.us(replay, before=replay) / SETS)
    found = {}
    for name, samples in times.items():
        low, _, high = quantiles(samples, n=4)
        told = {"us": median(samples), "low_us": low, "high_us": high}
        found[name] = {key: round(value, 2) for key, value in told.items()}
    return found


def limits(shapes):
    """Return what reading the logits takes, and copying them, as `explorer compare` measures it."""
    ops = {"read": Op.CROSS_ENTROPY, "copy": Op.CROSS_ENTROPY_WITH_GRADIENT}
    found = {shape: {} for shape in shapes}
    with PeerBenches("cuda:0", "cold", 0, Accuracy.DEFAULT) as benches:
        for shape, (name, op) in product(shapes, ops.items()):
            with benches.on(Problem(*shape, op)) as bench:
                told = bench.environment
                found[shape] |= {f"{name}_us": told.limit_us, f"{name}_by": told.limit_name}
    return found


def measured(rows, cols, dtype, device):
    """Return times and memory of one shape, way by way."""
    clock, kind = Clock(device), getattr(torch, dtype.array_name)
    torch.manual_seed(0)
    matrices = [torch.randn(rows, cols, device=device, dtype=kind) for _ in range(SETS)]
    target = torch.randint(cols, (rows,), device=device)
    outs = [torch.empty_like(matrix) for matrix in matrices]
    copies = [partial(out.copy_, x) for out, x in zip(outs, matrices, strict=True)]
    found, replays = {"x.copy_": {}}, {"x.copy_": clock.captured(copies)}
    for name, way in ways(rows, cols, kind, device).items():
        try:
            found[name], replay = prepared(way, matrices, target, clock)
        except (ImportError, AssertionError, RuntimeError, ValueError) as failure:
            found[name] = {"note": f"{type(failure).__name__}: {failure}"[:300]}
            print(f"{rows}x{cols} {dtype}, {name}: {found[name]['note']}", file=sys.stderr)
            continue
        if replay is not None:
            replays[name] = replay
    for name, times in in_turn(replays, clock).items():
        found[name] = {**times, **found[name]}
    return {"matrix_bytes": matrices[0].nbytes, "ways": found}


# ------------------------------------------------------------------ a run


def shape_of(text):
    """Return rows, columns and type of a word such as 8192x50257:bf16."""
    sizes, _, dtype = text.partition(":")
    rows, cols = map(int, sizes.split("x"))
    return rows, cols, DType.parse(dtype)


def versions():
    """Return the versions of what is timed, as far as it is installed."""
    found = {"torch": torch.__version__}
    for name in ("softmax-explorer", "triton", "liger-kernel", "quack-kernels"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def main():
    """Measure all shapes, and write what was found after each of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    explorer.set_options(wait=True)
    is_gpu = asked.device == "cuda"
    kept = {
        "gpu": torch.cuda.get_device_name() if is_gpu else None,
        "versions": versions(),
        "date": date.today().isoformat(),
        "rounds": ROUNDS,
        "shapes": {},
    }
    shapes = [shape_of(text) for text in asked.shapes.split(",")]
    least = limits(shapes) if is_gpu else {}
    for shape in shapes:
        begin = time.monotonic()
        one = {**least.get(shape, {}), **measured(*shape, asked.device)}
        one["took_s"] = round(time.monotonic() - begin, 1)
        kept["shapes"]["{}x{} {}".format(*shape)] = one
        asked.output.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
