"""`explorer tune` and `explorer table`, without a GPU: lists of problems, and tables."""

import json
import os
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fake_peers import FakePeerBench

from explorer.cli.problem import ListedOptions
from explorer.cli.tune import _problems
from explorer.evaluate.space_version import template_version
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.tuned_table import read_table, write_table
from explorer.ops import Op
from tests import heuristic_losses
from tests.tuned_problems import caches, held_out, losses, text_of

TABLES = Path(__file__).resolve().parents[2] / "studies" / "tuned"
HELD_OUT = TABLES / "held-out"


def listed(
    cols=None,
    rows=None,
    dtype="f32",
    op="softmax",
    shapes=None,
    draw=None,
    seed=0,
    **each,
):
    return _problems(cols, rows, dtype, op, shapes, draw, seed, ListedOptions(**each))


# ------------------------------------------------------------------ lists of problems


def test_problems_have_ids_and_results_beside_the_output():
    found = listed("8", "2,4", op="log_prob", also="entropy,lse", ids_per_row=3)
    assert [(one.rows, one.ids_per_row, one.also) for one in found] == [
        (2, 3, "lse,entropy"),
        (4, 3, "lse,entropy"),
    ]


def test_caches_have_heads_and_groups():
    heads = {"group": 4, "key_heads": 2, "head_dim": 64, "layout": "NHD"}
    (one,) = listed("4096", "32", "bf16", "decode_attention", **heads)
    assert {name: str(getattr(one, name)) for name in heads} == {
        name: str(value) for name, value in heads.items()
    }


def test_a_range_has_powers_of_two_or_so_many_steps():
    assert [one.cols for one in listed("64:1000:log")] == [64, 128, 256, 512]
    assert [one.cols for one in listed("64:4096:log:4,5")] == [64, 256, 1024, 4096, 5]
    assert [(one.rows, one.cols) for one in listed("8,16", "2,4")] == [
        (2, 8),
        (4, 8),
        (2, 16),
        (4, 16),
    ]
    several = listed("8", "2", "f32,bf16", "softmax,log_softmax")
    assert [(one.op, one.dtype) for one in several] == [
        (op, dtype) for op in (Op.SOFTMAX, Op.LOG_SOFTMAX) for dtype in (DType.F32, DType.BF16)
    ]


def test_drawn_problems_lie_between_and_are_the_seed_s():
    drawn = listed("64:131072:log", "1:8192:log", draw=200, seed=3)
    assert drawn == listed("64,131072", "1,8192", draw=200, seed=3)
    assert drawn != listed("64,131072", "1,10000", draw=200, seed=4)
    assert all(64 <= one.cols <= 131072 and 1 <= one.rows <= 8192 for one in drawn)
    assert sum(one.cols < 2900 for one in drawn) in range(70, 130)  # half of the magnitudes
    assert len(listed("64,128", draw=5)) == 5
    wide = listed("100000,200000", "1:400000:log", draw=50)
    assert max(one.rows * one.cols for one in wide) <= 2**28 < 400_000 * 100_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {},
            "--cols is missing; give the numbers of columns, for example --cols 64:131072:log, or ",
        ),
        ({"cols": "64:10:log"}, "the first number of a range is its least"),
        ({"cols": "64:128"}, "write a range as 64:4096:log"),
        ({"cols": "64:128:lin"}, "write a range as 64:4096:log"),
        ({"cols": "64:128:log:1"}, "steps of cols is '1'; it must be a whole number from 2"),
        (
            {"cols": "64:128:log:99999"},
            "steps of cols is '99999'; it must be a whole number from 2",
        ),
        ({"cols": "0"}, "cols is '0'"),
        ({"cols": "1:100000:log:2000", "rows": "1,2,3,4,5,6,7,8,9,10"}, "one command takes 10000"),
        ({"cols": "8", "dtype": "f31"}, "f31"),
        ({"cols": "8", "op": "softmin"}, "softmin"),
        ({"cols": "8", "draw": 2, "shapes": Path("a.csv")}, "problems; drop --cols and --draw"),
        ({"also": "lse", "shapes": Path("a.csv")}, "--shapes names whole problems; drop --also"),
        ({"ids_per_row": 2, "shapes": Path("a.csv")}, "problems; drop --ids-per-row"),
        ({"cols": "8", "group": 2}, "group"),
    ],
)
def test_what_is_no_list_of_problems_is_said(given, said):
    with pytest.raises(InvalidInput, match=re.escape(said)):
        listed(**given)


def test_a_file_of_problems_names_all_its_bad_lines(explorer, tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("rows,cols,dtype\n8,16,f32\n8,0,f32\n8,,f32\n8,16,f31\n")
    ran = explorer("tune", "--shapes", path)
    assert ran.code == 2 and ran.out == ""
    for said in ("line 3: cols is '0'", "line 4: cols is missing", "line 5: dtype 'f31'"):
        assert said in ran.err
    path.write_text("\ufeffrows,cols\n8,16\n")
    assert [(one.rows, one.cols) for one in listed(shapes=path)] == [(8, 16)]
    path.write_text("rows,cols\n")
    assert "names no problem" in explorer("tune", "--shapes", path).err


def test_without_a_gpu_nothing_is_tuned(explorer, tmp_path):
    ran = explorer("tune", "--cols", "4096")
    assert ran.code == 2 and "tuning needs a GPU, and there is none" in ran.err
    assert "explorer search replays what explorer recordings lists" in ran.err
    assert not (tmp_path / "studies").exists()


# ------------------------------------------------------------------ a run


class Benches:
    """A GPU that takes what the model says; problem number `stop_at` raises `error`."""

    stop_at = None
    error = KeyboardInterrupt()
    throttled = ""

    def __init__(self):
        self.gpu = FakePeerBench().gpu
        self.opened = 0

    @contextmanager
    def on(self, problem):
        self.opened += 1
        if self.opened == self.stop_at:
            raise self.error
        bench = FakePeerBench(problem)
        made = replace(
            bench.environment,
            throttle_reasons=self.throttled,
            template_digest=template_version(problem),
        )
        kind = type("Bench", (FakePeerBench,), {"environment": made})
        yield kind(problem)

    def compile_ahead(self, problem, configs):
        return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    (tmp_path / "studies").mkdir()
    benches = Benches()
    opener = "explorer.evaluate.open_evaluator.open_peer_benches"
    monkeypatch.setattr(opener, lambda *_, **__: benches)
    return benches


RUN = ("tune", "--cols", "2048,4096", "--rows", "512", "--effort", "quick")


def test_a_run_ends_with_a_table_that_is_added_to(explorer, gpu):
    ran = explorer(*RUN)
    assert ran.code == 0, ran.err
    (path,) = Path("studies/tuned").iterdir()  # no journal is left
    assert "softmax f32 512x4096" in ran.out and "1.500 ×" in ran.out and str(path) in ran.out
    data = json.loads(explorer(*RUN[:2], "1024", *RUN[3:], "--json").out)
    assert [one["problem"]["cols"] for one in data["problems"]] == [1024]
    assert data["problems"][0]["torch_over_best"] == pytest.approx(1.5, rel=0.01)
    assert [one.problem.cols for one in read_table(path).problems] == [1024, 2048, 4096]


def test_log_probs_are_tuned_with_what_is_asked_for_beside_them(explorer, gpu):
    ids = ("--op", "log_prob", "--ids-per-row", "2", "--also", "lse,rank")
    ran = explorer(*RUN, *ids, "--json")
    assert ran.code == 0, ran.err
    problems = [one["problem"] for one in json.loads(ran.out)["problems"]]
    assert [(one["ids_per_row"], one["also"]) for one in problems] == [(2, "lse,rank")] * 2
    for words in (("--also", "lse"), ("--ids-per-row", "2")):  # of softmax
        ran = explorer(*RUN, *words)
        assert ran.code == 2 and len(ran.err.strip().splitlines()) == 1, ran.err


def test_ctrl_c_keeps_what_was_tuned_and_the_same_command_goes_on(explorer, gpu):
    gpu.stop_at = 2
    ran = explorer(*RUN)
    assert ran.code == 130 and "the same command goes on" in ran.err
    (table,) = Path("studies/tuned").glob("*.json")
    assert [one.problem.cols for one in read_table(table).problems] == [2048]
    again = explorer(*RUN, "--json")
    assert again.code == 0 and json.loads(again.out)["resumed"] == 1 and gpu.opened == 3
    assert [one.problem.cols for one in read_table(table).problems] == [2048, 4096]


def test_a_table_is_filled_up_with_what_is_missing(explorer, gpu):
    explorer(*RUN)
    filled = json.loads(explorer(*RUN[:2], "2048,1024,4096", *RUN[3:], "--missing", "--json").out)
    assert gpu.opened == 3 and filled["resumed"] == 2
    assert [one["problem"]["cols"] for one in filled["problems"]] == [1024, 2048, 4096]
    explorer(*RUN[:-1], "default", "--missing")
    assert gpu.opened == 5  # those of the table were tuned with less effort


def test_a_run_that_asks_otherwise_does_not_go_on_with_another_one_s(explorer, gpu):
    gpu.stop_at = 2
    explorer(*RUN)
    again = explorer(*RUN[:-1], "default", "--json")
    assert json.loads(again.out)["resumed"] == 0
    (table,) = Path("studies/tuned").glob("*.json")
    assert {one.effort for one in read_table(table).problems} == {"default"}


def test_what_could_not_be_tuned_is_said_and_tried_again(explorer, gpu):
    gpu.stop_at, gpu.error = 2, InvalidInput("it needs 90 GB, and the GPU has 80 GB free")
    ran = explorer(*RUN)
    assert ran.code == 0 and "not measured: softmax f32 512x4096: it needs 90 GB" in ran.err
    assert "1 problem; stderr says why" in " ".join(ran.out.split())
    assert json.loads(explorer(*RUN, "--json").out)["resumed"] == 1


def test_a_throttled_gpu_is_said_and_marked(explorer, gpu):
    gpu.throttled = "SW_POWER_CAP"
    ran = explorer(*RUN)
    assert ran.code == 0 and "throttled: softmax f32 512x2048: SW_POWER_CAP" in ran.err
    (table,) = Path("studies/tuned").glob("*.json")
    assert "was measured while the GPU was throttled" in explorer("table", "check", table).out


def test_a_table_of_another_gpu_is_left_alone(explorer, gpu):
    text = (TABLES / "nvidia-h100-80gb-hbm3.json").read_text()
    Path("other.json").write_text(text)
    ran = explorer(*RUN, "--output", "other.json")
    assert ran.code == 2 and "is of another GPU" in ran.err
    assert Path("other.json").read_text() == text


# ------------------------------------------------------------------ tables


@pytest.mark.parametrize("folder", [TABLES, HELD_OUT], ids=lambda folder: folder.name)
def test_the_lists_of_problems_are_read_as_they_are_written(folder):
    path = folder / "problems.csv"
    problems = listed(shapes=path)
    assert path.read_text() == text_of(problems) and len(set(problems)) == len(problems)
    assert folder == TABLES or problems == held_out()


@pytest.mark.parametrize(("name", "of_list"), [("losses", losses), ("attention", caches)])
def test_sixty_problems_are_listed_and_a_committed_table_has_all_of_them(name, of_list):
    problems = listed(shapes=TABLES / f"{name}.csv")
    assert problems == of_list() and len(set(problems)) == 60
    table = read_table(TABLES / name / "nvidia-h200.json")
    assert {one.problem for one in table.problems} == set(problems)


@pytest.mark.parametrize("path", [*TABLES.glob("*.json"), *HELD_OUT.glob("*.json")], ids=str)
def test_the_tables_that_come_with_the_package_are_sound(path, explorer):
    """What they lack is problems alone: all was verified, none was wrong, no GPU was throttled."""
    table = read_table(path)
    wanted = set(listed(shapes=path.parent / "problems.csv"))
    assert table.problems and {one.problem for one in table.problems} <= wanted
    for one in table.problems:
        assert one.timed and not one.failed and not one.environment.throttle_reasons
        assert one.best.config in {t.config for t in one.timed}
    text = (TABLES / "README.md").read_text()
    name = str(path.relative_to(TABLES))
    kernels = sum(len(one.timed) for one in table.problems)
    counts = f"| {len(table.problems)} of {len(wanted)} | {kernels} | 0 |"
    assert f"| `{name}` | {table.gpu.name} {counts}" in text


def test_a_table_is_not_checked_by_a_list_without_a_problem(explorer, tmp_path):
    (tmp_path / "hdr.csv").write_text("rows,cols\n")
    for words in (("table", "check", "nvidia-h200", "--problems"), ("tune", "--shapes")):
        ran = explorer(*words, "hdr.csv")
        assert ran.code == 2 and ran.err == (
            "error: hdr.csv names no problem; give a line for each after the first\n"
        )


@pytest.mark.exhaustive
def test_a_table_is_shown_and_checked(explorer, tmp_path):
    path = HELD_OUT / "nvidia-h200.json"
    ran = explorer("table", "show", path)
    assert ran.code == 0 and "1.032 ×" in ran.out and "2815 verified" in ran.out
    data = json.loads(explorer("table", "show", path, "--json").out)
    assert len(data["problems"]) == 60 and data["problems"][0]["evaluated"] > 20
    ran = explorer("table", "check", path, "--problems", HELD_OUT / "problems.csv")
    older = "each was tuned with other templates or another space than this version's"
    assert (ran.code == 0 and "nothing keeps this table" in ran.out) or older in ran.out
    for named in (path, os.path.relpath(path), "held-out/nvidia-h200"):
        assert explorer("table", "check", named).out == ran.out  # of the list that lies beside it
    own = tmp_path / "mine.json"
    own.write_text(path.read_text())
    ran = explorer("table", "check", own)
    assert ran.code == 1 and "989 of 989 problems are missing" in ran.out


@pytest.mark.exhaustive
def test_tables_of_the_package_are_listed_and_named_anywhere(explorer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = json.loads(explorer("table", "list", "--json").out)["tables"]
    assert {one["name"] for one in listed} >= {"nvidia-h200", "held-out/nvidia-h200"}
    printed = explorer("table", "list").out
    rows = explorer("table", "list", "--csv").out.splitlines()[1:]
    for one, row in zip(listed, rows, strict=True):
        assert one["name"] in printed and row.startswith(f"{one['name']},{one['gpu']},")
        assert one["problems"] == len(read_table(one["name"]).problems) > 0
    shown = explorer("table", "show", "held-out/nvidia-h200")
    assert shown.code == 0 and "2815 verified" in shown.out
    said = " ".join(shown.out.split())
    assert (
        "The heuristic of the day of the measurement took 1.032 × the time of the best in "
        "geometric mean, 1.237 × at worst; explorer guide slow-cases has today's." in said
    )
    copied = tmp_path / "mine.json"
    copied.write_bytes((HELD_OUT / "nvidia-h200.json").read_bytes())
    assert "slow-cases" not in explorer("table", "show", copied).out
    ran = explorer("table", "show", "held-out/nvidia-h201")
    assert ran.code == 2 and "explorer table list" in ran.err


def test_gains_are_what_the_readme_says():
    """The heuristic's loss of then, as the README's rows have it."""
    for name in heuristic_losses.TABLES:
        gains = [one.gain for one in heuristic_losses.table_of(name).problems]
        row = next(row for row in (TABLES / "README.md").read_text().splitlines() if name in row)
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[4:6] == [f"{heuristic_losses.mean(gains):.3f}", f"{max(gains):.3f}"], name


def test_a_file_of_the_name_of_a_shipped_table_is_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = read_table("held-out/nvidia-h200")
    write_table(replace(table, problems=table.problems[:2]), Path("nvidia-h200"))
    assert len(read_table("nvidia-h200").problems) == 2


def test_each_fault_of_a_table_is_said_once(explorer, tmp_path):
    table = read_table(HELD_OUT / "nvidia-h200.json")
    first, second, third, *rest = table.problems
    throttled = replace(first.environment, throttle_reasons="SW_POWER_CAP", driver="1.2")
    wrong = replace(
        second,
        failed={second.timed[0].config: "verify: relative error 0.5"},
        timed=second.timed[1:],
    )
    changed = [
        replace(first, environment=throttled),
        wrong,
        replace(third, environment=replace(third.environment, timing="warm")),
    ]
    path = tmp_path / "table.json"
    write_table(replace(table, problems=(*changed, *rest[1:])), path)
    ran = explorer("table", "check", path, "--problems", HELD_OUT / "problems.csv", "--json")
    assert ran.code == 1
    faults = {fault["fault"]: fault["problems"] for fault in json.loads(ran.out)["faults"]}
    said = " ".join(faults)
    assert "1 of 60 problems are missing" in faults
    for one in ("throttled", "not timed cold", "wrong, crashes", "drivers differ"):
        assert one in said
    named = next(problems for fault, problems in faults.items() if "throttled" in fault)
    assert named == [first.problem.as_dict()]


def test_a_file_that_is_no_table_is_said(explorer, tmp_path):
    path = tmp_path / "table.json"
    for text in ("{}", "[]", '{"format":9}'):
        path.write_text(text)
        ran = explorer("table", "check", path)
        assert ran.code == 2 and "is no tuned table of this version" in ran.err
    assert explorer("table", "show", tmp_path / "absent.json").code == 2
