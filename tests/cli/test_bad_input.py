"""Each bad input: one line on stderr that says what to do, exit code 2, no traceback."""

import gzip
import json
import os
from pathlib import Path

import optuna
import pytest
from by_hand import SHAPE

from explorer.model.errors import NotFound

STUDIES = Path(__file__).resolve().parents[2] / "studies"

DTYPES = "choose one of f32, f16, bf16, f64"
EXTENT = "it must be a whole number from 1 to"

USAGE = {
    # name: arguments, what the line says
    "cols 0": ("search --cols 0", f"cols is '0'; {EXTENT} 2147418111"),
    "cols negative": ("search --cols -1", f"cols is '-1'; {EXTENT} 2147418111"),
    "cols no number": ("search --cols abc", f"cols is 'abc'; {EXTENT} 2147418111"),
    "cols with a unit": ("search --cols 4k", f"cols is '4k'; {EXTENT} 2147418111"),
    "cols as a float": ("search --cols 1e99", f"cols is '1e99'; {EXTENT} 2147418111"),
    "cols with underscores": ("search --cols 4_096", "cols is '4_096'"),
    "cols too many": ("search --cols 99999999999", "cols is '99999999999'"),
    "cols far too many": (f"search --cols {'9' * 5000}", "it must be a whole number"),
    "cols beyond a float": ("space --cols 1e400", f"cols is '1e400'; {EXTENT} 2147418111"),
    "cols beyond 64 bits": ("space --cols 99999999999999999999", EXTENT),
    "cols in other digits": ("space --cols ١٢", f"cols is '١٢'; {EXTENT}"),
    "cols superscript": ("space --cols ²", f"cols is '²'; {EXTENT}"),
    "cols missing": (
        "search",
        "cols is missing; give the number of columns, for example --cols 4096",
    ),
    "cols empty": ("search --cols=", "cols is ''"),
    "verify a folder": ("verify tests", "'tests' is no kernel: give best, a trial's number such"),
    "verify nothing known": (
        "verify nosuch",
        "'nosuch' is no kernel: give best, a trial's number such as 12, heuristic, a preset that "
        "explorer presets lists, a config as JSON such as",
    ),
    "verify misspelled": ("verify onefow-warp", ".cu; the nearest is oneflow-warp"),
    "emit misspelled": ("emit heuristc --cols 8", "an emitted FILE.cu; the nearest is heuristic"),
    "option without a value": ("search --cols", "see explorer search --help"),
    "option of a subcommand without a value": (
        "table check x --problems",
        "see explorer table check --help",
    ),
    "recording as T4 to nowhere": (
        "recordings by-hand --t4 /proc/a.json",
        "/proc/a.json cannot be written: No such file or directory; name another --t4",
    ),
    "verify another file": ("verify a/b.json", "'a/b.json' names a file; explorer verify,"),
    "diff of a file": ("diff a.cu heuristic", "a.cu cannot be read: No such file"),
    "guide unknown": ("guide nosuch", "there is no guide 'nosuch'; there are pytorch,"),
    "recording missing": ("search --cols 5000", "explorer recordings says of which"),
    "table unknown": ("table show nosuch", "or one that explorer table list shows"),
    "rows 0": ("search --cols 8 --rows 0", f"rows is '0'; {EXTENT} 8589934591"),
    "rows negative": ("space --cols 8 --rows -5", f"rows is '-5'; {EXTENT} 8589934591"),
    "rows no number": ("show --cols 8 --rows many", f"rows is 'many'; {EXTENT}"),
    "dtype": ("search --cols 8 --dtype f8", f"dtype 'f8' is not known; {DTYPES}"),
    "dtype upper case": ("emit best --cols 8 --dtype FP8", f"dtype 'FP8' is not known; {DTYPES}"),
    "op": (
        "search --cols 8 --op softmin",
        "op 'softmin' is not known; choose one of softmax, log_",
    ),
    "mask": (
        "search --cols 8 --mask upper",
        "mask 'upper' is not known; choose one of none, causal",
    ),
    "mask rows": (
        "search --cols 8 --rows 9 --mask additive --mask-rows 2",
        "mask_rows is 2; it must be at least 1 and divide rows, which is 9",
    ),
    "mask rows without mask": (
        "search --cols 8 --mask-rows 2",
        "mask_rows is 2, but there is no mask; leave",
    ),
    "mask rows of lengths": (
        "search --cols 8 --mask lengths --mask-rows 2",
        "mask_rows is 2, but lengths have no rows; leave it out, or add a causal or an additive",
    ),
    "mask and backward": (
        "search --cols 8 --op softmax_backward --mask causal",
        "softmax_backward needs none",
    ),
    "scale": ("search --cols 8 --scale hot", "scale is 'hot'; it must be a finite number"),
    "scale infinite": ("search --cols 8 --scale inf", "scale is 'inf'; it must be a finite number"),
    "scale beyond a float": ("search --cols 8 --scale 1e400", "it must be a finite number"),
    "scale no number": ("search --cols 8 --scale nan", "scale is 'nan'; it must be a finite"),
    "scale in other digits": ("search --cols 8 --scale ١", "scale is '١'; it must be a finite"),
    "scale with underscores": (
        "search --cols 8 --scale 1_0",
        "scale is '1_0'; it must be",
    ),
    "scale in hexadecimal": ("search --cols 8 --scale 0x1p3", "it must be a finite number"),
    "stride too small": (
        "search --cols 8 --input-stride 7",
        "input_stride is 7; rows of 8 elements would overlap: it must be 8 at least",
    ),
    "strides in place": (
        "search --cols 8 --input-stride 9 --in-place",
        "in_place needs one stride; input's is 9, output's 8",
    ),
    "dtypes in place": (
        "search --cols 8 --out-dtype bf16 --in-place",
        "in_place needs one dtype; input is f32, output bf16",
    ),
    "axis": ("search --shape 8,3,4 --axis 3", "axis is 3; an array of 3 axes has -3 to 2"),
    "shape": ("search --shape 8x3", "shape is '8x3'"),
    "shape of a word": (
        "space --shape 8,3,x",
        "shape is '8,3,x'; write whole numbers with commas, such as 8,3,4096",
    ),
    "shape of nothing": (
        "space --shape 8,0",
        "shape is '8,0'; write whole numbers from 1 to 8589934591 with commas, such as 8,3,4096",
    ),
    "a missing extent": ("search --shape 8,,3", "shape is '8,,3'; write whole numbers"),
    "output stride": ("search --cols 8 --output-stride 0", "output_stride is '0'"),
    "axis of no array": (
        "emit heuristic --cols 8 --axis 0",
        "axis is 0; it is an axis of an array: give its shape",
    ),
    "scale beyond fp32": ("emit heuristic --cols 8 --scale 1e39", "kernels take it in fp32"),
    "scale below fp32": ("emit heuristic --cols 8 --scale 1e-50", "kernels take it in fp32"),
    "strides beyond memory": (
        "verify {} --cols 4096 --rows 10 --input-stride 1000000000000",
        "not enough memory",
    ),
    "shape and cols": (
        "search --shape 8,3 --cols 3",
        "leave cols out",
    ),
    "inner": ("search --cols 8 --rows 9 --inner 2", "it must be a multiple of inner, which is 2"),
    "trials": ("search --cols 8 --trials 0", "trials is '0'; it must be a whole number from 1"),
    "budget": ("search --cols 8 --budget soon", "budget is 'soon'; write a duration above 0"),
    "budget of 0": ("search --cols 8 --budget 0s", "such as 30s, 2m or 90"),
    "budget negative": (
        "search --cols 8 --budget -5s",
        "budget is '-5s'; write a duration",
    ),
    "budget infinite": ("search --cols 8 --budget inf", "budget is 'inf'; write a duration above"),
    "budget of ages": ("search --cols 8 --budget 99999999h", "and of a year at most"),
    "budget of nothing": ("search --cols 8 --budget 0.0000000001s", "write a duration above 0"),
    "budget in other digits": ("search --cols 8 --budget ٣s", "budget is '٣s'; write a duration"),
    "trials negative": ("search --cols 8 --trials -1", "trials is '-1'; it must be a whole number"),
    "axes too many": (f"space --shape {'1,' * 64}1", "shape has 65 axes; it may have 64 at most"),
    "shape too large": (f"space --shape {'2147483647,' * 63}8", "rows is a number of 1953 bits"),
    "seed": ("search --cols 8 --seed -1", "seed is '-1'"),
    "timing of a recording": (
        "search --cols 4096 --timing warm",
        "timing is warm, and the recording of softmax f32 8192x4096 was timed cold",
    ),
    "timing": ("search --cols 8 --timing hot", "timing is 'hot'; choose one of cold, warm"),
    "accuracy": (
        "search --cols 8 --accuracy exact",
        "accuracy 'exact' is not known; choose one of strict, default, fast",
    ),
    "accuracy empty": ("verify {} --cols 8 --accuracy=", "accuracy '' is not known; choose one"),
    "objectives": ("search --cols 8 --objectives error", "objectives are 'error'; choose time or"),
    "objectives twice": ("show --cols 8 --objectives time,time", "choose time or time,error"),
    "option": ("search --cols 8 --colour red", "no such option: --colour"),
    "command": ("serach --cols 8", "no such command 'serach'"),
    "device": ("search --cols 8 --device gpu", "it is auto, cuda:N such as cuda:0, or recorded"),
    "device number": ("search --cols 8 --device cuda:one", "device 'cuda:one' is not known"),
    "device of many digits": (f"search --cols 8 --device cuda:{'9' * 5000}", "is not known; it is"),
    "device in other digits": (
        "verify {} --cols 4096 --rows 9 --device cuda:٣",
        "'cuda:٣' is not known",
    ),
    "device of many digits, profiled": (
        f"profile {{}} --cols 8 --device cuda:{'9' * 5000}",
        "is not known; it is emulated, cuda:N",
    ),
    "device of many digits, compared": (
        f"compare --cols 8 --device cuda:{'9' * 5000}",
        "take auto or cuda:N",
    ),
    "recording of a long name": (
        f"search --cols 8 --device recorded:{'x' * 5000}",
        "does not exist; there are:",
    ),
    "device that times nothing": ("search --cols 8 --device emulated", "explorer verify"),
    "no such GPU": ("search --cols 8 --device cuda:0", "no NVIDIA driver"),
    "no such recording": ("search --cols 8 --device recorded:x", "'x' does not exist; there are:"),
    "gpu": ("space --cols 8 --gpu 4090", "GPU '4090' is not known; there are Tesla T4"),
    "several gpus": ("space --cols 8 --gpu nvidia", "GPU 'nvidia' is one of several: NVIDIA A100"),
    "what": ("emit worst --cols 8", "give best, a trial's number such as 12"),
    "rows of no heuristic": (
        "emit {} --cols 8 --batch-invariant",
        "batch-invariant configs are the heuristic's alone",
    ),
    "study of no trial": (
        "emit heuristic --cols 8 --objectives time,error",
        "objectives say in which study a trial is; heuristic is none",
    ),
    "a study beside no trial": (
        "emit heuristic --cols 8 --study H200",
        "study names the study of a trial; heuristic is none",
    ),
    "config of two minds": (
        'emit {"threads":64,"threads":128} --cols 8',
        "config has 'threads' 2 times; give it one value",
    ),
    "config no JSON": ("emit {threads:1} --cols 8", "config is not JSON"),
    "config deep": ("emit " + '{"a":' * 20_000 + " --cols 8", "nested too deeply"),
    "config of many lists": (f"verify {{{'[' * 20_000} --cols 8", "config is not JSON"),
    "config of huge numbers": (
        f'emit {{"threads":{"9" * 5000}}} --cols 8',
        "a number has 5000 digits; at most 40 are read",
    ),
    "config of no number": ('emit {"threads":NaN} --cols 8', "NaN is no number of JSON"),
    "config of a float": ('emit {"threads":1e999} --cols 8', "it must be of type int"),
    "config of a surrogate": ('verify {"\\ud800":1} --cols 8', "is not known; there are"),
    "config of a long text": (
        f'emit {{"exp":"{"a" * 100_000}"}} --cols 8',
        "must be one of expf",
    ),
    "trial of many digits": (
        f"emit {'9' * 5000} --cols 8",
        "number has 15 digits at most",
    ),
    "what before cols": ("emit worst", "'worst' is no kernel: give best"),
    "file before cols": ("emit it.cu", "'it.cu' names a file; explorer verify,"),
    "config unknown": ('emit {"warps":1} --cols 8', "config parameter 'warps' is not known"),
    "config illegal": ('emit {"threads":96} --cols 4096', "threads_per_row divides threads"),
    "config foreign": ('emit {"threads":100} --cols 8', "threads is 100; its values for f32 are"),
    "json and source": ("emit {} --cols 8 --json --output -", "drop one of them"),
    "where": ("record --cols 8 --where threads", "write NAME=VALUE,VALUE"),
    "where value": ("record --cols 8 --where threads=5", "threads has no value '5'"),
    "where twice": (
        "record --cols 8 --where threads=128 --where threads=256",
        "where has threads twice; write it once, threads=128,256",
    ),
    "where twice of a space": (
        "space --cols 8 --where threads=128,256 --where threads=256",
        "where has threads twice; write it once, threads=128,256",
    ),
    "record what": ("record --cols 8", "give --sample 500, --where, or both"),
    "record where": ("record --cols 8 --sample 5", "device cuda:0 cannot be used"),
    "port": ("dashboard --port 99999", "port is '99999'"),
    "emit before search": (
        "emit best --cols 1234",
        "run explorer search --cols 1234 --dtype f32; or take a kernel without a search: explorer "
        "emit heuristic --cols 1234",
    ),
    "search before recording": ("search --cols 5000", "explorer emit heuristic --cols 5000"),
    "show before search": (
        "show --cols 4096 --op log_softmax",
        "run explorer search --cols 4096 --dtype f32 --op log_softmax",
    ),
    "studies before search": ("studies", "run explorer search --cols 4096"),
    "storage of no name": ("studies --storage=", "storage is '', which names nothing"),
    "storage a device": ("studies --storage /dev/zero", "it is a device; name another storage"),
    "storage scheme": ("studies --storage foo://bar", "storage scheme 'foo' is not known"),
    "storage folder": ("search --cols 8 --storage no/such/x.db", "no/such does not exist"),
}


def refused(ran, says):
    assert ran.code == 2, (ran.out, ran.err)
    lines = ran.err.strip().splitlines()
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("error: ") and says in lines[0], lines[0]
    assert len(lines[0]) <= 2100
    assert ran.out == "" or json.loads(ran.out)["error"]["message"] in lines[0]


@pytest.mark.parametrize("case", USAGE)
def test_one_line_and_exit_code_2(explorer, case):
    arguments, says = USAGE[case]
    refused(explorer(*arguments.split()), says)


TABLE = "name a table that explorer tune wrote, or one that explorer table list shows"
KEPT = {
    # command: what the line ends in
    "table show": TABLE,
    "compare --from": "name a file that explorer compare --save wrote",
    "journey --from": "name a file that explorer journey --save wrote",
    "report --from": "name a comparison, a journey or a tuned table",
}


@pytest.mark.parametrize("command", KEPT)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("{a}", "is not JSON (line 1, column 2)"),
        ('{"a":\n1', "is not JSON (line 2, column 2)"),
        ("[" * 100_000, "is not JSON: its values are nested too deeply"),
        ('{"a":NaN}', "is not JSON: NaN is no number of JSON"),
        ('{"a":1,"a":2}', "has 'a' 2 times; give it one value"),
    ],
)
def test_a_damaged_result_is_said(explorer, tmp_path, command, text, says):
    (tmp_path / "bad.json").write_text(text)
    ran = explorer(*command.split(), "bad.json")
    assert ran.code == 2 and ran.err == f"error: bad.json {says}; {KEPT[command]}\n"


@pytest.mark.parametrize(
    ("command", "name", "says"),
    [
        (
            "compare --from",
            "tuned/nvidia-h200.json",
            "is a tuned table, not a comparison; show it with explorer table show",
        ),
        (
            "journey --from",
            "results/compare-h200-f32.json",
            "is a comparison, not a journey; show it with explorer compare --from",
        ),
        (
            "table show",
            "results/journey-h200-f32-4096.json",
            "is a journey, not a tuned table; show it with explorer journey --from",
        ),
    ],
)
def test_a_result_of_another_kind_is_said_with_what_shows_it(explorer, command, name, says):
    path = STUDIES / name
    refused(explorer(*command.split(), path), f"error: {path} {says} {path}")


def test_no_gpu_and_no_recording_names_those_there_are(explorer, recording):
    ran = explorer("search", "--cols", "4095")
    refused(ran, "no NVIDIA driver")
    assert "there are: by-hand, " in ran.err or ", by-hand" in ran.err


def test_a_recording_of_another_problem(explorer, recording):
    ran = explorer("search", "--cols", "8", "--device", "recorded:by-hand")
    refused(ran, "--cols 512 --rows 256 --dtype f32")


@pytest.mark.exhaustive
def test_unknown_and_rejected_trials(explorer, searched):
    refused(explorer("emit", "99999", *SHAPE), "trial 99999 does not exist")
    (study,) = optuna.get_all_study_summaries("sqlite:///studies/explorer.db")
    trials = optuna.load_study(
        study_name=study.study_name, storage="sqlite:///studies/explorer.db"
    ).get_trials(states=[optuna.trial.TrialState.PRUNED])
    rejected = explorer("emit", trials[0].number, *SHAPE)
    refused(rejected, "choose another, or best")
    assert "relative error 0.5" in rejected.err
    refused(explorer("show", "--cols", "8"), "run explorer search --cols 8")


def test_a_study_of_an_older_space(explorer, recording, monkeypatch):
    """Measured, so it seems, on a GPU; then the package is upgraded."""
    monkeypatch.setattr("explorer.tuning.search.is_replay", lambda _: False)
    assert explorer("search", *SHAPE, "--trials", "20").code == 0
    assert explorer("show", *SHAPE).code == 0
    monkeypatch.setattr("explorer.tuning.study_reader.space_version", lambda _: "ffffffff")
    for command in (("show",), ("emit", "best"), ("emit", "0")):
        refused(explorer(*command, *SHAPE), "run explorer search --cols 512")
    assert "made by an older version" in explorer("studies").out


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all", b"SQLite format 3\0" + b"?" * 99]
)
def test_a_file_that_is_no_database_is_left_alone(explorer, recording, tmp_path, content):
    path = tmp_path / "mine.db"
    path.write_bytes(content or b"text")
    refused(explorer("search", *SHAPE, "--storage", "mine.db"), "mine.db")
    assert path.read_bytes() == (content or b"text")


@pytest.mark.parametrize("more", [(), ("--json",), ("--csv",), ("--markdown",)])
def test_a_database_without_a_study_is_told_as_a_missing_one_is(explorer, tmp_path, more):
    optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/a.db")
    ran = explorer("studies", "--storage", "a.db", *more)
    missing = explorer("studies", "--storage", "b.db")
    assert ran.code == missing.code == 2
    assert (
        ran.err
        == "error: no study yet: storage a.db has none; run "
        + (missing.err.rpartition("; run ")[2])
    )


def test_studies_is_a_file(explorer, tmp_path):
    (tmp_path / "studies").write_text("")
    refused(explorer("search", "--cols", "8"), "studies")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_of_studies(explorer, recording, tmp_path):
    (tmp_path / "studies").chmod(0o500)
    refused(explorer("search", *SHAPE), "read-only")


@pytest.mark.skipif(os.geteuid() != 0, reason="the test above does it with real permissions")
def test_a_read_only_folder_of_studies_as_root(explorer, recording, monkeypatch):
    monkeypatch.setattr("explorer.tuning.storage.os.access", lambda *_: False)
    refused(explorer("search", *SHAPE), "read-only")


@pytest.mark.parametrize("damage", ["truncated", "no gzip", "empty", "no recording"])
def test_a_damaged_recording(explorer, recording, damage):
    whole = recording.read_bytes()
    recording.write_bytes(
        {
            "truncated": whole[: len(whole) // 2],
            "no gzip": b"hello",
            "empty": b"",
            "no recording": gzip.compress(b'{"a": 1}\n'),
        }[damage]
    )
    refused(explorer("search", *SHAPE), "by-hand.json.gz")
    refused(explorer("search", *SHAPE, "--device", "recorded:by-hand"), "by-hand.json.gz")


def test_emit_does_not_replace_another_file(explorer, tmp_path):
    mine = tmp_path / "mine.cu"
    mine.write_text("int x;\n")
    config = '{"threads":128,"threads_per_row":128}'
    ran = explorer("emit", config, *SHAPE, "--output", "mine.cu")
    assert ran.code == 2 and "--force" in ran.err and mine.read_text() == "int x;\n"
    assert explorer("emit", config, *SHAPE, "--output", "mine.cu", "--force").code == 0
    assert explorer("emit", config, *SHAPE, "--output", "mine.cu/x.cu").code == 2


def test_a_bug_keeps_its_traceback(explorer, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("explorer.tuning.storage.open_storage", broken, raising=False)
    with pytest.raises(ZeroDivisionError):
        explorer("studies")


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ("search --cols 0", "InvalidInput", "cols is '0'"),
        ("show --cols 4096", "NotFound", "no study yet"),
        ("search --colour red", "UsageError", "no such option"),
    ],
)
def test_an_error_is_an_object_where_json_is_asked_for(explorer, arguments, kind, says):
    ran = explorer(*arguments.split(), "--json")
    data = json.loads(ran.out)
    assert ran.code == data["exit_code"] == 2 and data["error"]["kind"] == kind
    assert says in data["error"]["message"] and ran.err == f"error: {data['error']['message']}\n"
    plain = explorer(*arguments.split())
    assert plain.out == "" and (plain.code, plain.err) == (2, ran.err)


def test_ctrl_c_is_an_object_where_json_is_asked_for(explorer, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("explorer.api.search", stopped)
    ran = explorer("search", "--cols", "8", "--json")
    assert ran.code == 130 and json.loads(ran.out)["error"]["kind"] == "KeyboardInterrupt"


def test_a_result_that_was_printed_is_followed_by_no_error(explorer, monkeypatch):
    def fails(*_):
        print("{}")
        raise NotFound("too late")

    monkeypatch.setattr("explorer.report.machine.checks", fails)
    ran = explorer("doctor", "--json")
    assert (ran.code, ran.out, ran.err) == (2, "{}\n", "error: too late\n")
