"""Whatever a recording is changed to, it is read, or refused in one sentence."""

import copy
import gzip
import io
import json

import pytest
import replays
from hostile_values import bounded, changed, changed_bytes, json_values, places, quick, thorough
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from test_recording_file import recording

from explorer.devices.recording import (
    RecordedComparison,
    read_header,
    read_recording,
    write_recording,
)
from explorer.model.config import Config
from explorer.model.errors import ExplorerError
from explorer.model.problem import Problem
from explorer.report.recordings import recording_data
from explorer.report.studies import print_search, search_data
from explorer.report.text import as_json, replay_notice
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage

PROBLEM = Problem(64, 4096)


def sound(path):
    """The lines of a sound recording of three kernels, with a comparison."""
    kept = recording("mine", PROBLEM)
    rows = ((60.0, 60.1), (66.0, 66.1))
    compared = RecordedComparison(("fast", "slow"), rows, (60.2, 60.3), (58.0, 58.1))
    whole = type(kept)(kept.name, kept.header, kept.kernels, compared)
    write_recording(whole, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "mine.json.gz"


@pytest.fixture(scope="module")
def whole(path):
    return sound(path)


@pytest.fixture(scope="module")
def lines(whole):
    return [json.loads(line) for line in gzip.decompress(whole).splitlines()]


def told(action, *args):
    try:
        return action(*args)
    except ExplorerError as error:
        message = str(error)
        assert "\n" not in message and len(message) < 1500
        message.encode()
        return None


def use(path, content, *, replay):
    """What commands do with a recording that lies there."""
    path.write_bytes(content)
    with bounded():
        header, read = told(read_header, path), told(read_recording, path)
        if read is None:
            return
        assert header == read.header
        as_json(recording_data(read, path)).encode()
        replay_notice(read.header.environment).encode()
        evaluator = told(replays.replay, read)
        if evaluator is None or not replay:
            return
        result = told(lambda: run_search(evaluator, open_storage("sqlite:///:memory:"), trials=3))
        if result is not None:
            console = Console(file=io.StringIO(), width=100)
            print_search(result, console)
            as_json(search_data(result)).encode()
            console.file.getvalue().encode()


def packed(values):
    return gzip.compress(b"".join(json.dumps(value).encode() + b"\n" for value in values), 1)


def test_the_base_is_used(path, whole):
    use(path, whole, replay=True)
    assert set(k.config for k in read_recording(path).kernels) > {Config()}


@given(st.data())
@quick(40)
def test_changed_values(path, lines, data):
    use(path, packed(data.draw(changed(lines))), replay=False)


@given(st.data())
@quick(80)
def test_changed_bytes(path, whole, data):
    use(path, data.draw(changed_bytes(whole)), replay=False)


@given(st.data())
@quick(40)
def test_changed_text(path, whole, data):
    text = data.draw(changed_bytes(gzip.decompress(whole)))
    use(path, gzip.compress(text, 1), replay=False)


@pytest.mark.exhaustive
@given(st.data())
@thorough(3000)
def test_many_changed_values(path, lines, data):
    use(path, packed(data.draw(changed(lines))), replay=True)


@pytest.mark.exhaustive
@given(st.data())
@thorough(10_000)
def test_many_changed_bytes(path, whole, data):
    use(path, data.draw(changed_bytes(whole, most=8)), replay=True)


@pytest.mark.exhaustive
@given(st.data())
@thorough(10_000)
def test_many_changed_texts(path, whole, data):
    text = data.draw(changed_bytes(gzip.decompress(whole), most=8))
    use(path, gzip.compress(text, 1), replay=True)


EXTREMES = st.sampled_from([1, 2, 7, 31, 32, 1000, 2**31 - 1, 2**31, 2**40, 2**53, 1e-6, 1e12])


@pytest.mark.exhaustive
@given(st.data())
@thorough(1000)
def test_many_extreme_numbers(path, lines, data):
    """Each is of the type that it should be, and within what can be read."""
    lines = copy.deepcopy(lines)
    numbers = [p for p in places(lines) if type(at(lines, p)) in (int, float)]
    for *before, last in data.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=6)):
        at(lines, before)[last] = data.draw(EXTREMES)
    use(path, packed(lines), replay=True)


def at(value, place):
    for step in place:
        value = value[step]
    return value


@pytest.mark.exhaustive
@given(st.lists(json_values, max_size=5))
@thorough(2000)
def test_many_other_lines(path, values):
    use(path, packed(values), replay=True)
