"""What losses and training steps of `explorer.cross_entropy` take, beside PyTorch's and Liger's.

    python -m tests.loss_steps OUT.json

A step is a loss with its backward pass. All ways are timed in turn by events of the GPU; a time is
the median of its rounds. Each matrix is several times as large as the L2, so that nothing of it is
there from the way before. A way that the machine lacks, such as Liger's, is left out.
"""

import json
import sys
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch

import explorer

SHAPES = ((4096, 151936), (8192, 50257), (32768, 4096))
"""Rows and classes, of bf16."""

ROUNDS, WARM_UPS = 15, 3
SMALL_STEP = 0.125
"""A factor of the loss that is not 1, as of one of eight accumulated steps."""


def microseconds(call):
    """Time one call by events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000


def forward(logits, target, **more):
    """Return a call of the loss alone."""

    def run():
        with torch.no_grad():
            explorer.cross_entropy(logits, target, **more)

    return run


def step(logits, loss, factor=1.0):
    """Return a call of a loss and its backward pass; `loss` takes the logits."""

    def run():
        logits.grad = None
        value = loss(logits)
        (value if factor == 1 else value * factor).backward()

    return run


def ways(logits, target):
    """Return each call that is timed, by its name."""
    weight = torch.rand(logits.shape[1], device="cuda")

    def ours(**more):
        return lambda x: explorer.cross_entropy(x, target, **more)

    def own(x):
        return torch.nn.functional.cross_entropy(x, target)

    copied = torch.empty_like(logits, requires_grad=False)
    calls = {
        "copy": lambda: copied.copy_(logits.detach()),
        "forward": forward(logits, target),
        "forward, weight": forward(logits, target, weight=weight),
        "forward, label_smoothing": forward(logits, target, label_smoothing=0.1),
        "forward, z_loss": forward(logits, target, z_loss=1e-4),
        "forward, softcap": forward(logits, target, softcap=30.0),
        "step, later": step(logits, ours()),
        "step, with_loss": step(logits, ours(gradient="with_loss")),
        "step, with_loss, label_smoothing": step(
            logits, ours(gradient="with_loss", label_smoothing=0.1)
        ),
        "step of a part, later": step(logits, ours(), SMALL_STEP),
        "step of a part, with_loss": step(logits, ours(gradient="with_loss"), SMALL_STEP),
        "step, torch": step(logits, own),
        "step, torch.compile": step(logits, torch.compile(own)),
    }
    if find_spec("liger_kernel"):
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

        overwritten = logits.detach().clone().requires_grad_()
        calls["step, Liger, in place"] = step(
            overwritten, lambda x: LigerCrossEntropyFunction.apply(x, target)[0]
        )
    return calls


def measured(rows, classes):
    """Return the times of one shape by the names of the ways."""
    logits = torch.randn(rows, classes, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    calls = ways(logits, torch.randint(classes, (rows,), device="cuda"))
    times = {name: [] for name in calls}
    for round_ in range(WARM_UPS + ROUNDS):
        for name, call in calls.items():
            us = microseconds(call)
            if round_ >= WARM_UPS:
                times[name].append(us)
    return {name: round(median(samples), 1) for name, samples in times.items()}


def main(path):
    """Measure all shapes, and write their times in microseconds."""
    explorer.set_options(wait=True)
    kept = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
        "us": {f"{rows}x{classes}": measured(rows, classes) for rows, classes in SHAPES},
    }
    Path(path).write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
