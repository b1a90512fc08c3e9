"""Which contenders cannot be told apart, and which of those wins."""

import random
from dataclasses import replace
from math import comb
from statistics import median

import pytest
from fake_evaluator import FakeEvaluator

from explorer.model.config import Config
from explorer.model.evaluator import Comparison
from explorer.model.outcome import Contender, Measured, Resources, TrialRecord
from explorer.tuning.contest import (
    Contest,
    contenders,
    finals_from_json,
    finals_to_json,
    judge,
    ratio,
    rounds_left_out,
    run_finals,
)


def record(number, time_us=60.0, registers=32, code_bytes=1000):
    resources = Resources(registers=registers, code_bytes=code_bytes)
    outcome = Measured((time_us,) * 3, 1e-7, resources, f"digest{number}")
    return TrialRecord(number, Config(unroll=1), outcome)


def rows(*levels, rounds=30, noise=0.001, drift=0.0, seed=0):
    """A row a level; the first again as the last. Drift grows over the rounds, for all alike."""
    rng = random.Random(seed)
    return tuple(
        tuple(level * (1 + drift * i / rounds) * (1 + rng.gauss(0, noise)) for i in range(rounds))
        for level in (*levels, levels[0])
    )


def judged(records, samples):
    entered = [Contender.of_trial(record) for record in records]
    return judge(Contest.of(entered, Comparison(samples, (58.0,) * len(samples[0]))))


@pytest.mark.parametrize("comparisons", [1, 2, 11])
@pytest.mark.parametrize("rounds", [9, 10, 20, 30, 31, 100])
def test_the_interval_covers_95_percent_and_no_narrower_one_does(rounds, comparisons):
    def missed(left_out):
        return 2 * sum(comb(rounds, i) for i in range(left_out + 1)) / 2**rounds

    left_out = rounds_left_out(rounds, comparisons)
    assert missed(left_out) <= 0.05 / comparisons
    assert missed(left_out + 1) > 0.05 / comparisons


def test_thirty_rounds_resolve_twelve_contenders_without_the_extremes():
    assert rounds_left_out(30) == 9
    assert rounds_left_out(30, 11) == 6


@pytest.mark.parametrize(("rounds", "comparisons"), [(1, 1), (2, 1), (5, 1), (6, 2), (8, 11)])
def test_few_rounds_give_their_whole_range(rounds, comparisons):
    assert rounds_left_out(rounds, comparisons) == 0
    samples = [1.0 + i for i in range(rounds)]
    found = ratio(samples, [1.0] * rounds, comparisons)
    assert (found.low, found.high) == (min(samples), max(samples))


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng, held = random.Random(2), 0
    for _ in range(400):
        samples = [rng.lognormvariate(0.0, 0.3) for _ in range(30)]
        found = ratio(samples, [1.0] * 30)
        held += found.low <= 1.0 <= found.high
    assert held / 400 > 0.93


def test_a_clear_winner_has_no_ties():
    finals = judged([record(0), record(1)], rows(60.0, 61.0))
    assert [f.trial.number for f in finals.ties] == [0]
    assert finals.winner.ratio_to_best == 1.0
    assert finals.finalists[1].ratio_low > 1.0


def test_equals_are_tied_and_fewer_registers_win():
    records = [record(0, registers=40), record(1, registers=32), record(2, registers=32)]
    finals = judged(records, rows(60.0, 60.0, 62.0))
    assert [f.trial.number for f in finals.ties] == [1, 0]
    assert [f.trial.number for f in finals.finalists] == [1, 0, 2]


def test_equal_registers_go_by_shorter_code():
    records = [record(0, code_bytes=900), record(1, code_bytes=800)]
    assert judged(records, rows(60.0, 60.0)).winner.trial.number == 1


def test_drift_that_hits_all_alike_does_not_hide_a_difference():
    finals = judged([record(0), record(1)], rows(60.0, 60.4, drift=0.2))
    assert [f.trial.number for f in finals.ties] == [0]


def test_of_ties_one_that_states_its_residency_is_the_best():
    """Registers and code count after that, and the time of one that is slower counts first."""
    held = {"resident_blocks": 5, "rests_on_registers": True}

    def kernel(number, min_blocks, registers, code_bytes=1000):
        kept = record(number, 60.0, registers, code_bytes)
        resources = replace(kept.outcome.resources, **held)
        config = replace(kept.config, min_blocks=min_blocks)
        return replace(kept, config=config, outcome=replace(kept.outcome, resources=resources))

    few, stated, more = kernel(0, 1, 24, 900), kernel(1, 5, 40), kernel(2, 5, 48)
    assert [one.trial.number for one in judged([few, more, stated], rows(60, 60, 60)).ties] == [
        1,
        2,
        0,
    ]
    unknown = record(3, 60.0, 24)  # of an earlier version
    assert judged([few, stated, unknown], rows(60, 60, 60)).winner.trial.number == 1
    resources = replace(unknown.outcome.resources, resident_blocks=8)
    free = replace(unknown, outcome=replace(unknown.outcome, resources=resources))
    assert judged([few, stated, free], rows(60, 60, 60)).winner.trial.number == 3
    spilling = replace(stated.outcome.resources, spill_load_bytes=8)
    spilling = replace(stated, outcome=replace(stated.outcome, resources=spilling))
    assert judged([few, spilling], rows(60, 60)).winner.trial.number == 0
    slower = judged([few, stated], rows(60.0, 63.0))
    assert slower.winner.trial.number == 0 and len(slower.ties) == 1


def test_what_is_within_the_noise_of_the_best_with_itself_is_tied():
    first, second, again = (60.0,) * 30, (60.3,) * 30, (60.6,) * 30
    finals = judged([record(0), record(1)], (first, second, again))
    assert finals.noise == pytest.approx(0.01)
    assert len(finals.ties) == 2
    assert finals.finalists[0].ratio_low >= 1.0


def test_two_entries_that_agree_by_luck_are_no_better_known_than_their_interval():
    """The medians of both entries are equal, their samples are 1 % apart either way."""
    first = (60.0, 60.0) * 15
    again = (59.4, 60.6) * 15
    finals = judged([record(0), record(1)], (first, (60.3,) * 30, again))
    assert finals.noise == pytest.approx(0.01)
    assert [f.tied for f in finals.finalists] == [True, True]


def test_of_twelve_equals_all_are_tied_in_19_of_20_finals():
    records = [record(i) for i in range(12)]
    whole = sum(
        len(judged(records, rows(*(60.0,) * 12, noise=0.003, seed=seed)).ties) == 12
        for seed in range(200)
    )
    assert whole / 200 >= 0.95


def test_the_fastest_is_tied_with_whichever_came_out_best():
    """One is faster by less than can be resolved: it may not lead, but it is in the tie set."""
    records = [record(i) for i in range(12)]
    held = 0
    for seed in range(200):
        finals = judged(records, rows(*(60.0,) * 11, 59.97, noise=0.003, seed=seed))
        held += 11 in {finalist.trial.number for finalist in finals.ties}
    assert held / 200 >= 0.95


def test_the_best_of_the_finals_is_the_reference_whoever_led_the_search():
    finals = judged([record(0), record(1)], rows(61.0, 60.0))
    assert finals.winner.trial.number == 1
    assert median(finals.winner.samples_us) == finals.winner.time_us


def test_contenders_are_those_near_the_best_three_at_least_twelve_at_most():
    far = [record(i, 60.0 * 1.1**i) for i in range(6)]
    assert [trial.number for trial in contenders(far)] == [0, 1, 2]
    near = [record(i, 60.0 + 0.01 * i) for i in range(40)]
    assert [trial.number for trial in contenders(near)] == list(range(12))
    assert len(contenders(far[:1])) == 1


def test_the_best_is_entered_twice():
    class Watching(FakeEvaluator):
        entered = None

        def compare(self, configs, rounds):
            self.entered = configs
            return super().compare(configs, rounds)

    evaluator = Watching()
    finals = run_finals(evaluator, [record(0, 60.0), record(1, 61.0)], 10)
    assert len(evaluator.entered) == 3
    assert finals.rounds == 10
    assert finals.interleaved


def test_finals_survive_json():
    finals = judged([record(0), record(1)], rows(60.0, 61.0))
    assert finals_from_json(finals_to_json(finals)) == finals
