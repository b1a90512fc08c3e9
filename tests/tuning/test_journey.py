"""A journey on a fake evaluator: each preset once, in order, with ties and what was left out."""

import json

import pytest
from fake_evaluator import FLOOR_US, FakeEvaluator, model_us

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import NotFound
from explorer.model.outcome import Rejected, Stage
from explorer.model.problem import Problem
from explorer.model.query import query_from_keywords
from explorer.ops import Op
from explorer.presets.ladder import ATTENTION_LADDER, usual_problem
from explorer.presets.published import BETWEEN, PRESETS
from explorer.report.tune import family
from explorer.tuning.contest import Entry
from explorer.tuning.journey import BEST, Journey, run_journey, stored_best
from explorer.tuning.search import run_search

FOUND = Entry(Config(exp="ex2.approx", store_hint="cs"), "trial 7 of a study")


def journey_on(evaluator, found=FOUND):
    return run_journey(evaluator, lambda: found, rounds=12)


def test_every_legal_preset_and_the_best_is_a_step_slowest_first():
    evaluator = FakeEvaluator(noise=1e-4)
    told = []
    journey = run_journey(
        evaluator, lambda: FOUND, rounds=12, on_progress=lambda *entry: told.append(entry)
    )
    named = [name for step in journey.steps for name in step.names]
    left_out = {entry.name: entry.why for entry in journey.left_out}
    between = [preset.name for preset in BETWEEN]
    of_softmax = [preset.name for preset in PRESETS if evaluator.problem.op in preset.ops]
    assert sorted([*named, *left_out]) == sorted([*of_softmax, *between, BEST])
    assert "rows of at most 1024 columns" in left_out["oneflow-warp"]
    assert left_out["thread-per-row"] == "timeout: no end after 5 s"
    times = [step.time_us for step in journey.steps]
    assert times == sorted(times, reverse=True)
    assert [number for _, number, _ in told] == list(range(1, told[0][2] + 1))
    best = journey.find(BEST)
    assert best.config == FOUND.config
    assert best.time_us == pytest.approx(model_us(FOUND.config) * 1.01, rel=0.01)


def test_a_journey_through_attention_has_its_published_forms_and_no_others():
    query = query_from_keywords(usual_problem(Op.DECODE_ATTENTION))
    journey = journey_on(FakeEvaluator(query.problem()), found=None)
    named = [name for step in journey.steps for name in step.names]
    assert sorted(named) == sorted(rung.preset for rung in ATTENTION_LADDER)
    assert journey.left_out == ()
    assert {family(step.config) for step in journey.steps} == {"a block a row", "several launches"}


def test_what_does_not_verify_is_left_out_with_its_reason():
    class Strict(FakeEvaluator):
        def evaluate(self, config):
            if config.reduction == "shared-serial":
                return Rejected(Stage.VERIFY, "relative error 0.5")
            return super().evaluate(config)

    journey = journey_on(Strict())
    assert journey.find("shared-serial") is None
    (entry,) = (one for one in journey.left_out if one.name == "shared-serial")
    assert entry.why == "verify: relative error 0.5"


def test_the_best_that_is_a_preset_shares_its_step():
    evaluator = FakeEvaluator()
    preset = next(p for p in PRESETS if p.name == "register-float4")
    found = Entry(preset.config(evaluator.problem, evaluator.gpu), "trial 1")
    assert journey_on(evaluator, found).find(BEST).names == ("register-float4", BEST)


def test_ties_and_speedups_pair_the_rounds():
    """The fake drifts by 2 % over its rounds: pairs of one round know nothing of it."""
    journey = journey_on(FakeEvaluator(noise=1e-5))
    first, best = journey.steps[0], journey.steps[-1]
    assert journey.contest.noise < 1e-3
    assert journey.is_tie(best, best) and not journey.is_tie(first, best)
    expected = model_us(first.config) / model_us(best.config)
    assert journey.speedup(first, best).median == pytest.approx(expected, rel=1e-3)
    assert journey.limit_time_us == pytest.approx(0.98 * FLOOR_US * 1.01, rel=0.02)


def test_a_journey_comes_back_from_json():
    journey = journey_on(FakeEvaluator(Problem(512, 1000, DType.BF16)))
    data = journey.as_dict()
    assert Journey.from_dict(json.loads(json.dumps(data))).as_dict() == data


def test_a_recording_without_the_presets_times_none():
    class Recorded(FakeEvaluator):
        catalogue = (Config(),)

    asked = []
    with pytest.raises(NotFound, match=r"lacks \d+ of the \d+ presets.*needs a GPU"):
        run_journey(Recorded(), lambda: asked.append(1))
    assert not asked


def test_a_recording_of_the_presets_is_replayed():
    class Recorded(FakeEvaluator):
        @property
        def catalogue(self):
            legal = (p for p in PRESETS if p.fault(self.problem, self.gpu) is None)
            return tuple(p.config(self.problem, self.gpu) for p in legal)

    assert len(journey_on(Recorded(), None).steps) > 10


def test_too_few_kernels_are_no_journey():
    class Nothing(FakeEvaluator):
        def evaluate(self, config):
            return Rejected(Stage.CRASH, "illegal memory access")

    with pytest.raises(NotFound, match="0 of the 2 kernels"):
        journey_on(Nothing())


def test_the_stored_best_is_of_the_evaluators_own_study(storage):
    evaluator = FakeEvaluator()
    assert stored_best(evaluator, storage) is None
    result = run_search(evaluator, storage, trials=20)
    found = stored_best(evaluator, storage)
    assert found.config == result.finals.winner.trial.config and result.study in found.origin
    assert stored_best(FakeEvaluator(Problem(64, 4096)), storage) is None
