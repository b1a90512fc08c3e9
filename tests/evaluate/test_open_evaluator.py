"""What is opened for a problem, and what is done while a GPU is prepared for it."""

import queue
import random
import threading
import time
from contextlib import nullcontext
from functools import partial
from multiprocessing import active_children

import pytest
from test_compile_processes import no_compiling_here

from explorer.codegen.units import emit
from explorer.compile.compiler import CompilePool, Compiler
from explorer.evaluate import open_evaluator as opening
from explorer.model.accuracy import Accuracy
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.space import Space
from explorer.tuning.objective import Goal
from explorer.tuning.seeds import compile_first, seeds_of

H200 = known_gpu("NVIDIA H200")
PROBLEM = Problem(64, 1000)


TEXTS = tuple(f'extern "C" __global__ void k{n}() {{}}' for n in range(6))


class Device:
    gpu = H200


@pytest.fixture
def prepared(monkeypatch, tmp_path):
    """A GPU that is prepared once `prepared` is set."""
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path))
    ready = threading.Event()

    def live(problem, device, *_, **options):
        assert ready.wait(60), "what is to be done meanwhile was not begun"
        return nullcontext(device)

    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})  # threads compile
    monkeypatch.setattr(opening, "gpu_or_recording", lambda _: "cuda:0")
    monkeypatch.setattr(opening, "limits_of", lambda _: H200)
    monkeypatch.setattr(opening, "open_device", lambda _, **options: Device())
    monkeypatch.setattr("explorer.evaluate.device_evaluator.DeviceEvaluator", live)
    monkeypatch.setattr(opening, "own_sources", lambda _: TEXTS)
    return ready


def test_it_is_done_while_the_gpu_is_prepared_and_waited_for(prepared):
    done = []

    def slow(gpu, *_):
        prepared.set()
        threading.Event().wait(0.05)
        done.append(gpu)

    with opening.open_evaluator(PROBLEM, meanwhile=slow):
        assert done == [H200]


def test_its_failure_is_not_that_of_opening(prepared):
    def failing(*_):
        prepared.set()
        raise ValueError

    with opening.open_evaluator(PROBLEM, meanwhile=failing) as opened:
        assert opened.gpu == H200


def test_what_the_gpu_needs_is_compiled_while_its_process_starts(prepared, monkeypatch):
    compiler, seen = Compiler(H200.arch), []

    def started(_, **options):
        end = time.monotonic() + 60
        for source in TEXTS:
            key = compiler.key(source)
            while compiler.cache.load(key) is None and time.monotonic() < end:
                time.sleep(0.01)
            seen.append(compiler.cache.load(key))
        return Device()

    prepared.set()
    monkeypatch.setattr(opening, "open_device", started)
    with opening.open_evaluator(PROBLEM):
        assert len(seen) == len(TEXTS) and all(seen)


@pytest.fixture
def four_cores(prepared, monkeypatch):
    """Where other processes compile, and this one must not."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    no_compiling_here(monkeypatch)
    return prepared


def test_other_processes_compile_what_a_gpu_and_a_search_need(four_cores, monkeypatch):
    before, kernels = set(active_children()), []

    def live(problem, device, *_, compiler, **__):
        kernels.append(compiler(H200.arch).compile(TEXTS[0]))
        return nullcontext(device)

    monkeypatch.setattr("explorer.evaluate.device_evaluator.DeviceEvaluator", live)
    with opening.open_evaluator(PROBLEM, meanwhile=lambda gpu, pool: None):
        assert kernels[0].cubin and len(set(active_children()) - before) == 1
    assert set(active_children()) == before


def test_they_compile_what_is_done_meanwhile(four_cores):
    def meanwhile(gpu, pool):
        assert pool.submit('extern "C" __global__ void other() {}').result().cubin
        done.append(True)
        four_cores.set()

    done = []
    with opening.open_evaluator(PROBLEM, meanwhile=meanwhile):
        assert done == [True]


def test_they_compile_for_comparisons(four_cores, monkeypatch):
    before, kernels = set(active_children()), []

    class Live(nullcontext):
        def __init__(self, problem, device, *_, keep_device, compiler):
            super().__init__()
            kernels.append(compiler(H200.arch).compile(TEXTS[1]))

    monkeypatch.setattr("explorer.evaluate.device_evaluator.DeviceEvaluator", Live)
    monkeypatch.setattr(Device, "close", lambda self: None, raising=False)
    with opening.PeerBenches("cuda:0", "cold", 0, Accuracy.DEFAULT) as benches:
        benches.compile_ahead(PROBLEM, [])
        with benches.on(PROBLEM):
            assert kernels[0].cubin
    assert set(active_children()) == before


def test_a_gpu_that_refuses_to_compare_leaves_no_processes(four_cores, monkeypatch):
    def refusing(*_):
        raise InvalidInput("GPU 0 is in use")

    before = set(active_children())
    monkeypatch.setattr(opening, "open_device", refusing)
    with (
        pytest.raises(InvalidInput, match="in use"),
        opening.PeerBenches("cuda:0", "cold", 0, Accuracy.DEFAULT),
    ):
        pass
    assert set(active_children()) == before


def test_a_gpu_that_cannot_be_prepared_leaves_what_has_not_begun_to_compile(prepared, monkeypatch):
    begun, refused, compiled = threading.Event(), threading.Event(), queue.Queue()

    def compile_late(_, source):
        begun.set()
        assert refused.wait(10)
        compiled.put(source)

    def refusing(_, **options):
        assert begun.wait(10)
        raise InvalidInput("GPU 0 is in use")

    monkeypatch.setattr(Compiler, "compile", compile_late)
    monkeypatch.setattr(opening, "CompilePool", partial(CompilePool, threads=1))
    monkeypatch.setattr(opening, "open_device", refusing)
    with pytest.raises(InvalidInput, match="in use"), opening.open_evaluator(PROBLEM):
        pass
    refused.set()
    assert compiled.get(timeout=10) == TEXTS[0]
    with pytest.raises(queue.Empty):
        compiled.get(timeout=0.2)


def test_a_gpu_that_is_not_there_is_for_its_process_to_refuse(monkeypatch):
    def refusing(_, **options):
        raise InvalidInput("device cuda:7 cannot be used")

    monkeypatch.setattr(opening, "open_device", refusing)
    with pytest.raises(InvalidInput, match="cuda:7"), opening.open_evaluator(PROBLEM, "cuda:7"):
        pass


def test_a_search_finds_what_was_prepared(monkeypatch, tmp_path):
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path))
    pool = CompilePool(Compiler(H200.arch))
    compile_first(PROBLEM, Goal(), 0, H200, {}, pool)
    pool._executor.shutdown(wait=True)
    space = Space.searched(PROBLEM, H200)
    compiler = Compiler(H200.arch)
    monkeypatch.setattr("explorer.compile.compiler.compile_source", None)
    first, *_ = seeds_of(Goal(), space, random.Random(0))
    assert compiler.compile(emit(PROBLEM, first).source).cubin
