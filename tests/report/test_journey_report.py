"""A journey in words, in Markdown, in JSON and as a picture."""

import json
import os
import re
from dataclasses import replace
from html import unescape

import pytest
from rich.console import Console

from explorer.model.config import Config, change_words
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Absent, Contender, Environment
from explorer.model.problem import Problem
from explorer.presets.published import find_preset
from explorer.report.journey import (
    bar,
    journey_data,
    journey_markdown,
    journey_page,
    journey_rows,
    log_share,
    print_journey,
    read_journey,
)
from explorer.report.page import Figure
from explorer.tuning.journey import BEST, Journey

PROBLEM = Problem(8192, 4096)
H200 = known_gpu("NVIDIA H200")


def samples(time_us):
    return tuple(time_us * (1 + 0.001 * (i % 5 - 2)) for i in range(20))


def step(name, time_us, *more, config=None):
    config = config or find_preset(name).config(PROBLEM, H200)
    return Contender(
        names=(name, *more),
        samples_us=samples(time_us),
        kernel=config,
        digest=f"{name}-digest",
        error=1e-7,
        registers=32,
    )


@pytest.fixture
def journey(environment: Environment):
    return Journey(
        problem=PROBLEM,
        environment=environment,
        steps=(
            step("thread-per-row", 6000.0, "fast-softmax-5"),
            step("llm.c-8", 121.0),
            step("llm.c-9", 110.0),
            step("fast-softmax-6", 109.99),
            step(BEST, 62.0, config=Config(exp="ex2.approx")),
        ),
        left_out=(Absent("oneflow-warp", "it is for rows of at most 1024 columns"),),
        limit_us=samples(60.0),
        again_us=samples(62.01),
        twice=f"{BEST}-digest",
        best_from="trial 7 of study x",
    )


def told(journey, width=100):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    print_journey(journey, console)
    return console.export_text()


def test_the_story_is_told_from_the_slowest_to_the_fastest(journey):
    text = told(journey)
    order = ["thread-per-row", "llm.c-8", "llm.c-9", "fast-softmax-6 =", BEST, "\ncopy"]
    places = [text.index(name) for name in order]
    assert places == sorted(places)
    assert "96.8" in text  # times as fast as the first
    assert "96.8 %" in text  # of copy
    flat = " ".join(told(journey, 250).split())
    assert "unroll 1 → unroll 4" in flat and "divide → reciprocal" in flat
    assert "llm.c, dev/cuda/softmax_forward.cu, kernel 8, f1e2ace" in flat
    assert "thread-per-row, fast-softmax-5" in flat
    assert "llm.c-8 llm.c-9 1.10 1.10" in flat
    assert "it is for rows of at most 1024 columns" in flat
    assert "20 rounds, interleaved" in flat and "NVIDIA H200" in flat


def test_bars_are_as_long_as_the_logarithm(journey):
    assert log_share(journey, 60.0) == 0.0 and log_share(journey, 6000.0) == pytest.approx(1.0)
    assert log_share(journey, 600.0) == pytest.approx(0.5)
    assert bar(1.0, 16) == "█" * 16 and bar(0.5, 16) == "█" * 8 and bar(0.0, 16) == "▏"


def test_what_changed_between_two_configs():
    assert change_words(Config(), Config(threads=512, unroll=2)) == (
        "256 threads a row → 256 threads a row in blocks of 512, unroll 1 → unroll 2"
    )
    assert change_words(Config(), Config()) == ""
    heads = Config(core="fma", lanes_per_key=1)  # which have no threads a row
    assert change_words(heads, replace(heads, threads=32, lanes_per_key=8)) == (
        "256 threads → 32 threads, 1 lane a key → 8 lanes a key"
    )


def test_markdown_has_a_line_a_kernel_and_the_reported_ratio(journey):
    text = journey_markdown(journey)
    assert text.count("\n| ") == 6 + 1 + 1 and "reported ×" in text
    assert "| llm.c-8 | llm.c-9 | 1.10 | 1.10 | f32 8192x50257" in text
    assert "fast-softmax-6 = |" in text and "Left out: oneflow-warp" in text
    assert "| copy | 60.00 |" in text


def test_json_says_what_follows_and_is_read_back(journey, tmp_path):
    data = json.loads(json.dumps(journey_data(journey)))
    slow, *_, fast = data["steps"]
    assert slow["over_previous"] is None and slow["over_first"] == 1.0
    assert fast["of_limit"] == pytest.approx(60 / 62) and fast["source"] == "trial 7 of study x"
    assert data["steps"][3]["tied_with_previous"] is True
    assert data["steps"][2]["changed"]["unroll"] == [1, 4]
    assert data["reported"][0]["ours"] == pytest.approx(1.1)
    path = tmp_path / "journey.json"
    path.write_text(json.dumps(data))
    assert read_journey(path) == journey


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"problem": {"rows": 0}}'])
def test_a_file_without_a_journey(tmp_path, text):
    path = tmp_path / "none.json"
    path.write_text(text)
    says = "keeps no journey" if text else "is empty; name a file that explorer journey --save"
    with pytest.raises(InvalidInput, match=rf"none\.json {says}"):
        read_journey(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_journey(tmp_path / "missing.json")


OTHER_VALUES = [
    ("steps", []),
    ("steps", None),
    ("twice", "nobody"),
    ("again_us", []),
    ("again_us", [0.0, 1.0]),
    ("limit_us", [-1.0]),
    ("limit_us", "ab"),
    ("best_from", 5),
    ("left_out", [{"name": 5, "reason": ""}]),
    ("interleaved", "no"),
    ("circumstances", []),
    ("problem", {"rows": 1.5, "cols": 8}),
]


@pytest.mark.parametrize(("name", "value"), OTHER_VALUES)
def test_a_journey_of_other_values_is_refused(journey, tmp_path, name, value):
    path = tmp_path / "none.json"
    path.write_text(json.dumps({**journey_data(journey), name: value}))
    with pytest.raises(InvalidInput, match=r"none\.json keeps no journey of this version"):
        read_journey(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("names", []),
        ("names", [5]),
        ("samples_us", []),
        ("samples_us", [1.0]),
        ("config", []),
        ("registers", "32"),
        ("error", -1),
    ],
)
def test_a_step_of_other_values_is_refused(journey, tmp_path, name, value):
    data = journey_data(journey)
    data["steps"][0][name] = value
    path = tmp_path / "none.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match=r"none\.json keeps no journey of this version"):
        read_journey(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "is not JSON: its values are nested too deeply"),
        ("9" * 5000, "is not JSON: a number has 5000 digits"),
        ('{"steps": [{"samples_us": [NaN]}]}', "is not JSON: NaN is no number of JSON"),
        ('{"steps": 1, "steps": 2}', "has 'steps' 2 times"),
    ],
)
def test_json_that_cannot_be_read_is_no_journey(tmp_path, text, says):
    path = tmp_path / "none.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=rf"none\.json {says}"):
        read_journey(path)


def test_a_pipe_is_no_journey(tmp_path):
    path = tmp_path / "none.json"
    os.mkfifo(path)
    with pytest.raises(
        InvalidInput, match="it is a pipe; name a file that explorer journey --save wrote"
    ):
        read_journey(path)


@pytest.mark.usefixtures("is_read")
def test_a_journey_beside_a_reading(journey):
    assert "of read" in journey_markdown(journey) and "copy" not in journey_markdown(journey)
    assert journey_data(journey)["limit"] == "read"
    assert journey_rows(journey)[-1]["names"] == ["read"]


def text_of(blocks):
    """The sentences and commands among blocks of a page, without their marks."""
    return [unescape(re.sub(r"<[^>]*>", "", str(block))) for block in blocks]


def test_the_first_screen_writes_the_fastest_kernel_and_the_fastest_that_has_a_name(journey):
    first = journey_page(journey).sections[0].blocks
    texts = text_of(first)
    best = texts.index("This command writes search's best (62.00 µs) to a file:")
    emits = """explorer emit '{"exp":"ex2.approx"}' --cols 4096 --rows 8192 --dtype f32"""
    assert texts[best + 1] == emits
    assert texts[best + 2].startswith("This command writes fast-softmax-6 (110.0 µs)")
    assert texts[best + 3].startswith("explorer emit fast-softmax-6 --cols 4096")
    published = journey_page(replace(journey, steps=journey.steps[:-1], twice="llm.c-8-digest"))
    assert sum("This command writes" in text for text in text_of(published.sections[0].blocks)) == 1


@pytest.mark.parametrize(
    ("last", "said", "marks"),
    [(5, "no other kernel ties.", 0), (4, "1 other kernel ties (=).", 1)],
)
def test_the_kernels_that_tie_with_the_fastest_are_marked_and_not_that_itself(
    journey, last, said, marks
):
    pytest.importorskip("altair", reason="charts need the extra softmax-explorer[report]")
    steps = journey.steps[:last]
    again_us = samples(steps[-1].time_us * 1.001)
    shown = replace(journey, steps=steps, twice=steps[-1].digest, again_us=again_us)
    figure = next(b for b in journey_page(shown).sections[0].blocks if isinstance(b, Figure))
    assert figure.says.endswith(f"With the fastest {said}")
    rows = max(figure.chart.to_dict()["datasets"].values(), key=len)
    assert sum(row["told"].endswith(" =") for row in rows) == marks
