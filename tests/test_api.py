"""The functions that programs call: what they give, that they print nothing, and what they refuse.

One search of a shipped recording serves all tests.
"""

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import typing
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import explorer
from explorer import api
from explorer.cli import app
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import USUAL
from explorer.model.query import ProblemKeywords
from explorer.tuning.objective import Goal
from explorer.tuning.search import HANDED_OVER

ROOT = Path(__file__).resolve().parents[1]

RECORDED = "h200-f32-4096"
GPU = "NVIDIA H200"
PROBLEM = explorer.Problem(8192, 4096)
SAID = {"device": f"recorded:{RECORDED}", "trials": 12, "seed": 3}
WORDS = ["--cols", "4096", "--device", f"recorded:{RECORDED}", "--trials", "12", "--seed", "3"]
NO_DRIVER = "no NVIDIA driver (libcuda.so.1 is not found)"

FUNCTIONS = (explorer.search, explorer.emit, explorer.verify, explorer.compare)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the search is kept."""
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def told():
    """Return what the search told while it went on."""
    return {"progress": [], "notice": []}


@pytest.fixture(scope="module")
def result(folder, told):
    """Return the search that all tests share."""
    return explorer.search(
        PROBLEM,
        **SAID,
        storage=folder / "a.db",
        progress=told["progress"].append,
        notice=told["notice"].append,
    )


def command(*words):
    """Return what `explorer WORDS` prints on stdout."""
    ran = CliRunner().invoke(app, [str(word) for word in words], prog_name="explorer")
    assert ran.exit_code == 0, ran.stderr
    return ran.stdout


# ------------------------------------------------------------------ search


def test_a_search_tells_the_best_and_its_circumstances(result):
    assert result.replayed and result.gpu == GPU and re.match(r"\d{4}-\d\d-\d\dT", result.date)
    assert result.problem == PROBLEM and "replay" in result.study
    assert result.config == result.best.trial.config == result.ties[0].trial.config
    assert 0.9 * result.limit_us < result.time_us == result.best.time_us
    assert result.gbps == pytest.approx(PROBLEM.bytes / result.time_us * 1e-3)
    assert set(result.ties) <= set(result.finalists) and result.environment.nvrtc
    assert result.verification.checked and not result.verification.unverified
    assert dataclasses.is_dataclass(result)


def test_it_calls_back_and_notices_what_the_command_line_says(result, told):
    assert told["progress"][-1].phase == "finals" and told["progress"][-1].trials >= 12
    assert tuple(told["notice"]) == result.notices
    assert result.notices[0].startswith(
        f"replaying a recording made on {GPU} on {result.date[:10]}"
    )


@pytest.mark.exhaustive
def test_the_command_line_finds_the_same(result, folder):
    found = json.loads(command("search", *WORDS, "--storage", folder / "b.db", "--json"))
    assert found["study"] == result.study and found["trials"] == result.trials
    assert found["best"]["config"] == result.config.as_dict()
    assert found["best"]["time_us"] == result.time_us
    assert found["circumstances"] == json.loads(json.dumps(result.environment.as_dict()))
    assert len(found["finals"]["finalists"]) == len(result.finalists)
    assert found["replayed"] is True


def test_the_same_call_goes_on(result, folder, capfd, recwarn):
    again = explorer.search(
        cols=4096, **{**SAID, "trials": 2}, storage=str(folder / "a.db"), verify=False
    )
    assert again.study == result.study and again.measured <= 2 and again.verification is None
    assert again.time_us <= 1.01 * result.time_us
    assert "--rows not given: using 8192 (256 MiB of traffic)" in again.notices
    assert capfd.readouterr() == ("", "") and not recwarn.list


def test_ctrl_c_keeps_finished_trials(folder):
    stopped = f"sqlite:///{folder}/stopped.db"

    def stop(progress):
        if progress.trials == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explorer.search(PROBLEM, **SAID, storage=stopped, progress=stop)
    import optuna

    (study,) = optuna.get_all_study_summaries(stopped)
    assert 3 <= study.n_trials <= 3 + HANDED_OVER  # those that were evaluated meanwhile are kept


# ------------------------------------------------------------------ emit


@pytest.fixture(scope="module")
def emitted(result, folder):
    """Return the kernel of the search's best."""
    return explorer.emit("best", PROBLEM, storage=folder / "a.db")


def test_the_best_is_emitted_as_the_command_line_does(emitted, folder):
    words = ("emit", "best", "--cols", "4096", "--storage", folder / "a.db", "--output", "-")
    assert command(*words, "--no-verify") == emitted.source
    assert emitted.problem == PROBLEM and emitted.arch == "sm_90" and emitted.gpu.name == GPU
    assert emitted.path is None and emitted.written is None


def test_it_tells_launches_resources_and_the_verdict(emitted):
    (launch,) = emitted.launches
    assert launch.entry in emitted.source and launch.grid * launch.block >= 1024
    assert launch.cluster == 1 and launch.shared_bytes >= 0
    assert launch.arguments == ("input", "output") and emitted.scratch_bytes == 0
    assert emitted.resources.registers > 0
    assert emitted.verdict.status == "verified" and emitted.verdict.findings == ()
    assert any(sentence.startswith("compiles for sm_90") for sentence in emitted.notices)


def test_a_main_program_is_added_where_it_is_asked_for():
    told = {"cols": 512, "gpu": GPU, "verify": False}
    bare, whole = (explorer.emit("shared-tree", main=main, **told) for main in (False, True))
    assert "int main(" in whole.source and "--main\n" in whole.source
    assert "main" not in bare.source and bare.variant.code == whole.variant.code
    words = ("emit", "shared-tree", "--cols", "512", "--gpu", GPU, "--main", "--no-verify")
    assert command(*words, "--output", "-") == whole.source


def test_a_launch_may_overlap_the_one_before_it(emitted, tmp_path):
    config, path = {"threads_per_row": 64}, tmp_path / "kernel.cu"
    told = {"cols": 512, "gpu": GPU, "overlapped": True}
    kernel = explorer.emit(json.dumps(config), output=path, **told)
    assert [launch.overlaps for launch in kernel.launches] == [True]
    assert kernel.verdict.status == "verified" and "--overlapped\n" in kernel.source
    assert not any(launch.overlaps for launch in emitted.launches)
    words = ("emit", json.dumps(config), "--cols", "512", "--gpu", GPU, "--overlapped")
    assert command(*words, "--output", "-") == kernel.source
    assert command("verify", path).splitlines()[-1].startswith("by emulation for sm_90")
    for refused in ({"gpu": "NVIDIA A100-SXM4-80GB"}, {"cols": 2**20, "rows": 2}):
        with pytest.raises(explorer.InvalidInput, match="overlap"):
            explorer.emit("heuristic", **told | refused)


def test_a_config_may_be_said_in_three_ways(emitted, result, folder):
    of = {"gpu": GPU, "verify": False}
    same = explorer.emit(emitted.config, PROBLEM, **of)
    assert same.source == emitted.source and same.verdict is None
    assert explorer.emit(emitted.config.to_json(), cols=4096, **of).source == same.source
    number = explorer.search(
        PROBLEM, **{**SAID, "trials": 1}, storage=folder / "a.db", verify=False
    ).best.trial.number
    assert explorer.emit(number, PROBLEM, storage=folder / "a.db", verify=False).config


def test_a_trial_is_refused_for_another_gpu_whose_limits_it_exceeds(result, folder, monkeypatch):
    study = {"storage": folder / "a.db", "verify": False}
    on_t4 = explorer.emit("best", PROBLEM, gpu="Tesla T4", **study)
    best = explorer.emit("best", PROBLEM, gpu=GPU, **study).config
    assert on_t4.arch == "sm_75" and on_t4.config == best
    small = dataclasses.replace(known_gpu("Tesla T4"), threads_per_sm=32)
    of_name = {"Tesla T4": small}
    known = "explorer.export.choice.known_gpu"
    monkeypatch.setattr(known, lambda name: of_name.get(name) or known_gpu(name))
    with pytest.raises(explorer.InvalidInput, match=r"cannot be emitted for .* on Tesla T4"):
        explorer.emit("best", PROBLEM, gpu="Tesla T4", **study)
    assert explorer.emit("best", PROBLEM, gpu=GPU, **study).config == best


def test_a_file_is_written_where_a_path_is_given(tmp_path, capfd):
    path = tmp_path / "it.cu"
    first = explorer.emit("heuristic", cols=64, gpu=GPU, verify=False, output=path)
    assert path.read_text() == first.source and first.path == path and first.written == "written"
    other = "holds other code; .* name another file, or replace it with --force .*force=True"
    with pytest.raises(explorer.InvalidInput, match=other):
        explorer.emit("heuristic", cols=4096, gpu=GPU, verify=False, output=path)
    second = explorer.emit("heuristic", cols=4096, gpu=GPU, verify=False, output=path, force=True)
    assert path.read_text() == second.source
    assert capfd.readouterr() == ("", "")


TREE = '{"threads":128,"threads_per_row":128,"reduction":"shared-tree"}'


def test_a_check_that_gave_up_names_the_command_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("explorer.export.emission.STEP_LIMIT", 10)
    path, gpu = tmp_path / "k.cu", {"gpu": GPU}
    kernel = explorer.emit("oneflow-warp", cols=64, rows=4, **gpu, output=path)
    assert kernel.verdict.status == "unverified"
    assert f"; explorer verify {path} executes more steps" in kernel.notices[-1]
    assert explorer.verify(path, **gpu).status == "verified"


def test_a_wrong_kernel_is_an_error_with_its_verdict(tmp_path, monkeypatch):
    from explorer.devices.program_under_test import ProgramUnderTest

    real = ProgramUnderTest.of

    def without_barriers(variant):
        source = variant.source.replace("__syncthreads();", ";")
        return real(dataclasses.replace(variant, source=source))

    monkeypatch.setattr(ProgramUnderTest, "of", without_barriers)
    path = tmp_path / "it.cu"
    with pytest.raises(explorer.WrongKernel, match="nothing was written") as caught:
        explorer.emit(TREE, cols=512, rows=64, gpu=GPU, output=path)
    assert caught.value.verdict.findings and not path.exists()


# ------------------------------------------------------------------ verify


def test_a_config_and_a_file_get_the_same_verdict(tmp_path):
    path = tmp_path / "it.cu"
    config = '{"threads":32,"threads_per_row":32}'
    explorer.emit(config, cols=100, rows=64, gpu=GPU, verify=False, output=path)
    first = explorer.verify(config, cols=100, gpu=GPU, seed=7)
    second = explorer.verify(path, gpu=GPU, seed=7)
    assert first.status == second.status == "verified"
    assert first.sentence == second.sentence and len(first.runs) == len(second.runs) > 1
    seed = ("--seed", "7")
    data = json.loads(command("verify", config, "--cols", "100", "--gpu", GPU, "--json", *seed))
    assert data["programs"][0]["sentence"] == first.sentence
    assert data["programs"][0]["seed"] == 7


def test_a_check_draws_a_fresh_seed_that_repeats_it():
    config = '{"threads":32,"threads_per_row":32}'
    first = explorer.verify(config, cols=100, gpu=GPU)
    other = explorer.verify(config, cols=100, gpu=GPU)
    again = explorer.verify(config, cols=100, gpu=GPU, seed=first.program.seed)
    assert first.program.seed != other.program.seed
    assert again.runs[0].checks == first.runs[0].checks != other.runs[0].checks


def test_rows_that_are_said_are_executed(tmp_path):
    verdict = explorer.verify("heuristic", cols=64, rows=5, gpu=GPU)
    assert verdict.status == "verified"
    config = verdict.program.config
    assert explorer.verify(config, cols=64, rows=5, gpu=GPU).runs[0].problem.rows == 5


def test_a_wrong_file_has_findings(tmp_path):
    path = tmp_path / "it.cu"
    text = explorer.emit(TREE, cols=512, rows=64, gpu=GPU, verify=False).source
    assert "__syncthreads();" in text
    path.write_text(text.replace("__syncthreads();", ";"))
    verdict = explorer.verify(path, gpu=GPU)
    assert verdict.status == "wrong"
    assert verdict.findings and verdict.findings[0].source.line > 0


# ------------------------------------------------------------------ compare


@pytest.fixture
def without_gpu(monkeypatch):
    """No driver, whatever this machine has."""
    monkeypatch.setattr("explorer.devices.names.driver_problem", lambda: NO_DRIVER)


def test_a_comparison_needs_a_gpu(without_gpu):
    with pytest.raises(explorer.InvalidInput, match="a comparison needs a GPU, and there is none"):
        explorer.compare(cols=64)


@pytest.mark.parametrize(
    ("call", "words", "says"),
    [
        (
            lambda: explorer.compare(cols=64),
            ("compare", "--cols", "64"),
            "explorer compare --from FILE, or in a program explorer.PeerRun.from_dict(",
        ),
        (
            lambda: explorer.search(cols=63, rows=8, scale=0.5, in_place=True),
            ("search", "--cols", "63", "--rows", "8", "--scale", "0.5", "--in-place"),
            "explorer emit heuristic --cols 63 --rows 8 --dtype f32 --scale 0.5 --in-place",
        ),
        (
            lambda: explorer.emit("best", cols=63, storage="s.db"),
            ("emit", "best", "--cols", "63", "--storage", "s.db"),
            "run explorer search --cols 63 --dtype f32",
        ),
        (
            lambda: explorer.search(PROBLEM, storage="no/s.db"),
            ("search", "--cols", "4096", "--storage", "no/s.db"),
            "create it, or name another storage, such as sqlite:",
        ),
        (
            lambda: explorer.emit("heuristic", cols=64, gpu=GPU, output="/proc/x.cu"),
            ("emit", "heuristic", "--cols", "64", "--output", "/proc/x.cu"),
            "; name another file",
        ),
        (
            lambda: explorer.tune([explorer.Problem(8, 8)]),
            ("tune", "--cols", "8"),
            "explorer search replays",
        ),
    ],
)
def test_a_sentence_serves_a_program_and_the_command_line(
    call, words, says, without_gpu, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(explorer.ExplorerError) as caught:
        call()
    assert says in str(caught.value)
    ran = CliRunner().invoke(app, words, prog_name="explorer")
    assert ran.exit_code == 2 and says in ran.stderr


def test_results_are_shown_on_a_line(result, emitted, tmp_path):
    assert repr(result) == (
        f"SearchResult({PROBLEM} recorded on {GPU}: best {result.time_us:.2f} µs, "
        f"{100 * result.limit_us / result.time_us:.1f} % of copy, of {result.measured} kernels)"
    )
    assert repr(emitted) == f"Emitted({PROBLEM}, verified)"
    assert repr(emitted.verdict) == f"Verdict({PROBLEM}: verified by emulation for sm_90)"
    unchecked = dataclasses.replace(emitted, verdict=None, path=Path("k.cu"))
    assert repr(unchecked) == f"Emitted({PROBLEM}, not verified, k.cu)"
    from explorer.model.tuned_table import read_table
    from explorer.report.compare import read_compared
    from explorer.tuning.tune import TuneRun

    run = read_compared(ROOT / "studies" / "results" / "retimed-h100.json")
    assert re.fullmatch(r"PeerRun\(7 problems on NVIDIA H100 80GB HBM3 beside [^\n]*\)", repr(run))
    tuned = explorer.Tuned(TuneRun(read_table("held-out/nvidia-h200"), (), 0), Path("mine.json"))
    assert repr(tuned) == f"Tuned(60 problems on {GPU}, mine.json)"


def test_a_cache_that_cannot_be_written_is_told_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path / "file" / "x"))
    first, second = (explorer.emit("heuristic", cols=64, rows=8, verify=False) for _ in range(2))
    said = "file/x cannot be written; set EXPLORER_CACHE_DIR"
    assert any(said in one for one in first.notices)
    assert not any(said in one for one in second.notices)
    assert "without a search: the heuristic's config" in second.notices


def test_a_comparison_on_a_gpu_that_is_not_there_is_refused(monkeypatch):
    """It is none of the problems' faults, of which each would be told as not compared."""

    def absent(index, **options):
        raise explorer.InvalidInput(f"device cuda:{index} cannot be used")

    monkeypatch.setattr("explorer.devices.names.driver_problem", lambda: None)
    monkeypatch.setattr("explorer.devices.cuda.device.CudaDevice", absent)
    with pytest.raises(explorer.InvalidInput, match="device cuda:7 cannot be used"):
        explorer.compare(cols=64, device="cuda:7")


def test_a_comparison_tells_of_each_problem(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "tuning")
    from contextlib import contextmanager, nullcontext

    from fake_peers import FakePeerBench

    class Benches(nullcontext):
        gpu = FakePeerBench().gpu

        def __enter__(self):
            return self

        def compile_ahead(self, problem, configs):
            ahead.append(problem)

        @contextmanager
        def on(self, problem):
            if problem.cols == 96:
                raise explorer.DeviceLost("it is lost")
            yield FakePeerBench(problem, {"torch": 1.5})

    monkeypatch.setattr("explorer.evaluate.open_evaluator.open_peer_benches", lambda *_: Benches())
    runs, peers, heard, ahead, paces = [], [], [], [], []
    problems = [explorer.Problem(8, cols) for cols in (64, 96)]
    run = explorer.compare(
        problems,
        peers=["torch"],
        heuristic=True,
        progress=runs.append,
        on_peer=peers.append,
        on_progress=paces.append,
        notice=heard.append,
    )
    assert ahead == problems
    assert [(one.done, one.doing) for one in paces] == [(0, ""), (0, "torch is ready"), (1, "")]
    assert isinstance(run, explorer.PeerRun) and run == runs[-1] and len(runs) == 2
    assert [one.problem for one in run.comparisons] == problems[:1]
    assert run.unmeasured[0].reason == "it is lost" and peers[0].name == "torch"
    assert heard == [
        f"1/2 {problems[0]}",
        f"2/2 {problems[1]}",
        f"not measured: {problems[1]}: it is lost",
    ]


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: explorer.search(), "cols is missing; give the number of columns, for"),
        (lambda: explorer.search(4096), "problem is 4096; give an explorer.Problem"),
        (lambda: explorer.search(PROBLEM, cols=4), "the problem is said twice: leave cols out"),
        (lambda: explorer.search(cols="4096"), "cols is '4096'; it must be a whole number"),
        (lambda: explorer.search(cols=0), "cols is 0; it must be a whole number from 1"),
        (lambda: explorer.search(cols=True), "cols is True"),
        (lambda: explorer.search(cols=8, dtype="f8"), "dtype 'f8' is not known"),
        (lambda: explorer.search(cols=8, dtype=4), "it must be one of f32, f16, bf16, f64"),
        (lambda: explorer.search(cols=8, scale="x"), "scale is 'x'"),
        (lambda: explorer.search(cols=8, scale=float("nan")), "scale is nan"),
        (lambda: explorer.search(cols=8, in_place=1), "in_place is 1"),
        (lambda: explorer.search(cols=8, axis=0), "axis is 0; it is an axis of an array"),
        (lambda: explorer.search(shape=(4, 8), axis=2), "axis is 2; an array of 2 axes"),
        (lambda: explorer.search(shape="4,8"), "shape is '4,8'"),
        (lambda: explorer.search(shape=(4, 0)), "shape is 0"),
        (lambda: explorer.search(shape=(4, 8), cols=8), "leave cols out"),
        (lambda: explorer.search(cols=8, trials=0), "trials is 0"),
        (lambda: explorer.search(cols=8, budget_s=-1), "budget_s is -1"),
        (
            lambda: explorer.search(cols=8, effort="some"),
            "effort 'some' is not known; choose one of quick",
        ),
        (lambda: explorer.search(cols=8, effort="full", trials=5), "give one of the two"),
        (lambda: explorer.search(cols=8, seed=0.5), "seed is 0.5"),
        (lambda: explorer.search(cols=8, objectives="speed"), "objectives are 'speed'"),
        (lambda: explorer.search(cols=8, accuracy="best"), "accuracy 'best' is not known"),
        (lambda: explorer.search(cols=8, storage=7), "storage is 7"),
        (lambda: explorer.search(cols=8, storage="s.db", device=0), "device is 0"),
        (lambda: explorer.emit("fast", cols=8), "'fast' is no kernel: give best"),
        (lambda: explorer.emit(True, cols=8), "what is True"),
        (lambda: explorer.emit("heuristic", cols=8, gpu="GeForce 2"), "GeForce 2"),
        (lambda: explorer.emit(explorer.Config(threads=7), cols=8), "threads"),
        (lambda: explorer.verify("x.cu", dtype=None), "x.cu cannot be read"),
        (lambda: explorer.verify("x.cu"), "x.cu cannot be read"),
        (lambda: explorer.compare([]), "problems is empty"),
        (lambda: explorer.compare([PROBLEM], cols=8), "leave cols out"),
        (lambda: explorer.compare(cols=8, peers=["troch"]), "did you mean torch?"),
        (lambda: explorer.compare("no.csv"), "problem is 'no.csv'; give an explorer.Problem"),
        (lambda: explorer.tune("no.csv"), "problem is 'no.csv'; give an explorer.Problem"),
        (lambda: explorer.tune(5), "problem is 5; give an explorer.Problem"),
        (lambda: explorer.search(cols=64, sampler=5), "sampler 5 is no class of optuna.samplers"),
        (lambda: explorer.search(cols=64, sampler=dict), "is no class of optuna.samplers"),
        (
            lambda: explorer.emit("heuristic", PROBLEM, output=5),
            "output is 5; it must be the path of",
        ),
        (
            lambda: explorer.emit("heuristic", PROBLEM, output=""),
            "output is ''; it must be the path",
        ),
        (lambda: explorer.emit(None), "what is None; it must be text such as 'heuristic', a tria"),
        (lambda: explorer.emit(5.0, PROBLEM), "what is 5.0; it must be text"),
        (lambda: explorer.verify(None, PROBLEM), "what is None; it must be text"),
        (lambda: explorer.search(PROBLEM, progress=5), "progress is 5; it must be a function"),
        (lambda: explorer.search(PROBLEM, notice=5), "notice is 5; it must be a function, or None"),
        (lambda: explorer.compare(PROBLEM, on_peer=5), "on_peer is 5; it must be a function"),
        (lambda: explorer.compare(PROBLEM, journal=5), "journal is 5; it must be the path of a"),
        (lambda: explorer.compare(PROBLEM, peers=5), "peers is 5; it must be a list of names"),
        (lambda: explorer.compare(PROBLEM, peers="torch"), "peers is 'torch'; it must be a list"),
        (lambda: explorer.compare(PROBLEM, peers=[5]), "one of peers is 5; it must be text"),
        (lambda: explorer.tune([PROBLEM], output=5), "output is 5; it must be the path of a file"),
        (lambda: explorer.tune([PROBLEM], progress=5), "progress is 5; it must be a function"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(explorer.InvalidInput) as caught:
        call()
    sentence = str(caught.value)
    assert says in sentence and "\n" not in sentence


def test_a_keyword_that_is_none_is_a_type_error():
    with pytest.raises(TypeError, match="a problem has no keyword 'xyzzy'; it has cols, rows"):
        explorer.search(xyzzy=8)


@pytest.mark.parametrize(
    ("function", "keyword", "near"),
    [
        ("search", "colls", "cols"),
        ("search", "budget", "budget_s"),
        ("emit", "ouput_dtype", "out_dtype"),
        ("emit", "notices", "notice"),
        ("compare", "peer", "peers"),
        ("verify", "gpus", "gpu"),
    ],
)
def test_a_keyword_that_is_nearly_one_is_told(function, keyword, near):
    what = ["heuristic"] if function in ("emit", "verify") else []
    says = f"{function} has no keyword '{keyword}'; did you mean {near}\\?"
    with pytest.raises(TypeError, match=says):
        getattr(explorer, function)(*what, **{"cols": 8, keyword: "20s"})


def test_words_of_a_problem_may_be_plain_text():
    plain = explorer.Problem(64, 64, "bf16", "log_softmax")
    said = explorer.emit("heuristic", plain, gpu=GPU, verify=False).problem
    assert said.dtype is said.output_dtype is explorer.DType.BF16
    assert said.op is explorer.Op.LOG_SOFTMAX
    with pytest.raises(explorer.InvalidInput, match="dtype 'f8' is not"):
        explorer.emit("heuristic", explorer.Problem(8, 8, "f8"))


def test_a_problem_may_be_said_by_any_field():
    said = explorer.emit(
        "heuristic", shape=(8, 3, 20), axis=1, dtype="bf16", op="log_softmax", gpu=GPU, verify=False
    )
    assert said.problem == explorer.Problem(
        160, 3, explorer.DType.BF16, explorer.Op.LOG_SOFTMAX, inner=20
    )
    masked = explorer.emit("heuristic", cols=64, mask="causal", scale=2, gpu=GPU, verify=False)
    assert masked.problem.mask_rows == 64 and masked.problem.scale == 2.0


# ------------------------------------------------------------------ types and words


def test_keywords_are_the_fields_of_a_problem():
    assert set(ProblemKeywords.__annotations__) == {*USUAL, "shape", "axis"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_are_annotated_and_say_each_argument(function):
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for name, parameter in signature.parameters.items():
        assert parameter.annotation is not inspect.Parameter.empty
        if name != "keywords":
            assert f"        {name}: " in function.__doc__, name
    assert "Raises:" in function.__doc__ and "InvalidInput" in function.__doc__


@pytest.mark.parametrize("name", explorer.__all__)
def test_every_public_name_is_documented(name):
    public = getattr(explorer, name)
    assert public.__doc__ and not public.__doc__.startswith(f"{name}(")
    if dataclasses.is_dataclass(public) or typing.is_typeddict(public):
        for attribute, value in vars(public).items():
            if isinstance(value, property) or inspect.isfunction(value):
                assert attribute.startswith("_") or value.__doc__ or value.fget.__doc__, attribute


def test_the_package_says_that_it_is_typed():
    assert (Path(explorer.__file__).parent / "py.typed").exists()


def test_asking_for_the_functions_loads_no_library():
    names = "explorer.search, explorer.emit, explorer.verify, explorer.compare, explorer.Config"
    heavy = "{'optuna', 'numpy', 'jinja2', 'cuda', 'rich', 'typer', 'torch', 'sqlalchemy'}"
    code = f"import sys, explorer; {names}; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr


SAMPLE = '''
import explorer


def fastest(cols: int) -> float:
    """Time over copy's time."""
    result = explorer.search(cols=cols, dtype="bf16", trials=20, seed=1, storage="s.db")
    config: explorer.Config = result.config
    emitted: explorer.Emitted = explorer.emit(config, result.problem, output="kernel.cu")
    grids: list[int] = [launch.grid for launch in emitted.launches]
    verdict: explorer.Verdict = explorer.verify("kernel.cu", cols=cols)
    lines: list[str] = [finding.message for finding in verdict.findings]
    run: explorer.PeerRun = explorer.compare([result.problem], peers=["torch"])
    peers: list[float] = [peer.time_us for one in run.comparisons for peer in one.peers]
    return result.time_us / result.limit_us + len(lines) + sum(grids) + sum(peers)


explorer.search(cols="4096")  # type: ignore[arg-type]
explorer.search(colls=4096)  # type: ignore[call-arg]
'''


@pytest.mark.exhaustive
def test_a_program_is_checked_by_mypy(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(SAMPLE)
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_storage_is_opened_while_a_gpu_is_prepared(monkeypatch):
    """Once what the search tries first is compiling: for a storage Optuna is imported."""
    order = []

    @contextmanager
    def opened(*_, meanwhile, for_fastest):
        assert for_fastest
        meanwhile(known_gpu(GPU), "pool")
        yield "evaluator"

    monkeypatch.setattr("explorer.evaluate.open_evaluator.open_evaluator", opened)
    monkeypatch.setattr(
        "explorer.tuning.seeds.compile_first", lambda *given: order.append(given[-1])
    )
    storage = partial(order.append, "storage")
    with api._for_search(PROBLEM, "cuda:0", "cold", 0, Goal(), {}, storage) as evaluator:
        assert evaluator == "evaluator"
    assert order == ["pool", "storage"]


def test_what_deletes_or_names_a_cluster_takes_no_other_type():
    with pytest.raises(explorer.InvalidInput, match="clear is 'no'; it must be True or False"):
        explorer.cache(clear="no")
    with pytest.raises(explorer.InvalidInput, match="cluster is 3; give a scheduler's address"):
        explorer.search(cols=4096, cluster=3)
    client = SimpleNamespace(scheduler=SimpleNamespace(address="no.json"))
    with pytest.raises(explorer.InvalidInput, match=r"cluster is 'no\.json', which does not exist"):
        explorer.search(cols=4096, cluster=client)
