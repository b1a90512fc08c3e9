"""Two kernels side by side: what differs, what each takes and does, and whose times are known."""

import csv
import json
import re
from pathlib import Path

import pytest
from by_hand import PROBLEM, SHAPE

from explorer.evaluate import profile
from explorer.evaluate.profile import instruction_counts, sass_of
from explorer.report.diff import TextDiff

WARP = '{"threads":128,"threads_per_row":32}'
WIDER = '{"threads":256,"threads_per_row":64}'

needs_disassembler = pytest.mark.skipif(
    profile.disassembler() is None, reason="nvdisasm is not installed: softmax-explorer[sass]"
)


@pytest.fixture
def without_disassembler(monkeypatch):
    """Have no nvdisasm be found."""
    monkeypatch.setattr(profile, "disassembler", lambda: None)


def data_of(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_two_configs_are_told_apart(explorer, without_disassembler):
    ran = explorer("diff", WARP, WIDER, *SHAPE)
    assert ran.code == 0, ran.err
    assert "2 parameters differ, 22 are the same" in ran.out
    for name in ("threads_per_row", "registers a thread", "occupancy", "ld.global", "not known"):
        assert name in ran.out, name
    for line in ("-constexpr int kThreadsPerRow = 32;", "+constexpr int kThreadsPerRow = 64;"):
        assert f"\n{line}\n" in ran.out, line
    assert "softmax-explorer[sass]" in ran.out


@pytest.mark.exhaustive
def test_a_part_of_a_wave_has_two_significant_digits(explorer, without_disassembler):
    ran = explorer("diff", "thread-per-row", "oneflow-warp", "--cols", "128", "--rows", "1024")
    (waves,) = (line.split() for line in ran.out.splitlines() if line.startswith("waves"))
    assert waves == ["waves", "0.0076", "0.12", "×", "16"]


def test_as_json(explorer, without_disassembler):
    data = data_of(explorer("diff", WARP, WIDER, *SHAPE, "--json", "--show", "source,ptx"))
    assert data["config"] == {
        "differing": {"threads": [128, 256], "threads_per_row": [32, 64]},
        "same": 22,
    }
    a, b = data["a"], data["b"]
    assert (a["launches"][0]["block"], b["launches"][0]["block"]) == (128, 256)
    assert a["digest"] != b["digest"] and a["resources"]["registers"] > 0
    assert a["counted"]["global_bytes_per_element"] == 8.0
    assert (data["times"], a["time_us"], a["sass_instructions"]) == (None, None, None)
    assert set(data["diffs"]) == {"source", "ptx"}
    removed = sum(line.startswith("-") for line in data["diffs"]["source"])
    assert removed == data["lines"]["source"]["only_a"] > 0


def test_a_kernel_is_as_itself(explorer, without_disassembler):
    ran = explorer("diff", WARP, WARP, *SHAPE)
    assert "Config: the same" in ran.out and "@@" not in ran.out
    assert "the same but for numbers of registers" in ran.out


@pytest.mark.exhaustive
def test_times_come_from_the_study_that_has_both(explorer, searched, without_disassembler):
    shown = json.loads(explorer("show", *SHAPE[:2], "--json").out)
    best, second = (f["trial"] for f in shown["finals"]["finalists"][:2])
    ran = explorer("diff", "best", str(second), *SHAPE[:2], "--json", "--show", "none")
    data = data_of(ran)
    times = {f["trial"]: f["time_us"] for f in shown["finals"]["finalists"]}
    assert data["times"]["source"].endswith("finals")
    assert (data["a"]["time_us"], data["b"]["time_us"]) == (times[best], times[second])
    assert data["a"]["of_limit"] == pytest.approx(1.9 / times[best])
    assert data["problem"]["rows"] == PROBLEM.rows  # those of the study, though none were said


@pytest.mark.exhaustive
def test_times_that_only_one_way_has_of_both_are_compared(explorer, searched, without_disassembler):
    """A finalist beside a trial that was none: both by the search, where each has its own turn."""
    shown = json.loads(explorer("show", *SHAPE, "--json").out)
    finalists = {str(f["trial"]) for f in shown["finals"]["finalists"]}
    trials = csv.DictReader(explorer("show", *SHAPE, "--csv").out.splitlines())
    slow = next(t for t in trials if t["time_us"] and t["trial"] not in finalists)
    data = data_of(explorer("diff", "best", slow["trial"], *SHAPE, "--json", "--show", "none"))
    assert not data["times"]["in_turn"]
    assert data["b"]["time_us"] == pytest.approx(float(slow["time_us"]))
    assert data["a"]["time_us"] is not None


@pytest.mark.exhaustive
def test_times_come_from_a_recording_without_a_study(
    explorer, recording, kernels, without_disassembler
):
    measured = next(k for k in kernels if hasattr(k.outcome, "samples_us"))
    ran = explorer("diff", measured.config.to_json(), WARP, *SHAPE, "--json", "--show", "none")
    data = data_of(ran)
    assert data["times"]["source"] == "recording by-hand"
    assert data["a"]["time_us"] == pytest.approx(measured.outcome.time_us, rel=1e-3)
    assert data["a"]["of_other_code"] is False
    other_gpu = ("--gpu", "Tesla T4", "--json", "--show", "none")
    assert data_of(explorer("diff", WARP, WIDER, *SHAPE, *other_gpu))["times"] is None


@pytest.mark.exhaustive
def test_a_trial_for_another_gpu_says_where_it_was_measured(explorer, searched):
    ran = explorer("emit", "best", *SHAPE[:2], "--gpu", "H100", "--output", "-")
    assert ran.code == 0, ran.err
    assert "was measured on NVIDIA H200: no study is of NVIDIA H100" in ran.err
    assert "was measured on" not in explorer("emit", "best", *SHAPE[:2], "--output", "-").err


@pytest.mark.exhaustive
def test_times_are_of_the_study_that_the_trials_are_of(
    explorer, searched, without_disassembler, monkeypatch
):
    """Also where a live study's name is the beginning of its replay's."""
    (replay,) = json.loads(explorer("studies", "--json").out)["studies"]
    with monkeypatch.context() as live:
        live.setattr("explorer.tuning.search.is_replay", lambda _: False)
        assert explorer("search", *SHAPE, "--trials", "20").code == 0
    assert explorer("search", *SHAPE, "--trials", "1").code == 0  # the replay is the last
    name = replay["study"].removesuffix(" | replay")
    shown = json.loads(explorer("show", *SHAPE, "--study", name, "--json").out)
    one, two = (str(f["trial"]) for f in shown["finals"]["finalists"][:2])
    for study in (("--study", name), ()):
        data = data_of(explorer("diff", one, two, *SHAPE, *study, "--json", "--show", "none"))
        assert data["times"]["source"] == f"study '{name}', finals"


@pytest.mark.exhaustive
def test_a_trial_is_named_as_one(explorer, searched, without_disassembler):
    ran = explorer("diff", "4", WARP, *SHAPE[:2])
    assert ran.code == 0, ran.err
    assert re.search(r"^A  trial 4: ", ran.out, re.MULTILINE)
    assert "\n--- A trial 4 (source)\n" in ran.out
    assert re.search(r"^B  \{", ran.out, re.MULTILINE)
    data = data_of(explorer("diff", "4", "best", *SHAPE[:2], "--json", "--show", "none"))
    assert (data["a"]["name"], data["b"]["name"]) == ("4", "best")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((WARP, "worst", *SHAPE), "'worst' is no kernel: give best"),
        ((WARP, WIDER), "for example --cols 4096"),
        ((WARP, WIDER, *SHAPE, "--show", "cubin"), "write some of source, ptx, sass"),
        ((WARP, WIDER, *SHAPE, "--show", "sass"), "softmax-explorer[sass]"),
        ((WARP, WIDER, *SHAPE, "--batch-invariant"), "neither of the two is the heuristic"),
        (("best", WARP, *SHAPE), "explorer emit heuristic"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(explorer, without_disassembler, words, says):
    ran = explorer("diff", *words)
    assert ran.code == 2 and says in ran.err and ran.out == ""


# ------------------------------------------------------------------ line by line


def test_a_diff_is_what_patch_reads(tmp_path):
    """Context, removed and added lines, and the counts of a hunk."""
    one = [f"line {i}" for i in range(20)]
    other = [*one[:4], "new", *one[5:15], *one[16:]]
    text = TextDiff.of(one, other, str)
    assert text.only == (2, 1)
    assert text.lines[0] == "@@ -2,7 +2,7 @@" and text.lines[4:6] == ("-line 4", "+new")
    assert text.lines[8] == " line 7" and text.lines[9] == "@@ -13,7 +13,6 @@"


@pytest.mark.parametrize(
    ("program", "says"),
    [("#!/bin/sh\necho no such arch >&2\nexit 1\n", "nvdisasm failed: no such arch"), ("", "run")],
)
def test_a_disassembler_that_fails_is_a_sentence(tmp_path, monkeypatch, program, says):
    path = Path(tmp_path, "nvdisasm")
    path.write_text(program)
    path.chmod(0o755 if program else 0o644)
    monkeypatch.setattr(profile, "disassembler", lambda: str(path))
    assert says in sass_of(b"\x7fELF")


def test_instructions_are_counted_with_the_bits_of_accesses():
    sass = (
        "kernel:",
        "    LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;",
        "    @!P0 LDG.E R4, desc[UR4][R2.64] ;",
        "    STG.E.U16 desc[UR4][R2.64], R4 ;",
        "    LDS.64 R4, [R2] ;",
        "    NOP ;",
        ".L_x_1:",
    )
    counts = {"LDG.128": 1, "LDG.32": 1, "STG.16": 1, "LDS.64": 1}
    assert instruction_counts(sass) == counts


@pytest.mark.exhaustive
@needs_disassembler
def test_machine_code_is_compared(explorer):
    data = data_of(explorer("diff", WARP, WIDER, *SHAPE, "--json", "--show", "sass"))
    for side in (data["a"], data["b"]):
        assert side["sass_instructions"]["LDG.128"] >= 1 and side["no_sass"] is None
    assert any(line.startswith("+") for line in data["diffs"]["sass"])
