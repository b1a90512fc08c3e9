"""Whatever is typed, a command does it or says in one sentence why not."""

import json

import pytest
from hostile_values import bounded, changed, json_values, quick, thorough
from hypothesis import given
from hypothesis import strategies as st

from explorer.model.config import Config

numbers = (
    st.sampled_from(
        [
            *("1", "8", "31", "4096", "50257", "262144", "2147418111", "2147418112", "2147483647"),
            *("0", "-1", "+8", " 8 ", "8.0", "1e400", "-1e-400", "0x8", "1_0", "٣", "²", "nan"),
            *(
                "inf",
                "",
                "9" * 31,
                "9" * 5000,
                "1,2",
                "8,3,224,224",
                "1," * 70 + "1",
                ",",
                "\ud800",
            ),
        ]
    )
    | st.integers().map(str)
    | st.floats().map(str)
    | st.text(max_size=9)
)
words = st.text(max_size=12)

OPTIONS = {
    "--cols": numbers,
    "--rows": numbers,
    "--inner": numbers,
    "--mask-rows": numbers,
    "--input-stride": numbers,
    "--output-stride": numbers,
    "--axis": numbers,
    "--shape": numbers,
    "--scale": numbers,
    "--dtype": st.sampled_from(["f32", "f16", "bf16", "f64", "f8", ""]) | words,
    "--out-dtype": st.sampled_from(["f32", "bf16"]) | words,
    "--op": st.sampled_from(["softmax", "log_softmax", "softmax_backward"]) | words,
    "--mask": st.sampled_from(["none", "causal", "lengths", "additive"]) | words,
    "--gpu": st.sampled_from(["Tesla T4", "NVIDIA H200"]) | words,
    "--accuracy": st.sampled_from(["strict", "fast"]) | words,
    "--objectives": st.sampled_from(["time", "time,error"]) | words,
    "--seed": numbers,
    "--trials": numbers,
    "--budget": numbers | st.sampled_from(["30s", "2m", "9h", "1.5", "0s", "1e9h"]),
    "--timing": st.sampled_from(["cold", "warm"]) | words,
    "--device": st.sampled_from(["auto", "cuda:0", "cuda:²", "cuda:" + "9" * 5000, "emulated"])
    | words.map(lambda word: f"recorded:{word}"),
    "--storage": st.sampled_from(
        ["", "none.db", "a/b.db", "/dev/zero", "sqlite://", "x://", "://", "sqlite:///\0", "."]
    ),
    "--in-place": st.none(),
    "--json": st.none(),
    "--batch-invariant": st.none(),
    "--strength": numbers,
}
PROBLEM = [
    *("--cols", "--rows", "--inner", "--mask-rows", "--input-stride", "--output-stride"),
    *("--axis", "--shape", "--scale", "--dtype", "--out-dtype", "--op", "--mask", "--in-place"),
]
OWN = {
    "presets": ("--gpu", "--json"),
    "show": ("--accuracy", "--objectives", "--storage", "--json"),
    "emit": ("--gpu", "--accuracy", "--objectives", "--storage", "--json", "--batch-invariant"),
    "search": ("--trials", "--budget", "--device", "--storage", "--seed", "--timing", "--json"),
    "record": ("--device", "--timing", "--seed", "--json"),
    "journey": ("--device", "--timing", "--seed", "--budget", "--json"),
}

configs = (
    changed(Config().as_dict(), most=2).map(json.dumps)
    | json_values.map(json.dumps)
    | words
    | st.sampled_from(["{", "{}", "[" * 9999, '{"threads":' * 9999, "9" * 99, "best", "heuristic"])
)


@st.composite
def command_lines(draw, commands):
    """Return a command with a problem that is mostly sound, and options with values of any kind."""
    command = draw(st.sampled_from(commands))
    given = dict.fromkeys(draw(st.lists(st.sampled_from([*PROBLEM, *OWN[command]]), max_size=5)))
    line = [command]
    if command == "emit":
        line += ["--no-verify", "--output", "it.cu", "--force", "--", draw(configs)]
    options = []
    if "--cols" not in given and "--shape" not in given and draw(st.integers(0, 5)):
        options += ["--cols", "24"]
    for name in given:
        value = draw(OPTIONS[name])
        options += [name] if value is None else [f"{name}={value}"]
    return [line[0], *options, *line[1:]]


def run(explorer, line):
    with bounded():
        ran = explorer(*line)
    assert ran.code in (0, 2), (line, ran)
    assert "Traceback" not in ran.err
    if ran.code:
        last = ran.err.splitlines()[-1]
        assert last.startswith("error: ") and len(last) < 2100, (line, ran)
    ran.out.encode()


@pytest.fixture
def far_from_recordings(monkeypatch, tmp_path):
    monkeypatch.setattr("explorer.devices.recording.recording_dirs", lambda: [tmp_path])


@given(st.data())
@quick(25)
def test_commands(explorer, far_from_recordings, data):
    run(explorer, data.draw(command_lines(["presets", "show", "search", "record", "journey"])))


@given(st.data())
@quick(10)
def test_configs(explorer, data):
    """Such as are refused: the others would be compiled."""
    what = data.draw(configs.filter(lambda text: text not in ("heuristic", "best")))
    run(explorer, ["emit", "--cols", "7", "--no-verify", "--output", "it.cu", "--", what])


@pytest.mark.exhaustive
@given(st.data())
@thorough(4000)
def test_many_commands(explorer, far_from_recordings, data):
    run(explorer, data.draw(command_lines(["presets", "show", "search", "record", "journey"])))


@pytest.mark.exhaustive
@given(st.data())
@thorough(1500)
def test_many_emissions(explorer, data):
    run(explorer, data.draw(command_lines(["emit"])))
