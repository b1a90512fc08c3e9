"""Every published kernel, verified and timed on the GPU, and a journey over all of them."""

import pytest

from explorer.devices.cuda.device import CudaDevice
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.element import DType
from explorer.model.outcome import Measured
from explorer.model.problem import Problem
from explorer.presets.published import PRESETS
from explorer.tuning.journey import run_journey

SHAPES = [
    (2048, 4096),  # whole vectors: all but those for narrow rows
    (2048, 1001),  # ragged, rows misaligned for every vector
    (4096, 100),  # lanes of a warp
    (512, 9217),  # ragged, more than registers of one thread hold in PyTorch's path
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_presets_are_right(device, rows, cols, dtype):
    problem = Problem(rows, cols, dtype)
    with DeviceEvaluator(problem, device, keep_device=True) as live:
        legal = [preset for preset in PRESETS if preset.fault(problem, live.gpu) is None]
        for preset in legal:
            live.submit(preset.config(problem, live.gpu))
        found = {p.name: live.evaluate(p.config(problem, live.gpu)) for p in legal}
    wrong = {name: out for name, out in found.items() if not isinstance(out, Measured)}
    assert len(found) > 5 and not wrong


@pytest.mark.alone
def test_a_journey_times_all_of_them_in_turn():
    problem = Problem(2048, 4096)
    with DeviceEvaluator(problem, CudaDevice(0, takes_turns=False)) as live:
        journey = run_journey(live, lambda: None, rounds=10)
    assert len(journey.steps) > 15 and journey.limit_us and journey.interleaved
    assert journey.steps[0].time_us > 5 * journey.steps[-1].time_us
    assert journey.steps[-1].time_us > 0.95 * journey.limit_time_us
