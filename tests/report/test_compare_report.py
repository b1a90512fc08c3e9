"""A comparison as a table: marks of ties and losses, geometric means, what was left out."""

import json
import re
import shlex
from dataclasses import replace
from html import unescape
from math import sqrt
from pathlib import Path

import pytest

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Absent, Contender
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery
from explorer.report.charts import is_curve
from explorer.report.compare import (
    NAMED_PROBLEMS,
    compare_data,
    compare_rows,
    compared_markdown,
    comparison_page,
    few_of,
    groups,
    left_out_lines,
    means,
    notes_of,
    read_compared,
    share_rows,
    shares_figure,
)
from explorer.report.pages import result_page
from explorer.report.side_by_side import read_result
from explorer.tuning.peer_comparison import PeerComparison, PeerRun, losses

ROUNDS = 12

RESULTS = Path(__file__).resolve().parents[2] / "studies" / "results"


def row(time_us):
    """Samples about a median, the same wobble in each round for all."""
    return tuple(time_us * (1 + 1e-3 * (i % 3 - 1)) for i in range(ROUNDS))


def peer(name, time_us, inexact=""):
    return Contender(
        names=(name,),
        samples_us=row(time_us),
        version=f"{name} 1.0",
        error=1e-7,
        max_ulp=2.0,
        inexact=inexact,
    )


@pytest.fixture
def run(environment):
    def one(problem, limit_us, ours_us, *peers, left_out=()):
        return PeerComparison(
            problem=problem,
            environment=environment,
            config=Config(),
            origin="trial 3 of study s",
            digest="abc",
            error=1e-7,
            max_ulp=2.0,
            registers=32,
            ours_us=row(ours_us),
            again_us=row(ours_us),
            limit_us=row(limit_us),
            peers=peers,
            left_out=left_out,
        )

    out = Absent("quack", "quack needs cols that 4 divides; 4097 is not", "refused")
    return PeerRun(
        0,
        ROUNDS,
        (
            one(Problem(8192, 4096), 60.0, 62.0, peer("torch", 93.0), peer("quack", 62.0)),
            one(Problem(8192, 4097), 60.0, 64.0, peer("torch", 48.0), left_out=(out,)),
            one(Problem(8192, 4096, DType.BF16), 30.0, 31.0, peer("torch", 93.0, "too inexact")),
        ),
    )


def test_ties_losses_and_inexact_peers_are_marked(run):
    lines = compared_markdown(run).splitlines()
    f32 = "| rows × cols | copy | ours | % of copy | best peer | ratio | torch | quack |"
    assert f32 in lines
    assert "| 8192×4096 | 60.00 | 62.00 | 96.8 | quack 62.00 | 1.000 = | 93.00 | 62.00 = |" in lines
    assert "| 8192×4097 | 60.00 | 64.00 | 93.8 | torch 48.00 | 0.750 < | 48.00 < | – |" in lines
    assert "| 8192×4096 | 30.00 | 31.00 | 96.8 | torch 93.00 | 3.000 | 93.00 ~ |" in lines
    text = "\n".join(lines)
    assert "1 win, 1 tie, 1 loss" in text
    assert "4097 is not (softmax f32 8192x4097)" in text
    assert "NVIDIA H200" in text and "torch: torch 1.0" in text


def left_out_of(run, cases):
    """The run with a problem for each of the cases: columns, rows, a peer and its reason."""
    first = run.comparisons[0]
    return replace(
        run,
        comparisons=tuple(
            replace(first, problem=Problem(rows, cols), left_out=(Absent(peer, why, stage),))
            for cols, rows, peer, why, stage in cases
        ),
    )


def test_reasons_that_differ_in_numbers_alone_are_told_once(run):
    why = "quack needs cols that 4 divides; {} is not"
    cases = [(cols, 64, "quack", why.format(cols), "refused") for cols in range(1001, 1081, 2)]
    more = left_out_of(run, [*cases, (8, 4, "liger", "not installed", "missing")])
    first, second = left_out_lines(more)
    names = [f"softmax f32 64x{cols}" for cols in range(1001, 1081, 2)]
    assert first == ("left out: quack", f"refused: {why.format(1001)} ({few_of(names)})")
    assert first[1].endswith(f" and {40 - NAMED_PROBLEMS} more)")
    assert second == ("left out: liger", "missing: not installed (softmax f32 4x8)")
    assert "1079 is not" in json.dumps(compare_data(more))
    assert left_out_lines(left_out_of(run, cases[:1]))[0][1].endswith("is not (all)")


def test_losses_to_right_peers_are_listed_worst_first(run):
    first, second, third = run.comparisons
    wrong_rows = replace(peer("quack", 61.0), wrong_rows=("one left",))
    rounded = peer("liger", 20.0, "too inexact: 90 ulp")
    lost = replace(first, peers=(peer("torch", 61.5), wrong_rows, rounded))
    more = replace(run, comparisons=(lost, second, third))
    found = losses(more)
    assert [(loss.peer, loss.problem.cols) for loss in found] == [("torch", 4097), ("quack", 4096)]
    assert found[0].slower == pytest.approx(1 / 3) and found[0].counts
    assert found[1].slower == pytest.approx(1 / 61)
    assert found[1].least <= found[1].slower <= found[1].most
    lines = compared_markdown(more).splitlines()
    place = lines.index("**losses to a right peer**")
    assert lines[place + 4].startswith(
        "| softmax f32 8192x4097 | torch | 64.00 | 48.00 | +33.3 % |"
    )
    assert "quack, wrong on some rows | 62.00 | 61.00 | +1.6 %" in lines[place + 5]
    assert "- losses: 2 of 3 problems are lost to a right peer by more than 1 %" in lines
    data = compare_data(more)
    assert [loss["peer"] for loss in data["losses"]] == ["torch", "quack"]
    assert data["losses"][0]["problem"]["cols"] == 4097 and data["losses"][0]["beyond_limit"]


@pytest.mark.parametrize(
    ("peer_us", "said"),
    [
        (62.0, "no loss beyond 1 % on 1 problem"),
        (61.7, "no loss beyond 1 % on 1 problem; 1 loss by less, beyond noise"),
        (61.0, "1 of 1 problem is lost to a right peer by more than 1 %"),
    ],
)
def test_that_there_is_no_loss_is_said_too(run, peer_us, said):
    one = replace(run.comparisons[0], peers=(peer("torch", peer_us),))
    text = compared_markdown(replace(run, comparisons=(one,)))
    assert f"- losses: {said}\n" in text
    assert ("**losses to a right peer**" in text) == (peer_us < 62.0)


def test_geometric_means_are_over_what_has_times(run):
    f32 = groups(run)["softmax f32"]
    found = means(f32)
    assert found.best_over_ours == pytest.approx(sqrt(1.0 * 0.75), rel=1e-3)
    assert found.of_limit == pytest.approx(sqrt(60 / 62 * 60 / 64), rel=1e-3)
    assert found.counts == {"torch": 2, "quack": 1}
    assert found.of_limit_by_name["quack"] == pytest.approx(60 / 62, rel=1e-3)


def test_the_origins_of_ours_are_counted_where_they_are_many():
    run = read_compared(RESULTS / "compare-h200-f32.json")
    searched = read_compared(RESULTS / "compare-h200-searched.json").comparisons[:3]
    mixed = replace(run, comparisons=(*searched, *run.comparisons[3:]))
    text = dict(notes_of(mixed))["ours"]
    assert text == (
        "what is taken without a search at 22 problems; the best of a search at 3 problems, which "
        "the JSON names"
    )
    searched = dict(notes_of(read_compared(RESULTS / "compare-h200-before-f32.json")))["ours"]
    assert searched == "the best of a search at 21 problems, which the JSON names"


def test_the_heuristic_is_ours_where_nothing_else_was_found(run):
    first, *others = groups(run)["softmax f32"]
    timed = [replace(first, heuristic=Config(), heuristic_us=first.ours_us), *others]
    found = means(timed)
    assert found.of_limit_by_name["heuristic"] == pytest.approx(found.of_limit)
    assert found.counts["heuristic"] == 2
    lines = compared_markdown(replace(run, comparisons=tuple(timed))).splitlines()
    assert [line.split("|")[7].strip() for line in lines if "8192×409" in line] == ["62.00", "ours"]


def test_json_says_what_follows_from_the_times(run):
    data = compare_data(run)
    second = data["comparisons"][1]
    assert second["best_peer"]["verdict"] == "loss" and second["of_limit"] == pytest.approx(60 / 64)
    assert data["comparisons"][0]["peers"][1]["verdict"] == "tie"
    assert [entry["of"] for entry in data["geometric_means"]] == ["softmax f32", "softmax bf16"]
    assert PeerRun.from_dict(data) == run


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ours_us", []),
        ("again_us", [1.0]),
        ("limit_us", []),
        ("limit_us", [0.0]),
        ("heuristic_us", [1.0]),
        ("peers", {}),
        ("peers", [{}]),
        ("left_out", [5]),
        ("config", "{}"),
        ("heuristic", []),
        ("error", "small"),
        ("registers", None),
        ("problem", []),
        ("circumstances", {}),
    ],
)
def test_a_comparison_of_other_values_is_refused(run, tmp_path, name, value):
    data = run.as_dict()
    data["comparisons"][0][name] = value
    path = tmp_path / "none.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match=r"none\.json keeps no comparison of this version"):
        read_compared(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("samples_us", [1.0]), ("samples_us", "ab"), ("wrong_rows", [5]), ("name", 5), ("error", -1)],
)
def test_a_peer_of_other_values_is_refused(run, tmp_path, name, value):
    data = run.as_dict()
    data["comparisons"][0]["peers"][0][name] = value
    path = tmp_path / "none.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match=r"comparisons\[0\]: peers\[0\]: |no comparison"):
        read_compared(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; name a file that explorer compare --save wrote"),
        ("[]", "keeps no comparison"),
        ("{}", "keeps no comparison"),
        ("[" * 100_000, "is not JSON: its values are nested too deeply"),
    ],
)
def test_a_file_without_a_comparison(tmp_path, text, says):
    path = tmp_path / "none.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=rf"none\.json {says}"):
        read_compared(path)


@pytest.mark.usefixtures("is_read")
def test_a_comparison_beside_a_reading(run):
    text = compared_markdown(run)
    assert "| rows × cols | read | ours | % of read |" in text and "copy" not in text
    assert {one["limit"] for one in compare_data(run)["comparisons"]} == {"read"}
    assert compare_rows(run)[1]["contender"] == "read"


def test_a_problem_that_no_other_library_computes_does_not_count_where_it_is_said_how_many_are_won(
    run,
):
    assert "<b>1</b> of 3</p>" in comparison_page(run).sections[0].blocks[0]
    alone = replace(run, comparisons=(*run.comparisons, replace(run.comparisons[0], peers=())))
    tile = comparison_page(alone).sections[0].blocks[0]
    assert (
        "<b>1</b> of 3</p>" in tile
        and "problems that other libraries compute, faster than any" in tile
    )


def test_lines_join_no_two_problems_at_one_place_and_an_operator_names_the_places(run):
    pytest.importorskip("altair", reason="charts need the extra softmax-explorer[report]")
    attention = read_compared(RESULTS / "compare-h200-attention.json")
    by_kind = {kind: (of, shares_figure(kind, of, ["ours"])) for kind, of in groups(run).items()}
    drawn = {kind: shares_figure(kind, of, ["ours"]) for kind, of in groups(attention).items()}
    of, figure = by_kind["softmax f32"]
    assert is_curve(share_rows(of)) and "faint beside others, which lines join. Geo" in figure.says
    twice = shares_figure("softmax f32", [*of, *of], ["ours"])
    several = drawn["decode_attention bf16"]
    assert "lines join" not in twice.says + several.says and "beside others. Geo" in several.says
    for one, word, lines in ((figure, "columns", 1), (twice, "columns", 0), (several, "keys", 0)):
        assert x_title(one) == word
        assert (
            sum(layer["mark"]["type"] == "line" for layer in one.chart.to_dict()["layer"]) == lines
        )


def x_title(figure):
    return figure.chart.to_dict()["layer"][0]["encoding"]["x"]["title"]


@pytest.mark.parametrize("name", ["compare-h200-attention", "held-out/nvidia-h200"])
def test_the_first_screen_has_the_command_that_writes_the_kernel_of_the_largest_problem(name):
    pytest.importorskip("altair", reason="charts need the extra softmax-explorer[report]")
    kept = read_result(name)
    numbers, says, command, *_ = result_page(kept).sections[0].blocks
    problems = kept.comparisons if isinstance(kept, PeerRun) else kept.problems
    one = max(problems, key=lambda one: one.problem.bytes)
    config = one.config if isinstance(kept, PeerRun) else one.best.config
    assert "tiles" in numbers and f"for the largest problem, {one.problem}:" in says
    words = shlex.split(unescape(re.sub(r"<[^>]*>", "", command)))
    assert words[:3] == ["explorer", "emit", config.to_json(brief=True)]
    assert words[3:] == ProblemQuery.of(one.problem).options
