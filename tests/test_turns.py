"""What a GPU's process is asked: one after the other, and in turns with other processes."""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from explorer.devices.cuda import messages
from explorer.devices.cuda.messages import Bug, Failed, Requests, turn_on

HOLDER = """
import sys, time
from explorer.devices.cuda.messages import turn_on
with turn_on(sys.argv[1]):
    print("held", flush=True)
    time.sleep(0.5)
"""


def test_a_gpu_is_one_process_at_a_time(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with subprocess.Popen([sys.executable, "-c", HOLDER, "ab"], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        began = time.monotonic()
        with turn_on("cd"):
            assert time.monotonic() - began < 0.3
        with turn_on("ab"):
            assert time.monotonic() - began > 0.3


def test_a_folder_without_locks_is_no_hindrance(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with turn_on("ab"):
        pass


class Process(threading.Thread):
    """Stands in for a GPU's process: answers numbers with their doubles, once it may."""

    exitcode = 7

    def __init__(self):
        super().__init__(daemon=True)
        ours, self.theirs = Pipe()
        self.asked, self.may_go_on = [], threading.Semaphore(0)
        self.requests = Requests(ours, self)
        self.start()

    def run(self):
        while True:
            try:
                self.asked.append(self.theirs.recv())
            except (EOFError, OSError):
                return
            self.may_go_on.acquire()
            last = self.asked[-1]
            if last.number < 0:
                self.theirs.close()
                return
            with suppress(OSError):
                self.theirs.send(2 * last.number if last.number else Bug("division by zero"))

    def wait_for(self, count):
        """Wait until so many requests have arrived."""
        end = time.monotonic() + 20
        while len(self.asked) < count and time.monotonic() < end:
            time.sleep(0.001)
        assert len(self.asked) == count


@pytest.fixture
def process():
    one = Process()
    yield one
    one.may_go_on.release(9)
    one.requests.close()


def numbers(*given):
    return [SimpleNamespace(number=one) for one in given]


def has_turn(uuid):
    """Whether no other process, or open file, has a turn on the GPU."""
    taken = threading.Event()

    def take():
        with turn_on(uuid):
            taken.set()

    threading.Thread(target=take, daemon=True).start()
    return taken.wait(0.2)


def test_two_requests_are_under_way_at_most(process):
    first, second, third = numbers(1, 2, 3)
    for one in (first, first, second, second, third):
        process.requests.begin(one)
    process.may_go_on.release()
    process.wait_for(2)
    assert process.requests.ask(first, 9) == 2
    process.may_go_on.release(2)
    assert process.requests.ask(second, 9) == 4
    assert process.requests.ask(third, 9) == 6
    assert [one.number for one in process.asked] == [1, 2, 3]


def test_what_followed_and_is_not_asked_for_answers_nothing_else(process):
    first, second, third = numbers(1, 2, 3)
    process.may_go_on.release(9)
    process.requests.begin(first)
    process.requests.begin(second)
    assert process.requests.ask(first, 9) == 2
    assert process.requests.ask(third, 9) == 6


def test_a_turn_lasts_as_long_as_anything_is_under_way(process, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process.requests.turns_on = "ab"
    first, second = numbers(1, 2)
    process.requests.begin(first)
    process.requests.begin(second)
    assert not has_turn("ab")
    process.may_go_on.release()
    process.requests.ask(first, 9)
    assert not has_turn("ab")
    process.may_go_on.release()
    process.requests.ask(second, 9)
    assert has_turn("ab")


def test_nothing_follows_in_a_turn_that_has_lasted_long(process, monkeypatch):
    first, second = numbers(1, 2)
    monkeypatch.setattr(messages, "LONGEST_TURN_S", 0.01)
    process.requests.begin(first)
    time.sleep(0.02)
    process.requests.begin(second)
    process.may_go_on.release(2)
    assert process.requests.ask(first, 9) == 2
    assert len(process.asked) == 1


def test_none_overtakes_another_that_was_begun_before(process, monkeypatch):
    """It would be answered first, and evaluated again when it is asked for."""
    first, second, third = numbers(1, 2, 3)
    monkeypatch.setattr(messages, "LONGEST_TURN_S", 0.01)
    process.requests.begin(first)
    time.sleep(0.02)
    process.requests.begin(second)  # after a turn that has lasted long
    process.may_go_on.release(9)
    assert process.requests.ask(first, 9) == 2
    process.requests.begin(third)
    assert process.requests.ask(second, 9) == 4
    assert process.requests.ask(third, 9) == 6
    assert [one.number for one in process.asked] == [1, 2, 3]


def test_a_hang_an_end_and_a_bug_are_told_apart(process, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process.requests.turns_on = "ab"
    slow, wrong, last, none = numbers(1, 0, -1, 1)
    assert process.requests.ask(slow, 0.05) is None
    assert has_turn("ab")
    process.may_go_on.release(9)
    assert process.requests.receive(9) == 2
    with pytest.raises(RuntimeError, match="division by zero"):
        process.requests.ask(wrong, 9)
    ended = process.requests.ask(last, 9)
    assert isinstance(ended, Failed) and "exit code 7" in ended.reason
    assert isinstance(process.requests.ask(none, 9), Failed)
    assert has_turn("ab")
