"""What `--csv` prints: the rows of a command's table, one a line, below the names of the columns.

The names are those of `--json`. Times are microseconds (`_us`), bandwidths 1e9 bytes a second
(`gbps`), shares fractions of 1, errors relative to the magnitude or in `ulp`. Numbers have all of
their digits, and a cell is empty where a value is not known. A problem and a config have a column
for each field.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from explorer.devices.recorded import RecordingFile
from explorer.model.outcome import Rejected, TrialRecord
from explorer.model.parameters import MEANING, REFUTED, Value
from explorer.model.problem import Problem
from explorer.report.compare import compare_data
from explorer.report.finals import trial_data
from explorer.report.journey import journey_data
from explorer.report.json_data import summary_data
from explorer.report.space import PresetLine, presets_data, recordings_data
from explorer.report.text import share_of_copy
from explorer.report.tune import tuned_data
from explorer.tuning.journey import Journey
from explorer.tuning.peer_comparison import PeerRun
from explorer.tuning.results import StudySummary
from explorer.tuning.study_reader import in_one_unit
from explorer.tuning.tune import TuneRun

Row = Mapping[str, Any]

_SPREAD_OUT = ("problem", "config")
"""Objects whose fields are columns by their own names."""

_WHERE = ("gpu", "timing", "date")
"""The environment that a row has."""


def as_csv(rows: Sequence[Row]) -> str:
    """The rows with a heading, by RFC 4180 but for line ends, which are those of Unix.

    A column is there if any row has it.
    """
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Row) -> dict[str, Any]:
    """The row's cells: objects become columns, lists words between semicolons."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            prefix = "" if name in _SPREAD_OUT else f"{name}_"
            cells |= {f"{prefix}{key}": _cell(one) for key, one in value.items()}
        else:
            cells[name] = _cell(value)
    return cells


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return ";".join(str(_cell(one)) for one in value)
    return value


# ------------------------------------------------------------------ the rows of each command


def trial_rows(
    trials: Mapping[int, TrialRecord | Rejected], problem: Problem, copy_us: float
) -> list[Row]:
    """Every finished trial of a study by its number: what was measured, or why it was rejected."""
    rows: list[Row] = []
    for number, trial in sorted(trials.items()):
        if isinstance(trial, Rejected):
            rows.append(
                {"trial": number, "stage": str(trial.stage), "reason": in_one_unit(trial.reason)}
            )
        else:
            data = trial_data(trial, problem)
            config = data.pop("config")
            share = share_of_copy(trial.outcome.time_us, copy_us)
            named = {"trial": number, "stage": "measured", "reason": None}
            rows.append({**named, **data, "of_copy": share, "config": config})
    return rows


def study_rows(summaries: Sequence[StudySummary]) -> list[Row]:
    """A row a study."""
    return [summary_data(summary) for summary in summaries]


def parameter_rows(parameters: Mapping[str, tuple[Value, ...]]) -> list[Row]:
    """A row for each value of each parameter of a space."""
    return [
        {
            "parameter": name,
            "value": str(value),
            "searched": value not in REFUTED.get(name, ()),
            "meaning": MEANING[name],
        }
        for name, values in parameters.items()
        for value in values
    ]


def preset_rows(lines: Sequence[PresetLine]) -> list[Row]:
    """A row a published kernel."""
    return [{**data, "config": data["config"] or {}} for data in presets_data(lines)]


def recording_rows(files: Sequence[RecordingFile]) -> list[Row]:
    """A row a recording."""
    return list[Row](recordings_data(files))


def tuned_rows(run: TuneRun, path: Path) -> list[Row]:
    """A row a problem of a tuned table: the best config's time, what it gains, and the config."""
    rows: list[Row] = []
    for data in tuned_data(run, path)["problems"]:
        made = data["circumstances"]
        figures = {
            "time_us": data["time_us"],
            "copy_us": made["copy_us"],
            "of_copy": share_of_copy(data["time_us"], made["copy_us"]),
            "gain": data["gain"],
            "torch_over_best": data["torch_over_best"],
            "ties": len(data["ties"]),
            "evaluated": data["evaluated"],
        }
        where = {name: made[name] for name in _WHERE}
        rows.append({"problem": data["problem"], **figures, **where, "config": data["config"]})
    return rows


def compare_rows(run: PeerRun) -> list[Row]:
    """A row for each problem and contender: ours, copy, each peer, and each that is left out."""
    rows: list[Row] = []
    for one in compare_data(run)["comparisons"]:
        where = {name: one["circumstances"][name] for name in _WHERE}
        common = {"problem": one["problem"], **where}
        ours = {name: one[name] for name in ("time_us", "of_copy", "error", "max_ulp")}
        rows.append({**common, "contender": "ours", "version": None, **ours, "over_ours": 1.0})
        copy_us = one["copy_time_us"]
        rows.append({**common, "contender": "copy", "time_us": copy_us, "of_copy": 1.0})
        for peer in one["peers"]:
            figures = {key: value for key, value in peer.items() if key not in _NOT_OF_A_ROW}
            rows.append({**common, "contender": peer["name"], **figures})
        rows += [{**common, "contender": left["name"], **_reason(left)} for left in one["left_out"]]
    return rows


_NOT_OF_A_ROW = ("name", "samples_us", "wrong_rows", "inexact")


def _reason(left_out: Row) -> Row:
    return {name: left_out[name] for name in ("stage", "reason") if name in left_out}


def journey_rows(told: Journey) -> list[Row]:
    """A row a kernel, from the slowest to the fastest, then copy."""
    data = journey_data(told)
    common = {"problem": data["problem"]}
    common |= {name: data["circumstances"][name] for name in _WHERE}
    left_out = ("config", "samples_us", "changed")
    rows: list[Row] = []
    for step in data["steps"]:
        figures = {key: value for key, value in step.items() if key not in left_out}
        rows.append({**common, **figures, "config": step["config"]})
    copy_us = data["copy_time_us"]
    return [*rows, {**common, "names": ["copy"], "time_us": copy_us, "of_copy": 1.0}]
