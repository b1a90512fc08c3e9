"""The file of a recording: whole, or refused with its name and what to do."""

import gzip
import json
from dataclasses import replace

import pytest
from replays import replay, replay_of

from explorer.devices.recording import (
    RecordedComparison,
    RecordedKernel,
    Recording,
    RecordingHeader,
    find_recording,
    list_recordings,
    load_recording,
    local_path,
    read_header,
    read_recording,
    write_recording,
)
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Environment, Measured, Rejected, Resources, Stage
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery

FAST, SLOW, BAD = Config(), Config(unroll=1, exp="expf"), Config(exp="__expf")


def measured(digest, time_us):
    samples = tuple(round(time_us + 0.01 * i, 4) for i in range(8))
    return Measured(samples, 1e-7, Resources(registers=32, code_bytes=900), digest)


def recording(name="h200-f32-4096", problem=None, date="2026-01-02T03:04:05Z"):
    environment = Environment(
        gpu="NVIDIA H200",
        arch="sm_90",
        driver="580.1",
        nvrtc="13.0",
        timing="cold",
        date=date,
        space_version="1a2b3c4d",
        template_digest="0" * 12,
        explorer="0.1.0",
        limit_us=58.0,
    )
    kernels = (
        RecordedKernel(FAST, "fast", measured("fast", 60.0)),
        RecordedKernel(SLOW, "slow", measured("slow", 66.0)),
        RecordedKernel(BAD, "bad", Rejected(Stage.VERIFY, "relative error 1 at row 0")),
    )
    header = RecordingHeader(
        problem or Problem(8192, 4096), known_gpu("NVIDIA H200"), environment, "by hand", 3
    )
    return Recording(name, header, kernels)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder whose studies/recorded is searched first."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "studies" / "recorded"


@pytest.fixture
def path(folder):
    path = folder / "h200-f32-4096.json.gz"
    write_recording(recording(), path)
    return path


def test_what_is_written_is_read(path):
    assert read_recording(path) == recording()
    assert read_header(path) == recording().header
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_equal_recordings_are_equal_files(path, tmp_path):
    write_recording(recording(), tmp_path / "again.json.gz")
    assert (tmp_path / "again.json.gz").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file_is_refused(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    refused(path)


def test_lost_lines_are_refused(path):
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[:-1])))
    assert "2 of 3 kernels" in refused(path)


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1, 2]",
        b'{"format": "something else", "version": 1}',
        b'{"format": "softmax-explorer recording", "version": 1}',
        b"\xff\xfe",
    ],
)
def test_a_foreign_file_is_refused(path, line):
    path.write_bytes(gzip.compress(line + b"\n"))
    refused(path)


def test_a_file_that_is_not_compressed_is_refused(path):
    path.write_bytes(b"plain text")
    refused(path)


def test_a_flipped_byte_is_refused(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))
    refused(path)


def refused(path):
    with pytest.raises(InvalidInput) as raised:
        read_recording(path)
    message = str(raised.value)
    assert str(path) in message
    assert "remove it" in message
    assert "\n" not in message
    return message


def test_a_newer_format_asks_for_an_update(path):
    head, *rest = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    newer = json.dumps({**json.loads(head), "version": 2}).encode() + b"\n"
    path.write_bytes(gzip.compress(b"".join([newer, *rest])))
    with pytest.raises(InvalidInput, match="update softmax-explorer"):
        read_recording(path)


def test_parameters_that_a_recording_lacks_take_their_defaults(path):
    lines = gzip.decompress(path.read_bytes()).splitlines()
    kernel = json.loads(lines[2])
    del kernel["config"]["unroll"], kernel["config"]["static_cols"]
    lines[2] = json.dumps(kernel).encode()
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    assert read_recording(path).kernels[1].config == SLOW


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr(gzip, "compress", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_recording(recording(), path)
    assert path.read_bytes() == before
    assert len(list(path.parent.iterdir())) == 1


def test_recordings_are_found_by_name_and_by_problem(path):
    assert load_recording("h200-f32-4096") == recording()
    assert load_recording(str(path)) == recording()
    assert find_recording(ProblemQuery(4096)).header.problem.rows == 8192
    assert find_recording(ProblemQuery(4096, rows=8192)) == recording()


def test_a_new_recording_is_named_like_those_that_ship():
    h200, t4 = known_gpu("NVIDIA H200"), known_gpu("Tesla T4")
    named = {
        "h200-f32-4096": (Problem(8192, 4096), h200, "cold"),
        "h200-f32-256x4096": (Problem(256, 4096), h200, "cold"),
        "t4-f16-4096-warm": (Problem(16384, 4096, DType.F16), t4, "warm"),
    }
    for name, of in named.items():
        assert local_path(*of).as_posix() == f"studies/recorded/{name}.json.gz"


def test_the_latest_of_a_problem_is_taken(path):
    newer = recording("newer", date="2026-02-01T00:00:00Z")
    write_recording(newer, path.with_name("newer.json.gz"))
    assert find_recording(ProblemQuery(4096, rows=8192)).name == "newer"


def test_no_recording_names_those_there_are(path):
    with pytest.raises(NotFound, match=r"f32 4097 cols; there are: .*h200-f32-4096"):
        find_recording(ProblemQuery(4097))
    near = r"of 4096 columns there are: softmax f32 8192x4096 \(explorer search --cols 4096 --rows"
    with pytest.raises(NotFound, match=near):
        find_recording(ProblemQuery(4096, rows=9))
    with pytest.raises(NotFound, match=r"'other' does not exist; there are: .*h200-f32-4096"):
        load_recording("other")


def test_a_damaged_recording_hides_no_sound_one(path):
    path.with_name("damaged.json.gz").write_bytes(b"nothing")
    assert find_recording(ProblemQuery(4096, rows=8192)).name == "h200-f32-4096"
    damaged = next(file for file in list_recordings() if file.name == "damaged")
    assert damaged.header is None
    with pytest.raises(InvalidInput, match=r"damaged\.json\.gz"):
        find_recording(ProblemQuery(4097))


def test_a_replay_gives_what_was_recorded(path):
    evaluator = replay_of(Problem(8192, 4096))
    assert list(evaluator.catalogue) == [FAST, SLOW, BAD]
    fast = evaluator.evaluate(FAST)
    assert replace(fast, resources=measured("fast", 60.0).resources) == measured("fast", 60.0)
    assert (fast.resources.resident_blocks, fast.resources.rests_on_registers) == (8, True)
    assert evaluator.evaluate(BAD).stage is Stage.VERIFY
    assert evaluator.identity(SLOW) == "slow"
    with pytest.raises(InvalidInput, match=r'"unroll":2.* is not in recording'):
        evaluator.evaluate(Config(unroll=2))


def test_a_replay_has_the_residency_that_was_recorded():
    resources = Resources(32, resident_blocks=3)
    kernels = (RecordedKernel(FAST, "fast", replace(measured("fast", 60.0), resources=resources)),)
    evaluator = replay(replace(recording(), kernels=kernels))
    assert evaluator.evaluate(FAST).resources == resources


def test_a_replay_of_another_problem_says_what_to_ask_for(path):
    with pytest.raises(InvalidInput, match="ask for --cols 4096 --rows 8192 --dtype f32"):
        replay_of(Problem(8191, 4096), "h200-f32-4096")


def test_a_replayed_comparison_pairs_recorded_samples(path):
    comparison = replay_of(Problem(8192, 4096)).compare([FAST, SLOW, FAST], 30)
    fast, slow, again = comparison.samples_us
    assert fast == measured("fast", 60.0).samples_us
    assert len(fast) == len(slow) == 8
    assert comparison.limit_us == (58.0,)
    assert not comparison.interleaved
    assert sorted(again) == sorted(fast)
    assert again != fast


def test_a_recorded_comparison_is_preferred():
    from dataclasses import replace

    rows = ((60.0, 60.1), (66.0, 66.1))
    compared = RecordedComparison(("fast", "slow"), rows, (60.2, 60.3), (58.0, 58.1))
    evaluator = replay(replace(recording(), comparison=compared))
    comparison = evaluator.compare([SLOW, FAST, FAST], 30)
    assert comparison.samples_us == (rows[1], rows[0], (60.2, 60.3))
    assert comparison.limit_us == (58.0, 58.1)
    assert comparison.interleaved
