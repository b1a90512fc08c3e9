"""Results side by side: two GPUs' comparisons, tables and studies, in one table, chart and page."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import explorer
from explorer.cli import app
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Environment
from explorer.model.problem import Problem
from explorer.model.tuned_table import read_table
from explorer.report.compare import read_compared
from explorer.report.side_by_side import (
    Best,
    Pair,
    beside,
    side_chart,
    side_markdown,
    side_page,
    side_rows,
    side_table,
)
from explorer.tuning.contest import Ratio

STUDIES = Path(__file__).resolve().parents[2] / "studies"
H200, H100 = (str(STUDIES / "results" / f"compare-{gpu}.json") for gpu in ("h200-f32", "h100"))
TABLE = "held-out/nvidia-h200"
RECORDED = ("h200-f32-4096", "h100-f32-4096")


@pytest.fixture(scope="module")
def both():
    """Return the comparisons of two GPUs."""
    return beside([H200, H100])


@pytest.fixture(scope="session")
def database(once):
    """Return a storage with the studies of two GPUs, each of a few recorded kernels."""

    def fill(folder):
        said = {"cols": 4096, "trials": 6, "storage": folder / "two.db", "verify": False}
        for name in RECORDED:
            explorer.search(**said, device=f"recorded:{name}")

    return once("two-gpus", fill) / "two.db"


@pytest.fixture(scope="module")
def other_table(tmp_path_factory):
    """Return a table like the shipped one, of another GPU, on which some kernels are others."""
    text = (STUDIES / "tuned" / f"{TABLE}.json").read_text()
    values = json.loads(text.replace("NVIDIA H200", "NVIDIA H100 80GB HBM3"))
    for one in values["problems"][::2]:
        one["finalists"].reverse()
    path = tmp_path_factory.mktemp("table") / "other.json"
    path.write_text(json.dumps(values))
    return str(path)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run `explorer ARGS` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_each_kernel_is_held_against_the_limit_of_its_own_gpu(both):
    first, second = read_compared(Path(H200)), read_compared(Path(H100))
    problems = {one.problem: one for one in second.comparisons}
    assert [side.label for side in both.sides] == ["H200", "H100"]
    assert len(both.lines) == len(first.comparisons) and both.sides[1].best.keys() == set(problems)
    for one, line in zip(first.comparisons, both.lines, strict=True):
        other = problems[one.problem]
        shares = [each.limit_time_us / each.time_us for each in (one, other)]
        assert [pair.best.of_limit for pair in line.pairs] == shares
        assert line.pairs[1].over_first == pytest.approx(shares[1] / shares[0])
        assert line.pairs[0].over_first == 1 and line.pairs[0].is_tie


def test_a_tie_is_of_intervals_that_meet_within_the_noise():
    made = Environment("A", "sm_90", "1", "1", "cold", "2026-01-01", "x", "y", "0")
    problem = Problem(8, 64)

    def of(low, high, noise=0.0):
        return Best(problem, Config(), 2.0, 1.9, made, Ratio((low + high) / 2, low, high), noise)

    assert Pair("B", of(1.00, 1.02), of(1.02, 1.03)).is_tie
    assert Pair("B", of(1.00, 1.02), of(1.03, 1.04)).is_tie is False
    assert Pair("B", of(1.03, 1.04), of(1.00, 1.02)).is_tie is False
    assert Pair("B", of(1.00, 1.02, 0.01), of(1.03, 1.04)).is_tie
    medians = Best(problem, Config(threads=64), 2.0, 0.0, made)
    apart = Pair("B", medians, of(1.0, 1.1))
    assert apart.is_tie is None and apart.over_first is None and apart.ratio == ""
    assert not apart.is_same_config and "64" in apart.difference


def test_the_rows_have_what_the_table_shows(both):
    table, rows = side_table(both), side_rows(both)
    assert [column.heading for column in table.columns] == [
        "problem",
        "H200 µs",
        "of its copy",
        "H100 µs",
        "of its copy",
        "H100 / H200",
    ]
    assert [row["side"] for row in rows[:2]] == ["H200", "H100"] and len(rows) == 2 * len(
        both.lines
    )
    ratio = table.rows[0][-1]
    assert str(ratio).removesuffix(" =") == f"{rows[1]['of_limit_over_first']:.3f}"
    assert str(ratio).endswith("=") == rows[1]["is_tie"]


def test_tables_of_two_gpus_say_where_the_best_kernels_differ(other_table):
    of = beside([TABLE, other_table])
    assert side_table(of).columns[-1].heading == "H100's differs by"
    assert any(not line.pairs[1].is_same_config for line in of.lines)
    assert "ties: not known" in side_markdown(of) and "one config is the best" in side_markdown(of)
    page = side_page(of)
    assert page.title == "H200 beside H100" and len(page.sections) == 3


def test_results_of_one_gpu_are_told_apart_by_what_names_them(tmp_path):
    kept = json.loads(Path(H200).read_text())
    copy = tmp_path / "later.json"
    copy.write_text(json.dumps(kept))
    assert [s.label for s in beside([H200, str(copy)]).sides] == [
        "H200 compare-h200-f32",
        "H200 later",
    ]
    kept["comparisons"][0]["circumstances"]["date"] = "2030-01-02T00:00:00+00:00"
    copy.write_text(json.dumps(kept))
    assert beside([H200, str(copy)]).sides[1].label == "H200 2030-01-02"
    assert [s.label for s in beside([H200, H200]).sides] == [
        "H200 compare-h200-f32 (1)",
        "H200 compare-h200-f32 (2)",
    ]


def test_three_results_are_each_held_against_the_first(tmp_path):
    later = shutil.copy(H100, tmp_path / "later.json")
    of = beside([H200, H100, str(later)])
    first, second, third = of.lines[0].pairs
    assert second.over_first == third.over_first != 1 == first.over_first
    headings = [column.heading for column in side_table(of).columns]
    (reference,) = {heading.split(" / ")[1] for heading in headings if " / " in heading}
    assert reference == of.sides[0].label and len(of.title.split(" beside ")) == 3


def test_what_has_nothing_in_common_is_refused():
    journey = str(STUDIES / "results" / "journey-h200-f32-4096.json")
    with pytest.raises(InvalidInput, match="is a journey, which has many kernels of one problem"):
        beside([H200, journey])
    with pytest.raises(InvalidInput, match="have no problem in common"):
        beside([H200, str(STUDIES / "results" / "compare-h200-bf16.json")])


def test_there_is_one_chart_for_each_op_and_type_with_a_mark_for_each_gpu(both):
    drawn = max(side_chart(both).to_dict()["datasets"].values(), key=len)
    assert {row["who"] for row in drawn} == {"H200", "H100"}
    assert len({(row["who"], row["problem"]) for row in drawn}) == len(drawn) == 2 * len(both.lines)


# ------------------------------------------------------------------ commands


def test_compare_shows_two_gpus_in_each_form(run):
    words = ("compare", "--from", H200, "--against", H100)
    shown = run(*words)
    assert shown.exit_code == 0, shown.stderr
    assert "H200 beside H100" in shown.stdout and "H100 / H200" in shown.stdout
    assert "nothing is called slower" in shown.stderr
    data = json.loads(run(*words, "--json").stdout)
    assert [side["side"] for side in data["sides"]] == ["H200", "H100"]
    (mean,) = data["geometric_means"]
    assert mean["of"] == "softmax f32" and set(mean["of_limit"]) == {"H200", "H100"}
    csv = run(*words, "--csv").stdout.splitlines()
    assert "of_limit_over_first" in csv[0] and len(csv) == 1 + len(data["rows"])
    assert run(*words, "--markdown").stdout.startswith("**H200 beside H100**")


def test_table_diff_puts_two_tables_side_by_side(run, other_table):
    shown = run("table", "diff", TABLE, other_table)
    assert shown.exit_code == 0 and "H200 beside H100" in shown.stdout, shown.stderr
    refused = run("table", "diff", TABLE, H100)
    assert refused.exit_code == 2 and "is a comparison, not a tuned table" in refused.stderr
    alone = run("compare", "--from", TABLE)
    assert alone.exit_code == 2 and "show it with explorer table show" in alone.stderr


def test_many_problems_side_by_side_are_the_farthest_apart_unless_all_are_wanted(run, other_table):
    words = ("table", "diff", TABLE, other_table)
    few, whole = run(*words).stdout, run(*words, "--all").stdout
    assert "of 60 problems the 5 with the least and the 5 with the greatest ratio" in few
    assert "the least" not in whole and few.split("\nratio ")[1] == whole.split("\nratio ")[1]
    of = beside([TABLE, other_table])
    ranked = sorted(of.lines, key=lambda line: line.pairs[1].over_first)
    rows = side_table(of, whole=False).rows
    assert [row[0] for row in rows] == [str(one.problem) for one in (*ranked[:5], *ranked[-5:])]
    assert len(run(*words, "--csv").stdout.splitlines()) == 1 + 2 * 60
    refused = run("compare", "--cols", "64", "--all")
    assert refused.exit_code == 2 and "--all belongs to --from and --against" in refused.stderr


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("--op", "softmax"), lambda p: p.op == "softmax"),
        (("--dtype", "half,f32"), lambda p: p.dtype in ("f16", "f32")),
        (("--cols", "1:100,4096"), lambda p: p.cols <= 100 or p.cols == 4096),
        (("--rows", "8192", "--dtype", "bf16"), lambda p: p.rows == 8192 and p.dtype == "bf16"),
    ],
)
def test_a_table_is_shown_for_some_problems(run, other_table, words, kept):
    problems = [
        one.problem.as_dict() for one in read_table(Path(TABLE)).problems if kept(one.problem)
    ]
    shown = run("table", "show", TABLE, "--json", *words)
    if not problems:
        assert shown.exit_code == 2 and "has no problem of" in shown.stderr
        return
    assert [one["problem"] for one in json.loads(shown.stdout)["problems"]] == problems
    both = json.loads(run("table", "diff", TABLE, other_table, "--json", *words).stdout)
    assert [one["problem"] for one in both["rows"][::2]] == problems


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--cols", "9:2"), "cols is '9:2'; write a number, or from A to B as 64:4096"),
        (("--cols", "1:2:3"), "cols is '1:2:3'"),
        (("--op", "sofmax"), "op 'sofmax' is not known"),
        (("--cols", "1", "--dtype", "f64"), "has no problem of dtype f64 and cols 1"),
    ],
)
def test_a_filter_of_a_table_that_fits_nothing_is_refused(run, words, says):
    refused = run("table", "show", TABLE, *words)
    assert refused.exit_code == 2 and says in refused.stderr, refused.stderr


def test_two_studies_are_named_by_parts_of_their_names(run, database):
    names = ("--storage", database)
    shown = run("compare", "--from", "H200", "--against", "H100", *names)
    assert shown.exit_code == 0 and "softmax f32 8192x4096" in shown.stdout, shown.stderr
    told = " ".join(shown.stdout.split())
    assert "softmax f32 8192x4096 | NVIDIA H200 | cold" in told
    for named, says in {
        "B200": "B200 is no file and no table of the package, and no study of",
        "NVIDIA": "2 studies have 'NVIDIA' in their names; name one: 'softmax f32",
        "x.json": "x.json cannot be read",
    }.items():
        refused = run("compare", "--from", named, "--against", "H100", *names)
        assert refused.exit_code == 2 and says in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1


@pytest.fixture
def copied(database, tmp_path):
    """Return a copy of the storage, which a test may change."""
    return shutil.copy(database, tmp_path / "copy.db")


def test_a_study_of_the_whole_space_is_meant_before_restricted_ones(run, copied):
    said = {"cols": 4096, "trials": 3, "storage": copied, "verify": False}
    explorer.search(**said, device=f"recorded:{RECORDED[0]}", where={"threads": [256]})
    names = ("--storage", copied)
    shown = run("compare", "--from", "H200", "--against", "H100", *names, "--markdown")
    assert shown.exit_code == 0 and "threads=256" not in shown.stdout, shown.stderr
    restricted = run("compare", "--from", "threads=256", "--against", "H100", *names, "--markdown")
    assert restricted.exit_code == 0 and "threads=256" in restricted.stdout, restricted.stderr


def test_a_report_of_two_of_a_kind_is_one_page(run, database, tmp_path, monkeypatch):
    monkeypatch.setattr("explorer.report.page.script", lambda: "")
    two = ("--from", "H200", "--from", "H100", "--storage", database)
    ran = run("report", *two, "--from", H200)
    assert ran.exit_code == 0, ran.stderr
    page = (tmp_path / "report.html").read_text()
    assert "<h1>H200 beside H100</h1>" in page and "Environment of the comparison" in page
    assert page.count("<h2") == 6


def test_a_study_is_renamed_and_keeps_that_it_is_a_replay(run, copied):
    ran = run("studies", "rename", "H200", "before", "--storage", copied)
    assert ran.exit_code == 0 and "is now 'before'" in ran.stderr
    (study,) = [
        one
        for one in json.loads(run("studies", "--json", "--storage", copied).stdout)["studies"]
        if one["study"] == "before"
    ]
    assert study["replayed"] and study["trials"] == 6
    listed = run("studies", "--storage", copied).stdout
    assert "replayed, named before" in listed and "version" not in listed
    shown = run("show", "--cols", "4096", "--study", "before", "--storage", copied)
    assert shown.exit_code == 0 and "study before" in shown.stdout


@pytest.mark.exhaustive
def test_a_renamed_study_is_meant_alone_and_by_its_name_beside_a_later_search(run, tmp_path):
    kept = str(tmp_path / "a.db")
    said = {"cols": 4096, "device": f"recorded:{RECORDED[0]}", "storage": kept, "verify": False}
    first = explorer.search(**said, trials=3)
    assert run("studies", "rename", first.study, "before", "--storage", kept).exit_code == 0
    of_problem = ("show", "--cols", "4096", "--storage", kept)
    alone = run(*of_problem)
    assert alone.exit_code == 0 and "study before" in alone.stdout
    assert "--study before" in alone.stdout, "a later search would be meant without its name"
    again = explorer.search(**said, trials=4)
    assert (again.study, again.is_one_of_several) == (first.study, False)
    later = run(*of_problem)
    assert later.exit_code == 0 and f"study {first.study}" in " ".join(later.stdout.split())
    by_name = run("show", "--study", "before", "--storage", kept)
    assert by_name.exit_code == 0 and by_name.stdout == alone.stdout


def test_a_study_that_is_named_says_its_problem(run, copied, tmp_path):
    named = ("--study", "H200", "--storage", copied)
    source = run("emit", "best", *named, "--no-verify", "--output", "-")
    assert source.exit_code == 0 and "--cols 4096" in source.stdout, source.stderr
    compared = run("diff", "best", "heuristic", *named, "--show", "none", "--json")
    assert json.loads(compared.stdout)["problem"]["cols"] == 4096
    both = run("emit", "best", "--study", "H200", "--cols", "512", "--storage", copied)
    assert both.exit_code == 2 and "no study of softmax f32 512 cols" in both.stderr
    on_another = run("show", *named, "--gpu", "A100")
    assert on_another.exit_code == 2 and "is of no GPU 'A100'" in on_another.stderr
    several = run("show", "--study", "f32", "--storage", copied)
    assert several.exit_code == 2 and "2 studies have 'f32' in their names" in several.stderr


def test_a_journal_renames_a_study_as_a_database_does(run, tmp_path):
    journal = f"journal:///{tmp_path / 'a.journal'}"
    said = {"cols": 4096, "device": f"recorded:{RECORDED[0]}", "trials": 3, "verify": False}
    explorer.search(**said, storage=journal)
    before = json.loads(run("show", "--cols", "4096", "--storage", journal, "--json").stdout)
    assert run("studies", "rename", "softmax", "mine", "--storage", journal).exit_code == 0
    after = json.loads(run("show", "--cols", "4096", "--storage", journal, "--json").stdout)
    assert after["study"] == "mine" and after["finals"] == before["finals"]
    assert after["trials"] == before["trials"]


def test_a_study_is_deleted_only_by_force(run, copied):
    words = ("studies", "delete", "H100", "--storage", copied)
    asked = run(*words)
    assert asked.exit_code == 2 and "has 6 trials, which are lost for good" in asked.stderr
    assert run(*words, "--force").exit_code == 0
    gone = run(*words, "--force")
    assert gone.exit_code == 2 and "has 'H100' in its name" in gone.stderr
    assert len(json.loads(run("studies", "--json", "--storage", copied).stdout)["studies"]) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rename", "NVIDIA", "x"), "2 studies have 'NVIDIA' in their names"),
        (("rename", "B200", "x"), "has 'B200' in its name; explorer studies lists them"),
        (("rename", "H100", " "), "the new name is ' '; it must be words"),
        (("rename", "H100", "x" * 513), "of 512 characters at most"),
        (("delete", "", "--force"), "has '' in its name"),
    ],
)
def test_a_name_that_fits_none_is_refused_in_a_sentence(run, copied, words, says):
    ran = run("studies", *words, "--storage", copied)
    assert ran.exit_code == 2 and says in ran.stderr, ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_options_of_studies_stand_behind_its_command(run, copied):
    ran = run("studies", "--storage", copied, "delete", "H100")
    assert ran.exit_code == 2 and "give the options of delete after its name" in ran.stderr


def test_the_cache_is_cleared_of_its_own_files_alone(run, tmp_path, monkeypatch):
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path / "cache"))
    kernel, foreign = tmp_path / "cache/kernels/ab/ab1.zip", tmp_path / "cache/kernels/mine.txt"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"x" * 200_000)
    foreign.write_text("mine")
    assert run("cache").stdout.endswith("cache: 1 file, 0.2 MB\n")
    ran = run("cache", "clear")
    assert ran.exit_code == 0 and "1 file, 0.2 MB deleted" in ran.stderr
    assert not kernel.exists() and foreign.exists()
    assert "0 files" in run("cache").stdout
    kernel.write_bytes(b"x" * 1000)
    held = explorer.cache()
    assert (held.path, held.files, held.bytes) == (tmp_path / "cache", (kernel,), 1000)
    assert explorer.cache(clear=True) == held and not explorer.cache().files
