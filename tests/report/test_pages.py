"""Pages of HTML: what they hold, that they load nothing, and what is said where data is missing."""

import json
import re
import shlex
import shutil
import zlib
from base64 import b64decode
from dataclasses import replace
from html import unescape
from math import log1p
from pathlib import Path

import pytest

pytest.importorskip("altair", reason="charts need the extra softmax-explorer[report]")
pytest.importorskip("vl_convert", reason="charts need the extra softmax-explorer[report]")

from replays import replay

from explorer.codegen.units import emit
from explorer.devices.recording import load_recording
from explorer.model.outcome import TrialRecord
from explorer.model.query import ProblemQuery
from explorer.model.tuned_table import read_table
from explorer.report import charts
from explorer.report.compare import (
    beside_limit,
    contender_names,
    read_compared,
    share_rows,
    shares_figure,
)
from explorer.report.journey import journey_picture, read_journey
from explorer.report.page import Figure, Section, command, page_html, prose_html, table_html
from explorer.report.pages import (
    LEAST_KERNELS,
    MOST_DRAWN,
    _beside_others,
    _values_figure,
    best_of_values,
    first_times_words,
    kept_pages,
    kernel_rows,
    progress_rows,
    spent_seconds,
    study_lead,
)
from explorer.report.pages import study_page as page_of_study
from explorer.report.table import Table, numbers, prose, words
from explorer.report.tune import family_losses, kinds, neighbour_losses, times_of
from explorer.tuning.results import Attempt
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage
from explorer.tuning.study_reader import load_history

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "studies" / "results"
TUNED = ROOT / "studies" / "tuned"
RECORDING = "h200-f32-4096"
MOST_BYTES = 600_000
"""Of a page. The program that draws charts takes 410 kB of it, and a winner's source 85 kB."""

TABLE_BYTES, PROBLEM_BYTES = 500_000, 250
"""What a page of a tuned table may have at most: so much, and so much more for each problem."""


@pytest.fixture(scope="module")
def history(once):
    """A replayed search of 31 kernels."""

    def fill(folder):
        storage = open_storage(str(folder / "studies.db"))
        # By seed 3 the kernel of the least first time is not the one that wins the finals.
        run_search(replay(load_recording(RECORDING)), storage, trials=31, seed=3)

    storage = open_storage(str(once("report-study", fill) / "studies.db"), read_only=True)
    return load_history(storage, ProblemQuery(4096))


@pytest.fixture(scope="module")
def study_page(history):
    return page_html("A study", study_lead(history), page_of_study(history).sections)


@pytest.fixture(autouse=True, scope="module")
def one_bundle(once):
    """Bundle the script once: it takes a second."""
    folder = once("report-bundle", lambda folder: (folder / "js").write_text(charts.script()))
    bundle = (folder / "js").read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("explorer.report.page.script", lambda: bundle)
        yield


def page_of(path):
    kept = kept_pages([str(path)])[0]
    return page_html(kept.title, kept.lead, kept.sections)


def text_of(page):
    """What a reader sees: no scripts, no styles, no marks."""
    shown = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", shown)).split())


def figures_of(page):
    return json.loads(unpacked(page, "drawn"))["figures"]


def unpacked(page, name):
    """The text of a compressed element."""
    packed = re.search(rf'<script type="text/plain" id="{name}">([\w+/=]*)</script>', page)[1]
    return zlib.decompress(b64decode(packed)).decode()


# ------------------------------------------------------------------ every page


def check_page(page, most=MOST_BYTES):
    """What is true of every page: small, whole, with titles, and nothing comes from elsewhere."""
    assert len(page.encode()) < most
    head, _, _ = page.partition("<script")
    assert "default-src 'none'" in head
    loaders = r"<(link|img|iframe|object|embed|base)\b|@import|url\("
    assert not re.search(loaders, page.split("<main>")[0])
    assert not re.search(r"<script[^>]*\bsrc=", page)
    assert page.count("<h1>") == 1
    assert '<html lang="en">' in page and "<title>" in page
    specs = [figure["spec"] for figure in figures_of(page)]
    assert specs
    for spec in specs:
        assert len(spec["description"]) > 40
        assert "url" not in json.dumps({k: v for k, v in spec.items() if k != "$schema"})
    assert page.count('class="chart"') == len(specs)
    assert "></th>" not in page  # a column without a heading
    shown = [text_of(page).partition("#ifndef")[0], json.dumps(specs)]
    assert not [text for text in shown if re.search(r"\{\w+[([.}]", text)]  # a forgotten f
    assert not re.search(r"\b(nan|inf|None) (µs|%|ulp|×)", text_of(page))


def test_a_page_of_a_study_holds_all_its_sections(study_page):
    check_page(study_page)
    main = study_page.partition("<main>")[2].partition("</main>")[0]
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", main)
    assert titles == [
        "What was found",
        "The finals",
        "What the parameters do",
        "What the kernel does",
        "Time and error",
        "How the search went",
        "The source",
        "Environment",
    ]


def test_a_page_of_a_study_says_what_it_found(study_page, history):
    text, held = text_of(study_page), history.view.best.outcome.resources.resident_blocks
    for wanted in (
        history.view.best.config.exp,
        "% of the speed of copy",
        "within 1 % of the fastest",
        "took to compile, to verify and to time on the GPU was not recorded",
        "× as fast as PyTorch and level with triton-tuned, in another run",
        "% of the instructions for which the SMs have time, so that it is bound by memory.",
        "4.00 bytes an element, of which 4.00 are needed",
        "pairs of fast kernels",
        f"block{'s' * (held > 1)} resident on an SM. An SM holds {held if held > 1 else 'one'} of",
        history.view.environment.driver,
        history.view.environment.template_digest,
        "__global__",
    ):
        assert wanted in text, wanted
    assert "A search times none" not in text


def test_where_no_comparison_is_of_the_problem_it_is_said_how_to_make_one(history):
    unknown = replace(history.view.environment, gpu="NVIDIA T4")
    text = text_of_study(replace(history, view=replace(history.view, environment=unknown)))
    assert "A search times none. explorer compare" in text and "PyTorch" not in text


def test_a_library_is_about_as_fast_where_two_runs_cannot_tell_it_from_ours(history):
    beside = beside_limit(history.view.summary.problem, history.view.environment)
    fastest = beside.best.time_us / beside.limit_time_us
    for ratio, said in ((1.019, "level with"), (1.03, "1.03 × as fast as")):
        assert f" and {said} {beside.best.name}, in" in _beside_others(beside, ratio / fastest)[2]


@pytest.mark.parametrize(
    "path",
    [
        RESULTS / "compare-h200-f32.json",
        RESULTS / "compare-h200-bf16.json",
        RESULTS / "journey-h200-f32-4096.json",
    ],
    ids=lambda path: path.name,
)
@pytest.mark.sampled(2)
def test_a_page_of_what_is_committed(path):
    check_page(page_of(path))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "path",
    [TUNED / "nvidia-h200.json", TUNED / "held-out" / "nvidia-h200.json"],
    ids=lambda path: path.name,
)
def test_a_page_of_a_committed_table_grows_little_with_its_problems(path):
    problems = len(read_table(path).problems)
    check_page(page_of(path), TABLE_BYTES + PROBLEM_BYTES * problems)


# ------------------------------------------------------------------ figures that are computed


def test_kernels_are_ranked_and_the_best_and_ties_are_marked(history):
    rows = kernel_rows(history)
    assert [row["rank"] for row in rows] == list(range(1, len(history.measured) + 1))
    assert rows[0]["above_best"] == 0
    assert sorted(row["time_us"] for row in rows) == [row["time_us"] for row in rows]
    best = [row["trial"] for row in rows if row["kind"] == "the best"]
    assert best == [history.view.best.number]
    ties = {f.trial.number for f in history.view.finals.ties} - set(best)
    assert {row["trial"] for row in rows if row["kind"] == "tie"} == ties


def test_the_best_so_far_is_a_staircase_to_the_best(history):
    own = progress_rows(history)
    heights = [row["above_limit"] for row in own]
    assert heights == sorted(heights, reverse=True)
    assert own[-1]["trial"] == history.attempts[-1].number
    assert heights[-1] == min(row["above_limit"] for row in kernel_rows(history))


def test_seconds_are_of_trials_and_between_them_but_not_of_pauses(history):
    from datetime import datetime, timedelta

    began = datetime(2026, 3, 4, 5, 6)
    trial = history.measured[0]
    starts = (0.0, 2.0, 3600.0)
    attempts = tuple(
        Attempt(n, trial, began + timedelta(seconds=at), 1.5) for n, at in enumerate(starts)
    )
    spent = spent_seconds(replace(history, attempts=attempts))
    assert spent == pytest.approx({"kernels that were measured": 4.5, "between trials": 0.5})
    unknown = tuple(replace(one, started=None) for one in attempts)
    assert spent_seconds(replace(history, attempts=unknown)) == {}


def test_a_family_loses_nothing_where_it_is_the_best_and_neighbours_lose_what_was_timed():
    problems = next(iter(kinds(read_table(TUNED / "nvidia-h200.json")).values()))
    assert min(row["value"] for row in family_losses(problems)) >= 0
    rows, pairs = neighbour_losses(problems)
    assert 0 < len(rows) <= pairs == 2 * len(problems)
    by_name = {str(one.problem): one for one in problems}
    for row in rows[:5]:
        one, other = by_name[row["problem"]], by_name[row["neighbour"]]
        times = times_of(one)
        assert row["loss"] == pytest.approx(
            100 * (times[other.best.config] / min(times.values()) - 1)
        )


@pytest.mark.exhaustive
def test_families_whose_names_have_commas_are_told_apart_by_semicolons():
    figures = [
        block
        for section in kept_pages(["nvidia-h200"])[0].sections
        for block in section.blocks
        if isinstance(block, Figure) and block.title.startswith("Best family")
    ]
    assert figures
    for figure in figures:
        told = figure.says.partition(": ")[2].removesuffix(".")
        assert all(entry.rpartition(" on ")[2].isdigit() for entry in told.split("; "))


def test_shares_are_copys_time_over_each_time():
    one = read_compared(RESULTS / "compare-h200-f32.json").comparisons[0]
    rows = share_rows([one])
    assert [row["who"] for row in rows] == ["ours", *(peer.name for peer in one.peers)]
    assert rows[0]["share"] == pytest.approx(100 * one.limit_time_us / one.time_us, abs=0.01)


def test_a_mean_of_fewer_shapes_says_of_how_many():
    run = read_compared(RESULTS / "compare-h200-f32.json")
    says = shares_figure("softmax f32", run.comparisons, contender_names(run)).says
    assert "torch 42 %, torch-compile 56 %" in says
    assert "quack 80 % (of 19 shapes), liger 49 % (of 19 shapes)" in says


def test_values_that_few_kernels_have_are_told_but_not_ranked(history):
    every, ranked = best_of_values(history), best_of_values(history, LEAST_KERNELS)
    assert [row for row in every if row["kernels"] < LEAST_KERNELS]
    assert ranked and min(row["kernels"] for row in ranked) == LEAST_KERNELS
    figure = _values_figure(ranked, every)
    few = sum(row["kernels"] < LEAST_KERNELS for row in every)
    assert f"{few} of {len(every)} values are not ranked" in figure.says
    assert len(figure.table.rows) == len(every)
    drawn = {row["label"] for row in drawn_values(figure.chart)}
    assert drawn and drawn <= {row["label"] for row in ranked}
    assert "bad choice" not in text_of_study(history)


def test_the_axes_of_a_roofline_say_of_what_and_in_which_unit():
    points = [{"intensity": 0.1, "gips": 300.0, "who": "the best kernel"}]
    drawn = charts.roofline_chart(points, [{"line": "copy", "gbps": 4000.0}], 1000.0).to_dict()
    across, upwards = (drawn["layer"][0]["encoding"][axis]["title"] for axis in "xy")
    assert (across, upwards) == (
        "warp instructions for each byte",
        "10⁹ warp instructions a second",
    )


# ------------------------------------------------------------------ what a study does not hold


def text_of_study(history):
    return text_of(page_html("A study", "", page_of_study(history).sections))


def test_what_a_study_does_not_hold_is_said_and_not_invented(history):
    measured = history.measured[:3]
    bare = tuple(
        Attempt(n, replace(t, outcome=replace(t.outcome, max_ulp=None)), None, 0.0)
        for n, t in enumerate(measured)
    )
    view = replace(
        history.view,
        finals=None,
        best=measured[0],
        contrasts=(),
        unpaired=(),
        effects=(),
        rejected={},
        reasons=(),
        environment=replace(history.view.environment, limit_us=0.0),
    )
    text = text_of_study(replace(history, view=view, attempts=bare))
    for sentence in (
        "No search of this study came to its finals, so ties are not known.",
        "no kernels were timed in turn",
        "Too few kernels were measured to tell what a parameter does by itself.",
        "The errors of these kernels in ulps were not recorded.",
        "No trial was rejected.",
        "The study does not say when its trials began and ended.",
        "Copy was not timed.",
    ):
        assert sentence in text, sentence


@pytest.mark.exhaustive
def test_a_large_study_still_fits(history):
    """Five thousand trials: the fastest are all drawn, of the others every n-th."""
    many = tuple(
        Attempt(n, TrialRecord(n, t.config, t.outcome), None, 0.0)
        for n, t in enumerate(history.measured * (5000 // len(history.measured)))
    )
    large = replace(history, attempts=many)
    sections = [
        s for s in page_of_study(large).sections if s.title.startswith(("What was", "Time and"))
    ]
    page = page_html("A study", "", sections)
    assert len(page.encode()) < MOST_BYTES
    drawn = max(len(rows) for rows in figures_of(page)[0]["spec"]["datasets"].values())
    assert MOST_DRAWN / 2 < drawn <= MOST_DRAWN
    assert "kernels are drawn" not in text_of_study(history)


def test_the_least_study_has_a_page(history):
    """One trial, measured."""
    one = history.attempts[0]
    view = replace(
        history.view, finals=None, best=one.trial, contrasts=(), unpaired=(), effects=(), reasons=()
    )
    text = text_of_study(replace(history, view=view, attempts=(one,)))
    assert "Of 1 measured kernels, 1 are within 1 %" in text or "1 measured kernel" in text
    assert "All measured kernels have the same parameters." in text


# ------------------------------------------------------------------ HTML


def test_half_a_character_of_a_database_is_written():
    section = Section("half \ud800 a character", ["\udfff"])
    assert "half \\ud800 a character" in page_html("p", "", [section]).encode().decode()


def test_text_cannot_become_markup():
    table = Table([*words("<b>"), *numbers("n")])
    table.add("</script><script>alert(1)</script>", "1")
    rows = [{"label": "</script><b>", "value": 1, "told": "1"}]
    figure = Figure("t", "an <img src=x> of one bar", charts.bars_chart(rows, "n"))
    section = Section("<i>title</i>", ["</p><script>alert(2)</script>", table, figure])
    page = page_html("</title><script>alert(3)</script>", "<u>", [section])
    for mark in ("<script>alert", "<img", "<u>", "<i>", "</title><"):
        assert mark not in page, mark
    assert "&lt;b&gt;" in table_html(table)


def test_commands_are_code_and_no_line_ends_before_a_unit():
    said = prose_html("97.9 % of copy in 66.35 µs & 3 kernels: `explorer report --from FILE`.")
    assert said == (
        "97.9\xa0% of copy in 66.35\xa0µs &amp; 3 kernels: "
        '<code class="short">explorer report --from FILE</code>.'
    )
    assert prose_html("give --cols 4096") == 'give <code class="short">--cols</code> 4096'
    long = "explorer emit 41 --cols 4096 --rows 8192"
    assert prose_html(f"`{long}`") == f"<code>{long}</code>"
    assert prose_html("1 small, 2 bits, a--b `<i>`") == (
        '1 small, 2 bits, a--b <code class="short">&lt;i&gt;</code>'
    )
    assert command("explorer emit 41 --mask-rows 8") == (
        '<pre class="command" tabindex="0"><code>explorer emit 41 '
        '<span class="short">--mask-rows</span> 8</code></pre>'
    )


@pytest.mark.exhaustive
def test_a_long_table_is_folded_below_what_it_comes_to():
    page = page_of(TUNED / "nvidia-h200.json")
    section = page.partition("The best kernel of each problem</h2>")[2].partition("</section>")[0]
    first, folded, table = section.partition("<details><summary>")
    assert folded and "% in the median over" in text_of(first)
    assert table.startswith("The best kernel of each problem, with its time (988 rows)</summary>")
    assert table.count("<tr>") == 989
    short = Table([*words("a")])
    short.add("b")
    assert "<details>" not in page_html("p", "", [Section("s", [short])])


def test_a_table_keeps_each_heading_once_for_the_blocks_of_a_narrow_window():
    table = Table([*words("it's; \\"), *numbers("µs", "1", "2", "3")])
    table.add("a", "b", "c", "d", "e")
    made = table_html(table)
    kept = re.search(r'class="stack [^"]*" style="--label-1:\'([^\']*)\';', made)[1]
    marks = re.findall(r"\\([0-9a-f]+) ", kept)
    assert "".join(chr(int(mark, 16)) for mark in marks) == "it's; \\"
    few = Table([*numbers("µs", "2")])
    few.add("1", "2")
    assert "stack" not in table_html(few)


def test_a_table_says_once_of_what_kind_each_column_is():
    table = Table([*words("a"), *numbers("µs"), prose("from")])
    table.add("<b>", "1", "`x`")
    table.add("", "2", "y")
    made = table_html(table)
    assert 'class="stack word-1 number-2 prose-3"' in made
    rows = '<tr><td>&lt;b&gt;<td>1<td><code class="short">x</code><tr><td><td>2<td>y'
    assert f"<tbody>{rows}</tbody>" in made
    page = page_html("p", "", [Section("s", [table])])
    assert ".number-2 :nth-child(2)" in page and " CELLS" not in page


def test_a_page_says_once_what_first_times_are_and_why_the_finals_count(history):
    from explorer.tuning.study_attributes import note_of, why_finals_count

    finals, problem = history.view.finals, history.view.summary.problem
    first = min(history.measured, key=lambda trial: trial.outcome.time_us)
    assert first.number != finals.winner.trial.number  # else this shows nothing
    why = why_finals_count(finals)
    assert why in note_of(finals, problem, first)

    text = text_of_study(history)
    assert text.count(why) == 1 and text.count("by first times") >= 1
    said = first_times_words(history)
    for trial, us in (
        (first.number, first.outcome.time_us),
        (finals.winner.trial.number, finals.winner.time_us),
    ):
        assert f"trial {trial}" in said and f"{us:.2f} µs" in said
    assert "in the finals" in study_lead(history)
    one_after_another = replace(finals, interleaved=False)
    assert "in turn" not in why_finals_count(one_after_another)
    without = replace(history, view=replace(history.view, finals=None))
    assert "finals" not in first_times_words(without) + study_lead(without)


# ------------------------------------------------------------------ the command


@pytest.fixture
def explorer(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from explorer.cli import app

    monkeypatch.chdir(tmp_path)

    def run(*args):
        return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="explorer")

    return run


def command_of(page):
    """The words of the first command that a page shows, after `explorer`."""
    shown = re.search(r'<pre class="command"[^>]*>(.*?)</pre>', page)[1]
    return shlex.split(unescape(re.sub(r"<[^>]*>", "", shown)))[1:]


def test_the_command_of_a_study_works_where_the_study_is_not(explorer, study_page, history):
    words = command_of(study_page)
    assert words[:2] == ["emit", history.view.best.config.to_json(brief=True)]
    result = explorer(*words, "--no-verify", "--output", "-")
    assert result.exit_code == 0, result.stderr
    assert emit(history.view.summary.problem, history.view.best.config).source in result.stdout


@pytest.mark.exhaustive
def test_the_command_writes_one_page_of_a_study_and_a_comparison(explorer, once, tmp_path):
    folder = once("report-study", lambda folder: pytest.fail("the study is made before"))
    shutil.copy(folder / "studies.db", tmp_path / "studies.db")
    compared = RESULTS / "compare-h200-compiled-f32.json"
    words = ["--cols", "4096", "--storage", "studies.db", "--from", compared]
    result = explorer("report", *words, "--output", "both.html")
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "both.html").read_text()
    check_page(page)
    assert "Share of copy" in page and "What the kernel does" in page
    assert page.count('id="program"') == 1 and "vegaEmbed=" in unpacked(page, "program")


OF_F32 = RESULTS.parent / "recorded" / "h200-f32-4096.json.gz"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to report on"),
        (["--cols", "4096", "--output", "report.pdf"], "name a file that ends in .html"),
        (["--from", "nothing.json"], "nothing.json cannot be read"),
        (["--from", "other.json"], "is none of the files that a report shows"),
        (["--from", "torn.json"], "torn.json is not JSON (line 1, column 18); name a comparison"),
        (["--cols", "31"], "no study yet"),
        (
            ["--from", OF_F32],
            f"--cols 4096 --rows 8192 --dtype f32 --device recorded:{OF_F32}",
        ),
        (["--from", OF_F32], "and then explorer report --cols 4096 --rows 8192 --dtype f32"),
        (["--from", "torn.json.gz"], "recording torn.json.gz is damaged or no recording"),
    ],
)
def test_bad_input_gets_one_sentence(explorer, tmp_path, words, said):
    (tmp_path / "other.json").write_text('{"something": 1}')
    (tmp_path / "torn.json").write_text('{"comparisons": [')
    (tmp_path / "torn.json.gz").write_text("no gzip")
    result = explorer("report", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.glob("*.html"))


def test_a_shipped_table_is_named_as_table_list_does_and_fewer_files_need_several(
    explorer, tmp_path, monkeypatch
):
    monkeypatch.setattr("explorer.cli.studies.LARGE_MB", 0)
    monkeypatch.setattr("explorer.report.page.script", lambda: "")
    ran = explorer("report", "--from", "held-out/nvidia-h200")
    assert ran.exit_code == 0 and ran.stderr.endswith(" MB\n"), ran.stderr
    assert "NVIDIA H200" in (tmp_path / "report.html").read_text()
    compared = RESULTS / "compare-h200-f32.json"
    ran = explorer("report", "--from", "held-out/nvidia-h200", "--from", compared)
    assert ran.stderr.endswith(" MB; a page of fewer files is smaller\n")


def test_without_the_extra_one_sentence_names_it(explorer, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    result = explorer("report", "--from", RESULTS / "compare-h200-f32.json")
    assert result.exit_code == 2
    assert "pip install '.[report]'" in result.stderr


# ------------------------------------------------------------------ pictures


JOURNEY = RESULTS / "journey-h200-f32-4096.json"


def drawn_values(chart):
    """The rows of a chart's largest dataset."""
    return max(chart.to_dict()["datasets"].values(), key=len)


def test_a_journey_has_a_row_for_each_kernel_and_the_fastest_can_be_told_apart():
    journey = read_journey(JOURNEY)
    rows = drawn_values(journey_picture(journey))
    assert [row["label"] for row in rows] == [step.name for step in journey.steps]
    values = [row["value"] for row in rows]
    assert values == sorted(values, reverse=True)

    def place(above):  # of a symlog scale: linear below half a per cent
        return log1p(above / 0.5)

    last_third = rows[-len(rows) // 3 :]
    first, last = place(last_third[0]["value"]), place(last_third[-1]["value"])
    share = (first - last) / place(values[0])
    assert share > 0.2  # of the axis; on a linear axis it would be a hundredth


@pytest.mark.exhaustive
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_pictures_are_written_for_what_is_kept(explorer, tmp_path, ending):
    name = f"it.{ending}"
    result = explorer("journey", "--from", JOURNEY, "--plot", name)
    assert result.exit_code == 0, result.stderr
    assert f"{name}: drawn" in result.stderr
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b"<svg" if ending == "svg" else b"\x89PNG")
    if ending == "svg":
        assert b"search's best" in content and b"fast-softmax-1" in content
        assert b'href="http' not in content


PLOTTED = {
    "search": ["search", "--cols", "4096", "--trials", "31", "--storage", "studies.db"],
    "show": ["show", "--cols", "4096", "--storage", "studies.db"],
    "compare": ["compare", "--from", RESULTS / "compare-h200-compiled-f32.json"],
    "journey": ["journey", "--from", JOURNEY],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("command", ["show", "search", "compare", "journey"])
def test_a_picture_is_drawn_though_nobody_reads_what_is_printed(
    explorer, history, once, tmp_path, monkeypatch, command
):
    from explorer.cli.output import READER_GONE, ReaderGone

    folder = once("report-study", lambda folder: pytest.fail("the fixture made the study"))
    shutil.copy(folder / "studies.db", tmp_path / "studies.db")

    def closed(_):
        raise ReaderGone

    monkeypatch.setattr("explorer.report.text.as_json", closed)
    result = explorer(*PLOTTED[command], "--json", "--plot", "it.svg")
    assert result.exit_code == READER_GONE, result.stderr
    assert (tmp_path / "it.svg").read_text().startswith("<svg")


def test_a_comparison_is_printed_though_it_cannot_be_drawn(explorer, monkeypatch):
    from explorer.model.errors import InvalidInput

    def full(*_):
        raise InvalidInput("it.svg cannot be written: no space")

    monkeypatch.setattr(charts, "write_chart", full)
    result = explorer(*PLOTTED["compare"], "--json", "--plot", "it.svg")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["comparisons"]
    assert "it.svg cannot be written" in result.stderr


def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_done(explorer):
    for asked in (("search", "--cols", "4096"), ("show", "--cols", "4096"), ("compare",)):
        result = explorer(*asked, "--plot", "it.gif")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "name a FILE.svg or a FILE.png" in result.stderr
