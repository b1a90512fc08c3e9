"""The keys that programs rely on."""

import json
from dataclasses import replace

import pytest

from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.report.space import SpaceView, space_data
from explorer.report.studies import SUMMARY, search_data, study_data
from explorer.report.table import data_of
from explorer.report.text import as_json
from explorer.space import Space

STUDY_KEYS = (
    "circumstances best finals front ended seed duplicates elapsed_s stopped verification rejected "
    "reasons parameters main_effects main_effects_in_words emit"
)
"""After those of a summary, also of a search."""
FINALIST_KEYS = (
    "rank trial time_us spread gbps config registers shared_bytes spill_bytes "
    "resident_blocks states_residency code_bytes error max_ulp mean_ulp digest of_limit tied "
    "ratio_to_best value ratio_low ratio_high"
)
SUMMARY_KEYS = (
    "study problem gpu timing replayed accuracy objectives where is_current space_version trials "
    "measured best_us limit limit_us date"
)


def test_search(result):
    data = json.loads(as_json(search_data(result)))
    assert list(data) == [*SUMMARY_KEYS.split(), *STUDY_KEYS.split()]
    assert list(data["problem"]) == ["op", "rows", "cols", "dtype", "bytes"]
    assert set(data["best"]) == set(FINALIST_KEYS.split())
    assert [f["trial"] for f in data["finals"]["finalists"]] == [41, 7, 230]
    assert data["best"]["of_limit"] == 60.0 / 61.4
    assert data["rejected"]["compile"] == 40 and data["rejected"]["crash"] == 0
    assert (data["objectives"], data["front"]) == ("time", None)
    assert data["emit"] == "explorer emit 41 --cols 4096 --rows 8192 --dtype f32"


def test_study(view, summary):
    assert list(data_of(SUMMARY, summary)) == SUMMARY_KEYS.split()
    data = json.loads(as_json(study_data(view)))
    assert list(data) == [*SUMMARY_KEYS.split(), *STUDY_KEYS.split()]
    assert data["parameters"][0]["fastest_value"] == "256"
    assert data["reasons"][0] == {
        "stage": "compile",
        "reason": "ptxas: too many resources",
        "count": 40,
    }
    assert set(data["best"]) == set(FINALIST_KEYS.split())
    assert study_data(replace(view, finals=None))["finals"] is None
    first = data["main_effects"][0]
    assert (first["name"], first["faster"], first["slower"], first["ratio"]) == (
        "vector_bytes",
        16,
        4,
        1.9,
    )
    assert (first["pairs"], first["agreeing"]) == (40, 40)
    names = [effect["name"] for effect in data["main_effects_in_words"]]
    assert names == ["vector_bytes", "unroll", "cluster"]


def test_a_winner_has_the_time_of_the_finals_alone(result, view):
    winner = replace(view.finals.winner, samples_us=(61.9,))
    finals = replace(view.finals, finalists=(winner, *view.finals.finalists[1:]))
    shown = study_data(replace(view, finals=finals))
    searched = search_data(replace(result, finals=finals))
    for data in (shown, searched):
        assert data["best"] == data["finals"]["finalists"][0]
        assert data["best"]["time_us"] == 61.9


@pytest.mark.exhaustive
def test_space():
    space = Space(Problem(8, 64, DType.F16), known_gpu("Tesla T4"), {"threads": (32,)})
    data = json.loads(as_json(space_data(SpaceView(space))))
    assert data["legal"] == space.legal_count().number and data["points"] == space.point_count
    assert data["parameters"][1]["name"] == "threads"
    assert data["parameters"][1]["values"] == [32]
