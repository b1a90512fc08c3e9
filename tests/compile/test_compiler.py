"""The compiler, its cache, and what is read of a kernel."""

import fcntl
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from explorer.codegen.units import emit
from explorer.compile.compiler import CompileFailure, Compiler, KernelCache, compile_source
from explorer.compile.resources import exceeded_resource, kernel_resources, read_cubin
from explorer.model.config import Config
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Resources
from explorer.model.problem import Problem

SOURCE = emit(Problem(64, 4096), Config(reduction="shared-tree")).source


@pytest.fixture
def compiler(tmp_path):
    return Compiler("sm_90", KernelCache(tmp_path))


def test_resources_are_those_that_ptxas_logs(compiler):
    kernel = compiler.compile(SOURCE)
    registers = re.search(r"Used (\d+) registers", kernel.log)
    shared = re.search(r"(\d+) bytes smem", kernel.log)
    assert kernel.resources.registers == int(registers[1])
    assert kernel.resources.static_shared_bytes == int(shared[1])
    assert kernel.resources.spill_store_bytes == 0
    assert kernel.resources.code_bytes > 1000


def test_resources_without_a_log_come_from_the_cubin(compiler):
    """NVRTC 13.0 loses logs when several threads compile."""
    kernel = compiler.compile(SOURCE)
    assert kernel_resources("", kernel.cubin) == kernel.resources


def test_spills_are_found_with_and_without_a_log(compiler):
    """More values than registers: kept apart by a launch bound of 1024 threads."""
    config = Config(threads=1024, threads_per_row=1024, min_blocks=2)
    source = emit(Problem(64, 131072), config).source  # not legal: 128 values, 32 registers
    kernel = compiler.compile(source)
    assert kernel.resources.spill_store_bytes > 0
    assert kernel_resources("", kernel.cubin).spill_store_bytes > 0


def test_a_virtual_architecture_gives_the_same_ptx_alone(compiler):
    virtual = Compiler("compute_90", compiler.cache)
    kernels = [virtual.compile(SOURCE), virtual.compile(SOURCE)]
    assert all(kernel.ptx == compiler.compile(SOURCE).ptx for kernel in kernels)
    assert all(not kernel.cubin and kernel.resources.registers == 0 for kernel in kernels)


H200 = known_gpu("NVIDIA H200")


def test_limits_before_launch():
    launches = emit(Problem(64, 4096), Config(threads=1024)).launches
    assert exceeded_resource(Resources(registers=32), launches, H200) is None
    assert "registers" in exceeded_resource(Resources(registers=80), launches, H200)
    too_much = Resources(registers=32, dynamic_shared_bytes=H200.shared_per_block_bytes + 1)
    assert "shared memory" in exceeded_resource(too_much, launches, H200)


def test_a_failure_shows_the_first_error(compiler):
    with pytest.raises(CompileFailure, match=r"softmax\.cu\(1\): error: "):
        compiler.compile("nonsense;")


def test_cache_returns_the_same_kernel(compiler, monkeypatch):
    first = compiler.compile(SOURCE)
    monkeypatch.setattr("explorer.compile.compiler.compile_source", None)
    assert compiler.compile(SOURCE) == first


def test_a_damaged_cache_file_is_compiled_again(compiler):
    first = compiler.compile(SOURCE)
    (path,) = compiler.cache.folder.rglob("*.zip")
    path.write_bytes(path.read_bytes()[:200])
    assert compiler.compile(SOURCE).cubin == first.cubin


def test_a_kernel_that_was_kept_for_another_source_is_compiled_again(compiler):
    compiler.compile(SOURCE)
    (path,) = compiler.cache.folder.rglob("*.zip")
    other = SOURCE.replace("__syncthreads();", "")
    foreign = compiler.compile(other)
    (foreign_path,) = set(compiler.cache.folder.rglob("*.zip")) - {path}
    foreign_path.write_bytes(path.read_bytes())
    assert compiler.compile(other).cubin == foreign.cubin


def test_a_kernel_that_many_ask_for_at_once_is_compiled_once(tmp_path, monkeypatch):
    """Each has an object of its own, as processes have."""
    made = []
    whole = compile_source(SOURCE, Compiler("sm_90").options)

    def slow(source, options):
        time.sleep(0.1)
        made.append(source)
        return whole

    monkeypatch.setattr("explorer.compile.compiler.compile_source", slow)
    with ThreadPoolExecutor(8) as pool:
        kernels = pool.map(
            lambda _: Compiler("sm_90", KernelCache(tmp_path)).compile(SOURCE).cubin, range(8)
        )
        assert set(kernels) == {whole.cubin}
    assert made == [SOURCE]


def test_a_process_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    cache = KernelCache(tmp_path)
    with cache.locked("ab"):
        begin, end = os.pipe()
        child = os.fork()
        if not child:
            os.read(begin, 1)  # until the test is done
            os._exit(0)
    try:
        with (tmp_path / "ab" / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where it is held
    finally:
        os.write(end, b".")
        os.waitpid(child, 0)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert Compiler("sm_90", KernelCache(blocked)).compile(SOURCE).cubin


def test_architectures_do_not_share_kernels(tmp_path):
    cache = KernelCache(tmp_path)
    hopper, turing = (Compiler(arch, cache).compile(SOURCE) for arch in ("sm_90", "sm_75"))
    assert hopper.cubin != turing.cubin


def test_only_a_cubin_is_read():
    with pytest.raises(ValueError, match="ELF"):
        read_cubin(b"PK\x03\x04")
