"""Search, inspect and emit on a replay, as a user does it."""

import json
import shlex
from dataclasses import replace

import pytest
from by_hand import PROBLEM, SEARCH, SHAPE

from explorer.codegen.units import emit
from explorer.model.config import Config
from explorer.model.query import ProblemQuery
from explorer.report.text import microseconds

TRIALS = pytest.mark.parametrize(
    "trials", ["20", pytest.param("200", marks=pytest.mark.exhaustive)]
)
"""Of a search that a test makes for itself."""


def test_a_replay_says_so_in_its_first_line(searched):
    first = searched.err.splitlines()[0]
    for fact in ("no NVIDIA driver", "NVIDIA H200", "2026-03-04", "nothing is timed here"):
        assert fact in first
    assert "recorded on NVIDIA H200" in searched.out.splitlines()[0]


def test_the_last_line_of_a_search_in_memory_names_the_config(explorer, recording):
    """A trial's number would be of a study that is gone."""
    ran = explorer("search", *SHAPE, "--trials", "3", "--storage", "sqlite://")
    words = shlex.split(ran.out.splitlines()[-1])
    assert words[1] == "emit" and words[2].startswith("{") and "--storage" not in words
    assert explorer(*words[1:], "--no-verify", "--output", "-").code == 0


def test_the_last_line_reproduces_the_winner(searched, explorer, tmp_path):
    command = shlex.split(searched.out.splitlines()[-1])
    assert command[:2] == ["explorer", "emit"]
    ran = explorer(*command[1:])
    assert ran.code == 0, ran.err
    (file,) = (tmp_path / "generated").iterdir()
    assert ran.out == f"generated/{file.name}: written\n"
    assert "compiles for sm_90" in ran.err and "registers" in ran.err
    best = explorer("emit", "best", *SHAPE)
    assert best.out == f"generated/{file.name}: already there, unchanged\n"


def test_rows_left_out_are_those_of_the_search(searched, explorer):
    assert explorer("show", "--cols", "512").out == explorer("show", *SHAPE).out
    assert explorer("emit", "best", "--cols", "512", "--output", "-").code == 0


def test_the_same_command_again_goes_on(searched, explorer):
    again = explorer(*SEARCH, "--json")
    data = json.loads(again.out)
    shown = json.loads(explorer("show", *SHAPE, "--json").out)
    assert shown["trials"] >= data["trials"]
    assert shown["best"]["trial"] == data["best"]["trial"]
    assert len(json.loads(explorer("studies", "--json").out)["studies"]) == 1


@TRIALS
def test_json_is_alone_on_stdout_and_notices_on_stderr(explorer, recording, trials):
    ran = explorer("search", *SHAPE, "--trials", trials, "--json")
    data = json.loads(ran.out)
    assert data["replayed"] is True
    assert data["problem"]["rows"] == 256
    assert data["rejected"]["verify"] > 0
    assert data["circumstances"]["date"].startswith("2026-03-04")
    assert "nothing is timed here" in ran.err


def test_show_and_studies(searched, explorer):
    shown = explorer("show", *SHAPE)
    for fact in ("relative error 0.5", "verify", "threads_per_row", "replayed", "explorer emit"):
        assert fact in shown.out
    listed = explorer("studies")
    assert "f32 256x512" in listed.out and "replayed" in listed.out
    table = explorer("studies", "--markdown").out
    assert table.startswith("| rows × cols") and "| 256 × 512 | f32 |" in table


@pytest.mark.exhaustive
def test_one_result_has_one_time_and_one_copy_wherever_it_is_shown(searched, explorer):
    shown = json.loads(explorer("show", *SHAPE, "--json").out)
    (listed,) = json.loads(explorer("studies", "--json").out)["studies"]
    again = json.loads(explorer(*SEARCH, "--json").out)
    finals = shown["finals"]
    times = [listed["best_us"], shown["best_us"], shown["best"]["time_us"]]
    times += [finals["finalists"][0]["time_us"], again["best"]["time_us"]]
    assert len(set(times)) == 1
    copies = [listed["limit_us"], shown["limit_us"], finals["limit_us"]]
    assert {*copies, shown["circumstances"]["limit_us"]} == {1.9}
    text = microseconds(times[0])
    for command in (("studies",), ("studies", "--markdown"), ("show", *SHAPE)):
        assert text in explorer(*command).out


def test_a_replay_that_had_everything_says_so(searched, explorer):
    again = explorer(*SEARCH)
    assert "every kernel of the recording is in the study already" in " ".join(again.out.split())
    assert "/200 kernels" not in again.err


def test_markdown_of_replays_alone_says_so(searched, explorer):
    ran = explorer("studies", "--markdown")
    assert "every row is a replay of a recording" in ran.err
    assert len(ran.out.splitlines()) == 3


def test_a_trial_of_a_recording_older_than_the_templates_is_emitted_with_a_notice(
    searched, explorer, monkeypatch
):
    number = shlex.split(searched.out.splitlines()[-1])[2]
    from explorer.export import choice

    real = choice.emit

    def changed(problem, config):
        variant = real(problem, config)
        return replace(variant, source=variant.source + "// new\n")

    monkeypatch.setattr(choice, "emit", changed)
    for what in ("best", number):
        ran = explorer("emit", what, *SHAPE, "--output", "-")
        assert ran.code == 0 and ran.out.endswith("// new\n")
        notice = " ".join(ran.err.split())
        assert "the recording made on NVIDIA H200 on 2026-03-04 is older than" in notice
        assert "is of other code than they emit now" in notice


def test_emit_a_config_to_stdout(explorer):
    ran = explorer("emit", '{"threads":128,"threads_per_row":128}', *SHAPE, "--output", "-")
    assert ran.code == 0
    assert ran.out == emit(PROBLEM, Config(threads=128, threads_per_row=128)).source


def test_emit_as_json_tells_the_launch(explorer):
    data = json.loads(
        explorer("emit", '{"threads_per_row":64}', *SHAPE, "--json", "--output", "k.cu").out
    )
    assert data["file"] == "k.cu" and data["launches"][0]["block"] == 256
    assert data["resources"]["registers"] > 0


@TRIALS
def test_another_storage_is_named_in_the_last_line(explorer, recording, tmp_path, trials):
    ran = explorer("search", *SHAPE, "--trials", trials, "--storage", "mine.db")
    last = ran.out.splitlines()[-1]
    assert last.endswith("--storage mine.db")
    assert explorer(*shlex.split(last)[1:]).code == 0
    assert not (tmp_path / "studies" / "explorer.db").exists()


def test_rows_left_out_are_said(explorer):
    from explorer.model.query import rows_notice

    problem = ProblemQuery(4096).problem()
    assert rows_notice(problem, None) == ["--rows not given: using 8192 (256 MiB of traffic)"]
    assert rows_notice(problem, 8192) == []


def test_stopping_keeps_what_is_done(explorer, recording, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("explorer.tuning.search.run_search", interrupted, raising=False)
    ran = explorer(*SEARCH)
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == (
        "stopped; 0 trials are kept; run the same command again to go on"
    )
