"""Every choice, run: verified on the GPU for aligned, misaligned and tiny rows."""

from collections import Counter

import pytest

from explorer.compile.compiler import nvrtc_version
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.outcome import Rejected, Stage
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.space import Space
from explorer.space.covering import covering_array

SHAPES = [
    (4096, 4096),  # whole vectors
    (1000, 4097),  # misaligned for every vector
    (5000, 33),  # several rows a warp, misaligned
    (7000, 5),  # rows shorter than a vector of 16-bit elements
    (3, 1),  # one element a row
    (40, 50257),  # several vectors a thread, a ragged last one
    (1, 131072),  # one row
]

GRADIENT_SHAPES = [*SHAPES[:4], (40, 50257), (6, 16384)]
"""The last two have rows that clusters share, whole vectors and misaligned ones."""

MISCOMPILED = Config(
    vector_bytes=4,
    cache_holds="input",
    exp="expf",
    normalise="divide",
    load_hint="no-allocate",
    store_hint="cg",
    rows_per_thread=8,
    cluster=8,
    exchange="mbarrier",
)
"""What NVRTC 13.0, though not 13.5, translates wrongly: studies/DECISIONS.md says how."""

BUGS = (Stage.COMPILE, Stage.CRASH, Stage.TIMEOUT, Stage.INVALID)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(("rows", "cols"), SHAPES[:5])
def test_pairs_of_choices_are_right(device, rows, cols, dtype):
    check_choices(device, Problem(rows, cols, dtype), strength=2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_choices_are_right(device, rows, cols, dtype):
    check_choices(device, Problem(rows, cols, dtype), strength=1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(("rows", "cols"), GRADIENT_SHAPES)
@pytest.mark.parametrize("op", [Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD])
def test_choices_of_gradients_are_right(device, op, rows, cols, dtype):
    check_choices(device, Problem(rows, cols, dtype, op), strength=1)


LONG_SUM = 2**15
"""Terms whose plain sum in fp32 may be off by an ulp of fp16."""


def check_choices(device, problem, strength):
    """The one rejection in verification that is no bug: a long serial sum's rounding.

    Results of 16 bits show it only where a thread adds up more than LONG_SUM terms.
    """
    outcomes = Counter()
    with DeviceEvaluator(problem, device, keep_device=True) as live:
        configs = covering_array(Space(problem, live.gpu), strength=strength)
        if nvrtc_version() == "13.0":
            configs = [config for config in configs if config != MISCOMPILED]
        for config in configs:
            live.submit(config)
        for config in configs:
            outcome = live.evaluate(config)
            if isinstance(outcome, Rejected):
                outcomes[outcome.stage] += 1
                assert outcome.stage not in BUGS, (config, outcome)
                if outcome.stage is Stage.VERIFY:
                    wide = problem.dtype in (DType.F32, DType.F64)
                    long = problem.cols > LONG_SUM * config.threads_per_row
                    assert is_rounding(outcome.reason) and (wide or long), (config, outcome)
    assert sum(outcomes.values()) <= 0.75 * len(configs)


def is_rounding(reason: str) -> bool:
    """Off by what serial sums lose: 2^-24 for each of thousands of terms in fp32, 2^-53 in fp64."""
    return "too inexact" in reason
