"""Problems of every kind on a GPU: verified and timed; kernels made wrong on purpose rejected."""

import time
from dataclasses import replace
from statistics import median

import pytest
from kinds import HELD, KINDS, SABOTAGE, held, problem_of, sabotaged

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.outcome import Measured, Rejected, Stage
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.space import Space
from explorer.space.space import sampled

DRAWN = 4
"""Configs of a kind, beside the one that all kinds have."""

WIDE = Config(threads=512, threads_per_row=512, cache="none", cache_holds="input")

SLOW = Config(threads=32, threads_per_row=1, vector_bytes=4, cache="none", cache_holds="input")
"""A thread a row: some hundred times slower than the best where rows are wide and few."""


@pytest.fixture
def evaluator(device):
    """Opens one problem after another on the same device."""
    return lambda problem: DeviceEvaluator(problem, device, keep_device=True)


@pytest.mark.alone
@pytest.mark.sampled(10)
@pytest.mark.parametrize("kind", KINDS)
def test_first_light(evaluator, kind):
    """One kernel of each kind, and what was found of it: to run first, with -s."""
    with evaluator(problem_of(kind, 8000, 1000)) as live:
        outcome = live.evaluate(held(live.problem))
        assert isinstance(outcome, Measured), outcome
        share = live.facts.limit_us / outcome.time_us
        print(
            f"\n{live.problem}: {outcome.time_us:.1f} us, {share:.0%} of {live.facts.limit_name} "
            f"({live.facts.limit_us:.1f} us); error {outcome.error:.1e}, "
            f"{outcome.max_ulp:.3g} ulp, {outcome.mean_ulp:.2g} on average"
        )
        # Lengths are data, so the limit copies whole rows, of which a kernel reads about half.
        assert 0.1 < share < (2.0 if live.problem.mask is Mask.LENGTHS else 1.1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cols", [1000, 1001])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_right(evaluator, kind, cols):
    """1001 columns are misaligned for every vector; only long serial fp32 sums may be off."""
    problem = problem_of(kind, 2000, cols)
    with evaluator(problem) as live:
        configs = [held(problem), *sampled(Space(problem, live.gpu), DRAWN, seed=cols)]
        for config in configs:
            live.submit(config)
        outcomes = {config: live.evaluate(config) for config in configs}
    wrong = {
        config.to_json(brief=True): outcome
        for config, outcome in outcomes.items()
        if isinstance(outcome, Rejected)
        and outcome.stage is not Stage.RESOURCES
        and not (outcome.stage is Stage.VERIFY and "too inexact" in outcome.reason)
    }
    assert not wrong
    assert isinstance(outcomes[held(problem)], Measured), outcomes[held(problem)]


@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in SABOTAGE.values()}))
def test_a_wrong_kernel_of_a_kind_is_rejected(evaluator, kind):
    with evaluator(problem_of(kind, 2000, 1000)) as live:
        program = ProgramUnderTest.of_config(live.problem, held(live.problem))
        for name in (name for name, (its, *_) in SABOTAGE.items() if its == kind):
            source = sabotaged(name, program.source)
            outcome = live.device.verify(replace(program, source=source)).outcome
            assert isinstance(outcome, Rejected), (name, outcome)
            assert outcome.stage is Stage.VERIFY, (name, outcome)
            print(f"\n{name}: {outcome.reason}")
        assert isinstance(live.evaluate(held(live.problem)), Measured)


PLACE = "{input + index * kCols, output + index * kCols, kRowVectors}"


def test_a_kernel_in_place_is_checked_on_the_whole_problem(evaluator):
    """Right on the small problem, and on the first rows of the large one."""
    with evaluator(Problem(8000, 1000, in_place=True)) as live:
        program = ProgramUnderTest.of_config(live.problem, HELD)
        assert PLACE in program.source
        source = program.source.replace(
            PLACE, PLACE.replace("kRowVectors", "index < 7000 ? kRowVectors : 0")
        )
        outcome = live.device.verify(replace(program, source=source)).outcome
        assert isinstance(outcome, Rejected) and "on the whole problem" in outcome.reason, outcome
        assert "row 7000" in outcome.reason
        compared = live.compare([HELD, HELD], 5)
        assert len(compared.samples_us) == 2
        assert isinstance(live.evaluate(replace(HELD, exp="expf")), Measured)


@pytest.mark.alone
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("problem", "kinds"),
    [
        (Problem(8192, 4096), ("1 x", "2 x", "4 x", "8 x", "rows", "cuMemcpy")),
        (Problem(8192, 4096, scale=2.0), ("1 x", "2 x", "4 x", "8 x", "rows", "cuMemcpy")),
        (Problem(8192, 4096, op=Op.SOFTMAX_BACKWARD), ("pair", "rows")),
        (Problem(8192, 4096, DType.BF16, out_dtype=DType.F32), ("stream", "rows")),
        (Problem(4096, 4096, mask=Mask.CAUSAL), ("stream", "rows")),
        (Problem(8192, 4096, mask=Mask.ADDITIVE, mask_rows=4096), ("stream", "rows")),
    ],
    ids=str,
)
def test_the_limit_moves_the_problems_bytes(evaluator, problem, kinds):
    """As fast as any: the limits of two kinds differ by what reads and writes cost, no more."""
    with evaluator(problem) as live:
        assert live.facts.limit_name.startswith(kinds)
        gbps = problem.gbps(live.facts.limit_us)
        print(f"\n{problem}: {gbps:.0f} GB/s by {live.facts.limit_name}")
        assert 0.6 * live.gpu.peak_gbps < gbps < 1.02 * live.gpu.peak_gbps


@pytest.mark.alone
def test_no_gradient_is_faster_than_its_limit(evaluator):
    with evaluator(Problem(8192, 4096, op=Op.SOFTMAX_BACKWARD)) as live:
        config = Config(threads=512, threads_per_row=512, cache_holds="input")
        assert isinstance(live.evaluate(config), Measured)
        compared = live.compare([config], 15)
        assert median(compared.samples_us[0]) > 0.98 * median(compared.limit_us)


@pytest.mark.alone
def test_slow_kernels_are_compared_in_bounded_time(evaluator):
    with evaluator(Problem(64, 2**18, DType.BF16)) as live:
        fast, slow = live.evaluate(WIDE), live.evaluate(SLOW)
        assert isinstance(fast, Measured) and isinstance(slow, Measured), (fast, slow)
        print(f"\n{fast.time_us:.1f} us and {slow.time_us:.1f} us")
        assert slow.time_us > 50 * fast.time_us
        begun = time.monotonic()
        compared = live.compare([WIDE, SLOW, WIDE], 10)
        assert time.monotonic() - begun < 60
        assert all(len(row) == 10 for row in compared.samples_us)
        first, _, last = (median(row) for row in compared.samples_us)
        assert first == pytest.approx(last, rel=0.05)


@pytest.mark.alone
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(524300, 4096, DType.BF16, Op.SOFTMAX_BACKWARD),
        Problem(64 * 8200, 4096, DType.BF16, inner=8200),
        Problem(65536, 32769),
        Problem(65536, 32769, DType.BF16, in_place=True, mask=Mask.CAUSAL, mask_rows=2**15),
    ],
    ids=str,
)
def test_more_than_2_31_elements_of_a_kind(evaluator, problem):
    """Each element is checked, in seconds."""
    assert problem.rows * problem.cols > 2**31
    with evaluator(problem) as live:
        begun = time.monotonic()
        outcome = live.evaluate(WIDE)
        print(f"\n{problem}: {time.monotonic() - begun:.1f} s, {outcome}")
        assert isinstance(outcome, Measured), outcome
