"""Values from outside are read with their types and limits, or refused in one line."""

import json
from dataclasses import dataclass, replace

import pytest

from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec, known_gpu
from explorer.model.outcome import Environment, Measured, Rejected, Resources, Stage
from explorer.model.problem import Mask, Problem
from explorer.system.plain_data import (
    LEAST_TIME_US,
    MAX_WHOLE,
    MOST_TIME_US,
    parse_json,
    read_fields,
    shown,
)

CIRCUMSTANCES = Environment(
    gpu="NVIDIA H200",
    arch="sm_90",
    driver="580.1",
    nvrtc="13.0",
    timing="cold",
    date="2026-01-02T03:04:05Z",
    space_version="1a2b3c4d",
    template_digest="0" * 12,
    explorer="0.1.0",
)
MEASURED = Measured((1.0, 2.0), 1e-7, Resources(32), "d", max_ulp=3.0)


def refused(read, *args):
    with pytest.raises(InvalidInput) as raised:
        read(*args)
    message = str(raised.value)
    assert "\n" not in message and len(message) < 1000
    message.encode()
    return message


@pytest.mark.parametrize(
    "text",
    {
        "empty": "",
        "cut short": '{"a": [1, 2',
        "NaN": "NaN",
        "infinite": '{"a": -Infinity}',
        "digits": "9" * 5000,
        "more digits than any number of ours": "9" * 41,
        "deep lists": "[" * 100_000 + "]" * 100_000,
        "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
        "a name twice": '{"a": 1, "b": 2, "a": 3}',
        "a name twice among very many": "{"
        + ",".join(f'"{i}":0' for i in (*range(50_000), 49_999))
        + "}",
        "a byte order mark": "\ufeff{}",
    }.values(),
)
def test_what_is_no_json_is_refused(text):
    assert refused(parse_json, text, "a line").startswith("a line ")


def test_json_is_read():
    value = {"a": [1, 2.5, True, None, "µ"], "b": {"c": -3, "d": 1e300}}
    assert parse_json(json.dumps(value), "a line") == value


@pytest.mark.parametrize("value", [[[[[[1]]]]] * 999, "x" * 9999, {i: i for i in range(999)}])
def test_a_value_is_shown_in_a_line(value):
    assert len(shown(value)) < 100 and "\n" not in shown(value)


def test_a_number_beyond_printing_is_shown():
    assert shown(10**5000) == "a number of 16610 bits"


@dataclass(frozen=True)
class Example:
    count: int
    error: float
    time_us: float
    samples_us: tuple[float, ...]
    name: str
    is_new: bool
    dtype: DType
    note: str | None = None


GOOD = {
    "count": 3,
    "error": 0.5,
    "time_us": 2,
    "samples_us": [1, 2.5],
    "name": "µ",
    "is_new": True,
    "dtype": "f32",
}
NO_NUMBERS = ("1", None, True, [], {}, -1, -0.5, float("nan"), float("inf"), 10**400)
BAD = {
    "count": (*NO_NUMBERS, 1.0, MAX_WHOLE + 1),
    "error": (*NO_NUMBERS, MAX_WHOLE + 1),
    "time_us": (*NO_NUMBERS, LEAST_TIME_US / 2, MOST_TIME_US * 2),
    "samples_us": ("12", None, 1, {}, *([value] for value in NO_NUMBERS), [0], [1, 0.0]),
    "name": (1, None, [], "\ud800", "\x1b[2J", "a\0b"),
    "is_new": (1, 0, "true", None),
    "dtype": ("f8", 1, None, [], {}),
    "note": (1, []),
}


def test_a_dataclass_is_read():
    assert read_fields(Example, GOOD, "example") == Example(
        3, 0.5, 2.0, (1.0, 2.5), "µ", True, DType.F32
    )
    assert read_fields(Example, {**GOOD, "time_us": 0, "note": "x"}, "example").time_us == 0.0


@pytest.mark.parametrize(("name", "value"), [(name, v) for name in BAD for v in BAD[name]])
def test_a_value_of_another_kind_is_refused(name, value):
    assert name in refused(read_fields, Example, {**GOOD, name: value}, "example")


def test_names_are_those_of_the_fields():
    assert "has no count" in refused(read_fields, Example, {}, "example")
    assert "'more'" in refused(read_fields, Example, {**GOOD, "more": 1}, "example")
    assert read_fields(Example, {**GOOD, "more": 1}, "example", ignore_unknown=True)
    for other in ([], "x", None, 3):
        assert "JSON object" in refused(read_fields, Example, other, "example")


PROBLEM = {"rows": 8, "cols": 8}


@pytest.mark.parametrize(
    "values",
    [
        *({**PROBLEM, name: v} for name in ("rows", "cols") for v in (0, True, 1.5, "8", 2**40)),
        *({**PROBLEM, "scale": v} for v in ("1", True, float("inf"), 1e300, [])),
        *({**PROBLEM, "inner": v} for v in (0, 3, -1, "2")),
        *({**PROBLEM, "input_stride": v} for v in (7, -1, 10**30)),
        *({**PROBLEM, name: 5} for name in ("dtype", "op", "mask", "out_dtype", "in_place")),
        {**PROBLEM, "shape": [8, 8]},
        {"rows": 8},
        {},
        [],
        None,
    ],
)
def test_a_problem_that_cannot_be_is_refused(values):
    refused(Problem.from_dict, values)


def test_a_problem_is_read_as_it_was_written():
    problem = Problem(16, 8, DType.BF16, scale=-0.5, mask=Mask.CAUSAL, mask_rows=4)
    assert Problem.from_dict(problem.as_dict()) == problem


@pytest.mark.parametrize(
    "name", ["gpu", "arch", "date", "limit_us", "sm_clock_mhz", "accuracy", "throttle_reasons"]
)
@pytest.mark.parametrize("value", [None, [], {}, float("nan"), -1, True])
def test_circumstances_of_other_types_are_refused(name, value):
    assert name in refused(Environment.from_dict, {**CIRCUMSTANCES.as_dict(), name: value})


def test_keys_of_an_earlier_version_are_read():
    known = replace(CIRCUMSTANCES, limit_us=60.0, limit_name="by 16 bytes")
    older = known.as_dict()
    older |= {"copy_us": older.pop("limit_us"), "copy_name": older.pop("limit_name")}
    assert Environment.from_dict(older) == known
    assert "limit_us" in refused(Environment.from_dict, {**older, "copy_us": -1})


def test_circumstances_of_another_version_are_read():
    values = {**CIRCUMSTANCES.as_dict(), "moon": "full", "accuracy": "strict"}
    assert Environment.from_dict(values).accuracy is Accuracy.STRICT


@pytest.mark.parametrize(
    ("name", "value"),
    [("arch", "a"), ("arch", "sm_"), ("arch", "sm_9000"), ("arch", 90), ("name", 5)]
    + [(name, value) for name in ("sm_count", "l2_bytes") for value in (0, -1, "1", 1.5)],
)
def test_a_gpu_that_cannot_be_is_refused(name, value):
    values = {field: getattr(known_gpu("NVIDIA H200"), field) for field in GpuSpec.__slots__}
    assert GpuSpec.from_dict(values) == known_gpu("NVIDIA H200")
    assert name in refused(GpuSpec.from_dict, {**values, name: value})


def test_outcomes_are_read():
    plain = {"samples_us": [1.0, 2.0], "error": 1e-7, "resources": {"registers": 32}}
    assert Measured.from_dict({**plain, "digest": "d", "max_ulp": 3, "more": 1}) == MEASURED
    assert "samples_us is empty" in refused(
        Measured.from_dict, {**plain, "samples_us": []} | {"digest": ""}
    )
    assert "has no digest" in refused(Measured.from_dict, plain)
    assert Rejected.from_dict({"stage": "crash", "reason": "a\nb"}) == Rejected(Stage.CRASH, "a\nb")
    assert "stage is 'moon'" in refused(Rejected.from_dict, {"stage": "moon", "reason": ""})


@pytest.mark.parametrize("text", ["[" * 90_000, '{"threads":' + "9" * 5000 + "}", '{"\ud800":1}'])
def test_a_config_as_json_is_refused_in_a_line(text):
    refused(Config.from_json, text)
