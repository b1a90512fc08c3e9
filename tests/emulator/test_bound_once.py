"""What is worked out once for many batches and launches: bound instructions, and parted lanes."""

import numpy as np
import pytest
from run_kernel import PRELUDE, compile_ptx

from explorer.ptx_emulator.lanes import Lanes, all_of, any_of
from explorer.ptx_emulator.launches import launch
from explorer.ptx_emulator.memory import GlobalMemory, poisoned
from explorer.ptx_emulator.parser import parse

SHAPE = (4, 2, 32)

SOURCE = """
__constant__ float scales[4] = {1, 2, 3, 4};
__device__ float bias[4] = {10, 20, 30, 40};
extern "C" __global__ void k(const float* x, float* y, int n, int distance) {
  extern __shared__ float rows[];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  float v = i < n ? x[i] : 0.f;
  for (int turn = 0; turn < t % 3; turn++) v += 1.f;
  v += __shfl_xor_sync(FULL, v, distance);
  rows[t] = v;
  __syncthreads();
  v = rows[blockDim.x - 1 - t];
  if (i < n) y[i] = v * scales[blockIdx.x % 4] + bias[n % 4]; }"""


def expected(x, block, distance):
    places = np.arange(len(x))
    padded = np.zeros(-(-len(x) // block) * block, np.float32)
    padded[places] = x
    thread = np.arange(len(padded)) % block
    padded += thread % 3
    rows = (padded + padded[np.arange(len(padded)) ^ distance]).reshape(-1, block)[:, ::-1]
    scales = np.array([1, 2, 3, 4], np.float32)[np.arange(len(rows)) % 4]
    bias = np.float32(10 * (len(x) % 4 + 1))
    return (rows * scales[:, None] + bias).reshape(-1)[places]


def test_one_module_serves_launches_that_differ_in_all_but_the_kernel():
    module = parse(compile_ptx(PRELUDE + SOURCE))
    x = np.random.default_rng(3).integers(-9, 9, 1000).astype(np.float32)
    for elements, block, distance, earlier in ((70, 32, 1, 0), (1000, 64, 8, 3), (333, 128, 16, 1)):
        memory = GlobalMemory()
        for number in range(earlier):  # Variables of the module then have other addresses.
            memory.allocate(x, name=f"other{number}")
        given = memory.allocate(x[:elements], name="x", writable=False)
        output = memory.allocate(poisoned((elements,), np.float32), name="y", initialised=False)
        result = launch(
            module,
            "k",
            grid=(-(-elements // block), 1, 1),
            block=(block, 1, 1),
            args=[given, output, np.int32(elements), np.int32(distance)],
            memory=memory,
            shared_bytes=4 * block,
            batch_lanes=256,
        )
        assert result.clean, "\n".join(map(str, result.findings))
        assert np.array_equal(memory.read(output), expected(x[:elements], block, distance))
        assert (result.counters.barriers, result.complete) == (-(-elements // block), True)


def test_parts_of_lanes_are_found_once_and_make_the_whole():
    lanes = Lanes.of(np.arange(256), SHAPE)
    lanes.remember_parts()
    even = lanes.flat % 2 == 0
    part, rest = lanes.where(even), lanes.where(~even)
    assert lanes.where(even.copy()) is part
    assert part.union(rest) is lanes and rest.union(part) is lanes
    fourths = [part.where(part.flat % 4 == left) for left in (0, 2)]
    assert fourths[0].union(fourths[1]) is part
    mixed = fourths[0].union(rest)
    assert np.array_equal(mixed.flat, np.flatnonzero(np.arange(256) % 4 != 2))
    lanes.forget_parts()
    assert lanes.where(even) is not part
    assert np.array_equal(lanes.where(even).flat, part.flat)


def test_no_more_parts_are_remembered_than_there_is_room_for():
    lanes = Lanes.of(np.arange(256), SHAPE)
    lanes.remember_parts()
    parts = [lanes.where(lanes.flat == lane) for lane in range(200)]
    kept = [lanes.where(lanes.flat == lane) is part for lane, part in enumerate(parts)]
    assert kept == [True] * 128 + [False] * 72
    assert [int(part.flat[0]) for part in parts] == list(range(200))


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (0, 3)])
def test_any_and_all_are_numpys(shape):
    rng = np.random.default_rng(1)
    for chance in (0.0, 0.1, 0.9, 1.0):
        flags = np.asarray(rng.random(shape) < chance)
        assert any_of(flags) is bool(flags.any()) and all_of(flags) is bool(flags.all())
    strided = np.arange(12).reshape(3, 4)[:, ::2] > 9
    assert any_of(strided) and not all_of(strided)
    assert any_of(np.bool_(True)) and not all_of(np.bool_(False))
