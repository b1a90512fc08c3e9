"""Tables at the widths that terminals have: nothing cut, nothing folded inside a number."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from explorer.gpu_spec import known_gpu
from explorer.problem import DType, Problem
from explorer.report.check import Check
from explorer.report.machine_report import print_machine, verdict
from explorer.report.search_report import print_search
from explorer.report.space_report import print_space
from explorer.report.studies_report import print_studies
from explorer.report.study_report import print_study
from explorer.space import RULES, Space


def printed(print_it, thing, width, *rest):
    stream = StringIO()
    print_it(thing, Console(file=stream, width=width, markup=False, highlight=False), *rest)
    text = stream.getvalue()
    assert "…" not in text
    return text


@pytest.mark.parametrize("width", [80, 120])
def test_search_shows_ties_copy_and_circumstances(result, width):
    text = printed(print_search, result, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "NVIDIA H200" in lines[0]
    ranks = [line.split()[:3] for line in lines if line.startswith((" 1", " 2", " 3"))]
    assert ranks == [["1", "=", "41"], ["2", "=", "7"], ["3", "230", "66.00"]]
    flat = " ".join(text.split())
    for fact in ("61.40 ± 0.12", "97.7 %", "100.0 %", "4800 datasheet", "512 threads, 512 a row"):
        assert fact in flat
    for fact in ("1 other config tied", "0.12 %", "25 interleaved rounds", "40 compile", "Seed 3"):
        assert fact in flat
    for fact in ("driver 570.86", "NVRTC 13.0", "1980 MHz", "not throttled", "cold", "2026-03-04"):
        assert fact in flat
    assert lines[-1] == "explorer emit 41 --cols 4096 --dtype f32 --rows 8192"


def test_the_last_line_names_a_storage_that_is_not_the_default(result):
    last = printed(print_search, result, 80, "sqlite:///my studies.db").splitlines()[-1]
    assert last.endswith("--rows 8192 --storage 'sqlite:///my studies.db'")


def test_the_last_line_works_where_templates_have_changed(result):
    best = result.finals.finalists[0]
    stale = replace(best.trial, outcome=replace(best.trial.outcome, digest="0" * 16))
    finals = replace(result.finals, finalists=(replace(best, trial=stale),))
    text = printed(print_search, replace(result, finals=finals), 80)
    assert text.splitlines()[-1] == "explorer emit '{}' --cols 4096 --dtype f32 --rows 8192"
    assert "templates have changed since" in text


@pytest.mark.parametrize("width", [80, 120])
def test_study(view, width):
    text = printed(print_study, view, width)
    assert max(map(len, text.splitlines())) <= width
    for fact in ("ptxas: too many resources", "whole-rows", "threads", "61.0 %", "310.0"):
        assert fact in text
    assert text.splitlines()[-1] == "explorer emit 41 --cols 4096 --dtype f32 --rows 8192"


@pytest.mark.parametrize("width", [80, 120])
def test_studies(summary, width):
    text = printed(print_studies, [replace(summary, replayed=True)], width)
    assert max(map(len, text.splitlines())) <= width
    (line,) = (line for line in text.splitlines() if "f32 8192x4096" in line)
    for fact in ("H200", "cold", "310/400", "61.40", "97.7 %", "2026-03-04", "replayed"):
        assert fact in line


@pytest.mark.parametrize("width", [80, 120])
def test_space_prints_each_parameter_and_rule(width):
    space = Space(Problem(8192, 4096, DType.F32), known_gpu("NVIDIA H200"))
    text = printed(print_space, space, width)
    words = set(text.split())
    assert set(space.parameters) <= words
    assert {rule.name for rule in RULES} <= words
    assert "11 199 744" in text or f"{space.legal_count():,}".replace(",", " ") in text


def test_doctor_says_what_is_missing_for_what():
    nvrtc = Check("nvrtc", False, "not found", "compiling kernels", required=True)
    gpu = Check("gpu", False, "none without a driver", "timing kernels")
    text = printed(print_machine, [nvrtc, gpu], 80)
    assert "missing" in text and "compiling kernels" in text
    assert "nvrtc missing" in verdict([nvrtc, gpu])
    assert "not timed" in verdict([gpu])
    assert "timed here" in verdict([Check("gpu", True, "NVIDIA H200", "timing kernels")])
