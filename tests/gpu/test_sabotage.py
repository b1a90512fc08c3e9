"""Kernels made wrong on purpose: each must be rejected, and cost one trial only."""

from dataclasses import replace

import pytest

from explorer.codegen.units import emit
from explorer.devices.cuda.device import CudaDevice
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.outcome import Measured, Rejected, Stage
from explorer.model.problem import Problem

REGISTERS = Config()
ROWS_A_BLOCK = Config(threads=256, threads_per_row=32, reduction="shuffle")
LOOPED = Config(cache="none", cache_holds="input", unroll=2)
ONLINE = Config(algorithm="online-block-max", cache="shared", cache_holds="input")

SABOTAGE = {
    # name: config, text of the emitted code, what it becomes
    "no store": (REGISTERS, "  reinterpret_cast<Word*>(output)[k] = as_word(vector);", ""),
    "stale maximum": (REGISTERS, "maximum = fmaxf(maximum, x[i]);", "maximum = x[i];"),
    "maximum starts at 0": (REGISTERS, "float maximum = -infinity();", "float maximum = 0.0f;"),
    "warps are not combined": (
        REGISTERS,
        "  return reduce_lanes<kLanes>(value, combine);",
        "  return value;",
    ),
    "tail not stored": (
        REGISTERS,
        "  reinterpret_cast<Word*>(output)[k]",
        "  if (k < kRowVectors - 1) reinterpret_cast<Word*>(output)[k]",
    ),
    "tail not loaded": (
        LOOPED,
        "reinterpret_cast<const Word*>(input)[k]",
        "reinterpret_cast<const Word*>(input)[k < kRowVectors - 1 ? k : 0]",
    ),
    "half the rows": (ROWS_A_BLOCK, "if (!is_row) return;", "if (index >= rows / 2) return;"),
    "one row too many": (ROWS_A_BLOCK, "is_row = index < rows;", "is_row = index <= rows;"),
    "only the first row of a block": (
        ROWS_A_BLOCK,
        "first_row + threadIdx.x / kThreadsPerRow;",
        "first_row;",
    ),
    "sum without rescaling": (
        ONLINE,
        "state.sum = state.sum * exponential(state.maximum, reference) + sum;",
        "state.sum = state.sum + sum;",
    ),
    "infinite minus infinite": (ONLINE, "__int_as_float(0xff7fffff)", "__int_as_float(0xff800000)"),
    "not normalised": (REGISTERS, "+ i] * inverse_sum;", "+ i];"),
    "a little off": (REGISTERS, "+ i] * inverse_sum;", "+ i] * inverse_sum * 1.00001f;"),
    "writes beside the output": (
        REGISTERS,
        "  output += index",
        "  output[static_cast<long long>(gridDim.x) * kCols] = 1.0f;\n  output += index",
    ),
    "32-bit row offset": (
        REGISTERS,
        "input += index * kCols;",
        "input += index * kCols & 0xffffff;",
    ),
}
ENTRY = "  const int thread_in_row = threadIdx.x;\n"


@pytest.fixture(scope="module")
def evaluator():
    """Rows enough for the whole problem to exceed 2^24 elements."""
    with DeviceEvaluator(
        Problem(8192, 4096), CudaDevice(0, kernel_limit_s=20, takes_turns=False)
    ) as live:
        yield live


def run_source(evaluator, config, source):
    program = replace(ProgramUnderTest.of_config(evaluator.problem, config), source=source)
    return evaluator.device.verify(program).outcome


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_wrong_kernel_is_rejected(evaluator, name):
    config, text, becomes = SABOTAGE[name]
    source = emit(evaluator.problem, config).source
    assert source.count(text) >= 1
    outcome = run_source(evaluator, config, source.replace(text, becomes))
    assert isinstance(outcome, Rejected) and outcome.stage is Stage.VERIFY, outcome


@pytest.mark.parametrize("config", [REGISTERS, ROWS_A_BLOCK, LOOPED, ONLINE])
def test_their_honest_twins_pass(evaluator, config):
    outcome = evaluator.evaluate(config)
    assert isinstance(outcome, Measured), outcome
    assert outcome.error < 4e-6


@pytest.mark.parametrize(
    ("spoiled", "stage"),
    [
        ("  reinterpret_cast<volatile float*>(8)[threadIdx.x] = 1.0f;\n", Stage.CRASH),
        ("  while (*reinterpret_cast<volatile int*>(output) != 1234567) {\n  }\n", Stage.TIMEOUT),
        ("  __trap();\n", Stage.CRASH),
    ],
    ids=["illegal address", "endless", "trap"],
)
def test_a_fault_costs_one_trial(evaluator, spoiled, stage):
    source = emit(evaluator.problem, REGISTERS).source
    before = evaluator.device.restarts
    outcome = run_source(evaluator, REGISTERS, source.replace(ENTRY, ENTRY + spoiled))
    assert isinstance(outcome, Rejected) and outcome.stage is stage, outcome
    assert evaluator.device.restarts == before + 1
    healthy = run_source(evaluator, LOOPED, emit(evaluator.problem, LOOPED).source)
    assert isinstance(healthy, Measured)


def test_wrong_tail_of_misaligned_rows_is_rejected():
    with DeviceEvaluator(
        Problem(2048, 4097, DType.BF16), CudaDevice(0, kernel_limit_s=20, takes_turns=False)
    ) as live:
        source = emit(live.problem, REGISTERS).source
        text = "const bool in_row = place >= row.begin && place < row.end;"
        assert text in source
        wrong = source.replace(text, text.replace("place < row.end", "place < row.end - 1"))
        outcome = run_source(live, REGISTERS, wrong)
        assert isinstance(outcome, Rejected) and outcome.stage is Stage.VERIFY, outcome
        assert isinstance(live.evaluate(REGISTERS), Measured)
