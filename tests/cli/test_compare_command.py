"""Comparisons with peers from the command line: measured by a fake, kept, shown again, refused."""

import json
import re
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_peers import FakePeerBench

from explorer.model.errors import DeviceLost, InvalidInput
from explorer.model.outcome import Rejected, Stage
from explorer.model.problem import Problem
from explorer.report.progress import run_text
from explorer.tuning.runs import RunProgress

STUDIES = Path(__file__).resolve().parents[2] / "studies"
SHAPES = ("--cols", "4096,1000", "--rows", "512", "--dtype", "f32,bf16")


class Benches:
    """A GPU that takes what the model says; `stop_at` raises at that problem."""

    stop_at = None
    error = DeviceLost("a verified kernel failed: CUDA_ERROR_ILLEGAL_ADDRESS")

    def __init__(self):
        self.opened = 0
        self.ahead = []
        self.gpu = FakePeerBench().gpu

    def compile_ahead(self, problem, configs):
        self.ahead.append((problem, len(list(configs))))

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


class Ahead(nullcontext):
    """Where peers would be compiled for, in processes that take seconds to start."""

    def submit(self, problem, peers):
        told.append(("compile", problem))

    def begin(self, problem):
        told.append(("begin", problem))

    def __enter__(self):
        return self


told = []


@pytest.fixture
def gpu(monkeypatch):
    benches = Benches()
    told.clear()
    monkeypatch.setattr("explorer.peers.ahead.PeersAhead", Ahead)
    of_today = FakePeerBench().environment.template_digest
    monkeypatch.setattr("explorer.tuning.runs.template_version", lambda _: of_today)
    monkeypatch.setattr("explorer.evaluate.open_evaluator.open_peer_benches", lambda *_: benches)
    return benches


def test_every_shape_and_dtype_is_compared_and_shown(explorer, gpu):
    ran = explorer("compare", *SHAPES, "--peers", "torch,triton,cudnn")
    assert ran.code == 0, ran.err
    assert "4/4 softmax bf16 512x1000" in ran.err and "torch: verified" in ran.err
    assert "softmax f32" in ran.out and "softmax bf16" in ran.out
    assert "geometric mean" in ran.out and "512×1000" in ran.out and "0.900 <" in ran.out
    assert "4 losses" in ran.out and "left out: cudnn" in ran.out and "(all)" in ran.out


def test_log_probs_are_compared_with_what_is_asked_for_beside_them(explorer, gpu):
    ids = ("--op", "log_prob", "--ids-per-row", "2", "--also", "lse,rank")
    ran = explorer("compare", *SHAPES, *ids, "--peers", "torch", "--json")
    assert ran.code == 0, ran.err
    problems = [one["problem"] for one in json.loads(ran.out)["comparisons"]]
    assert [(one["ids_per_row"], one["also"]) for one in problems] == [(2, "lse,rank")] * 4


def test_it_is_kept_and_shown_again_without_a_gpu(explorer, gpu):
    Path("kept").mkdir()
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
    ran = explorer("compare", *SHAPES, "--peers", "torch", "--against", "other.json")
    assert ran.code == 2 and "was compared before with gpu NVIDIA B200" in ran.err
    ran = explorer("compare", "--from", "now.json", "--against", "other.json")
    assert ran.code == 0 and "nothing is called slower" in ran.err
    kept["comparisons"] = []
    Path("none.json").write_text(json.dumps(kept))
    ran = explorer("compare", "--from", "now.json", "--against", "none.json")
    assert ran.code == 2 and "none.json has no problem that was measured" in ran.err


def test_what_was_measured_before_a_failure_is_kept(explorer, gpu):
    gpu.stop_at = 2
    ran = explorer("compare", *SHAPES, "--save", "c.json", "--peers", "torch")
    assert (
        ran.code == 0 and "not measured: softmax f32 512x1000: a verified kernel failed" in ran.err
    )
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


def test_the_same_command_goes_on_where_it_was_stopped(explorer, gpu):
    words = ("compare", *SHAPES, "--save", "c.json", "--peers", "torch")
    gpu.stop_at, gpu.error = 3, KeyboardInterrupt()
    assert explorer(*words).code == 130
    journal = Path("c.partial.jsonl")
    assert len(journal.read_text().splitlines()) == 2
    with journal.open("a") as file:
        file.write('{"asked": {"pee')  # as where a process is killed while it writes
    first = json.loads(Path("c.json").read_text())["comparisons"]
    gpu.opened, gpu.stop_at = 0, None
    ran = explorer(*words)
    assert ran.code == 0 and gpu.opened == 2 and "2 of 4 taken from c.partial.jsonl" in ran.err
    again = json.loads(Path("c.json").read_text())["comparisons"]
    assert again[:2] == first and len(again) == 4 and not journal.exists()
    assert explorer(*words).code == 0 and gpu.opened == 6


def test_times_outlive_a_journal_that_cannot_be_written(explorer, gpu, monkeypatch):
    def full(*_):
        raise InvalidInput("c.partial.jsonl cannot be written: No space left on device")

    monkeypatch.setattr("explorer.tuning.runs.append_line", full)
    ran = explorer("compare", *SHAPES, "--save", "c.json", "--peers", "torch")
    assert ran.code == 0 and ran.err.count("this run cannot go on where it is stopped") == 1
    assert len(json.loads(Path("c.json").read_text())["comparisons"]) == 4


def test_a_run_goes_on_only_with_what_was_measured_in_the_same_way(explorer, gpu, monkeypatch):
    words = ("compare", *SHAPES, "--save", "c.json")
    gpu.stop_at, gpu.error = 3, KeyboardInterrupt()
    explorer(*words, "--peers", "torch")
    kept = Path("c.partial.jsonl").read_text()
    for more in (("--peers", "torch,cudnn"), ("--peers", "torch", "--seed", "1")):
        gpu.opened, gpu.stop_at = 0, 3
        explorer(*words, *more)
        assert gpu.opened == 3
    later = "of later templates"
    monkeypatch.setattr("explorer.tuning.runs.template_version", lambda _: later)
    gpu.opened, gpu.stop_at = 0, 3
    explorer(*words, "--peers", "torch")
    assert gpu.opened == 3
    Path("c.partial.jsonl").write_text("{}\n" + kept)
    ran = explorer(*words, "--peers", "torch")
    assert ran.code == 2 and "c.partial.jsonl, line 1, is no comparison of this version" in ran.err
    assert Path("c.partial.jsonl").read_text() == "{}\n" + kept


def test_shapes_are_drawn_by_a_seed(explorer, gpu):
    words = ("compare", "--draw", "3", "--seed", "7", "--peers", "torch", "--dtype", "f32,bf16")
    ran = explorer(*words, "--save", "d.json")
    assert ran.code == 0 and "6/6" in ran.err, ran.err
    kept = json.loads(Path("d.json").read_text())
    assert kept["seed"] == 7 and kept["drawn"].startswith("3 shapes by seed 7, log-uniformly of 16")
    sizes = [(one["problem"]["rows"], one["problem"]["cols"]) for one in kept["comparisons"]]
    assert sizes[:3] == sizes[3:] and len(set(sizes)) == 3
    assert "3 shapes by seed 7" in " ".join(ran.out.split())
    explorer(*words, "--save", "again.json")
    other = explorer(*words, "--seed", "8", "--json")
    again = json.loads(Path("again.json").read_text())
    assert [one["problem"] for one in again["comparisons"]] == [
        one["problem"] for one in kept["comparisons"]
    ]
    assert json.loads(other.out)["comparisons"][0]["problem"] != again["comparisons"][0]["problem"]
    traffic = explorer("compare", "--draw", "2", "--cols", "64:4096:log", "--peers", "torch")
    assert "64 to 4096 columns and rows for 256 MiB of traffic" in " ".join(traffic.out.split())


def test_what_comes_next_is_compiled_while_one_is_timed(explorer, gpu):
    assert explorer("compare", *SHAPES, "--peers", "torch,triton").code == 0
    first, second, third, fourth = (problem for problem, configs in gpu.ahead if configs == 1)
    begun = [("compile", one) for one in (first, second, third)]
    begun += [("begin", first), ("compile", fourth), ("begin", second)]
    assert told == [*begun, ("begin", third), ("begin", fourth)]


def test_where_the_time_went_is_said(explorer, gpu, monkeypatch):
    now = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: next(now))
    monkeypatch.setattr("explorer.tuning.peer_comparison.time", clock)
    ran = explorer("compare", *SHAPES, "--peers", "torch,cudnn", "--save", "c.json")
    spent = json.loads(Path("c.json").read_text())["comparisons"][0]["spent"]
    steps = ("opening", "ours", "torch", "cudnn", "timing")
    assert spent == [{"step": step, "seconds": 1} for step in steps]
    said = "5.0 s a problem in the mean: opening 1.0, ours 1.0, torch 1.0, cudnn 1.0, timing 1.0"
    assert said in " ".join(ran.out.split())


def test_progress_has_a_rate_and_the_time_that_is_left():
    at_work = RunProgress(3, 40, 0, 12.6, Problem(8, 64), 155.4, "torch is ready")
    words = "3/40 problems · softmax f32 8x64 · torch is ready · 4.2 s each · 2 min 35 s left"
    assert run_text(at_work) == words


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
        ((), "cols is missing; give the number"),
        (("--cols", "4096,many"), "cols is '4096,many'; write whole numbers with commas"),
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
        (("--cols", "8", "--save", "y", "--from", "x.json"), "nothing; drop --cols and --save\n"),
        (("--draw", "8", "--from", "x.json"), "measures nothing; drop --draw\n"),
        (("--rows", "8", "--from", "x.json"), "measures nothing; drop --rows\n"),
        (("--also", "lse", "--from", "x.json"), "measures nothing; drop --also\n"),
        (("--ids-per-row", "2", "--from", "x.json"), "measures nothing; drop --ids-per-row\n"),
        (("--cols", "8", "--ids-per-row", "0"), "ids_per_row is '0'; it must be a whole number"),
        (("--cols", "8", "--op", "logsumexp", "--also", "all"), "also is 'all'; no result of"),
        (("--peers", "torch", "--from", "x.json"), "measures nothing; drop --peers\n"),
        (("--heuristic", "--from", "x.json"), "measures nothing; drop --heuristic\n"),
        (("--draw", "0"), "draw is '0'; it must be a whole number from 1 to 10000"),
        (("--draw", "2", "--cols", "9:8:log"), "the first number of a range is its least"),
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


def test_caches_ranges_and_files_of_problems_are_compared(explorer, gpu, tmp_path):
    heads = ("--op", "decode_attention", "--rows", "32", "--group", "4", "--key-heads", "8")
    ran = explorer("compare", "--cols", "4096", *heads, "--peers", "torch", "--json")
    assert ran.code == 0, ran.err
    (one,) = json.loads(ran.out)["comparisons"]
    assert (one["problem"]["group"], one["problem"]["key_heads"]) == (4, 8)
    several = explorer(
        "compare", "--cols", "64:256:log", "--rows", "8", "--peers", "torch", "--json"
    )
    assert [c["problem"]["cols"] for c in json.loads(several.out)["comparisons"]] == [64, 128, 256]
    (tmp_path / "shapes.csv").write_text("rows,cols,dtype\n8,16,f32\n")
    kept = explorer("compare", "--shapes", "shapes.csv", "--peers", "torch", "--json")
    assert json.loads(kept.out)["comparisons"][0]["problem"]["cols"] == 16
    refused = explorer("compare", "--shapes", "shapes.csv", "--cols", "8", "--group", "2")
    assert refused.code == 2 and "names whole problems; drop --cols and --group" in refused.err
