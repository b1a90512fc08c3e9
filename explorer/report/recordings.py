"""What `explorer record`, `recordings` and `benchmark` print, and recordings for other tuners."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from explorer.devices.recording import RecordedKernel, Recording, RecordingFile
from explorer.model.outcome import Measured, Stage
from explorer.report.table import Field, Kind, notes, print_table, table_of
from explorer.report.text import counted, microseconds, percent, problem_data
from explorer.tuning.benchmark import AT, WITHIN, Score

# ------------------------------------------------------------------ a recording


def recording_sentence(recording: Recording, path: Path) -> str:
    """Say how many kernels a file holds, and which time the best of them has."""
    times = measured_us(recording)
    header = recording.header
    kernels = counted(header.kernel_count, "kernel")
    return (
        f"{path}: {header.problem} on {header.gpu.name}, {len(times)} of "
        f"{kernels} measured, the best {microseconds(min(times))} µs, "
        f"{header.problem.limit} {microseconds(header.environment.limit_us)} µs"
    )


RECORDING: tuple[Field[RecordingFile], ...] = (
    Field("name", lambda f: f.name, "name", kind=Kind.WORD),
    Field("file", lambda f: str(f.path)),
    Field("problem", lambda f: f.header and str(f.header.problem), "problem", kind=Kind.WORD),
    Field("gpu", lambda f: f.header and f.header.gpu.name, "GPU", kind=Kind.WORD),
    Field("kernels", lambda f: f.header and f.header.kernel_count, "kernels"),
    Field(
        "chosen",
        lambda f: f.header and f.header.rule,
        "chosen",
        cell=lambda f: _chosen(f),
        kind=Kind.PROSE,
    ),
    Field("sub_space", lambda f: f.header and f.header.sub_space),
    Field("damage", lambda f: f.damage or None),
)
"""What is known of each recording; null where its file cannot be read."""


def _chosen(file: RecordingFile) -> str:
    """Return how its kernels were chosen, and whether a whole sub-space is in it."""
    if file.header is None:
        return f"cannot be read: {file.damage}"
    rule = file.header.rule
    return f"a whole sub-space; {rule.rpartition('; ')[2]}" if file.header.sub_space else rule


def recording_data(recording: Recording, path: Path) -> dict[str, Any]:
    """Return file, problem, environment, rule, kernels, measured, best_us."""
    times, header = measured_us(recording), recording.header
    return {
        "file": str(path),
        "problem": problem_data(header.problem),
        "circumstances": header.environment.as_dict(),
        "rule": header.rule,
        "kernels": header.kernel_count,
        "measured": len(times),
        "best_us": min(times),
    }


def measured_us(recording: Recording) -> list[float]:
    """Return the times of all kernels that were measured, microseconds."""
    outcomes = (kernel.outcome for kernel in recording.kernels)
    return [outcome.time_us for outcome in outcomes if isinstance(outcome, Measured)]


# ------------------------------------------------------------------ scores


def _regret(place: int) -> Field[Score]:
    """Return the column of the mean regret after AT[place] evaluations."""
    return Field("", lambda s: s.mean_regret(place), f"@{AT[place]}", lambda r: percent(r, 2))


def _evaluations(number: float) -> str:
    return f"> {AT[-1]}" if number > AT[-1] else f"{number:.0f}"


SCORE: tuple[Field[Score], ...] = (
    Field("recording", lambda s: s.recording, "recording", kind=Kind.WORD),
    Field("strategy", lambda s: s.strategy, "strategy", kind=Kind.WORD),
    Field("seeds", lambda s: len(s.evaluations)),
    Field("evaluations_median", lambda s: s.median_evaluations, "median", _evaluations),
    Field("evaluations_90_percent", lambda s: s.evaluations_of_most, "9 of 10", _evaluations),
    Field("mean_regret", lambda s: {str(n): s.mean_regret(i) for i, n in enumerate(AT)}),
    *map(_regret, range(len(AT))),
    Field(
        "mean_selection_error", lambda s: s.mean_selection_error, "choice", lambda e: percent(e, 2)
    ),
)
"""What is known of a strategy on a recording; regrets are shares."""


def print_scores(scores: Sequence[Score], console: Console) -> None:
    """Print a table of all scores, a recording after the other, and what its columns mean."""
    print_table(table_of(SCORE, scores, keys=2), console)
    seeds = counted(len(scores[0].evaluations), "seed") if scores else "no seeds"
    console.print()
    console.print(
        notes([("median", f"{_MEDIAN}; {seeds}"), ("@8 ...", _REGRET), ("choice", _CHOICE)])
    )


_MEDIAN = (
    f"evaluations until one of them is within {percent(WITHIN)} of the best there is; 9 of 10 "
    "searches needed no more than the next column"
)
_REGRET = (
    "how much slower the best of the evaluated kernels is than the best there is, mean over seeds"
)
_CHOICE = (
    "how much slower the kernel is whose time was the least that the search was told: what noise "
    "in these times costs beside what was not tried. Kernels are judged by times that were taken "
    "in turn, where there are such"
)


# ------------------------------------------------------------------ recordings in T4
# The results of an auto-tuner as a workshop of their authors agreed on them, which Kernel Tuner
# reads and writes: https://github.com/odgaard/TuningSchema, branch T4, results-schema.json, version
# 1.0.0. What the times are of stands beside the results, as in metadata-schema.json of that branch.


T4_VERSION = "1.0.0"

_INVALIDITY = {
    Stage.INVALID: "constraints",
    Stage.COMPILE: "compile",
    Stage.RESOURCES: "runtime",
    Stage.VERIFY: "correctness",
    Stage.CRASH: "runtime",
    Stage.TIMEOUT: "timeout",
}


def t4_data(recording: Recording) -> dict[str, Any]:
    """Return a recording's kernels in T4; times are in milliseconds there."""
    header = recording.header
    date = header.environment.date
    results = [_t4_result(kernel, date) for kernel in recording.kernels]
    about = {
        "problem": {"name": str(header.problem), **header.problem.as_dict()},
        "circumstances": header.environment.as_dict(),
    }
    return {"schema_version": T4_VERSION, "results": results, "metadata": about}


def _t4_result(kernel: RecordedKernel, date: str) -> dict[str, Any]:
    outcome = kernel.outcome
    result = {
        "timestamp": date,
        "configuration": kernel.config.as_dict(),
        "objectives": ["time"],
        "times": {"runtimes": []},
        "correctness": 0,
        "measurements": [],
    }
    if not isinstance(outcome, Measured):
        return {**result, "invalidity": _INVALIDITY[outcome.stage]}
    measured = {
        "time": (outcome.time_us * 1e-3, "ms"),
        "registers": (outcome.resources.registers, ""),
        "max_ulp": (outcome.max_ulp, "ulp"),
    }
    return {
        **result,
        "times": {"runtimes": [round(sample * 1e-3, 7) for sample in outcome.samples_us]},
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [
            {"name": name, "value": value, "unit": unit}
            for name, (value, unit) in measured.items()
            if value is not None
        ],
    }
