"""What `explorer benchmark` prints of each strategy, and recordings as others read them."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from explorer.devices.recorded import RecordedKernel, Recording
from explorer.model.outcome import Measured, Stage
from explorer.report.table import Table, notes, numbers, print_table, words
from explorer.report.text import counted, percent
from explorer.tuning.benchmark import AT, WITHIN, Score

# ------------------------------------------------------------------ scores


def print_scores(scores: Sequence[Score], console: Console) -> None:
    """A table of all scores, a recording after the other, and what its columns mean."""
    regrets = numbers(*(f"@{evaluations}" for evaluations in AT))
    head = (*words("recording", "strategy"), *numbers("median", "9 of 10"), *regrets)
    table = Table((*head, *numbers("choice")), keys=2)
    before = ""
    for score in scores:
        shown = score.recording if score.recording != before else ""
        before = score.recording
        reached = (score.median_evaluations, score.evaluations_of_most)
        means = (percent(score.mean_regret(number), 2) for number in range(len(AT)))
        chosen = percent(score.mean_selection_error, 2)
        table.add(shown, score.strategy, *map(_evaluations, reached), *means, chosen)
    print_table(table, console)
    seeds = counted(len(scores[0].evaluations), "seed") if scores else "no seeds"
    console.print()
    console.print(
        notes(
            [
                (
                    "median",
                    f"evaluations until one of them is within {percent(WITHIN)} of the best "
                    f"there is; 9 of 10 searches needed no more than the next column; {seeds}",
                ),
                (
                    "@8 ...",
                    "how much slower the best of the evaluated kernels is than the best there is, "
                    "mean over seeds",
                ),
                (
                    "choice",
                    "how much slower the kernel is whose time was the least that the search was "
                    "told: what noise in these times costs beside what was not tried. Kernels are "
                    "judged by times that were taken in turn, where there are such",
                ),
            ]
        )
    )


def _evaluations(number: float) -> str:
    return f"> {AT[-1]}" if number > AT[-1] else f"{number:.0f}"


def scores_data(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """The same as plain data; regrets are shares."""
    return [
        {
            "recording": score.recording,
            "strategy": score.strategy,
            "seeds": len(score.evaluations),
            "evaluations_median": score.median_evaluations,
            "evaluations_90_percent": score.evaluations_of_most,
            "mean_regret": {str(n): score.mean_regret(i) for i, n in enumerate(AT)},
            "mean_selection_error": score.mean_selection_error,
        }
        for score in scores
    ]


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
    """A recording's kernels in T4; times are in milliseconds there."""
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
