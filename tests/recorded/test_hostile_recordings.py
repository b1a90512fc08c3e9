"""A hostile recording is refused in one sentence, within bounds, and is in nobody's way."""

import gzip
import json
import os
import resource
import time
import zlib

import pytest
from replays import replay_of
from test_recording_file import recording

from explorer.devices.recording import (
    MAX_LINE_BYTES,
    MAX_PACKED_BYTES,
    MAX_UNPACKED_BYTES,
    find_recording,
    list_recordings,
    load_recording,
    read_header,
    read_recording,
    write_recording,
)
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery

DEEP = b"[" * 100_000 + b"]" * 100_000
PROBLEM = Problem(64, 4096)
KERNEL_1, KERNEL_2, KERNEL_3, COMPARISON = 1, 2, 3, 4


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A recording of three kernels and a comparison of two, where recordings are looked for."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "studies" / "recorded" / "mine.json.gz"
    write_recording(recording("mine", PROBLEM), path)
    rows = {"digests": ["fast", "slow"], "samples_us": [[60.0, 60.1], [66.0, 66.1]]}
    comparison = {**rows, "again_us": [60.2, 60.1], "limit_us": [58.0]}
    unpacked = gzip.decompress(path.read_bytes()) + line({"comparison": comparison})
    path.write_bytes(gzip.compress(unpacked))
    assert read_recording(path).comparison is not None
    return path


def line(values):
    return json.dumps(values).encode() + b"\n"


def refused(path, read=read_recording):
    """What is said; it takes neither long nor much memory."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(ExplorerError) as raised:
        read(path)
    assert time.monotonic() - started < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB
    message = str(raised.value)
    assert str(path) in message and "remove it" in message
    assert "\n" not in message and len(message) < 1000
    message.encode()
    return message


def change(path, number, *place_and_value):
    """Put another value at a place of a line."""
    lines = [json.loads(text) for text in gzip.decompress(path.read_bytes()).splitlines()]
    *place, name, value = place_and_value
    within = lines[number]
    for step in place:
        within = within[step]
    within[name] = value
    path.write_bytes(gzip.compress(b"".join(map(line, lines))))


NAN, HUGE = float("nan"), 10**400

KERNEL = [
    ("samples_us", None, "samples_us"),
    ("samples_us", [], "samples_us is empty"),
    ("samples_us", "abc", "samples_us"),
    ("samples_us", [-1.0] * 3, "samples_us[0] is -1.0"),
    ("samples_us", [0] * 3, "samples_us[0] is 0"),
    ("samples_us", [1e300] * 3, "samples_us[0]"),
    ("samples_us", [NAN] * 3, "is not JSON"),
    ("samples_us", [HUGE] * 3, "is not JSON"),
    ("error", None, "error is None"),
    ("error", -1.0, "error is -1.0"),
    ("max_ulp", "3", "max_ulp is '3'"),
    ("mean_ulp", True, "mean_ulp is True"),
    ("digest", 5, "digest is 5"),
    ("digest", "\ud800", "without control characters"),
    ("digest", "slow", "kernel 2 has the config or the digest of an earlier one"),
    ("resources", None, "resources is None"),
    ("resources", {"registers": -5}, "registers is -5"),
    ("resources", {"registers": 3, "hats": 1}, "'hats', which is not one of"),
    ("config", [], "config is []"),
    ("config", {"warps": 1}, "config parameter 'warps' is not known"),
    ("config", {"threads": "256"}, "'threads' is '256'; it must be of type int"),
    ("config", {"threads": True}, "'threads' is True; it must be of type int"),
    ("config", {"threads": 0}, "'threads' is 0; it must be from 1 to 1024"),
    ("config", {"exp": "e^x"}, "'exp' is 'e^x'; it must be one of expf"),
    ("stage", "moon", "stage is 'moon'; it must be one of"),
    ("stage", "crash", "has no reason"),
]


@pytest.mark.parametrize(("name", "value", "says"), KERNEL)
def test_a_kernel_of_other_values(path, name, value, says):
    change(path, KERNEL_1, name, value)
    assert says in refused(path)


def test_two_kernels_of_one_config(path):
    change(path, KERNEL_2, "config", Config().as_dict())
    assert "kernel 2 has the config or the digest of an earlier one" in refused(path)


OTHER = [
    *((COMPARISON, "comparison", value) for value in (None, [], {})),
    *((COMPARISON, "comparison", "samples_us", v) for v in ([], [[1.0], [2.0]], [["a", "b"]] * 2)),
    *((COMPARISON, "comparison", "again_us", v) for v in (None, [1.0], [0.0, 1.0])),
    *((COMPARISON, "comparison", "limit_us", v) for v in (None, [0.0])),
    *((COMPARISON, "comparison", "digests", v) for v in (["fast"], ["fast", "bad"], ["fast"] * 2)),
    *((0, "problem", "rows", value) for value in (0, True, "8192", 2**33)),
    *((0, "problem", "mask", value) for value in ("causal ", {})),
    (0, "problem", "hats", 1),
    (0, "problem", "softmax"),
    *((0, "gpu", "sm_count", value) for value in (0, 1.5, 2**60)),
    (0, "gpu", "arch", "sm_"),
    (0, "gpu", "name", "\x1b]0;x\x07"),
    (0, "gpu", None),
    *((0, "circumstances", "limit_us", value) for value in (-1.0, "60", 1e300)),
    (0, "circumstances", "accuracy", "exact"),
    (0, "circumstances", []),
    (0, "rule", None),
    *((0, "kernel_count", value) for value in (-1, 2, 10**30, 3.0)),
    *((0, "version", value) for value in (0, True, "1")),
    (0, "format", "other"),
]
"""A line of the file, a place in it, and a value that it cannot have."""


@pytest.mark.parametrize("changes", OTHER, ids=repr)
def test_other_values_elsewhere(path, changes):
    change(path, *changes)
    refused(path)


def with_line(text, at=1):
    """The sound file with one more line."""

    def damage(whole):
        lines = gzip.decompress(whole).splitlines(keepends=True)
        return gzip.compress(b"".join([*lines[:at], text + b"\n", *lines[at:]]))

    return damage


BYTES = {
    "empty": lambda _: b"",
    "not gzip": lambda _: b"not gzip",
    "text": lambda whole: gzip.decompress(whole),
    "gzip of nothing": lambda _: gzip.compress(b""),
    "an empty line": with_line(b"", at=0),
    "no JSON": with_line(b"{"),
    "a number at the end": with_line(b"5", at=5),
    "one more comparison": lambda whole: gzip.compress(
        gzip.decompress(whole) + gzip.decompress(whole).splitlines(keepends=True)[-1]
    ),
    "no UTF-8": with_line(b'{"a": "\xff"}'),
    "5000 digits": with_line(b'{"a": ' + b"9" * 5000 + b"}"),
    "deep in the header": with_line(DEEP, at=0),
    "deep in a kernel": with_line(DEEP),
    "half": lambda whole: whole[: len(whole) // 2],
    "another check sum": lambda whole: whole[:-8] + b"abcd" + whole[-4:],
    "garbage after it": lambda whole: whole + b"garbage",
    "a second member": lambda whole: whole + gzip.compress(b"{}\n"),
    "a long line": with_line(b" " * (MAX_LINE_BYTES + 1)),
}


@pytest.mark.parametrize("damage", BYTES)
def test_other_bytes(path, damage):
    path.write_bytes(BYTES[damage](path.read_bytes()))
    refused(path)


def packed(unpacked, times):
    """A gzip file of so many times the same bytes, made in little memory."""
    packer = zlib.compressobj(1, wbits=31)
    return b"".join([*(packer.compress(unpacked) for _ in range(times)), packer.flush()])


@pytest.mark.parametrize("unpacked", [b" ", b"\n", b"{}\n", b"[" * 64 + b"\n"])
def test_what_unpacks_to_much_is_not_unpacked(path, unpacked):
    """Refused at the first line that is no kernel, or that is too long."""
    header = gzip.decompress(path.read_bytes()).splitlines(keepends=True)[0]
    chunk = unpacked * (2**22 // len(unpacked))
    bomb = packed(chunk, 2)  # the shape of it: what comes after is never looked at
    for content in (bomb, packed(header + chunk, 1)):
        path.write_bytes(content)
        refused(path)
    path.write_bytes(bomb)
    refused(path, read_header)


def test_unpacking_stops_at_its_limit(path, monkeypatch):
    """Kernels of a recording that is sound but for its size."""
    monkeypatch.setattr("explorer.devices.recording.MAX_UNPACKED_BYTES", 1500)
    assert "unpacks to more than 1500 bytes" in refused(path)
    assert MAX_UNPACKED_BYTES == 128 * 2**20


def test_a_file_that_is_too_large_is_not_opened(path):
    os.truncate(path, MAX_PACKED_BYTES + 1)
    assert f"at most {MAX_PACKED_BYTES} are read" in refused(path)


def pipe(path):
    os.mkfifo(path)


def folder(path):
    path.mkdir()


def device(path):
    path.symlink_to("/dev/zero")


def loop(path):
    path.symlink_to(path.name)


def nowhere(path):
    path.symlink_to("no-such-file")


NO_FILES = [pipe, folder, device, loop, nowhere]


@pytest.mark.parametrize("make", NO_FILES)
def test_no_file(path, make):
    other = path.with_name("other.json.gz")
    make(other)
    assert "cannot be read" in refused(other)
    assert "cannot be read" in refused(other, read_header)
    for name in ("other", str(other)):
        with pytest.raises(InvalidInput, match=r"other\.json\.gz cannot be read"):
            load_recording(name)


@pytest.mark.parametrize("name", ["x" * 5000, "\ud800", "a\0b", "../../etc/passwd", "", "."])
def test_a_name_that_cannot_be(path, name):
    for suffix in ("", ".json.gz"):
        with pytest.raises(ExplorerError):
            load_recording(name + suffix)


@pytest.mark.parametrize("make", [*NO_FILES, lambda path: path.write_bytes(gzip.compress(DEEP))])
def test_it_is_in_nobodys_way(path, make):
    make(path.with_name("aaa.json.gz"))
    told = []
    assert find_recording(ProblemQuery.of(PROBLEM), told.append).name == "mine"
    assert len(told) == 1 and told[0].startswith("passed over: ") and "aaa.json.gz" in told[0]
    damaged = [file for file in list_recordings() if file.damage]
    assert [file.name for file in damaged] == ["aaa"]
    with pytest.raises(InvalidInput, match=r"no recording of .*4097.*aaa\.json\.gz"):
        find_recording(ProblemQuery(4097))


def test_a_folder_that_is_gone_has_no_recordings(path):
    here = path.parent / "gone"
    here.mkdir()
    os.chdir(here)
    here.rmdir()
    assert "mine" not in [file.name for file in list_recordings()]


def test_a_sound_recording_stands_in_for_a_later_one_that_is_damaged(path):
    """Its header is whole, so that it is known only when its kernels are wanted."""
    later = path.with_name("later.json.gz")
    write_recording(recording("later", PROBLEM, date="2027-01-01T00:00:00Z"), later)
    change(later, KERNEL_1, "samples_us", [-1.0])
    told = []
    assert find_recording(ProblemQuery.of(PROBLEM), told.append).name == "mine"
    assert len(told) == 1 and "kernel 1: samples_us[0] is -1.0" in told[0]
    assert list(replay_of(PROBLEM).notices) == told
    path.unlink()
    with pytest.raises(InvalidInput, match=r"later\.json\.gz is damaged"):
        find_recording(ProblemQuery.of(PROBLEM))


ILLEGAL = [
    {"threads": 100},
    {"threads_per_row": 7},
    {"cluster": 2},
    {"unroll": 3},
    {"threads": 96, "threads_per_row": 64},
]


@pytest.mark.parametrize("values", ILLEGAL, ids=repr)
def test_a_config_that_the_space_does_not_allow_is_passed_over(path, values):
    change(path, KERNEL_2, "config", values)
    evaluator = replay_of(PROBLEM)
    assert len(evaluator.catalogue) == 2
    assert "1 of 3 recorded kernels are passed over" in evaluator.notices[0]


def test_a_recording_without_a_config_that_is_allowed_is_refused(path):
    for number, values in zip((KERNEL_1, KERNEL_2, KERNEL_3), ILLEGAL, strict=False):
        change(path, number, "config", values)
    with pytest.raises(InvalidInput, match="make it again on a GPU with explorer record"):
        replay_of(PROBLEM)
