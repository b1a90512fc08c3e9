"""Comparisons with peers on a fake bench: wins, ties, what was left out, JSON and back."""

import json
from dataclasses import replace

import pytest
from fake_evaluator import model_us
from fake_peers import FAILURES, FakePeerBench, peers

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import WrongKernel
from explorer.model.outcome import Rejected, Stage
from explorer.model.problem import Problem
from explorer.report.compare import compared_markdown
from explorer.tuning.contest import Entry
from explorer.tuning.peer_comparison import (
    PeerRun,
    Unmeasured,
    compare_with_peers,
    fastest_forms,
    unsearched,
)

OURS = Entry(Config(exp="ex2.approx", store_hint="cs"), "trial 7 of a study")


def test_peers_are_timed_beside_ours_and_failures_are_named():
    told = []
    bench = FakePeerBench()
    names = ("torch", *FAILURES, "triton-tuned")
    one = compare_with_peers(bench, OURS, peers(*names), rounds=20, tell=told.append)
    assert [reply.name for reply in told] == list(names)
    assert [peer.name for peer in one.peers] == ["torch", "triton-tuned"]
    assert {e.name: (e.stage, e.reason) for e in one.left_out} == FAILURES
    assert one.time_us == pytest.approx(model_us(OURS.config) * 1.01, rel=0.01)
    assert one.best.name == "triton-tuned" and one.best.version == "triton-tuned 1.0"
    assert one.over_ours(one.best).median == pytest.approx(1.02, rel=2e-3)
    assert one.environment.limit_us == one.limit_time_us


def test_beside_a_searched_config_stands_what_needs_no_search():
    bench = FakePeerBench(noise=1e-5)
    plain = unsearched(bench)
    one = compare_with_peers(bench, OURS, peers("torch"), rounds=12)
    expected = model_us(plain.config) / model_us(OURS.config)
    assert one.heuristic == plain.config
    assert one.heuristic_over_ours == pytest.approx(expected, rel=1e-3)
    alone = compare_with_peers(FakePeerBench(), plain, peers("torch"), rounds=12)
    assert alone.heuristic is None and alone.heuristic_over_ours is None


@pytest.mark.parametrize(
    ("relative", "result"), [(1.02, "win"), (1.0, "tie"), (0.97, "loss")], ids=str
)
def test_losses_and_ties_are_told_like_wins(relative, result):
    bench = FakePeerBench(relative={"torch": relative, "cudnn": 2.0})
    one = compare_with_peers(bench, OURS, peers("torch", "cudnn"), rounds=30)
    assert one.result_against(one.find("torch")) == result
    assert one.result_against(one.find("cudnn")) == "win"
    assert one.contest.noise < 0.01


def test_a_peer_that_does_not_enter_again_is_left_out():
    bench = FakePeerBench(lost=["torch"])
    one = compare_with_peers(bench, OURS, peers("torch", "triton-tuned"), rounds=12)
    assert one.find("torch") is None and one.best.name == "triton-tuned"
    assert [(entry.name, entry.stage) for entry in one.left_out] == [("torch", "crash")]


def test_without_any_peer_ours_still_stands_beside_copy():
    one = compare_with_peers(FakePeerBench(), OURS, peers("absent"), rounds=12)
    assert one.best is None and one.peers == () and one.limit_time_us > 0


def test_a_kernel_of_ours_that_is_wrong_is_not_compared():
    class Wrong(FakePeerBench):
        def evaluate(self, config):
            return Rejected(Stage.VERIFY, "relative error 0.5")

    with pytest.raises(WrongKernel, match=r"trial 7 of a study.*verify: relative error 0.5"):
        compare_with_peers(Wrong(), OURS, peers("torch"))


def test_of_a_peers_forms_the_fastest_is_reported_and_named():
    relative = {"torch": 1.5, "triton-tuned.constexpr": 1.3, "triton-tuned.runtime": 1.1}
    bench = FakePeerBench(relative=relative)
    one = compare_with_peers(bench, OURS, peers(*relative), rounds=12)
    assert [peer.name for peer in one.peers] == ["torch", "triton-tuned"]
    torch, triton = one.peers
    assert triton.form == "runtime" and one.over_ours(triton).median == pytest.approx(1.1, rel=2e-3)
    assert triton.other_forms.startswith("constexpr ") and triton.other_forms.endswith(" µs")
    assert torch.form == torch.other_forms == ""
    faster = replace(triton, form="constexpr")
    other = replace(one, problem=Problem(64, 1000), peers=(torch, faster))
    text = compared_markdown(PeerRun(0, 12, (one, one, other)))
    form = "- form: triton-tuned is runtime at 2 problems; constexpr at softmax f32 64x1000\n"
    assert form in text


def test_a_form_that_is_too_inexact_gives_way_to_a_slower_right_one():
    right = compare_with_peers(FakePeerBench(), OURS, peers("torch"), rounds=12).peers[0]
    rough = replace(right, names=("t.rough",), inexact="90 ulp", samples_us=(1.0,) * 12)
    assert [p.form for p in fastest_forms([rough, replace(right, names=("t.fine",))])] == ["fine"]
    assert [p.form for p in fastest_forms([rough])] == ["rough"]


@pytest.mark.parametrize("cols", [5, 1000, 4097, 131072])
def test_the_config_without_a_search_is_legal(cols):
    bench = FakePeerBench(Problem(16, cols, DType.BF16))
    ours = unsearched(bench)
    assert "nothing was searched" in ours.origin
    from explorer.space import Space

    assert Space(bench.problem, bench.gpu).is_legal(ours.config)


def test_a_run_comes_back_from_json():
    benches = [
        FakePeerBench(problem, {"torch": 1.2, "rough": 1.1})
        for problem in (Problem(8192, 4096), Problem(64, 1000, DType.BF16))
    ]
    entered = peers("torch", "rough", "zero")
    compared = tuple(compare_with_peers(bench, OURS, entered, rounds=12) for bench in benches)
    run = PeerRun(3, 12, compared, (Unmeasured(Problem(1, 5), "no memory"),))
    assert PeerRun.from_dict(json.loads(json.dumps(run.as_dict()))) == run
    assert run.peer_names == ["torch", "rough"]
