"""Rows as CSV, with all digits, and lists of which a part is wanted."""

import csv
import json
from pathlib import Path

import pytest
from by_hand import KERNELS, SHAPE

from explorer.devices.recording import list_recordings
from explorer.model.outcome import Measured
from explorer.model.tuned_table import read_table
from explorer.presets.published import PRESETS
from explorer.report.table import as_csv
from explorer.space import RULES
from explorer.space.space import Count

STUDIES = Path(__file__).resolve().parents[2] / "studies"
TABLE = STUDIES / "tuned" / "held-out" / "nvidia-h200.json"
JOURNEY = STUDIES / "results" / "journey-h200-f32-4096.json"
COMPARED = STUDIES / "results" / "compare-h200-bf16.json"


def rows_of(ran):
    assert ran.code == 0, ran.err
    return list(csv.DictReader(ran.out.splitlines(), strict=True))


def test_show_prints_every_trial(explorer, searched, kernels):
    rows = rows_of(explorer("show", *SHAPE, "--csv"))
    assert len(rows) == KERNELS and [int(row["trial"]) for row in rows] == sorted(range(KERNELS))
    best = json.loads(explorer("show", *SHAPE, "--json").out)["finals"]["finalists"]
    by_number = {row["trial"]: row for row in rows}
    for finalist in best:
        row = by_number[str(finalist["trial"])]
        assert row["stage"] == "measured" and row["threads"] == str(finalist["config"]["threads"])
        assert float(row["gbps"]) > 0
    times = (k.outcome.time_us for k in kernels if isinstance(k.outcome, Measured))
    listed = sorted(float(row["time_us"]) for row in rows if row["time_us"])
    assert listed == pytest.approx(sorted(times), rel=1e-4)  # a study keeps four decimals
    rejected = [row for row in rows if row["stage"] != "measured"]
    assert rejected and all(row["reason"] and not row["time_us"] for row in rejected)


def test_a_tuned_table_is_rows(explorer):
    rows = rows_of(explorer("table", "show", TABLE, "--csv"))
    problems = read_table(TABLE).problems
    assert [float(row["time_us"]) for row in rows] == [one.best.time_us for one in problems]
    assert [int(row["cols"]) for row in rows] == [one.problem.cols for one in problems]
    assert {row["gpu"] for row in rows} == {"NVIDIA H200"}


def test_a_comparison_has_a_row_for_each_contender(explorer):
    rows = rows_of(explorer("compare", "--from", COMPARED, "--csv"))
    data = json.loads(explorer("compare", "--from", COMPARED, "--json").out)["comparisons"]
    ours = [row for row in rows if row["contender"] == "ours"]
    assert [float(row["time_us"]) for row in ours] == [one["time_us"] for one in data]
    names = ("peers", "left_out")
    assert len(rows) == sum(2 + sum(len(one[name]) for name in names) for one in data)


def test_a_journey_is_rows(explorer):
    rows = rows_of(explorer("journey", "--from", JOURNEY, "--csv"))
    times = [float(row["time_us"]) for row in rows]
    assert times == sorted(times, reverse=True) and rows[-1]["names"] == "copy"


def test_lists_are_rows(explorer, searched):
    assert len(rows_of(explorer("presets", "--csv"))) == len(PRESETS)
    assert len(rows_of(explorer("recordings", "--csv"))) == len(list_recordings())
    (study,) = rows_of(explorer("studies", "--csv"))
    assert study["cols"] == "512" and study["replayed"] == "true" and study["best_us"]
    values = rows_of(explorer("space", "--cols", "64", "--csv"))
    assert {row["value"] for row in values if row["parameter"] == "unroll"} == set("1248")


def test_cells_are_quoted_and_unknown_ones_empty():
    text = as_csv([{"a": 'x,"y"', "b": None}, {"a": 1 / 3, "c": [1, "z"], "config": {"d": True}}])
    assert text == 'a,b,c,d\n"x,""y""",,,\n0.3333333333333333,,1;z,true\n'


@pytest.mark.parametrize("command", [("studies",), ("presets",), ("show", *SHAPE)])
def test_one_format_at_a_time(explorer, command):
    ran = explorer(*command, "--json", "--csv")
    assert ran.code == 2 and "--json and --csv both want stdout; drop one of them" in ran.err


# ------------------------------------------------------------------ filters


def names(explorer, *words):
    ran = explorer("presets", *words, "--json")
    assert ran.code == 0, ran.err
    return {line["name"] for line in json.loads(ran.out)["presets"]}


def test_presets_by_name_source_op_and_type(explorer):
    assert names(explorer, "ONEFLOW") == {p.name for p in PRESETS if "oneflow" in p.name}
    assert "fast-softmax-9" in names(explorer, "fastsoftmax")
    backward = names(explorer, "--op", "softmax_backward")
    assert backward == {p.name for p in PRESETS if "softmax_backward" in p.ops}
    assert backward < names(explorer)
    of_f64 = names(explorer, "--dtype", "double")
    assert of_f64 == {p.name for p in PRESETS if "f64" in p.dtypes}


def test_presets_by_what_they_are_for_a_problem(explorer):
    legal = names(explorer, "--cols", "1500", "--legal")
    assert "oneflow-warp" in names(explorer, "--cols", "1500") - legal
    shared = names(explorer, "--cols", "1500", "--where", "cache=shared", "--where", "exp=expf")
    lines = json.loads(explorer("presets", "--cols", "1500", "--json").out)["presets"]
    kept = {
        line["name"]
        for line in lines
        if line["legal"] and (line["config"]["cache"], line["config"]["exp"]) == ("shared", "expf")
    }
    assert shared == kept and shared
    assert "give the number of cols" in explorer("presets", "--legal").err
    assert not names(explorer, "q9")


def test_a_space_by_parameters_and_values(explorer, monkeypatch):
    for counted, answer in {"excluded_share": 0.5, "legal_count": Count(7)}.items():  # for 3 s
        monkeypatch.setattr(f"explorer.space.Space.{counted}", lambda *_, answer=answer: answer)
    words = ("space", "exp", "sum", "--cols", "64", "--where", "exp=expf,exp2f")
    data = json.loads(explorer(*words, "--json").out)
    assert {one["name"]: one["values"] for one in data["parameters"]} == {
        "exp": ["expf", "exp2f"],
        "sum": ["plain", "compensated"],
    }
    reads = {rule.name: rule.reads for rule in RULES}
    assert data["rules"] and all({"exp", "sum"} & {*reads[r["name"]]} for r in data["rules"])
    assert "exp2f" in explorer(*words).out and "threads a block" not in explorer(*words).out
    refused = explorer("space", "expo", "--cols", "64")
    assert refused.code == 2 and "parameter 'expo' is not known; the nearest is exp" in refused.err
    refused = explorer("space", "zzz", "--cols", "64")
    assert refused.code == 2 and "'zzz' is not known; choose one of algorithm, " in refused.err
    refused = explorer("space", "--cols", "64", "--where", "thread=64")
    assert refused.code == 2 and len(refused.err.splitlines()) == 1
    assert "there is no parameter 'thread'; the nearest is threads" in refused.err
