"""When a call is served by our kernels: fakes stand for the GPU, the compiler and the disk."""

import logging
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import explorer
from explorer.devices.cuda.program import has_driver
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.model.tuned_table import check_table
from explorer.runtime import service as module
from explorer.runtime.service import Service, set_options
from explorer.runtime.shapes import count_call, log_shapes

PROBLEM, OTHER = Problem(64, 96), Problem(3, 5, scale=1.0)


class World:
    """What the fakes have and were asked for."""

    def __init__(self):
        self.disk = {}
        self.found, self.made, self.loaded = [], [], []
        self.takes_s = 0.0
        self.fails = {}
        self.gate = None
        self.spec = None

    def gpu(self, index):
        if index > 1:
            raise RuntimeError("there is no such GPU")
        return SimpleNamespace(spec=self.spec or f"gpu {index}", load=self.load)

    def load(self, problem, ready):
        self.loaded.append(problem)
        return SimpleNamespace(problem=problem, ready=ready)

    def find(self, problem, spec, *, batch_invariant, splits=None, tables=None):
        self.found.append(problem)
        return self.disk.get((problem, spec, batch_invariant))

    def make(self, problem, spec, *, batch_invariant, splits=None, tables=None):
        if self.gate is not None:
            assert self.gate.wait(10)
        time.sleep(self.takes_s)
        self.made.append(problem)
        if problem in self.fails:
            raise self.fails[problem]
        return self.disk.setdefault((problem, spec, batch_invariant), f"kernel of {problem}")


@pytest.fixture
def world(monkeypatch):
    world = World()
    fake = world.gpu
    fake_gpu = lambda index: fake(index)  # noqa: E731  (it has an attribute)
    fake_gpu.cache_clear = lambda: None
    monkeypatch.setattr(module, "gpu", fake_gpu)
    monkeypatch.setattr(module, "find", world.find)
    monkeypatch.setattr(module, "make", world.make)
    monkeypatch.setattr(module, "options", module.Options())
    monkeypatch.setattr(module, "_logged", set())
    return world


@pytest.fixture
def service(world):
    return Service()


def until(condition):
    """Wait for other threads."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


# ------------------------------------------------------------------ meanwhile


def test_the_first_call_is_the_frameworks_and_later_ones_are_ours(service, world):
    world.gate = threading.Event()
    for _ in range(3):
        assert service.get(PROBLEM, 0) is None
    world.gate.set()
    until(lambda: service.get(PROBLEM, 0) is not None)
    assert world.made == [PROBLEM]
    assert service.get(PROBLEM, 0) is service.get(PROBLEM, 0)
    assert world.loaded == [PROBLEM]


def test_what_lies_on_disk_serves_the_first_call(service, world):
    world.disk[PROBLEM, "gpu 0", False] = "kept"
    assert service.get(PROBLEM, 0).ready == "kept"
    assert not world.made


def test_a_process_keeps_so_many_kernels_at_most(service, world, monkeypatch):
    monkeypatch.setattr(module, "MOST_LOADED", 1)
    world.disk = {(problem, "gpu 0", False): "kept" for problem in (PROBLEM, OTHER)}
    world.disk[OTHER, "gpu 0", True] = "kept"
    assert service.get(PROBLEM, 0) is not None
    assert service.get(OTHER, 0) is None and not service._pending
    assert service.get(PROBLEM, 0) is not None
    set_options(batch_invariant=True)  # another function would give other bits
    assert service.get(OTHER, 0) is not None


def test_each_gpu_has_its_own(service, world):
    world.disk[PROBLEM, "gpu 1", False] = "kept"
    assert service.get(PROBLEM, 1).ready == "kept"
    world.gate = threading.Event()
    assert service.get(PROBLEM, 0) is None
    world.gate.set()
    until(lambda: world.made)


def test_compilations_meanwhile_take_few_threads(service, world):
    world.gate = threading.Event()
    before = threading.active_count()
    for rows in range(1, 30):
        assert service.get(Problem(rows, 5), 0) is None
    assert threading.active_count() - before <= module.MAKERS
    world.gate.set()
    until(lambda: len(world.made) == 29)


def test_a_process_that_ends_waits_for_what_is_being_compiled(service, world):
    """And for nothing else: the compiler's library must not go while a thread is inside of it."""
    world.takes_s = 0.1
    for rows in range(1, 30):
        service.get(Problem(rows, 5), 0)
    until(lambda: world.made or len(service._makers) == module.MAKERS)
    service.finish()
    assert not any(maker.is_alive() for maker in service._makers)
    assert len(world.made) <= 2 * module.MAKERS


@pytest.mark.parametrize(("said", "waits"), [("1", True), ("false", False), ("No", False)])
def test_the_environment_may_ask_to_wait(monkeypatch, said, waits):
    monkeypatch.setenv("EXPLORER_WAIT", said)
    assert module._from_environment().wait is waits


def test_with_the_option_a_call_waits(service, world):
    set_options(wait=True)
    world.takes_s = 0.05
    assert service.get(PROBLEM, 0) is not None
    set_options(wait=False)
    assert service.get(OTHER, 0) is None


@pytest.mark.parametrize("wait", [False, True])
def test_while_a_graph_is_captured_nothing_is_loaded_or_asked_for(service, world, wait):
    set_options(wait=wait)
    world.disk[PROBLEM, "gpu 0", False] = "kept"
    for problem in (PROBLEM, OTHER):
        with pytest.warns(RuntimeWarning, match="graph is captured without our kernel for softmax"):
            assert service.get(problem, 0, may_load=False) is None
    assert not world.found and not world.made and not world.loaded
    assert not service._pending
    loaded = service.get(PROBLEM, 0)
    assert service.get(PROBLEM, 0, may_load=False) is loaded is not None


@pytest.mark.parametrize("wait", [False, True])
def test_many_threads_that_ask_at_once_make_it_once(service, world, wait):
    set_options(wait=wait)
    world.takes_s = 0.05
    start, got = threading.Barrier(8), []

    def ask():
        start.wait()
        got.append(service.get(PROBLEM, 0))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: service.get(PROBLEM, 0) is not None)
    assert world.made == [PROBLEM]
    assert {id(one) for one in got} == {id(service.get(PROBLEM, 0)) if wait else id(None)}


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("wait", [False, True])
def test_a_refusal_is_said_once_and_never_tried_again(service, world, caplog, wait):
    set_options(wait=wait)
    world.fails[PROBLEM] = ExplorerError("it has no registers")
    with caplog.at_level(logging.DEBUG, "explorer"):
        assert service.get(PROBLEM, 0) is None
        until(lambda: world.made and caplog.messages and not service._pending)
        for _ in range(3):
            assert service.get(PROBLEM, 0) is None
    assert world.made == [PROBLEM]
    pending = ["served by the framework: a kernel that is not compiled yet"]
    assert caplog.messages == [
        *([] if wait else pending),
        f"served by the framework: no kernel for {PROBLEM}: it has no registers",
    ]
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


def test_what_a_gpu_refuses_for_now_is_tried_again(service, world, monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    set_options(wait=True)
    world.fails[PROBLEM] = RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")
    assert service.get(PROBLEM, 0) is None and service.get(PROBLEM, 0) is None
    assert world.made == [PROBLEM]
    del world.fails[PROBLEM]
    time.sleep(0.06)
    assert service.get(PROBLEM, 0).problem == PROBLEM


def test_calls_that_want_the_same_bits_for_any_rows_wait_for_their_kernel(service, world):
    set_options(batch_invariant=True)
    assert service.get(PROBLEM, 0).problem == PROBLEM


def test_only_so_many_problems_wait(service, world, monkeypatch):
    monkeypatch.setattr(module, "MOST_PENDING", 3)
    world.gate = threading.Event()
    problems = [Problem(64, cols) for cols in range(10, 20)]
    assert [service.get(problem, 0) for problem in problems] == [None] * 10
    world.gate.set()
    until(lambda: not service._pending)
    assert sorted(p.cols for p in world.made) == [10, 11, 12]
    assert service.get(problems[5], 0) is None
    until(lambda: service.get(problems[5], 0) is not None)


def test_waiting_threads_share_a_refusal(service, world):
    set_options(wait=True)
    world.takes_s, world.fails[PROBLEM] = 0.05, ExplorerError("no")
    threads = [threading.Thread(target=service.get, args=(PROBLEM, 0)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert service.get(PROBLEM, 0) is None
    assert world.made == [PROBLEM]


def test_a_gpu_that_is_not_there_is_a_refusal(service, caplog):
    with caplog.at_level(logging.DEBUG, "explorer"):
        assert service.get(PROBLEM, 7) is None
        assert service.get(PROBLEM, 7) is None
    assert len(caplog.messages) == 1 and "no such GPU" in caplog.text


def test_a_reason_is_said_once(world, caplog):
    with caplog.at_level(logging.DEBUG, "explorer"):
        for reason in ("one", "two", "one"):
            module.log_once(reason)
    assert caplog.messages == ["served by the framework: one", "served by the framework: two"]


def test_a_reason_that_nobody_listened_to_is_said_again(world, caplog):
    with caplog.at_level(logging.WARNING, "explorer"):
        module.log_once("one")
    with caplog.at_level(logging.DEBUG, "explorer"):
        module.log_once("one")
    assert caplog.messages == ["served by the framework: one"]


@pytest.mark.skipif(has_driver(), reason="there is a GPU")
def test_a_missing_driver_is_said_by_that_name():
    with pytest.raises(ExplorerError, match=r"no NVIDIA driver \(libcuda.so.1 is not found\)"):
        module.warm_up(PROBLEM)


# ------------------------------------------------------------------ warm_up


@pytest.fixture
def public(service, monkeypatch):
    monkeypatch.setattr(module, "service", service)
    return service


def test_warm_up_makes_kernels_ahead(public, world):
    problems = [PROBLEM, replace(OTHER, scale=0.125), replace(OTHER, scale=0.5), PROBLEM]
    explorer.warm_up(problems)
    assert sorted(map(str, world.made)) == sorted(map(str, [PROBLEM, OTHER]))
    assert public.get(PROBLEM, 0) is not None
    assert public.get(OTHER, 0) is not None  # calls have a scale of 1 in their problem
    world.made.clear()
    explorer.warm_up(iter([PROBLEM]))
    explorer.warm_up(PROBLEM)
    assert not world.made


def test_warm_up_of_another_gpu(public, world):
    explorer.warm_up([PROBLEM], device=1)
    assert list(world.disk) == [(PROBLEM, "gpu 1", False)]


def test_warm_up_reads_what_log_shapes_wrote(public, world, tmp_path):
    path = tmp_path / "met.csv"
    with log_shapes(path):
        count_call(OTHER)
    explorer.warm_up(str(path))
    explorer.warm_up(path)
    assert world.made == [OTHER]


def test_warm_up_refuses_a_file_without_a_problem(public, tmp_path):
    path = tmp_path / "hdr.csv"
    path.write_text("rows,cols\n")
    with pytest.raises(ExplorerError, match=r"hdr\.csv names no problem; give a line for each"):
        explorer.warm_up(str(path))


def test_warm_up_says_which_problem_has_no_kernel(public, world):
    world.fails[OTHER] = RuntimeError("CUDA_ERROR_INVALID_IMAGE")
    with pytest.raises(ExplorerError, match=r"no kernel for softmax f32 3x5 .* on GPU 0: CUDA_ERR"):
        explorer.warm_up([PROBLEM, OTHER])
    assert public.get(PROBLEM, 0) is not None
    world.fails.clear()
    explorer.warm_up([OTHER])  # what failed may be tried again
    assert public.get(OTHER, 0) is not None


def test_warm_up_of_a_gpu_that_is_not_there_is_told(public):
    with pytest.raises(ExplorerError, match="on GPU 7: there is no such GPU"):
        explorer.warm_up([PROBLEM], device=7)


def test_warm_up_wants_problems(public, tmp_path):
    with pytest.raises(ExplorerError, match=r"wants explorer\.Problem objects; one is \(3, 5\)"):
        explorer.warm_up([PROBLEM, (3, 5)])
    with pytest.raises(InvalidInput, match="cannot be read"):
        explorer.warm_up(tmp_path / "none.csv")


@pytest.mark.parametrize("problems", [5, None, "", b"met.csv"])
def test_warm_up_of_neither_problems_nor_a_file_is_told(public, problems):
    sentence = f"problems is {problems!r}; it must be explorer.Problem objects, or a file that"
    with pytest.raises(InvalidInput, match=re.escape(sentence)):
        explorer.warm_up(problems)


@pytest.mark.parametrize("device", ["cuda:0", None, 1.0, True])
def test_warm_up_wants_the_number_of_a_gpu(public, device):
    sentence = f"device is {device!r}; it must be the number of a GPU, such as 0"
    with pytest.raises(InvalidInput, match=re.escape(sentence)):
        explorer.warm_up(PROBLEM, device)


# ------------------------------------------------------------------ options


def test_a_loaded_kernel_stays_though_options_change(service, world):
    set_options(wait=True)
    loaded = service.get(PROBLEM, 0)
    set_options(batch_invariant=True)
    assert service.get(PROBLEM, 0) is loaded
    assert service.get(OTHER, 0) is not None
    assert (OTHER, "gpu 0", True) in world.disk


def test_what_is_not_said_of_an_option_stays(world):
    set_options(wait=True)
    set_options(batch_invariant=True)
    assert module.options == module.Options(wait=True, batch_invariant=True)
    set_options(wait=False)
    assert module.options == module.Options(wait=False, batch_invariant=True)


@pytest.mark.parametrize("value, wait", [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_says_how_a_process_begins(monkeypatch, value, wait):
    monkeypatch.setenv("EXPLORER_WAIT", value)
    monkeypatch.delenv("EXPLORER_BATCH_INVARIANT", raising=False)
    monkeypatch.delenv("EXPLORER_TUNED", raising=False)
    assert module._from_environment() == module.Options(wait=wait)


# ------------------------------------------------------------------ tuned tables

TABLE = Path(__file__).parents[2] / "studies" / "tuned" / "nvidia-h200.json"


@pytest.fixture
def chosen(world, monkeypatch):
    """What `find` and `make` are told of tables."""
    told = []

    def heard(call):
        return lambda *args, tables=None, **more: told.append(tables) or call(*args, **more)

    monkeypatch.setattr(module, "find", heard(world.find))
    monkeypatch.setattr(module, "make", heard(world.make))
    world.spec = known_gpu("NVIDIA H200")
    return told


def test_kernels_are_chosen_by_the_tables_that_are_named(service, chosen):
    set_options(wait=True)
    assert service.get(OTHER, 0) is not None
    assert chosen == [None, None]  # those of the GPU
    chosen.clear()
    set_options(tuned=TABLE)
    assert service.get(PROBLEM, 0) is not None
    assert chosen == [(TABLE,), (TABLE,)]


def test_a_table_that_is_none_is_refused_at_once(world, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text("{}")
    with pytest.raises(InvalidInput, match=r"mine\.json is no tuned table of this version"):
        set_options(tuned=path)
    assert module.options.tuned is None
    set_options(tuned="nvidia-h200")
    assert module.options.tuned == (TABLE,)
    set_options(tuned=[])
    assert module.options.tuned == ()


@pytest.mark.parametrize("tuned", [5, "", b"mine.json", [5], ["nvidia-h200", ""]])
def test_what_names_no_table_is_told(world, tuned):
    wrong = tuned[-1] if isinstance(tuned, list) else tuned
    sentence = f"tuned is {wrong!r}; it must be a file that explorer tune wrote, or a name that"
    with pytest.raises(InvalidInput, match=re.escape(sentence)):
        set_options(tuned=tuned)
    assert module.options.tuned is None


@pytest.mark.parametrize("name", ["wait", "batch_invariant", "compiled_calls"])
def test_a_switch_is_true_or_false(name):
    with pytest.raises(InvalidInput, match=f"{name} is 'x'; it must be True or False"):
        set_options(**{name: "x"})


def test_a_table_of_the_environment_that_is_none_is_said_and_left_out(
    service, world, chosen, monkeypatch, caplog
):
    def make(*args, tables=None, **more):
        if tables:
            check_table(tables[0])
        return world.make(*args, **more)

    monkeypatch.setattr(module, "make", make)
    monkeypatch.setenv("EXPLORER_TUNED", "none.json:more.json")
    monkeypatch.setattr(module, "options", module._from_environment())
    assert [path.name for path in module.options.tuned] == ["none.json", "more.json"]
    set_options(wait=True)
    assert service.get(PROBLEM, 0) is not None and service.get(OTHER, 0) is not None
    assert "none.json" in caplog.text and caplog.text.count("no tuned table is read") == 1
    assert module.options.tuned == ()


# ------------------------------------------------------------------ fork


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_begins_anew(public, world):
    """In the midst of a compilation, with the service's lock held by a thread that is no more."""
    os.register_at_fork(after_in_child=public.forget)
    world.gate = threading.Event()
    assert public.get(OTHER, 0) is None  # a thread is at it, which the child has not
    world.disk[PROBLEM, "gpu 0", False] = "kept"
    loaded = public.get(PROBLEM, 0)
    with public._lock:
        child = os.fork()
        if not child:
            status = 1
            try:
                world.gate.set()
                assert public.get(PROBLEM, 0) is not loaded
                assert public.get(OTHER, 0) is None
                until(lambda: public.get(OTHER, 0) is not None)
                status = 0
            finally:
                os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert public.get(PROBLEM, 0) is loaded
    world.gate.set()
    until(lambda: public.get(OTHER, 0) is not None)
    assert world.made == [OTHER]


def test_the_service_of_the_process_is_registered(monkeypatch):
    loaded = object()
    monkeypatch.setitem(module.service._loaded, (PROBLEM, 0, module.USUAL), loaded)
    child = os.fork()
    if not child:
        os._exit(bool(module.service._loaded))
    assert os.waitpid(child, 0)[1] == 0
    assert module.service._loaded[PROBLEM, 0, module.USUAL] is loaded
