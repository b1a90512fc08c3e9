"""Launches that a GPU would refuse are findings: the kernel's own bounds, and those of the GPU."""

import numpy as np
import pytest

from explorer.ptx_emulator import LaunchLimits, parse

X = np.arange(512, dtype=np.float32)
COPY = 'extern "C" __global__ void BOUND k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }'  # noqa: E501
PTX = """.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b) %s
{ ret; }
"""


def message(result):
    (finding,) = [f for f in result.findings if f.kind == "launch"]
    return finding.message


def test_a_block_of_more_threads_than_the_kernel_was_built_for(run, out):
    source = COPY.replace("BOUND", "__launch_bounds__(128)")
    assert not run(source, X, out(128), block=128).findings
    result = run(source, X, out(256), block=256)
    assert not result.result.complete and "launch" in result.kinds
    assert "256 x 1 x 1 = 256 threads" in message(result)
    assert ".maxntid 128 x 1 x 1 = 128" in message(result)


@pytest.mark.parametrize("block", [(64, 2, 1), (1, 128, 1), (2, 2, 32), (16, 1, 1)])
def test_the_product_is_what_maxntid_bounds(run, out, block):
    """PTX ISA: it does not guarantee that the limit in any particular dimension is kept."""
    result = run(PTX % ".maxntid 32, 4, 1", X, out(1), block=block, ptx=True)
    assert "launch" not in result.kinds
    assert "launch" in run(PTX % ".maxntid 32, 3, 1", X, out(1), block=(32, 2, 2), ptx=True).kinds


def test_a_required_block_is_equal_in_each_dimension(run, out):
    text = PTX % ".reqntid 32, 2"
    assert "launch" not in run(text, X, out(1), block=(32, 2, 1), ptx=True).kinds
    for block in ((64, 1, 1), (32, 1, 1), (2, 32, 1), (32, 2, 2)):
        assert ".reqntid 32 x 2 x 1" in message(run(text, X, out(1), block=block, ptx=True))


def test_directives_are_read():
    text = PTX % ".maxntid 256, 1, 1 .minnctapersm 3 .maxclusterrank 8"
    directives = parse(text).entries["k"].directives
    assert directives.maxntid == (256, 1, 1) and directives.reqntid is None
    assert (directives.minnctapersm, directives.maxclusterrank) == (3, 8)


def test_clusters(run, out):
    wide = PTX % ".maxclusterrank 2"
    options = {"grid": 4, "block": 32, "ptx": True}
    assert "launch" not in run(wide, X, out(1), cluster=(2, 1, 1), **options).kinds
    assert "maxclusterrank" in message(run(wide, X, out(1), cluster=(4, 1, 1), **options))
    required = PTX % ".reqnctapercluster 2, 1, 1"
    assert "reqnctapercluster" in message(run(required, X, out(1), cluster=(4, 1, 1), **options))
    limits = LaunchLimits(blocks_per_cluster=2)
    result = run(PTX % "", X, out(1), cluster=(4, 1, 1), limits=limits, **options)
    assert "2 blocks that the GPU allows" in message(result)


@pytest.mark.parametrize(
    ("limits", "shared", "says"),
    [
        (LaunchLimits(threads_per_block=128), 0, "256 threads exceeds the 128"),
        (LaunchLimits(shared_bytes_per_block=2048), 1025, "1024 bytes of static and 1025 of dyn"),
        (LaunchLimits(registers_per_block=8191, registers_per_thread=25), 0, "8192 registers"),
    ],
)
def test_what_a_gpu_offers(run, out, limits, shared, says):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[256]; int t = threadIdx.x; s[t] = x[t]; __syncthreads();
      y[t] = s[255 - t]; }"""
    result = run(source, X, out(256), block=256, shared_bytes=shared, limits=limits)
    assert says in message(result)
    enough = LaunchLimits(256, 8192, 25, 2049, 1)
    clean = run(source, X, out(256), block=256, shared_bytes=shared, limits=enough)
    assert not clean.findings, clean.text


def test_static_shared_memory_and_extents_have_bounds_of_their_own(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[12289]; int t = threadIdx.x; s[t] = x[t]; __syncthreads();
      y[t] = s[255 - t]; }"""
    text = source.replace("12289", "12288")
    assert not run(text, X, out(256), block=256).findings
    assert "49156 bytes of static" in message(run(source, X, out(256), block=256))
    assert "block 1 x 1 x 65" in message(run(PTX % "", X, out(1), block=(1, 1, 65), ptx=True))
    grid = (1, 70000, 1)
    assert "grid 1 x 70000 x 1" in message(run(PTX % "", X, out(1), grid=grid, ptx=True))
