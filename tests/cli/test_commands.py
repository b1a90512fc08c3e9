"""Commands that need no study, and the program as a process."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from by_hand import KERNELS, PROBLEM, SHAPE
from fake_evaluator import FakeEvaluator
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from explorer import __version__
from explorer.cli.options import duration_s
from explorer.codegen.variant import split_source
from explorer.devices.recording import read_recording
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.report.guides import ORDER, print_guide, read_guide
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage

ROOT = Path(__file__).resolve().parents[2]
HELP_LIMIT_S = 0.4
SLOW_MACHINE = 2.0
"""How much slower than a developer's machine a test machine may be."""


def run_process(*args, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    command = [sys.executable, "-m", "explorer", *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


def test_help_comes_at_once():
    times = []
    for _ in range(4):  # the first may compile bytecode
        start = time.perf_counter()
        ran = run_process("--help")
        times.append(time.perf_counter() - start)
        assert ran.returncode == 0 and "search" in ran.stdout
    assert min(times) < HELP_LIMIT_S * SLOW_MACHINE


def test_no_command_is_help():
    assert run_process().stdout == run_process("--help").stdout


def test_version():
    assert run_process("--version").stdout == f"softmax-explorer {__version__}\n"


def test_an_error_of_the_process_is_one_line(tmp_path):
    ran = run_process("emit", "best", "--cols", "4096", cwd=tmp_path)
    assert ran.returncode == 2 and ran.stdout == ""
    assert ran.stderr.startswith("error: ") and len(ran.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_no_traceback():
    code = (
        "import os, sys, subprocess as s; p = s.Popen([sys.executable, '-m', 'explorer', 'space',"
    )
    code += " '--cols', '64'], stdout=s.PIPE, stderr=s.PIPE); p.stdout.close();"
    code += " print(p.stderr.read().decode())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert "Traceback" not in ran.stdout + ran.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [("space",), ("diff", "heuristic", "heuristic")])
def test_a_gpu_on_which_nothing_runs_is_named_as_such(explorer, words, monkeypatch):
    monkeypatch.setattr("explorer.devices.cuda.program.has_driver", lambda: False)
    first = explorer(*words, "--cols", "128", "--rows", "64").out.splitlines()[0]
    assert "64x128 for NVIDIA H200 (" in first and "no GPU here; --gpu names another)" in first
    named = explorer(*words, "--cols", "128", "--rows", "64", "--gpu", "NVIDIA H200")
    assert "64x128 for NVIDIA H200" in named.out and "no GPU here" not in named.out


@pytest.mark.exhaustive
def test_space_as_json(explorer):
    data = json.loads(explorer("space", "--cols", "64", "--op", "softmax_backward", "--json").out)
    assert data["gpu"] == "NVIDIA H200" and 0 < data["legal"] < data["points"]
    other = explorer("space", "--cols", "5", "--op", "softmax_backward", "--gpu", "Tesla T4").out
    assert "Tesla T4 (sm_75)" in other


@pytest.fixture
def only_recording(recording, monkeypatch):
    """Return the one recording there is: to read the shipped ones takes 2 s."""
    monkeypatch.setattr("explorer.devices.recording.recording_dirs", lambda: [recording.parent])
    return recording


def test_doctor(explorer, only_recording):
    ran = explorer("doctor")
    assert ran.code == 0
    for fact in ("nvrtc", "no NVIDIA driver", "by-hand", "storage", "not timed"):
        assert fact in ran.out
    data = json.loads(explorer("doctor", "--json").out)
    assert data["ok"] is True
    checks = {check["name"]: check["ok"] for check in data["checks"]}
    assert checks["nvrtc"] and checks["recordings"] and not checks["gpu"]


def test_doctor_says_where_studies_are(explorer, tmp_path, monkeypatch):
    def storage(*options):
        checks = json.loads(explorer("doctor", "--json", *options).out)["checks"]
        return next(check["detail"] for check in checks if check["name"] == "storage")

    monkeypatch.setattr("explorer.report.machine.list_recordings", lambda: [])  # read for 1 s
    monkeypatch.setenv("XDG_DATA_HOME", f"{tmp_path}/data")
    assert f"{tmp_path}/data/softmax-explorer/explorer.db (there is no folder" in storage()
    (tmp_path / "studies").mkdir()
    assert "studies/explorer.db (there is a folder studies here" in storage()
    monkeypatch.setenv("EXPLORER_STORAGE", "team.db")
    assert "what $EXPLORER_STORAGE names" in storage()
    assert "what --storage names" in storage("--storage", "mine.db")
    assert explorer("doctor", "--storage", "mine.db").code == 0
    (tmp_path / "mine.db").write_text("of another program")
    broken = explorer("doctor", "--storage", "mine.db")
    assert broken.code == 1 and broken.out.endswith("The package cannot work: storage broken.\n")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_doctor_reads_recordings_to_their_end(explorer, only_recording, share):
    whole = only_recording.read_bytes()
    only_recording.write_bytes(whole[: int(len(whole) * share)])
    checks = json.loads(explorer("doctor", "--json").out)["checks"]
    (found,) = (check for check in checks if check["name"] == "recordings")
    assert not found["ok"]
    assert "by-hand.json.gz" in found["detail"] and "ends early" in found["detail"]


def test_record_offers_what_it_takes(explorer):
    text = " ".join(explorer("record", "--help").out.split())
    assert "cuda:N" in text and "recorded:NAME" not in text
    assert "recorded:NAME" in " ".join(explorer("search", "--help").out.split())


@pytest.mark.exhaustive
def test_doctor_fails_where_the_package_cannot_work(explorer, monkeypatch):
    monkeypatch.setattr("explorer.report.machine.include_dir", lambda: None)
    ran = explorer("doctor")
    assert ran.code == 1 and "cannot work: headers missing" in ran.out
    assert "pip install nvidia-cuda-runtime" in explorer("doctor", "--json").out


def test_dashboard_without_the_extra(explorer, monkeypatch):
    monkeypatch.setattr("explorer.report.studies.dashboard_program", lambda: None)
    ran = explorer("dashboard")
    assert ran.code == 2 and "pip install '.[dashboard]'" in ran.err


@pytest.mark.exhaustive
def test_dashboard_opens_the_storage(explorer, searched, monkeypatch):
    called = []
    monkeypatch.setattr("explorer.report.studies.dashboard_program", lambda: "/bin/dash")
    monkeypatch.setattr("subprocess.call", lambda command: called.append(command) or 0)
    assert explorer("dashboard", "--port", "8099").code == 0
    assert called == [["/bin/dash", "sqlite:///studies/explorer.db", "--port", "8099"]]


@pytest.mark.exhaustive
def test_dashboard_names_a_problem_s_study_and_asks_where_several_fit(
    explorer, searched, monkeypatch
):
    monkeypatch.setattr("explorer.report.studies.dashboard_program", lambda: "/bin/dash")
    monkeypatch.setattr("subprocess.call", lambda _: 0)
    alone = explorer("dashboard", *SHAPE)
    assert alone.code == 0 and alone.err.endswith(": http://127.0.0.1:8080/dashboard/studies/1\n")
    other = FakeEvaluator(PROBLEM, gpu=known_gpu("NVIDIA H100 80GB HBM3"))
    live = run_search(other, open_storage(None), trials=2)
    asks = explorer("dashboard", *SHAPE)
    assert asks.code == 2 and "2 studies fit" in asks.err
    assert "--study" in asks.err and "--gpu" in asks.err and live.study in asks.err
    named = explorer("dashboard", *SHAPE, "--gpu", "H100", "--port", "8099")
    address = "http://127.0.0.1:8099/dashboard/studies/2"
    assert named.code == 0 and named.err == f"study '{live.study}': {address}\n"
    lacks = explorer("dashboard", "--gpu", "H100")
    assert lacks.code == 2 and "give --cols" in lacks.err


def test_a_recording_is_not_recorded(explorer, recording):
    ran = explorer("record", *SHAPE, "--sample", "5", "--device", "recorded:by-hand")
    assert ran.code == 2 and "cannot be recorded" in ran.err


def test_record(explorer, recording, monkeypatch, tmp_path, kernels):
    """A replay that claims to measure stands in for the GPU, and its own configs are selected."""
    from explorer.evaluate.device_evaluator import DeviceEvaluator
    from explorer.tuning.recorder import Selection

    configs = tuple(kernel.config for kernel in kernels)
    monkeypatch.setattr(DeviceEvaluator, "interleaves", True)
    monkeypatch.setattr(
        "explorer.tuning.recorder.choose_configs",
        lambda *_, **__: Selection(configs, "all", {}),
        raising=False,
    )
    command = ("record", *SHAPE, "--sample", "60", "--device", "recorded:by-hand")
    ran = explorer(*command, "--json")
    assert ran.code == 0, ran.err
    data = json.loads(ran.out)
    assert data["file"] == "studies/recorded/h200-f32-256x512.json.gz"
    assert data["kernels"] == KERNELS > data["measured"]
    again = explorer(*command)
    assert again.code == 2 and "--force" in again.err
    replaced = explorer(*command, "--force")
    assert replaced.code == 0 and "kernels measured, the best" in replaced.out


def test_the_best_of_a_recording_are_compared_again(explorer, recording, monkeypatch):
    monkeypatch.setattr("explorer.evaluate.device_evaluator.DeviceEvaluator.interleaves", True)
    command = ("record", "--again", "by-hand", "--device", "recorded:by-hand")
    refused = explorer(*command)
    assert refused.code == 2 and "exists; name another --output, or" in refused.err
    made = explorer(*command, "--output", "again.json.gz", "--json")
    assert made.code == 0, made.err
    data = json.loads(made.out)
    assert data["file"] == "again.json.gz" and data["kernels"] == KERNELS
    again = read_recording(Path("again.json.gz"))
    assert again.comparison.date and again.kernels == read_recording(recording).kernels


def test_a_recording_to_compare_again_stands_alone(explorer, recording):
    for more in (SHAPE, ("--sample", "5"), ("--where", "threads=256")):
        ran = explorer("record", "--again", "by-hand", *more)
        assert ran.code == 2 and "leave the options of a problem, --sample and" in ran.err
    missing = explorer("record", "--again", "none")
    assert missing.code == 2 and "recording 'none' does not exist" in missing.err


def test_a_sub_space_too_large_to_measure(explorer, recording, monkeypatch):
    monkeypatch.setattr("explorer.evaluate.device_evaluator.DeviceEvaluator.interleaves", True)
    where = ("--where", "threads=256,512", "--where", "static_cols=True")
    ran = explorer("record", *SHAPE, *where, "--device", "recorded:by-hand")
    assert ran.code == 2 and "narrow it further, or give --sample 500" in ran.err


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("2m", 120), ("90", 90), ("1.5h", 5400), (" 3 min ", 180)]
)
def test_durations(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-3s", "3 weeks", "1e3", "0", "inf", "nan"])
def test_no_durations(text):
    with pytest.raises(InvalidInput, match="such as 30s, 2m or 90"):
        duration_s(text)


def test_the_heuristic_is_emitted_without_a_search(explorer):
    few = ("emit", "heuristic", "--cols", "131072", "--rows", "2", "--output", "-", "--no-verify")
    many = (*few[:5], "10000", *few[6:])
    invariant = explorer(*few, "--batch-invariant")
    assert "constexpr int kCols = 131072;" in explorer(*few).out
    assert invariant.code == 0, invariant.err
    assert split_source(invariant.out)[0] == split_source(explorer(*many).out)[0]
    wide = ("heuristic", "--cols", "32000", "--rows", "1")
    assert explorer("verify", "heuristic", "--cols", "8000").code == 0
    assert explorer("profile", *wide).code == 0


def test_guides_are_listed_and_shown(explorer):
    listed = explorer("guide")
    assert listed.code == 0
    for name in ORDER:
        assert re.search(rf"^{name} +[A-Z]", listed.out, re.MULTILINE)
        shown = explorer("guide", name)
        assert shown.code == 0 and shown.out.startswith("# ") and "<!--" not in shown.out
    assert "```sh\nexplorer emit heuristic" in explorer("guide", "cupy").out


def test_a_guide_is_set_for_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=72)
    print_guide(read_guide("glossary"), console)
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, (Text.from_ansi(line).plain for line in lines))) <= 72
    assert not any(line.startswith(("#", "|--")) for line in lines)


def set_guide(name, width):
    """Return a guide as it is set for a terminal, without styles."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    print_guide(read_guide(name), console)
    return Text.from_ansi(console.file.getvalue()).plain


@pytest.mark.parametrize("name", ORDER)
def test_tables_of_guides_are_cut_nowhere(name):
    rows = [line for line in read_guide(name).text.splitlines() if line.startswith("| ")]
    marks = re.compile(r"[`*|\\]")
    words = {word for row in rows for word in marks.sub("", row).split() if len(word) <= 24}
    for width in (60, 80, 120):
        text = set_guide(name, width)
        assert max(map(cell_len, text.splitlines())) <= width
        assert text.count("…") == read_guide(name).text.count("…")
        assert not words - set(marks.sub("", text).split()), width


def test_a_comment_within_a_line_leaves_the_line_as_it_is():
    assert "95 %\nfor all finalists" in read_guide("measurement").text
    assert " times.\nWithout" in read_guide("pytorch").text
    assert "confidence of 95 % for all" in " ".join(set_guide("measurement", 80).split())


def test_a_terminal_gets_the_path_of_what_a_guide_links_to(monkeypatch, tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=1000)
    print_guide(read_guide("measurement"), console)
    assert "\x1b]8;" not in console.file.getvalue()  # a link to a file that a terminal cannot find
    told = " ".join(set_guide("measurement", 80).split())
    assert "other ops (studies/results/ops-h200.md)" in told
    assert "See studies/results. What" in told
    assert "Semantics (explorer/reference/SEMANTICS.md)" in set_guide("problems", 1000)
    installed = tmp_path / "explorer"
    shutil.copytree(ROOT / "explorer" / "guide", installed / "guide")
    (installed / "reference").mkdir()
    (installed / "reference" / "SEMANTICS.md").write_text("")
    monkeypatch.setattr("explorer.report.guides.FOLDER", installed / "guide")
    assert f"Semantics ({installed}/reference/SEMANTICS.md)" in set_guide("problems", 1000)


def test_a_guide_of_an_installed_package_links_to_nothing_that_is_not_there(tmp_path, monkeypatch):
    folder = ROOT / "explorer" / "guide"
    links = {name: re.findall(r"\]\(([^)]+)\)", read_guide(name).text) for name in ORDER}
    assert any("/studies/" in target for targets in links.values() for target in targets)
    installed = tmp_path / "site-packages" / "explorer"
    shutil.copytree(folder, installed / "guide")
    (installed / "reference").mkdir()
    shutil.copy(folder.parent / "reference" / "SEMANTICS.md", installed / "reference")
    monkeypatch.setattr("explorer.report.guides.FOLDER", installed / "guide")
    kept = set()
    for name in ORDER:
        text = read_guide(name).text
        targets = re.findall(r"\]\(([^)]+)\)", text)
        assert all((installed / "guide" / target).exists() for target in targets), name
        kept.update(targets)
    assert kept == {"../reference/SEMANTICS.md"}
    assert "each step of the journey changes a few" in read_guide("kernel").text


@pytest.mark.parametrize(
    "name, near", [("pytroch", "pytorch"), ("gpu", "without-gpu"), ("", "pytorch, cupy, jax")]
)
def test_an_unknown_guide_is_one_sentence_with_the_nearest(explorer, name, near):
    ran = explorer("guide", name)
    assert ran.code == 2 and ran.out == "" and len(ran.err.splitlines()) == 1
    assert f"there is no guide {name!r}; " in ran.err and near in ran.err
