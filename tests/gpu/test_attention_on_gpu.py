"""Attention of one query a head on a GPU: kernels of every kind, their check, limit and peers."""

import random
import time
from dataclasses import replace
from statistics import median

import pytest
from cuda.bindings import driver

from explorer.compile.compiler import Compiler
from explorer.devices.cuda.buffers import RotatingBuffers
from explorer.devices.cuda.program import checked, gpu_spec
from explorer.devices.cuda.tools import Tools, check_sources
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.evaluate.open_evaluator import PeerBenches
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.outcome import Measured, Rejected, Stage
from explorer.model.peer import NotEntered
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.peers import chosen_peers
from explorer.space import Space
from explorer.tuning.peer_comparison import compare_with_peers, unsearched

# ------------------------------------------------------------------ kernels


def problem_of(rows, cols, dtype=DType.BF16, **more):
    return Problem(rows, cols, dtype, Op.DECODE_ATTENTION, **more)


SMALL = problem_of(64, 1000, group=4, key_heads=4)
MEDIUM = problem_of(512, 4099, group=8, key_heads=8, layout="NHD", mask=Mask.LENGTHS, also="lse")

MMA, FMA = {"core": ("mma",), "probabilities": ("two",)}, {"core": ("fma",)}
STAGED = {"staging": ("async",)}
ONE = {"splits": (1,), "cluster": (1,), "launches": ("one",)}
TWO = {"launches": ("two",), "cluster": (1,)}

CASES = {
    "tensor cores, a block a head": (SMALL, MMA | ONE),
    "tensor cores, a cluster": (SMALL, MMA | {"cluster": (2, 4, 8)}),
    "tensor cores, a large cluster": (MEDIUM, MMA | {"cluster": (16,)}),
    "tensor cores, two launches": (MEDIUM, MMA | TWO),
    "tensor cores, overlapped": (MEDIUM, MMA | TWO | {"launches": ("two-overlapped",)}),
    "tensor cores, f16": (replace(SMALL, dtype=DType.F16, out_dtype=None), MMA | ONE),
    "tensor cores, weights of 16 bits": (SMALL, MMA | {"probabilities": ("one",)}),
    "tensor cores, heads of 64": (replace(MEDIUM, head_dim=64, output_stride=0, group=1), MMA),
    "tensor cores, heads of 256": (
        replace(MEDIUM, head_dim=256, output_stride=0, group=5, rows=80),
        MMA,
    ),
    "tensor cores, a scale": (replace(SMALL, scale=-0.2, also="lse"), MMA),
    "tensor cores, staged": (MEDIUM, MMA | STAGED),
    "tensor cores, heads of 64, staged": (
        replace(SMALL, head_dim=64, output_stride=0),
        MMA | STAGED,
    ),
    "multiply-adds, staged": (MEDIUM, FMA | STAGED),
    "multiply-adds, a block a head": (SMALL, FMA | ONE),
    "multiply-adds, a cluster": (MEDIUM, FMA | {"cluster": (2, 4, 8)}),
    "multiply-adds, two launches": (MEDIUM, FMA | TWO),
    "multiply-adds, f32": (problem_of(48, 3001, DType.F32, group=3, key_heads=2, also="lse"), FMA),
    "multiply-adds, few keys": (problem_of(40, 3, group=5, key_heads=8, mask=Mask.LENGTHS), FMA),
}
"""Problems, and the values to which their space is narrowed."""

DRAWN = 2


def configs_of(problem, gpu, fixed):
    """Some legal configs, without repeats."""
    rng, space = random.Random(0), Space(problem, gpu, fixed)
    return list(dict.fromkeys(space.sample(rng) for _ in range(DRAWN)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_kernels_are_right(device, case):
    problem, fixed = CASES[case]
    with DeviceEvaluator(problem, device, keep_device=True) as live:
        configs = configs_of(problem, live.gpu, fixed)
        for config in configs:
            live.submit(config)
        for config in configs:
            outcome = live.evaluate(config)
            print(f"\n{case}: {config.to_json(brief=True)}: {outcome}")
            inexact = isinstance(outcome, Rejected) and "too inexact" in outcome.reason
            is_coarse = config.core == "mma" and config.probabilities == "one"
            assert isinstance(outcome, Measured) or (is_coarse and inexact), (config, outcome)


DEFECTS = {
    "parts are not weighted": ("all.sum += own.sum * weight;", "all.sum += own.sum;"),
    "the last key is left out": (
        "part.end = static_cast<int>(min(begin + keys,",
        "part.end = static_cast<int>(min(begin + keys - 1,",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_wrong_kernel_is_rejected(device, name):
    right, wrong = DEFECTS[name]
    with DeviceEvaluator(SMALL, device, keep_device=True) as live:
        (config, *_) = configs_of(SMALL, live.gpu, MMA | TWO)
        program = ProgramUnderTest.of_config(SMALL, config)
        assert right in program.source
        outcome = device.verify(replace(program, source=program.source.replace(right, wrong)))
        assert isinstance(outcome.outcome, Rejected), outcome.outcome
        assert outcome.outcome.stage is Stage.VERIFY, outcome.outcome


# ------------------------------------------------------------------ check, limit


@pytest.mark.alone
@pytest.mark.parametrize(
    ("problem", "most_ms"),
    [
        (problem_of(4096, 4096, group=4, key_heads=8), 20.0),
        (problem_of(4096, 4096, DType.F32, group=8, key_heads=8), 40.0),
        (problem_of(32, 131072, group=4, key_heads=8), 50.0),
        (problem_of(32, 131072, head_dim=256, key_heads=8), 50.0),
    ],
    ids=str,
)
def test_a_check_takes_few_milliseconds(problem, most_ms):
    """Of results that nobody wrote: all elements are wrong."""
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    gpu, stream = gpu_spec(device), checked(driver.cuStreamCreate(0))
    kernels = [Compiler(gpu.arch).compile(source) for source in check_sources(problem)]
    tools = Tools([kernel.cubin for kernel in kernels], stream, Accuracy.DEFAULT)
    sets = RotatingBuffers(problem, gpu.l2_bytes, "warm")
    try:
        sets.fill(tools, 0)
        sets.prepare(0, stream)
        times = []
        for _ in range(4):
            begun = time.perf_counter()
            (found,) = tools.check_rows(problem, sets.at(0))
            times.append(1e3 * (time.perf_counter() - begun))
        print(f"\n{problem}: {min(times):.1f} ms")
        assert found.wrong == found.infinite == problem.rows * problem.head_dim
        assert min(times) < most_ms
    finally:
        sets.free()
        tools.free()
        driver.cuDevicePrimaryCtxRelease(device)


@pytest.mark.alone
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_the_limit_reads_keys_and_values_at_the_memorys_bandwidth(device, layout):
    problem = problem_of(1024, 4096, group=4, key_heads=8, layout=layout, mask=Mask.LENGTHS)
    with DeviceEvaluator(problem, device, keep_device=True) as live:
        gbps = problem.read_bytes / live.facts.limit_us * 1e-3
        print(f"\n{problem}: {gbps:.0f} GB/s by {live.facts.limit_name}")
        assert live.facts.limit_name.startswith("stream")
        assert 0.75 * live.gpu.peak_gbps < gbps < 1.02 * live.gpu.peak_gbps


# ------------------------------------------------------------------ peers


ROUNDS = 8

COMPARED = [
    problem_of(512, 2048, group=4, key_heads=8),
    problem_of(512, 2048, group=4, key_heads=8, layout="NHD"),
    problem_of(128, 4096, DType.F16, key_heads=8, scale=0.1),
    problem_of(512, 2048, group=8, key_heads=4, layout="NHD", mask=Mask.LENGTHS, also="lse"),
    problem_of(64, 1024, DType.F32, head_dim=64, key_heads=8),
]


@pytest.mark.alone
@pytest.mark.sampled(2)
@pytest.mark.parametrize("problem", COMPARED, ids=str)
def test_peers_come_to_the_same(problem):
    """They are judged by our truth: PyTorch's attention and ours are right, or neither is."""
    pytest.importorskip("torch")
    replies = []
    with (
        PeerBenches("cuda:0", "cold", 0, Accuracy.DEFAULT) as benches,
        benches.on(problem) as bench,
    ):
        peers = chosen_peers(["torch-sdpa", "fa3", "flashinfer"])
        ours = unsearched(bench)
        one = compare_with_peers(bench, ours, peers, rounds=ROUNDS, tell=replies.append)
    traces = "\n".join(f"{r.reason}\n{r.trace}" for r in replies if isinstance(r, NotEntered))
    print(f"\n{problem}: {[(peer.name, peer.time_us) for peer in one.peers]}\n{traces}")
    assert {entry.stage for entry in one.left_out} <= {"missing", "refused"}, traces
    names = {peer.name for peer in one.peers}
    if problem.mask is Mask.NONE:
        assert "torch-sdpa" in names  # by the fastest of its backends that take the problem
    assert median(one.ours_us) > 0.95 * one.limit_time_us
