"""Blocks far from 0: arrays of many GiB of which only stated ranges are backed."""

import time

import numpy as np
import pytest
from run_kernel import compile_ptx

from explorer.ptx_emulator import GlobalMemory, LaunchError, check_output, launch, parse, poisoned
from explorer.ptx_emulator.memory import Windows

ROW = 1000
BLOCKS = 2**23
CHOSEN = [0, 65536, 2**21 + 147483, BLOCKS - 1]  # the third has element 2^31 of a row of 1000

SCALE = """extern "C" __global__ void k(const TYPE* x, TYPE* y) {
  const int t = threadIdx.x;
  INDEX
  for (int i = t; i < 1000; i += blockDim.x) y[row * 1000 + i] = TYPE(2) * x[row * 1000 + i];
}"""
RIGHT = "const long long row = blockIdx.x;"


def windows_of(rows, slack=0):
    first = np.array(rows, np.int64) * ROW
    return np.stack([np.maximum(first - slack, 0), first + ROW + slack], axis=1)


def ran(index=RIGHT, dtype=np.float32, slack=0, rows=CHOSEN, blocks=CHOSEN):
    source = SCALE.replace("INDEX", index)
    source = source.replace("TYPE", {4: "float", 8: "double"}[np.dtype(dtype).itemsize])
    memory = GlobalMemory()
    given = windows_of(rows, slack)
    given[-1, 1] = min(given[-1, 1], BLOCKS * ROW)
    count = int(np.diff(given, axis=1).sum())
    random = np.random.default_rng(0).random(count).astype(dtype)
    x = memory.allocate_sparse(BLOCKS * ROW, given, random, name="input", writable=False)
    place = windows_of(rows)
    empty = poisoned((len(rows) * ROW,), dtype)
    y = memory.allocate_sparse(
        BLOCKS * ROW, place, empty, name="output", initialised=False, written_once=True
    )
    result = launch(
        parse(compile_ptx(source)), "k", grid=(BLOCKS, 1, 1), block=(128, 1, 1), args=[x, y],
        memory=memory, blocks=blocks,
    )  # fmt: skip
    elements = np.array(rows)[:, None] * ROW + np.arange(ROW)
    findings = [*result.findings, *check_output(memory, y)]
    return findings, memory.get(x, elements), memory.get(y, elements), memory.read(y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("slack", [0, 3])
def test_far_rows_are_computed(dtype, slack):
    findings, x, y, whole = ran(dtype=dtype, slack=slack)
    assert not findings, [str(f) for f in findings]
    assert (y == 2 * x).all() and (whole == y.reshape(-1)).all()


@pytest.mark.parametrize(
    "index",
    [
        "const int row = blockIdx.x;",
        "const long long row = (unsigned short)blockIdx.x;",
        "const long long row = blockIdx.x & 255;",
        "const long long row = blockIdx.x % 4194304;",
        "const long long row = blockIdx.x == gridDim.x - 1 ? 0 : blockIdx.x;",
    ],
)
def test_indices_of_too_few_bits_are_found(index):
    findings, *_ = ran(index)
    kinds = {str(finding.kind) for finding in findings}
    assert "never-written" in kinds and kinds & {"out-of-bounds", "written-twice"}


def test_an_element_of_no_block_that_runs_has_its_own_words():
    findings, *_ = ran("const long long row = blockIdx.x + (blockIdx.x == 65536);")
    (outside, *_) = [f for f in findings if f.kind == "out-of-bounds"]
    assert "at element 65537000 of input, which belongs to no block that runs" in outside.message
    (missing,) = [f for f in findings if f.kind == "never-written"]
    assert "output[65536000] never written; 1000 of 4000 elements" in missing.message


def test_an_access_across_the_end_of_a_window_is_found():
    memory = GlobalMemory()
    x = memory.allocate_sparse(
        2**33, np.array([[0, 2], [2**32, 2**32 + 4]]), np.ones(6, np.float32), name="x"
    )
    source = """extern "C" __global__ void k(const float4* x, float4* y) {
      y[threadIdx.x] = x[threadIdx.x ? 1ll << 30 : 0]; }"""
    y = memory.allocate(np.zeros(8, np.float32), name="y")
    result = launch(
        parse(compile_ptx(source)), "k", grid=(1, 1, 1), block=(2, 1, 1), args=[x, y],
        memory=memory,
    )  # fmt: skip
    (finding,) = result.findings
    assert "at element 0 of x" in finding.message and finding.count == 1


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([], "one at least"),
        ([-1], "from 0"),
        ([BLOCKS], "from 0"),
        ([5, 5], "ascending"),
        ([9, 3], "ascending"),
    ],
)
def test_blocks_that_are_not_there(blocks, words):
    with pytest.raises(LaunchError, match=words):
        ran(blocks=blocks)


@pytest.mark.parametrize("blocks", [[0], [0, 3], [1, 2], [0, 1, 2]])
def test_blocks_of_broken_clusters(run, out, blocks):
    source = 'extern "C" __global__ void k(float* y) { y[threadIdx.x] = 1.f; }'
    with pytest.raises(LaunchError, match="whole clusters"):
        run(source, out(32), grid=8, cluster=(2, 1, 1), blocks=blocks)


def test_special_registers_are_those_of_the_whole_grid(run, out):
    source = """extern "C" __global__ void k(unsigned* y) {
      unsigned id, rank, clusters, c; asm("mov.u32 %0, %%clusterid.x;" : "=r"(id));
      asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
      asm("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters));
      asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(c));
      unsigned* place = y + (blockIdx.x & 3) * 6;
      place[0] = blockIdx.x; place[1] = gridDim.x; place[2] = id; place[3] = rank;
      place[4] = clusters; place[5] = c; }"""
    result = run(
        source, out((4, 6), np.uint32), grid=2**31 - 2, cluster=(2, 1, 1), block=1,
        blocks=[10, 11, 2**31 - 4, 2**31 - 3],
    )  # fmt: skip
    assert not result.findings, result.text
    rows = {tuple(row) for row in result["out0"].tolist()}
    last = 2**31 - 4
    assert rows == {
        (10, last + 2, 5, 0, last // 2 + 1, 0), (11, last + 2, 5, 1, last // 2 + 1, 1),
        (last, last + 2, last // 2, 0, last // 2 + 1, 0),
        (last + 1, last + 2, last // 2, 1, last // 2 + 1, 1),
    }  # fmt: skip


def test_windows_keep_their_place_in_a_sector_and_merge():
    elements = np.array([[3, 5], [5, 8], [9, 10], [1001, 1020]])
    windows = Windows.of(elements, 4)
    assert windows.starts.tolist() == [12, 36, 4004]
    assert windows.ends.tolist() == [32, 40, 4080]
    assert ((windows.starts - windows.places) % 32 == 0).all()
    _, inside = windows.find(np.array([12, 28, 32, 36, 0, 4076, 4080, 10**12]), 4)
    assert inside.tolist() == [True, True, False, True, False, True, False, False]
    numbers, _ = windows.elements(4)
    assert numbers.tolist() == [3, 4, 5, 6, 7, 9, *range(1001, 1020)]
    with pytest.raises(ValueError, match="overlap"):
        Windows.of(np.array([[0, 5], [4, 6]]), 4)


def test_windows_that_do_not_fit_are_refused():
    memory = GlobalMemory()
    ones = np.ones(4, np.float32)
    for windows in ([[0, 5]], [[-1, 3]], []):
        with pytest.raises(ValueError):
            memory.allocate_sparse(4, np.array(windows, np.int64), ones, name="x")
    with pytest.raises(ValueError, match="too many"):
        memory.allocate_sparse(2**41, np.array([[0, 4]]), ones, name="x")


def test_tens_of_thousands_of_windows_are_fast():
    memory = GlobalMemory()
    first = np.arange(40_000, dtype=np.int64) * 100_000
    windows = np.stack([first, first + 2], axis=1)
    start = time.process_time()
    x = memory.allocate_sparse(
        4 * 10**9, windows, np.arange(80_000, dtype=np.float32), name="x", writable=False
    )
    y = memory.allocate(np.zeros(40_000, np.float32), name="y")
    source = """extern "C" __global__ void k(const float* x, float* y) {
      const long long i = blockIdx.x * 250 + threadIdx.x;
      if (threadIdx.x < 250) y[i] = x[i * 100000] + x[i * 100000 + 1]; }"""
    result = launch(
        parse(compile_ptx(source)), "k", grid=(160, 1, 1), block=(256, 1, 1), args=[x, y],
        memory=memory,
    )  # fmt: skip
    assert result.clean and (memory.read(y) == 4 * np.arange(40_000) + 1).all()
    assert time.process_time() - start < 2
