"""The journey from the command line: measured by a fake, kept, shown again, refused."""

import json
import re
from contextlib import contextmanager
from html import escape
from pathlib import Path

import pytest
from fake_evaluator import FakeEvaluator

import explorer as package
from explorer.tuning.journey import BEST

ROOT = Path(__file__).resolve().parents[2]

SHAPE = ("--cols", "1000", "--rows", "4096")


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that there is a GPU, which takes what the model says."""

    @contextmanager
    def opened(problem, *_):
        yield FakeEvaluator(problem)

    monkeypatch.setattr("explorer.evaluate.open_evaluator.open_evaluator", opened)


@pytest.mark.exhaustive
def test_it_searches_first_where_nothing_is_stored(explorer, gpu):
    ran = explorer("journey", *SHAPE, "--budget", "1s")
    assert ran.code == 0, ran.err
    assert "no search of this problem is stored: searching for 1 s first" in ran.err
    assert BEST in ran.out and "shared-tree" in ran.out and "of copy" in ran.out
    again = explorer("journey", *SHAPE)
    assert "searching" not in again.err and "the search's best is trial" in again.err


def test_it_is_kept_and_shown_again(explorer, gpu, tmp_path):
    ran = explorer("journey", *SHAPE, "--budget", "1s", "--save", "kept.json", "--json")
    assert ran.code == 0, ran.err
    data = json.loads(ran.out)
    path = Path("kept.json")
    assert "kept.json: written" in ran.err and path.exists()
    shown = explorer("journey", "--from", path)
    assert shown.code == 0 and data["steps"][0]["names"][0] in shown.out
    assert "replayed" in shown.out
    markdown = explorer("journey", "--from", path, "--markdown").out
    assert markdown.startswith("| kernel | µs |")
    kept = json.loads(explorer("journey", "--from", path, "--json").out)
    assert kept["steps"] == data["steps"]


def test_a_program_gets_what_the_command_prints(explorer, gpu, tmp_path):
    told, kernels, trials = [], [], []
    made = package.journey(
        cols=1000,
        rows=4096,
        budget_s=0.2,
        storage=tmp_path / "a.db",
        progress=trials.append,
        on_kernel=lambda *named: kernels.append(named),
        notice=told.append,
    )
    assert isinstance(made, package.Journey) and made.steps[-1].time_us < made.steps[0].time_us
    assert trials and len(kernels) == kernels[0][2] and "searching for" in told[-1]
    assert len(made.records()) == len(made.steps) + 1
    (tmp_path / "kept.json").write_text(json.dumps(made.as_dict()))
    shown = json.loads(explorer("journey", "--from", tmp_path / "kept.json", "--json").out)
    assert shown == json.loads(json.dumps(made.to_dict()))
    assert escape(BEST) in made._repr_html_() and repr(made).endswith("kernels)")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "cols is missing; give the number"),
        ((*SHAPE, "--op", "logsumexp"), "no published kernel computes logsumexp"),
        ((*SHAPE, "--plot", "x.gif"), "name a FILE.svg or a FILE.png"),
        ((*SHAPE, "--plot", "/proc/none/x.svg"), "cannot be written"),
        ((*SHAPE, "--json", "--markdown"), "drop one of them"),
        ((*SHAPE, "--from", "x.json"), "measures nothing; drop --"),
        (("--budget", "3s", "--from", "x.json"), "measures nothing; drop --"),
        (("--from", "x.json"), "x.json cannot be read"),
        ((*SHAPE, "--budget", "soon"), "budget is 'soon'"),
        ((*SHAPE, "--save", "/proc/none/x.json"), "cannot be written"),
        ((*SHAPE, "--device", "emulated"), "times none"),
        (("--cols", "512", "--rows", "256"), "lacks"),
        ((*SHAPE, "--device", "recorded:none"), "recording 'none' does not exist"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(explorer, recording, words, says):
    ran = explorer("journey", *words)
    assert ran.code == 2 and says in ran.err
    assert ran.out == "" or "--json" in words
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize("op", ["softmax", "decode_attention"])
def test_without_a_gpu_the_way_out_is_one_that_works(explorer, op):
    """No shipped recording has the presets, so that none is named."""
    ran = explorer("journey", *SHAPE, "--op", op)
    assert ran.code == 2 and ran.out == "" and "recording" not in ran.err
    assert "a journey needs a GPU, and there is none: no NVIDIA driver" in ran.err
    kept = re.search(r"comes with the package: --from (\S+)$", ran.err.strip())[1]
    assert explorer("journey", "--from", kept).out.startswith(op)
