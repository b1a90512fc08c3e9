"""The README and the guides: what they show is what happens, and nothing in them goes unchecked."""

import importlib.util
import re
import shlex
import shutil
import tomllib
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import typer.main
from document_figures import TYPES, compared
from documents import (
    DOCUMENTS,
    GENERATED,
    GUIDES,
    LANGUAGES,
    NEEDS,
    PICTURE,
    RACE,
    ROOT,
    Block,
    Printed,
    Runner,
    adapted,
    blocks,
    commands,
    picture,
    prose,
    race,
    same,
    with_generated,
    with_printed,
)
from typer.testing import CliRunner

from explorer.cli import app
from explorer.report.guides import ORDER

ANEW = "write them anew with python -m tests.documents"
EACH = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
WITH_BLOCKS = {path: {block.needs for block in blocks(path)} for path in DOCUMENTS}


def of_need(need):
    """The documents with blocks that need it."""
    paths = [path for path, needs in WITH_BLOCKS.items() if need in needs]
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Runs a document's blocks on a machine without a driver."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "cli"))
    from command_line import command_line

    return Runner(tmp_path, adapted(command_line(monkeypatch, tmp_path)))


# ------------------------------------------------------------------ what is run and generated


@pytest.mark.sampled(3)
@of_need("")
def test_its_commands_print_what_it_shows(path, runner):
    assert with_printed(path, runner) == path.read_text(), ANEW


@pytest.mark.exhaustive
@of_need("time")
def test_its_slow_commands_print_what_it_shows(path, runner):
    assert with_printed(path, runner, ("", "time")) == path.read_text(), ANEW


@pytest.mark.exhaustive
@of_need("nvcc")
def test_its_commands_run_where_there_is_nvcc(path, runner):
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    with_printed(path, runner, ("nvcc",))


@pytest.mark.sampled(3)
@EACH
def test_its_figures_are_those_of_the_results(path):
    text = path.read_text()
    assert with_generated(text) == text, ANEW


@EACH
def test_no_mark_is_overlooked(path):
    """A mark with a `>` in it would be read as a comment, and nothing would stand after it."""
    text = path.read_text()
    assert len(GENERATED.findall(text)) == text.count("<!-- generated: "), path.name


@EACH
def test_every_block_of_code_is_of_a_kind_that_is_run(path):
    found = blocks(path)
    for block in found:
        assert block.language in LANGUAGES, (
            f"{block.place}: what runs a block of {block.language!r}?"
        )
        assert block.needs in NEEDS, f"{block.place}: which tests have {block.needs}?"
        assert block.language == "python" or commands(block.body), f"{block.place} is empty"
        if block.language == "console":
            assert block.needs in ("", "time"), (
                f"{block.place}: what a GPU prints differs from run to run"
            )
    fences = len(re.findall(r"^ *(```|~~~)", path.read_text(), re.MULTILINE))
    made = len(re.findall(r"^```cuda$", path.read_text(), re.MULTILINE))
    assert fences == 2 * (len(found) + made), f"{path.name} has a fence that is none of its blocks'"


@EACH
def test_no_block_repeats_the_one_before(path):
    """A reader would see the same command twice in a row."""
    for block, later in pairwise(blocks(path)):
        assert not later.body.startswith(block.body), later.place


MEASURED = re.compile(r"[0-9][0-9.,]* ?(?:µs\b|ms\b|GB/s|TB/s|%|×(?! ?[0-9]))")
"""A number with the unit of a measurement."""

SAID = {"100.2 %", "100 %"}
"""In the question why a share of copy may be more than a whole."""


@EACH
def test_every_measured_figure_is_generated(path):
    found = {text.strip() for text in MEASURED.findall(prose(path.read_text()))}
    assert found - SAID - {"1 GB/s"} == set()


@EACH
def test_no_mark_breaks_the_line_that_it_is_in(path):
    """A line that begins with a comment is HTML to Markdown, with all that follows in it."""
    for line in path.read_text().splitlines():
        assert not re.match(r"<!--.*?-->.*\S", line) or line.count("-->") == 1, line
        assert not re.match(r"<!--.*?-->.*[^>\s]$", line), line


WITH_COMMANDS = (
    *DOCUMENTS,
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "studies").glob("*/README.md")),
)
PAGES = sorted({*WITH_COMMANDS, *(ROOT / "studies").rglob("*.md")})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_its_links_lead_somewhere(path):
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", path.read_text()):
        page = path.parent / target if target else path
        assert "://" in target or page.exists(), target
        assert not heading or "://" in target or heading in headings(page), (target, heading)


def headings(page):
    """Return what links call the headings of a page."""
    texts = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text).strip().lower().replace(" ", "-") for text in texts}


@pytest.fixture
def refused(monkeypatch):
    """Says why the program refuses a command line, or nothing: it is parsed, and nothing is run."""

    def idle(**_):
        pass

    program = typer.main.get_command(app)
    for option in program.params:  # those of `--version` and of completion act while they are read
        option.callback = None
    for command in program.commands.values():
        for one in (command, *getattr(command, "commands", {}).values()):
            one.callback = idle
    monkeypatch.setattr("typer.testing._get_command", lambda _: program)

    def why(line):
        words = shlex.split(" ".join(line.split()), comments=True)[1:]
        ends = [words.index(mark) for mark in ("|", "&&", ";", ">") if mark in words]
        ran = CliRunner().invoke(app, words[: min(ends, default=None)])
        return ran.stderr if ran.exit_code else ""

    return why


@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: "-".join(path.parts[-2:]))
def test_every_command_in_it_could_be_given(path, refused):
    """Those in sentences, too: each command and option exists, and no argument is missing."""
    text = path.read_text()
    said = re.findall(r"`(explorer [^`]+)`", text)
    for block in blocks(path):
        if block.language in ("sh", "console") and block.exits != 2:
            said += commands(block.body.replace("$ explorer", "explorer"))
    for line in said:
        if line.startswith("explorer ") and not line.startswith("explorer COMMAND "):
            assert not (why := refused(line)), f"{path.name}: {line}: {why}"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("explorer table show", "FILE"),
        ("explorer tabel show x.json", "tabel"),
        ("explorer show --colums 4096", "--colums"),
        ("explorer emit heuristic again --cols 64", "again"),
        ("explorer search --cols C", "cols is 'C'"),
        ("explorer emit best --cols 64 --objectives size", "size"),
    ],
)
def test_a_command_that_could_not_be_given_is_found(line, why, refused):
    assert why in refused(line)
    assert not refused("explorer table show x.json") and not refused("explorer -h")


def test_nothing_is_installed_or_run_while_commands_are_parsed(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for line in (
        "explorer --install-completion",
        "explorer emit heuristic --cols 64 --output x.cu",
    ):
        assert not refused(line)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", [c.name or c.callback.__name__ for c in app.registered_commands]
)
def test_every_command_has_help_and_is_in_the_guides(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0 and "Usage: " in result.output
    assert f"`explorer {command}" in (GUIDES / "commands.md").read_text()


def test_every_extra_in_them_exists():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in DOCUMENTS:
        for extra in re.findall(r"softmax-explorer\[([a-z-]+)\]", path.read_text()):
            assert extra in known, path


def test_the_readme_names_the_oldest_python():
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"Python {oldest.removeprefix('>=')} or later" in (ROOT / "README.md").read_text()


def test_each_guide_is_listed():
    assert {path.stem for path in GUIDES.iterdir()} == set(ORDER)


def test_the_readme_fits_two_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


# ------------------------------------------------------------------ the mechanism itself


def document(tmp_path, text):
    path = tmp_path / "doc.md"
    path.write_text(text)
    return path


def printing(printed):
    return lambda words: printed


def test_a_block_that_prints_other_things_is_written_anew(tmp_path):
    path = document(tmp_path, "x\n\n```console\n$ explorer doctor\nold in 3 s\n```\ny\n")
    new = Runner(tmp_path, printing(Printed(0, "new in 4 s\n", "")))
    assert with_printed(path, new) == path.read_text().replace("old in 3 s", "new in 4 s")
    slower = Runner(tmp_path, printing(Printed(0, "old in 9 s\n", "")))
    assert with_printed(path, slower) == path.read_text()


def test_a_command_that_fails_and_one_that_should_fail_are_found(tmp_path):
    failing = Runner(tmp_path, printing(Printed(2, "", "error: no")))
    path = document(tmp_path, "```sh\nexplorer doctor\n```\n")
    with pytest.raises(AssertionError, match=r"doc.md:1: explorer doctor ended with exit code 2"):
        with_printed(path, failing)
    expected = document(tmp_path, "<!-- run: exits 2 -->\n```sh\nexplorer doctor\n```\n")
    assert with_printed(expected, failing) == expected.read_text()
    with pytest.raises(AssertionError, match="ended with exit code 0"):
        with_printed(expected, Runner(tmp_path, printing(Printed(0, "", ""))))


def test_a_program_that_fails_is_found_at_its_line(tmp_path):
    path = document(tmp_path, "one\n\n```python\nx = 1\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        with_printed(path, Runner(tmp_path, printing(None)))
    assert caught.traceback[-1].lineno + 1 == 5


def test_an_unknown_mark_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="nobody knows the mark 'need torch'"):
        blocks(document(tmp_path, "<!-- run: need torch -->\n```python\n1\n```\n"))


def test_only_the_time_that_something_took_may_differ():
    assert same("81 in 1 s: 80", "81 in 2.5 s: 80") and not same("81 in 1 s", "82 in 1 s")


def test_a_figure_in_prose_is_found_and_a_generated_one_is_not():
    text = "It takes 3.5 µs.\n<!-- generated: x -->4.5 µs<!-- end -->\n`6 µs`\n"
    assert MEASURED.findall(prose(text)) == ["3.5 µs"]


def test_what_the_blocks_need_has_a_module_that_runs_it():
    for need, where in NEEDS.items():
        for name in re.findall(r"tests/\S+\.py", where):
            assert (ROOT / name).is_file(), need
    assert importlib.util.find_spec("documents")
    assert Block(ROOT / "README.md", 3, "sh", "").place == "README.md:3"


def test_the_picture_is_that_of_the_results():
    assert PICTURE.read_text() == picture(), ANEW


def test_the_picture_has_a_bar_for_each_library_and_panel_and_ours_is_where_1_is():
    classes = [one.get("class", "") for one in ElementTree.fromstring(picture()).iter()]
    runs = [compared(dtype) for dtype in TYPES]
    for library in ("torch", "quack", "liger"):
        panels = sum(library in run.peer_names for run in runs)
        assert classes.count(f"bar {library}") >= panels > 0
    assert classes.count("us") == 7
    attention = compared("attention").comparisons
    assert f"decode attention ({sum(bool(one.peers) for one in attention)} problems)" in picture()


def test_the_picture_of_a_race_is_what_is_printed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "cli"))
    from command_line import command_line

    run = adapted(command_line(monkeypatch, tmp_path))
    assert RACE.read_text() == race(run), ANEW
    assert re.search(r", [0-9.]+ *</text>.*?>ulp, [0-9.]+ on average</text>", RACE.read_text())
    assert "shared-race" in RACE.read_text() and "race.cu:11" in RACE.read_text()


def test_the_environment_variables_are_in_a_guide():
    """Shells ask for completions by one more, which is not for people."""
    texts = [path.read_text() for path in (ROOT / "explorer").rglob("*.py")]
    read = set(re.findall(r"\bEXPLORER_[A-Z_]+\b", "\n".join(texts))) - {"EXPLORER_COMPLETE"}
    guide = (ROOT / "explorer" / "guide" / "troubleshooting.md").read_text()
    assert read == set(re.findall(r"^\| `(EXPLORER_[A-Z_]+)` \|", guide, re.MULTILINE))
