"""What a parameter does by itself: recovered where it is planted, stable where a search goes on."""

from dataclasses import replace

import pytest
from replays import replay

from explorer.devices.recording import load_recording
from explorer.model.config import Config
from explorer.model.outcome import Measured, Resources, TrialRecord
from explorer.report.studies import contrast_sentence, unpaired_sentence
from explorer.tuning.main_effects import BLOCK_OF_A_ROW, LEAST_PAIRS, contrasts, unpaired
from explorer.tuning.results import Contrast
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage
from explorer.tuning.study_reader import load_history

NAME = "h200-f32-4096"


def trials_of(configs, time_us):
    """Trials of `configs`, each of which takes what `time_us` gives for it."""
    return [
        TrialRecord(n, config, Measured((time_us(config),), 0.0, Resources(32), f"{n}"))
        for n, config in enumerate(configs)
    ]


def grid():
    """Configs of which four parameters vary freely, and cache with unroll."""
    return [
        Config(
            vector_bytes=size,
            load_hint=hint,
            exp=exp,
            unroll=unroll,
            cache="none" if unroll == 8 else "registers",
        )
        for size in (4, 16)
        for hint in ("default", "cs", "nc")
        for exp in ("expf", "exp2f", "ex2.approx")
        for unroll in (1, 2, 8)
    ]


def planted(config):
    """Scalar accesses take 1.9 times as long, no cache 1.5 times; unroll hardly matters."""
    slow = 1.9 if config.vector_bytes == 4 else 1.0
    slow *= 1.5 if config.cache == "none" else 1.0
    return 10.0 * slow * (1 + config.unroll / 1000)


def test_a_planted_effect_is_found_in_every_pair():
    found = {(c.name, c.faster, c.slower): c for c in contrasts(trials_of(grid(), planted))}
    size = found["vector_bytes", 16, 4]
    assert (size.pairs, size.agreeing, size.is_sure) == (18, 18, True)  # none without a cache
    assert size.low == pytest.approx(1.9) == size.high
    told = contrast_sentence(size)
    assert told.startswith("16 B: 1.90 × as fast as 4 B, in every one of 18 pairs")


def test_what_a_value_does_among_slow_kernels_alone_is_not_told():
    """The hint nc helps kernels without a cache, which nobody would take."""

    def time_us(config):
        helped = config.load_hint == "nc" and config.cache == "none"
        return planted(config) * (0.9 if helped else 1.0)

    found = [c for c in contrasts(trials_of(grid(), time_us)) if c.name == "load_hint"]
    assert found and not any(c.is_sure for c in found)


def test_a_parameter_without_effect_is_said_to_have_none():
    found = {c.name: c for c in contrasts(trials_of(grid(), planted))}
    assert not found["load_hint"].is_sure
    told = contrast_sentence(found["load_hint"])
    assert "no measurable difference in 6 pairs" in told


def test_what_always_changes_with_another_is_not_called_its_own_effect():
    trials = trials_of(grid(), planted)
    found = contrasts(trials)
    assert "cache" not in {c.name for c in found}
    (cache,) = unpaired(trials, found)
    assert (cache.name, cache.one[0], cache.other[0]) == ("cache", "registers", "none")
    assert (cache.one[2], cache.other[2]) == (36, 18)
    told = unpaired_sentence(cache)
    assert f"fewer than {LEAST_PAIRS} pairs of fast kernels differ in cache alone" in told


def test_the_value_of_the_best_is_told_although_few_kernels_have_it():
    rare = Config(threads=512, threads_per_row=512, cache="shared")
    trials = trials_of([*grid(), rare], lambda config: 9.0 if config == rare else planted(config))
    (cache,) = [told for told in unpaired(trials, [], rare) if told.name == "cache"]
    assert [(value, kernels) for value, _, kernels in cache.seen] == [
        ("registers", 36),
        ("none", 18),
        ("shared", 1),
    ]
    told = unpaired_sentence(cache)
    assert "9.000 µs with shared" in told
    usual = next(told for told in unpaired(trials, [], trials[0].config) if told.name == "cache")
    assert usual.best is None and len(usual.seen) == 2


def test_threads_of_a_block_and_of_its_one_row_change_together():
    configs = [
        replace(config, threads=n, threads_per_row=n) for config in grid() for n in (128, 256)
    ]
    trials = trials_of(configs, lambda c: 10 + c.threads / 1000)
    found = [c for c in contrasts(trials) if "threads" in c.name]
    told = [(c.name, c.faster, c.slower, c.pairs) for c in found]
    assert told == [(BLOCK_OF_A_ROW, 128, 256, 54)]
    assert not [told for told in unpaired(trials, found) if "threads" in told.name]


def test_nothing_is_said_of_no_trials():
    assert contrasts([]) == () == unpaired([], [])


def agree(fewer: tuple[Contrast, ...], more: tuple[Contrast, ...]) -> int:
    """How many sure contrasts of `fewer` trials are in `more`; each must say the same there."""
    later = {(c.name, frozenset((c.faster, c.slower))): c for c in more}
    sure = [c for c in fewer if c.is_sure]
    for one in sure:
        two = later[one.name, frozenset((one.faster, one.slower))]
        assert two.faster == one.faster, f"{one} and then {two}"
        assert two.pairs >= one.pairs
        assert max(one.low, two.low) <= min(one.high, two.high), f"{one} and then {two}"
    return len(sure)


def test_effects_are_the_same_after_200_and_265_of_the_kernels_around_the_best():
    kernels = [k for k in load_recording(NAME).kernels if isinstance(k.outcome, Measured)]
    best = min(kernels, key=lambda k: k.outcome.time_us).config
    near = sorted(kernels, key=lambda k: (len(best.differences(k.config)), k.digest))[:265]
    trials = [TrialRecord(n, k.config, k.outcome) for n, k in enumerate(near)]
    assert agree(contrasts(trials[:200]), contrasts(trials)) >= 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", (1, 2))  # by seed 0, four of the effects agree
def test_effects_are_the_same_after_200_and_265_trials_of_a_search(tmp_path, seed):
    evaluator = replay(load_recording(NAME))
    storage = open_storage(str(tmp_path / "studies.db"))
    run_search(evaluator, storage, trials=265, seed=seed)
    trials = load_history(storage, evaluator.problem).measured
    assert agree(contrasts(trials[:200]), contrasts(trials)) >= 5
