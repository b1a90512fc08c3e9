"""Rows over the blocks of a cluster, verified by emulation; what breaks them is found out."""

import pytest
from planted import planted

from explorer.config import Config
from explorer.devices.emulated.emulation import Status
from explorer.dtype import DType
from explorer.evaluate.emulation import Emulator
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.gpu_spec import known_gpu
from explorer.op import Op
from explorer.problem import Problem
from explorer.space import Space
from explorer.space.covering import covering_array, sampled

H200 = known_gpu("NVIDIA H200")

CLUSTERS = {"cluster": (2, 4, 8, 16)}


@pytest.fixture(scope="module")
def emulator():
    return Emulator("sm_90")


def verify(emulator, problem, configs):
    assert configs
    for config in configs:
        verdict = emulator.verify(ProgramUnderTest.of_config(problem, config))
        told = f"{config.to_json(brief=True)}: {verdict.sentence}"
        assert verdict.status is Status.VERIFIED, told


@pytest.mark.parametrize(
    ("cols", "dtype"),
    [(8193, DType.F32), (8200, DType.BF16), (16384, DType.F32), (50257, DType.BF16)],
)
def test_every_choice_at_ragged_and_whole_rows(emulator, cols, dtype):
    problem = Problem(3, cols, dtype)
    verify(emulator, problem, covering_array(Space(problem, H200, CLUSTERS)))


@pytest.mark.parametrize(
    "changes",
    [
        {"op": Op.LOG_SOFTMAX, "dtype": DType.F16, "scale": -0.5},
        {"dtype": DType.BF16, "out_dtype": DType.F32, "input_stride": 8300},
        {"dtype": DType.F32, "out_dtype": DType.F16, "output_stride": 8301},
        {"in_place": True},
    ],
)
def test_rows_of_every_kind(emulator, changes):
    problem = Problem(3, 8291, **changes)
    verify(emulator, problem, sampled(Space(problem, H200, CLUSTERS), 3))


@pytest.mark.parametrize("rows", [1, 5])
def test_several_rows_are_exchanged_at_once(emulator, rows):
    """The last rows of a cluster's share may be past the end."""
    config = Config(algorithm="online-block-max", cluster=4, rows_per_thread=2)
    verify(emulator, Problem(rows, 8193), [config])


ARRIVE = "row_at(input, output, index);\n  arrive_at_cluster();\n"
BEGUN = "  wait_for_cluster();  // its blocks have begun: their shared memory can be written\n"
EXCHANGED = "  arrive_at_cluster();\n  wait_for_cluster();\n"
RANK = "blockIdx.x % kCluster"

DEFECTS = {
    "the exchange is not waited for": [(EXCHANGED, "")],
    "blocks that may not have begun are written to": [
        (ARRIVE, ARRIVE.replace("  arrive_at_cluster();\n", "")),
        (BEGUN, ""),
    ],
    "a block ends while others write to it": [(BEGUN, f"{BEGUN}  if ({RANK} == 1) return;\n")],
    "every block takes the first one's place": [(f"{RANK} * kWarpsPerRow + ", "")],
    "the last block is left out": [("if (lane < kCluster)", "if (lane < kCluster - 1)")],
    "blocks write to themselves alone": [('"r"(own), "r"(rank)', f'"r"(own), "r"({RANK})')],
    "parts overlap": [("% kCluster * kBlockVectors", "% kCluster * (kBlockVectors - 1)")],
    "parts begin within each other's": [("begin - first, end", "begin - first - 1, end")],
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_found_out(emulator, defect):
    config = Config(algorithm="online-block-max", cluster=8, threads=128, threads_per_row=128)
    program = ProgramUnderTest.of_config(Problem(3, 8193), config)
    edited = planted(program, DEFECTS[defect])
    assert emulator.verify(edited).status is Status.WRONG
