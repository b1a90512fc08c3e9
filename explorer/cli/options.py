"""The options that several commands share: one spelling, one help text."""

from typing import Annotated

import typer

from explorer.accuracy import Accuracy
from explorer.cli.values import one_of, whole_number
from explorer.tuning.objectives import Objectives

Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Optuna storage, a URL or a SQLite file; left out: studies/explorer.db.",
        show_default=False,
    ),
]
Device = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="auto, cuda:N, or recorded:NAME."),
]
RecordedDevice = Annotated[
    str,
    typer.Option("--device", metavar="DEVICE", help="The GPU to measure on: cuda:N."),
]
Timing = Annotated[
    str,
    typer.Option(
        "--timing",
        metavar="MODE",
        parser=one_of("timing", "cold", "warm"),
        help="cold: launches rotate over buffers of 4 x L2; warm: they stay on one.",
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="S", parser=whole_number("seed", 0), help="Seed of the search."),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="GPU whose limits count, as its driver calls it; left out: the one here, "
        "else NVIDIA H200.",
        show_default=False,
    ),
]
AccuracyLevel = Annotated[
    Accuracy,
    typer.Option(
        "--accuracy",
        metavar="LEVEL",
        parser=Accuracy.parse,
        help="What errors may come to: strict, default or fast.",
    ),
]
AccuracyOrNone = Annotated[
    Accuracy | None,
    typer.Option(
        "--accuracy",
        metavar="LEVEL",
        parser=Accuracy.parse,
        help="What errors may come to: strict, default or fast; left out: default, and fast with "
        "--objectives time,error.",
        show_default=False,
    ),
]
Minimised = Annotated[
    Objectives,
    typer.Option(
        "--objectives",
        metavar="WHAT",
        parser=Objectives.parse,
        help="What is minimised: time, or time,error for the Pareto front of both.",
    ),
]
BatchInvariant = Annotated[
    bool,
    typer.Option("--batch-invariant", help="Of the heuristic: one config whatever the rows are."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, alone on stdout.")]
