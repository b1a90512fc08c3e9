"""Occupancy by cases worked out by hand, and against NVIDIA's cuda_occupancy.h itself."""

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from explorer.compile.compiler import include_dir
from explorer.model.config import Config
from explorer.model.gpu_spec import known_gpu, occupancy, other_residencies, with_residency
from explorer.model.outcome import Resources

H200, T4, L4 = (known_gpu(name) for name in ("NVIDIA H200", "Tesla T4", "NVIDIA L4"))

CASES = [
    # GPU, block, registers, shared bytes: blocks an SM, limited by
    #
    # 32 registers: 1024 a warp; a quarter's 16384 hold 16 warps, an SM 64: as many as it may.
    (H200, 256, 32, 0, 8, ("warps", "registers")),
    # 33 registers: 1056 a warp, allotted 1280; 16384 // 1280 = 12 warps a quarter, 48 an SM.
    (H200, 256, 33, 0, 6, ("registers",)),
    # 48 warps hold 1.5 blocks of 32 warps.
    (H200, 1024, 33, 0, 1, ("registers",)),
    # 255 registers: 8160, allotted 8192; 2 warps a quarter, 8 an SM: no block of 32 warps.
    (H200, 1024, 255, 0, 0, ("registers",)),
    (H200, 256, 255, 0, 1, ("registers",)),
    # 96 threads are 3 warps: 64 // 3 = 21.
    (H200, 96, 16, 0, 21, ("warps",)),
    # One warp: 64 would fit, an SM has 32 blocks.
    (H200, 32, 16, 0, 32, ("blocks",)),
    # (65536 + 1024) of 228 KiB = 233472: 3.5.
    (H200, 64, 16, 65536, 3, ("shared memory",)),
    # 227 KiB, the most a block can have: one block.
    (H200, 64, 16, 227 * 1024, 1, ("shared memory",)),
    (H200, 64, 16, 227 * 1024 + 1, 0, ("shared memory",)),
    # 100 + 1024 bytes are allotted as 1152: 233472 // 1152 = 202.
    (H200, 1024, 16, 100, 2, ("warps",)),
    # 6272 + 1024 = 7296 = 57 * 128: 32 blocks use all of 233472; one byte more leaves 31.
    (H200, 32, 16, 6272, 32, ("blocks", "shared memory")),
    (H200, 32, 16, 6273, 31, ("shared memory",)),
    # sm_75 reserves nothing and allots in units of 256: 4000 is 4096, 16 in 64 KiB.
    (T4, 32, 16, 4000, 16, ("blocks", "shared memory")),
    (T4, 32, 16, 4097, 15, ("shared memory",)),
    # sm_89: 1536 threads are 48 warps, and 24 blocks.
    (L4, 256, 32, 0, 6, ("warps",)),
    (L4, 32, 32, 0, 24, ("blocks",)),
    (L4, 1024, 32, 0, 1, ("warps",)),
]


@pytest.mark.parametrize(("gpu", "block", "registers", "shared", "blocks", "limited_by"), CASES)
def test_blocks_an_sm(gpu, block, registers, shared, blocks, limited_by):
    held = occupancy(Resources(registers, dynamic_shared_bytes=shared), block, 1, gpu)
    assert (held.blocks_per_sm, held.limited_by) == (blocks, limited_by)
    assert held.warps_per_sm == blocks * -(-block // 32)
    assert 0 <= held.share <= 1


def test_static_and_dynamic_shared_memory_add_up():
    resources = Resources(16, static_shared_bytes=30000, dynamic_shared_bytes=35536)
    assert occupancy(resources, 64, 1, H200).blocks_per_sm == 3


def test_waves():
    resources = Resources(32)
    assert occupancy(resources, 256, 8 * 132, H200).waves == 1.0
    assert occupancy(resources, 256, 8 * 132 * 5 // 2, H200).waves == 2.5
    assert occupancy(Resources(255), 1024, 1, H200).waves == float("inf")
    assert occupancy(resources, 1024, 256, H200, cluster=16).waves == 1.0


RESIDENCIES = [
    # block, registers, shared bytes, grid: blocks an SM, whether they rest on registers
    #
    # 12 warps. 32 registers: 64 warps an SM hold 5 blocks; 40: 1280 a warp, 12 a quarter, 48: 4.
    (384, 32, 0, 7000, 5, True),
    (384, 40, 0, 7000, 4, True),
    # 24 registers and 16 leave room for more warps than an SM may have, 32 for as many: all 5.
    (384, 24, 0, 7000, 5, False),
    (384, 25, 0, 7000, 5, True),
    # 3 of (70000 + 1024) bytes fit 233472, whatever the registers.
    (384, 32, 70000, 7000, 3, False),
    # A block on each SM, and three, are resident with 32, 40 and 48 registers; four are not.
    (384, 40, 0, 132, 4, False),
    (384, 40, 0, 3 * 132, 4, False),
    (384, 40, 0, 3 * 132 + 1, 4, True),
    # 32 warps: 33 to 64 registers leave room for one block, 32 for two.
    (1024, 40, 0, 7000, 1, True),
    (1024, 48, 0, 7000, 1, False),
    # 255 are counted as 256. More there are not: 2 blocks of 4 warps, with 248 no more.
    (128, 255, 0, 7000, 2, False),
    # No compiler is asked for less than 16.
    (32, 16, 0, 10**6, 32, False),
]


@pytest.mark.parametrize(("block", "registers", "shared", "grid", "blocks", "rests"), RESIDENCIES)
def test_residency(block, registers, shared, grid, blocks, rests):
    resources = Resources(registers, dynamic_shared_bytes=shared)
    found = with_residency(resources, block, grid, H200)
    assert (found.resident_blocks, found.rests_on_registers) == (blocks, rests)
    assert replace(found, resident_blocks=0, rests_on_registers=False) == resources


@pytest.mark.parametrize(
    ("block", "registers", "shared", "others"),
    [
        (384, 32, 0, [4]),  # 24 and 16 give no more than 5
        (384, 40, 0, [3, 5]),  # 48: 1536 a warp, 10 a quarter, 40 warps
        (384, 40, 70000, [2]),  # shared memory has room for 3; 56 registers: 32 warps
        (1024, 40, 0, [2]),  # less than one block there is not
        (256, 56, 0, [3, 5]),  # 32 warps: 4; 64: 32, and 72: 28 warps, 3; 48: 40 warps
        (128, 255, 0, [3]),  # 8 warps; 168: 12
        (32, 16, 0, [28]),  # 72 registers: 28 warps; 64 and fewer: 32, as many blocks as may be
    ],
)
def test_other_residencies_are_the_next_that_other_registers_give(block, registers, shared, others):
    resources = Resources(registers, dynamic_shared_bytes=shared)
    assert other_residencies(resources, block, H200) == others


def test_launch_bounds_state_a_residency_that_rests_on_registers():
    rests = with_residency(Resources(32), 384, 7000, H200)
    stated = {blocks: rests.is_stated(Config(min_blocks=blocks)) for blocks in (1, 4, 5, 6)}
    assert stated == {1: False, 4: False, 5: True, 6: False}
    for free in (
        with_residency(Resources(24), 384, 7000, H200),  # eight registers make no difference
        with_residency(Resources(40), 1024, 7000, H200),  # any kernel has one block
        with_residency(Resources(40), 384, 132, H200),  # no SM has more than one
    ):
        assert free.is_stated(Config())
    assert not Resources(32).is_stated(Config())  # of an earlier version


def test_blocks_an_sm_are_those_of_cuda_occupancy_h(tmp_path):
    compiler, headers = shutil.which("g++"), include_dir()
    if compiler is None or headers is None or not (headers / "cuda_occupancy.h").is_file():
        pytest.skip("needs g++ and cuda_occupancy.h")
    source, oracle = Path(__file__).with_name("oracle.cpp"), tmp_path / "oracle"
    subprocess.run([compiler, f"-I{headers}", "-o", oracle, source], check=True)
    rng, cases, lines = random.Random(1), [], []
    names = ("Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA H200", "NVIDIA B200")
    for _ in range(5000):
        gpu = known_gpu(rng.choice((*names, "NVIDIA GeForce RTX 5090")))
        threads = rng.choice([rng.randint(1, 1024), 32 * rng.randint(1, 32)])
        dynamic = rng.choice([0, rng.randint(0, 230_000)])
        resources = Resources(rng.randint(16, 255), rng.randint(0, 8000), dynamic)
        cases.append((gpu, threads, resources))
        capability = divmod(int(gpu.arch.removeprefix("sm_")), 10)
        limits = (gpu.threads_per_sm, gpu.shared_per_sm_bytes, gpu.shared_per_block_bytes)
        static = resources.static_shared_bytes
        numbers = (*capability, *limits, resources.registers, static, dynamic, threads)
        lines.append(" ".join(map(str, numbers)))
    ran = subprocess.run(oracle, input="\n".join(lines), capture_output=True, text=True, check=True)
    theirs = [int(line) for line in ran.stdout.split()]
    ours = [occupancy(kernel, threads, 1, gpu).blocks_per_sm for gpu, threads, kernel in cases]
    assert ours == theirs
