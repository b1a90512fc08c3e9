"""The options that several commands share: one spelling, one help text, one way to read them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from explorer.cli import completions
from explorer.cli.help import MEASUREMENT, RESULTS
from explorer.model.accuracy import Accuracy
from explorer.model.asked import whole_number
from explorer.model.config import Value
from explorer.model.dtype import DType
from explorer.model.errors import InvalidInput
from explorer.space import Space, parameters
from explorer.system.plain_data import nearest
from explorer.tuning.objective import Objectives

# ------------------------------------------------------------------ words and durations


_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(s|m|min|h)?")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}

MAX_DURATION_S = 366 * 24 * 3600.0
"""A year: nobody waits longer, and a clock can count it."""


def words(name: str, text: str) -> list[str]:
    """Words between commas; raises InvalidInput where one is empty."""
    found = [word.strip() for word in text.split(",")]
    if not all(found):
        raise InvalidInput(f"{name} is {text!r}; write one word, or several as a,b")
    return found


def duration(name: str) -> Callable[[str], float]:
    """A reader of seconds: `90`, `30s`, `2m` or `1.5h`; it raises InvalidInput naming `name`."""

    def read(text: str) -> float:
        match = _DURATION.fullmatch(text.strip())
        value = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
        if not 0 < value <= MAX_DURATION_S:
            raise InvalidInput(
                f"{name} is {text!r}; write a duration above 0, and of a year at most, such as "
                "30s, 2m or 90"
            )
        return value

    return read


duration_s = duration("budget")


def one_of(name: str, *choices: str) -> Callable[[str], str]:
    """A reader of one of a few words that raises InvalidInput naming them."""

    def read(text: str) -> str:
        if text not in choices:
            raise InvalidInput(f"{name} is {text!r}; choose one of {', '.join(choices)}")
        return text

    return read


# ------------------------------------------------------ parameters narrowed to some of their values


MOST_POINTS = 100_000
"""More would take a day to measure."""


def sub_space(conditions: list[str], dtype: DType) -> dict[str, tuple[Value, ...]]:
    """The values that are left of each parameter named; raises InvalidInput."""
    fixed: dict[str, tuple[Value, ...]] = {}
    for text in conditions:
        name, values = _condition(text, dtype)
        if name in fixed:
            both = ",".join(map(str, dict.fromkeys((*fixed[name], *values))))
            raise InvalidInput(f"where has {name} twice; write --where {name}={both}")
        fixed[name] = values
    return fixed


def check_size(space: Space) -> None:
    """Raises InvalidInput where a space has too many legal points to measure each."""
    legal = space.legal_count().number
    if legal > MOST_POINTS:
        raise InvalidInput(
            f"--where leaves about {legal} legal points, more than {MOST_POINTS}; narrow it "
            "further, or give --sample 500"
        )


def _condition(text: str, dtype: DType) -> tuple[str, tuple[Value, ...]]:
    known = parameters(dtype)
    name, equals, written = text.partition("=")
    near = nearest(name, known)
    if equals and name not in known and near:
        raise InvalidInput(f"where is {text!r}, and there is no parameter {name!r}; {near}")
    if not equals or name not in known:
        raise InvalidInput(
            f"where is {text!r}; write NAME=VALUE,VALUE with one of {', '.join(known)}"
        )
    by_text = {str(value): value for value in known[name]}
    foreign = [word for word in written.split(",") if word not in by_text]
    if foreign:
        raise InvalidInput(f"{name} has no value {foreign[0]!r}; it has {', '.join(by_text)}")
    return name, tuple(by_text[word] for word in written.split(","))


# ------------------------------------------------------------------ the options


Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Optuna storage, a URL or a SQLite file; default: "
        "$EXPLORER_STORAGE, else explorer.db in studies/ or in the user's data folder.",
        show_default=False,
        rich_help_panel=RESULTS,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cuda:N, or recorded:NAME.",
        autocompletion=completions.devices,
        rich_help_panel=MEASUREMENT,
    ),
]
RecordedDevice = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="The GPU to measure on: cuda:N.",
        autocompletion=completions.among("auto", "cuda:0"),
        rich_help_panel=MEASUREMENT,
    ),
]
Timing = Annotated[
    str,
    typer.Option(
        "--timing",
        metavar="MODE",
        parser=one_of("timing", "cold", "warm"),
        help="cold: launches rotate over buffers of 4 x L2; warm: they stay on one.",
        autocompletion=completions.among("cold", "warm"),
        rich_help_panel=MEASUREMENT,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="S",
        parser=whole_number("seed", 0),
        help="Seed of all random draws.",
        rich_help_panel=MEASUREMENT,
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="GPU whose limits count: its driver's name for it, or a part of that such as A100, "
        "or an architecture such as sm_89; default: the one here, else NVIDIA H200.",
        show_default=False,
        rich_help_panel=MEASUREMENT,
    ),
]
Study = Annotated[
    str | None,
    typer.Option(
        "--study",
        metavar="NAME",
        help="The study, or a part of its name that no other has, where several fit.",
        show_default=False,
        rich_help_panel=RESULTS,
    ),
]
StudyGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="The GPU of the study, or a part of its name, where studies of several fit.",
        show_default=False,
        rich_help_panel=RESULTS,
    ),
]
AccuracyLevel = Annotated[
    Accuracy,
    typer.Option(
        "--accuracy",
        metavar="LEVEL",
        parser=Accuracy.parse,
        help="The largest error allowed: strict, default or fast.",
        autocompletion=completions.among(*Accuracy),
        rich_help_panel=MEASUREMENT,
    ),
]
AccuracyOrNone = Annotated[
    Accuracy | None,
    typer.Option(
        "--accuracy",
        metavar="LEVEL",
        parser=Accuracy.parse,
        help="The largest error allowed: strict, default or fast; without it, default, or fast "
        "with --objectives time,error.",
        show_default=False,
        autocompletion=completions.among(*Accuracy),
        rich_help_panel=MEASUREMENT,
    ),
]
Minimised = Annotated[
    Objectives,
    typer.Option(
        "--objectives",
        metavar="WHAT",
        parser=Objectives.parse,
        help="What is minimised: time, or time,error for the Pareto front of both.",
        autocompletion=completions.among(*Objectives),
        rich_help_panel=MEASUREMENT,
    ),
]
BatchInvariant = Annotated[
    bool,
    typer.Option(
        "--batch-invariant",
        help="With heuristic: choose the same config for any number of rows.",
        rich_help_panel=MEASUREMENT,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE.svg|png",
        help="Draw the result as a picture, too; this needs softmax-explorer[report].",
        show_default=False,
        rich_help_panel=RESULTS,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result, or the error, as JSON, alone on stdout.",
        rich_help_panel=RESULTS,
    ),
]
Markdown = Annotated[
    bool,
    typer.Option("--markdown", help="Print Markdown, for documents.", rich_help_panel=RESULTS),
]
Kept = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Show what --save kept, instead of measuring.",
        show_default=False,
        rich_help_panel=RESULTS,
    ),
]
Csv = Annotated[
    bool,
    typer.Option(
        "--csv",
        help="Print the rows as CSV, alone on stdout, with all digits.",
        rich_help_panel=RESULTS,
    ),
]


def one_format(**wanted: bool) -> str:
    """Return the name of the format that is asked for, empty for a terminal's.

    Raises InvalidInput where two formats are asked for, which it names by their options.
    """
    named = [name for name, is_wanted in wanted.items() if is_wanted]
    if len(named) > 1:
        options = " and ".join(f"--{name}" for name in named)
        raise InvalidInput(f"{options} both want stdout; drop one of them")
    return named[0] if named else ""
