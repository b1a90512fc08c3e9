"""Occupancy by cases worked out by hand, and against NVIDIA's cuda_occupancy.h itself."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from explorer.compile.compiler import include_dir
from explorer.model.gpu_spec import known_gpu, occupancy
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
