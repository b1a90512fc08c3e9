"""Processes that compile: what they give, and what becomes of it when one of them ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from explorer.compile import CompileFailure, CompilePool, Compiler
from explorer.errors import ExplorerError
from explorer.evaluate import compile_processes
from explorer.evaluate.compile_processes import ENDED, CompileProcesses, _answer

ARCH = "sm_90"


def text(number):
    return f'extern "C" __global__ void k{number}(int* at) {{ *at = {number}; }}'


def children(pid):
    """The processes that a process has started, and those that they have."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *children(int(child))]
    return found


def ends(pid):
    """Whether a process ends within ten seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path))


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(compile_processes.os, "sched_getaffinity", lambda _: set(range(4)))


@pytest.fixture
def opened(cores):
    with CompileProcesses() as processes:
        yield processes


def test_they_compile_what_this_process_would(opened, monkeypatch, tmp_path):
    compiler = opened.compiler(ARCH)
    kernel = compiler.compile(text(1))
    here = Compiler(ARCH)
    assert here.cache.load(here.key(text(1))) == kernel, "what they made lies on disk"
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path / "other"))
    assert Compiler(ARCH).compile(text(1)).cubin == kernel.cubin


def test_threads_share_them(opened):
    pool = CompilePool(opened.compiler(ARCH), threads=8)
    compiled = [pool.submit(text(number)) for number in range(12)]
    assert len({one.result().cubin for one in compiled}) == 12
    pool.leave()


def test_as_many_as_there_are_cores_answer(opened):
    opened.compiler(ARCH).compile(text(1))
    pids = set(children(os.getpid()))
    assert len(pids & set(children(opened._process.pid))) == 3, "and the one that was copied"


def test_what_does_not_compile_is_told_with_its_log(opened):
    with pytest.raises(CompileFailure) as here:
        Compiler(ARCH).compile("int f(")
    with pytest.raises(CompileFailure) as elsewhere:
        opened.compiler(ARCH).compile("int f(")
    assert elsewhere.value.log == here.value.log


def test_a_compiler_that_is_not_there_is_told(opened, monkeypatch):
    def missing(*_):
        raise ExplorerError("NVRTC cannot be loaded")

    compiler = Compiler(ARCH)
    monkeypatch.setattr(compiler, "compile", missing)
    kernel, _, error = _answer(compiler, text(1))
    assert kernel is None and "NVRTC" in str(error)


def test_a_bug_there_is_told_with_where_it_was(monkeypatch):
    compiler = Compiler(ARCH)
    monkeypatch.setattr(compiler, "compile", lambda _: {}["no such key"])
    _, _, error = _answer(compiler, text(1))
    assert isinstance(error, RuntimeError) and "no such key" in str(error)


def test_the_death_of_one_costs_one_kernel(opened):
    compiler = opened.compiler(ARCH)
    compiler.compile(text(0))
    victim = children(opened._process.pid)[0]
    os.kill(victim, signal.SIGKILL)
    assert ends(victim)
    failures = 0
    for number in range(1, 10):
        try:
            compiler.compile(text(number))
        except CompileFailure as failure:
            assert failure.log == ENDED
            failures += 1
    assert failures == 1


def test_when_all_are_dead_this_process_compiles(opened):
    compiler = opened.compiler(ARCH)
    compiler.compile(text(0))
    copies = children(opened._process.pid)
    opened._process.kill()
    assert all(map(ends, copies)), "the copies end with the process that they are copies of"
    for number in range(1, 5):
        with pytest.raises(CompileFailure, match="ended"):
            compiler.compile(text(number))
    assert compiler.compile(text(5)).cubin


def test_none_is_left_when_they_are_closed(cores):
    with CompileProcesses() as processes:
        compiler = processes.compiler(ARCH)
        compiler.compile(text(1))
        pids = [processes._process.pid, *children(processes._process.pid)]
    assert all(map(ends, pids))
    with pytest.raises(CompileFailure, match="ended"):
        compiler.compile(text(2))


def test_none_outlives_the_program():
    code = """
import os, sys
from explorer.evaluate import compile_processes
compile_processes.os.sched_getaffinity = lambda _: set(range(4))
processes = compile_processes.CompileProcesses()
processes.start()
processes.compiler("sm_90").compile('extern "C" __global__ void k() {}')
print(processes._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ends(int(run.stdout)), run.stderr


def test_few_cores_compile_in_threads(monkeypatch):
    monkeypatch.setattr(compile_processes.os, "sched_getaffinity", lambda _: set(range(3)))
    with CompileProcesses() as processes:
        assert type(processes.compiler(ARCH)) is Compiler
        assert processes._process is None


def test_where_no_process_can_be_started_threads_compile(cores, monkeypatch):
    def refused(*_, **__):
        raise OSError("no memory")

    monkeypatch.setattr(compile_processes.FRESH, "Process", refused)
    with CompileProcesses() as processes:
        assert type(processes.compiler(ARCH)) is Compiler
