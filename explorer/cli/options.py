"""The options that several commands share: one spelling, one help text, one way to read them."""

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.cli import completions
from explorer.cli.output import passing_errors, say
from explorer.model.accuracy import Accuracy
from explorer.model.errors import InvalidInput
from explorer.model.query import ProblemQuery, whole_number
from explorer.tuning.objective import Goal, Objectives

if TYPE_CHECKING:
    from explorer.export.choice import Scope

# ------------------------------------------------------------------ one way to declare them


def option(
    name: str,
    help_text: str,
    parser: Callable[[str], Any] | None = None,
    *,
    choices: Collection[str] = (),
    complete: completions.Completion | None = None,
) -> Any:
    """Return the declaration of an option.

    `name` is written as help prints it: `--cols C`, and without a word for the value if it takes
    none. The value must be one of `choices`, a StrEnum or some words, where these are given, and is
    else read by `parser`.
    """
    long, _, metavar = name.partition(" ")
    if choices:
        parser = getattr(choices, "parse", None) or one_of(long.removeprefix("--"), *choices)
        complete = completions.among(*choices)
    read = None if parser is None else passing_errors(parser)
    return typer.Option(
        long, metavar=metavar or None, help=help_text, parser=read, autocompletion=complete
    )


def argument(metavar: str, help_text: str, complete: completions.Completion | None = None) -> Any:
    """Return the declaration of an argument."""
    return typer.Argument(metavar=metavar, help=help_text, autocompletion=complete)


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
    """Return a reader of seconds: `90`, `30s` or `1.5h`; it raises InvalidInput naming `name`."""

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
    """Return a reader of one of a few words that raises InvalidInput naming them."""

    def read(text: str) -> str:
        if text not in choices:
            raise InvalidInput(f"{name} is {text!r}; choose one of {', '.join(choices)}")
        return text

    return read


# ------------------------------------------------------------------ the options


Storage = Annotated[
    str | None,
    option(
        "--storage URL",
        "Optuna storage, a URL or a SQLite file; default: "
        "$EXPLORER_STORAGE, else explorer.db in studies/ or in the user's data folder.",
    ),
]
Device = Annotated[
    str, option("--device DEVICE", "auto, cuda:N, or recorded:NAME.", complete=completions.devices)
]
RecordedDevice = Annotated[
    str,
    option(
        "--device DEVICE",
        "The GPU to measure on: cuda:N.",
        complete=completions.among("auto", "cuda:0"),
    ),
]
Timing = Annotated[
    str,
    option(
        "--timing MODE",
        "cold: launches rotate over buffers of 4 x L2; warm: they stay on one.",
        choices=("cold", "warm"),
    ),
]
Seed = Annotated[int, option("--seed S", "Seed of all random draws.", whole_number("seed", 0))]
Gpu = Annotated[
    str | None,
    option(
        "--gpu NAME",
        "GPU whose limits count: its driver's name for it, or a part of that such as A100, "
        "or an architecture such as sm_89; default: the study's of best and of a trial, else the "
        "one here, else NVIDIA H200. It also says which study is meant where several fit.",
    ),
]
Study = Annotated[
    str | None,
    option(
        "--study NAME",
        "The study, or a part of its name that no other has; it says the problem, too.",
    ),
]
StudyGpu = Annotated[
    str | None,
    option(
        "--gpu NAME",
        "The GPU of the study, by its name, a part of that, or its architecture, where studies "
        "of several GPUs fit.",
    ),
]
AccuracyLevel = Annotated[
    Accuracy,
    option(
        "--accuracy LEVEL", "The largest error allowed: strict, default or fast.", choices=Accuracy
    ),
]
AccuracyOrNone = Annotated[
    Accuracy | None,
    option(
        "--accuracy LEVEL",
        "The largest error allowed: strict, default or fast; without it, default, or fast "
        "with --objectives time,error.",
        choices=Accuracy,
    ),
]
Minimised = Annotated[
    Objectives,
    option(
        "--objectives WHAT",
        "What is minimised: time, time,error for the Pareto front of both, or module:function "
        "of an outcome.",
        lambda text: Objectives.parse(str(text)),  # the default is no text
        complete=completions.among(str(Objectives.TIME), str(Objectives.TIME_ERROR)),
    ),
]
BatchInvariant = Annotated[
    bool,
    option("--batch-invariant", "With heuristic: choose the same config for any number of rows."),
]
Where = Annotated[
    list[str] | None,
    option(
        "--where NAME=V,V",
        "Only configs with these values of a parameter; may be repeated.",
        complete=completions.conditions,
    ),
]
Plot = Annotated[
    Path | None,
    option(
        "--plot FILE.svg|png",
        "Draw the result as a picture, too; this needs softmax-explorer[report].",
    ),
]
Json = Annotated[
    bool, option("--json", "Print the result, or the error, as JSON, alone on stdout.")
]
Markdown = Annotated[bool, option("--markdown", "Print Markdown, for documents.")]
Kept = Annotated[Path | None, option("--from FILE", "Show what --save kept, instead of measuring.")]
AllLines = Annotated[
    bool,
    option("--all", "Print every problem; else, of many side by side, those farthest apart."),
]
Csv = Annotated[bool, option("--csv", "Print the rows as CSV, alone on stdout, with all digits.")]


Gpus = Annotated[
    str | None,
    option("--gpus all|N", "Use all GPUs of this machine, or N; needs softmax-explorer[cluster]."),
]
At = Annotated[
    str | None,
    option("--cluster tcp://HOST:PORT|FILE", "Use a Dask scheduler's workers (guide cluster)."),
]


NAMED = "best, a trial's number, heuristic, a preset, or a config as JSON."
What = Annotated[str, argument("WHAT", NAMED, completions.variants)]

# ------------------------------------------------------------------ options that belong together


Command = Callable[..., None]


def with_options(command: Command) -> Command:
    """Give a command, for a parameter whose type is a dataclass, the options in its fields."""
    own = inspect.signature(command, eval_str=True).parameters
    place = inspect.Parameter.KEYWORD_ONLY
    groups: dict[str, Any] = {
        name: one.annotation for name, one in own.items() if is_dataclass(one.annotation)
    }

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    parameters = []
    for parameter in own.values():
        if parameter.name in groups:
            parameters += [
                inspect.Parameter(one.name, place, default=one.default, annotation=one.type)
                for one in fields(groups[parameter.name])
            ]
        else:
            parameters.append(parameter.replace(kind=place))
    return with_signature(command, run, parameters)


def with_signature(
    command: Command, run: Command, parameters: Sequence[inspect.Parameter]
) -> Command:
    """Return `run` as the command, with other parameters, by which Typer reads its options."""
    wraps(command)(run)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


@dataclass(frozen=True, slots=True)
class JsonOption:
    """The format that a result is printed in: a terminal's, or JSON.

    Raises InvalidInput where two formats are asked for, which it names by their options.
    """

    json: Json = False

    def __post_init__(self) -> None:
        if len(wanted := self._wanted) > 1:
            options = " and ".join(f"--{name}" for name in wanted)
            raise InvalidInput(f"{options} both want stdout; drop one of them")

    @property
    def _wanted(self) -> list[str]:
        return [name for name, is_wanted in asdict(self).items() if is_wanted]

    @property
    def form(self) -> str:
        """Name of the format, empty for a terminal's."""
        return "".join(self._wanted)


@dataclass(frozen=True, slots=True)
class RowsOptions(JsonOption):
    """The format of a result with rows, which may be CSV as well."""

    csv: Csv = False


@dataclass(frozen=True, slots=True)
class TableOptions(RowsOptions):
    """The format of a result with rows that is set in documents as well."""

    markdown: Markdown = False


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """On which GPU kernels are timed, and how."""

    device: RecordedDevice = "auto"
    timing: Timing = "cold"
    accuracy: AccuracyLevel = Accuracy.DEFAULT
    seed: Seed = 0


@dataclass(frozen=True, slots=True)
class SpreadOptions:
    """Many GPUs, of this machine or of a cluster."""

    gpus: Gpus = None
    cluster: At = None


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Which study of a problem is meant, and where it is stored."""

    accuracy: AccuracyOrNone = None
    objectives: Minimised = Objectives.TIME
    storage: Storage = None
    study: Study = None
    gpu: StudyGpu = None

    @property
    def given(self) -> dict[str, Any]:
        """The options as keywords of a function that looks at a study."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def goal(self) -> Goal:
        """What the study was searched for, and its name or GPU."""
        return Goal.of(self.objectives, self.accuracy, self.study, self.gpu)

    def found(self, query: ProblemQuery | None) -> tuple[str, int]:
        """Return the study's name and its number in the storage. Raises as `explorer.show`."""
        from explorer.tuning.study_reader import load_trial, open_to_read

        opened, asked, goal = open_to_read(self.storage, query, self.goal)
        view, _ = load_trial(opened, asked, "best", goal)
        return view.summary.name, opened.get_study_id_from_name(view.summary.name)


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """Where the kernel that WHAT names runs, and the study that it may be from."""

    batch_invariant: BatchInvariant = False
    gpu: Gpu = None
    accuracy: AccuracyOrNone = None
    objectives: Minimised = Objectives.TIME
    storage: Storage = None
    study: Study = None

    @property
    def goal(self) -> Goal:
        """What a study was searched for, and its name."""
        return Goal.of(self.objectives, self.accuracy, self.study)

    def scope(self, query: ProblemQuery | None) -> "Scope":
        """Return what a kernel's name is read by."""
        from explorer.export.choice import Scope

        return Scope(query, self.gpu, self.storage, self.goal, say, self.batch_invariant)
