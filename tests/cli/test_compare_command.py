"""Comparisons with peers from the command line: measured by a fake, kept, shown again, refused."""

import json
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_peers import FakePeerBench

from explorer.errors import DeviceLost
from explorer.outcome import Rejected, Stage

SHAPES = ("--cols", "4096,1000", "--rows", "512", "--dtype", "f32,bf16")


class Benches:
    """A GPU that takes what the model says; `stop_at` raises at that problem."""

    stop_at = None
    error = DeviceLost("a verified kernel failed: CUDA_ERROR_ILLEGAL_ADDRESS")

    def __init__(self):
        self.opened = 0

    @contextmanager
    def on(self, problem):
        self.opened += 1
        if self.opened == self.stop_at:
            raise self.error
        yield FakePeerBench(problem, {"torch": 1.5, "triton-tuned": 1.0, "triton-tutorial": 0.9})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture
def gpu(monkeypatch):
    benches = Benches()
    monkeypatch.setattr("explorer.evaluate.open_evaluator.open_peer_benches", lambda *_: benches)
    return benches


def test_every_shape_and_dtype_is_compared_and_shown(explorer, gpu):
    ran = explorer("compare", *SHAPES, "--peers", "torch,triton,cudnn")
    assert ran.code == 0, ran.err
    assert "4/4 softmax bf16 512x1000" in ran.err and "torch: verified" in ran.err
    assert "softmax f32" in ran.out and "softmax bf16" in ran.out
    assert "geometric mean" in ran.out and "512×1000" in ran.out and "0.900 <" in ran.out
    assert "4 losses" in ran.out and "left out: cudnn" in ran.out and "(all)" in ran.out


def test_it_is_kept_and_shown_again_without_a_gpu(explorer, gpu):
    ran = explorer("compare", *SHAPES, "--save", "kept/c.json", "--json", "--peers", "torch,cupy")
    assert ran.code == 0, ran.err
    data = json.loads(ran.out)
    first = data["comparisons"][0]
    assert first["best_peer"]["name"] == "torch" and first["best_peer"]["verdict"] == "win"
    assert first["circumstances"]["template_digest"] and first["peers"][0]["version"] == "torch 1.0"
    assert data["geometric_means"][0]["win"] == 2
    again = explorer("compare", "--from", "kept/c.json", "--json")
    assert json.loads(again.out) == data
    shown = explorer("compare", "--from", "kept/c.json", "--markdown").out
    assert shown.startswith("**softmax f32**\n\n| rows × cols | copy | ours |")
    assert "| geometric mean |" in shown and "left out: cupy" in shown


def test_a_run_is_held_against_an_earlier_one(explorer, gpu):
    explorer("compare", *SHAPES, "--save", "now.json", "--peers", "torch")
    same = explorer("compare", "--from", "now.json", "--against", "now.json")
    assert same.code == 0 and "4 of 4 problems are no slower than before" in same.err
    kept = json.loads(Path("now.json").read_text())
    for name in ("ours_us", "again_us"):
        times = kept["comparisons"][1][name]
        kept["comparisons"][1][name] = [time * 0.95 for time in times]
    Path("faster.json").write_text(json.dumps(kept))
    slower = explorer("compare", *SHAPES, "--peers", "torch", "--against", "faster.json")
    assert slower.code == 1 and "3 of 4 problems are no slower" in slower.err
    (line,) = (line for line in slower.err.splitlines() if line.startswith("slower: "))
    assert re.search(r"takes 5\.[0-9] % more time than before", line)
    assert explorer("compare", "--from", "faster.json", "--against", "now.json").code == 0
    kept["comparisons"][0]["circumstances"]["gpu"] = "NVIDIA B200"
    Path("other.json").write_text(json.dumps(kept))
    ran = explorer("compare", "--from", "now.json", "--against", "other.json")
    assert ran.code == 2 and "was compared before with gpu NVIDIA B200" in ran.err
    kept["comparisons"] = []
    Path("none.json").write_text(json.dumps(kept))
    ran = explorer("compare", "--from", "now.json", "--against", "none.json")
    assert ran.code == 2 and "has none of these problems" in ran.err


def test_what_was_measured_before_a_failure_is_kept(explorer, gpu):
    gpu.stop_at = 2
    ran = explorer("compare", *SHAPES, "--save", "c.json", "--peers", "torch")
    assert ran.code == 0 and "not compared: a verified kernel failed" in ran.err
    kept = json.loads(Path("c.json").read_text())
    assert len(kept["comparisons"]) == 3
    assert kept["unmeasured"][0]["problem"]["cols"] == 1000
    assert "not compared" in ran.out


def test_ctrl_c_keeps_what_was_measured(explorer, gpu):
    gpu.stop_at, gpu.error = 3, KeyboardInterrupt()
    ran = explorer("compare", *SHAPES, "--save", "c.json", "--peers", "torch")
    assert "stopped" in ran.err and ran.code == 130
    assert len(json.loads(Path("c.json").read_text())["comparisons"]) == 2
    assert "512×4096" in ran.out


def test_a_command_that_compared_nothing_fails(explorer, gpu, monkeypatch):
    rejected = Rejected(Stage.VERIFY, "relative error 0.5")
    monkeypatch.setattr(FakePeerBench, "evaluate", lambda *_: rejected)
    ran = explorer("compare", "--cols", "64", "--peers", "torch")
    assert ran.code == 2 and "nothing was compared" in ran.err and ran.out == ""


def test_tracebacks_are_for_those_who_ask(explorer, gpu, monkeypatch):
    words = ("compare", "--cols", "64", "--peers", "torch,liger")
    assert "Traceback of liger" not in explorer(*words).err
    assert "Traceback of liger" in explorer(*words, "--verbose").err
    monkeypatch.setenv("EXPLORER_DEBUG", "1")
    assert "Traceback of liger" in explorer(*words).err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "cols is not said"),
        (("--cols", "4096,many"), "cols is 'many'"),
        (("--cols", "8,9", "--rows", "1,2,3"), "rows are 3 and cols 2"),
        (("--cols", "8", "--dtype", "f32,f8"), "dtype 'f8' is not known"),
        (("--cols", "8", "--op", "softmin"), "op 'softmin' is not known"),
        (("--cols", "8", "--peers", "troch"), "did you mean torch?"),
        (("--cols", "8", "--peers", "torch,,liger"), "write one word, or several"),
        (("--cols", "8", "--peer-limit", "soon"), "peer-limit is 'soon'"),
        (("--cols", "8", "--save", "/proc/none/x.json"), "name another --save"),
        (("--cols", "8", "--json", "--markdown"), "drop one of them"),
        (("--cols", "8", "--device", "recorded:x"), "take auto or cuda:N"),
        (("--cols", "8"), "a comparison needs a GPU, and there is none"),
        (("--cols", "8", "--from", "x.json"), "drop --cols and --save"),
        (("--from", "x.json"), "x.json cannot be read"),
    ],
)
def test_bad_words_are_refused_in_a_sentence(explorer, words, says):
    ran = explorer("compare", *words)
    assert ran.code == 2 and says in ran.err
    assert ran.out == "" or "--json" in words
    assert len(ran.err.strip().splitlines()) == 1


def test_a_file_of_another_kind_is_refused(explorer):
    Path("x.json").write_text('{"seed": 1}')
    ran = explorer("compare", "--from", "x.json")
    assert ran.code == 2 and "keeps no comparison of this version" in ran.err
