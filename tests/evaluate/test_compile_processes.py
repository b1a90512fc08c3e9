"""Processes that compile: what they give, and what becomes of it when one of them ends."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from explorer.compile.compiler import CompileFailure, CompilePool, Compiler
from explorer.evaluate import compile_processes
from explorer.evaluate.compile_processes import CompileProcesses, _answer
from explorer.model.errors import ExplorerError

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


def copies_of(processes):
    """The processes that compile, once they are there."""
    processes.ask(ARCH, text(0))
    _, original = processes._original
    return children(original.pid)


def no_compiling_here(monkeypatch):
    def compiled(_, source):
        raise AssertionError("compiled in this process")

    monkeypatch.setattr(Compiler, "compile", compiled)


def test_they_compile_what_this_process_would(opened, monkeypatch, tmp_path):
    kernel = opened.compiler(ARCH).compile(text(1))
    here = Compiler(ARCH)
    assert here.cache.load(here.key(text(1))) == kernel, "what they made lies on disk"
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path / "other"))
    assert Compiler(ARCH).compile(text(1)).cubin == kernel.cubin


def test_this_process_compiles_nothing(opened, monkeypatch):
    no_compiling_here(monkeypatch)
    pool = CompilePool(opened.compiler(ARCH), threads=8)
    compiled = [pool.submit(text(number)) for number in range(12)]
    assert len({one.result().cubin for one in compiled}) == 12
    pool.leave()


def test_what_lies_on_disk_waits_for_no_process(opened, monkeypatch):
    compiler = opened.compiler(ARCH)
    kernel = Compiler(ARCH).compile(text(1))
    monkeypatch.setattr(opened, "ask", None)
    assert compiler.compile(text(1)) == kernel


def test_there_are_as_many_as_cores(opened):
    assert len(copies_of(opened)) == 4


def test_what_does_not_compile_is_told_with_its_log(opened):
    with pytest.raises(CompileFailure) as here:
        Compiler(ARCH).compile("int f(")
    with pytest.raises(CompileFailure) as elsewhere:
        opened.compiler(ARCH).compile("int f(")
    assert elsewhere.value.log == here.value.log


def test_what_else_is_raised_there_is_left_to_this_process(monkeypatch):
    def missing(*_):
        raise ExplorerError("NVRTC cannot be loaded")

    compiler = Compiler(ARCH)
    monkeypatch.setattr(compiler, "compile", missing)
    assert _answer(compiler, text(1)) is None


@pytest.mark.parametrize("dead", [1, 4])
def test_where_some_are_dead_nothing_is_lost(opened, dead):
    compiler = opened.compiler(ARCH)
    victims = copies_of(opened)[:dead]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert all(map(ends, victims))
    assert all(compiler.compile(text(number)).cubin for number in range(1, 8))


def test_one_that_dies_at_work_leaves_it_to_this_process(opened):
    compiler = opened.compiler(ARCH)
    victims = copies_of(opened)
    slow = "\n".join(text(number) for number in range(500))
    with ThreadPoolExecutor() as threads:
        compiling = threads.submit(compiler.compile, slow)
        while opened._idle.qsize() == 4:
            time.sleep(0.001)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        assert compiling.result().cubin


def test_they_go_on_without_the_one_that_they_are_copies_of(opened, monkeypatch):
    copies_of(opened)
    _, original = opened._original
    os.kill(original.pid, signal.SIGKILL)
    assert ends(original.pid)
    no_compiling_here(monkeypatch)
    compiler = opened.compiler(ARCH)
    assert all(compiler.compile(text(number)).cubin for number in range(1, 8))


def test_where_there_is_memory_for_some_copies_these_serve(cores):
    code = """
import os
from explorer.evaluate import compile_processes
fork, copies = os.fork, []

def refusing():
    if len(copies) == 2:
        raise BlockingIOError("no more processes")
    copies.append(1)
    return fork()

compile_processes.os.fork = refusing
ours, theirs = zip(*[compile_processes.FRESH.Pipe() for _ in range(4)])
control, until = compile_processes.FRESH.Pipe()
if fork() == 0:
    for connection in (*ours, control):
        connection.close()
    compile_processes._copy_itself(until, *theirs)
    os._exit(0)
for connection in (until, *theirs):
    connection.close()
for connection in ours:
    try:
        connection.send(("sm_90", 'extern "C" __global__ void k() {}'))
        print(bool(connection.recv().cubin))
    except (EOFError, OSError):
        print("ended")
control.close()
print(os.wait()[1])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["True", "True", "ended", "ended", "0"], run.stderr


def test_none_is_left_when_they_are_closed(cores):
    with CompileProcesses() as processes:
        compiler = processes.compiler(ARCH)
        pids = [processes._original[1].pid, *copies_of(processes)]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "not as zombies either"
    with pytest.raises(CompileFailure, match="has ended"):
        compiler.compile(text(1))


def test_whoever_waits_when_they_are_closed_is_told(cores):
    slow = ["\n".join(text(number) for number in range(500 + each)) for each in range(8)]
    with ThreadPoolExecutor() as threads:
        with CompileProcesses() as processes:
            compiler = processes.compiler(ARCH)
            copies_of(processes)
            compiling = [threads.submit(compiler.compile, source) for source in slow]
            while processes._idle.qsize():
                time.sleep(0.001)
        assert all(isinstance(one.exception(), CompileFailure) for one in compiling)


def test_none_outlives_the_program():
    code = """
import os
from explorer.evaluate import compile_processes
compile_processes.usable_cores = lambda: 4
processes = compile_processes.CompileProcesses()
processes.start()
processes.ask("sm_90", 'extern "C" __global__ void k() {}')
original = processes._original[1].pid
print(original, open(f"/proc/{original}/task/{original}/children").read(), flush=True)
os.kill(os.getpid(), 9)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in run.stdout.split()]
    assert len(pids) == 5 and all(map(ends, pids)), run.stderr


def test_few_cores_compile_in_threads(monkeypatch):
    monkeypatch.setattr(compile_processes.os, "sched_getaffinity", lambda _: set(range(3)))
    with CompileProcesses() as processes:
        assert type(processes.compiler(ARCH)) is Compiler


def test_where_no_process_can_be_started_threads_compile(cores, monkeypatch):
    def refused(*_, **__):
        raise OSError("no memory")

    monkeypatch.setattr(compile_processes, "talking_to", refused)
    with CompileProcesses() as processes:
        assert type(processes.compiler(ARCH)) is Compiler
