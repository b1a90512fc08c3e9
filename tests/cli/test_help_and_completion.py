"""What helps at the prompt: help in groups with an example that parses, and completion."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import shellingham
from command_line import built

from explorer.cli import app
from explorer.cli.app import COMMANDS
from explorer.cli.help import HELP_NAMES, PANELS
from explorer.model.query import ProblemKeywords

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    command.__name__: example for group in COMMANDS.values() for command, example in group.items()
}


def tree():
    """Each command by its words, those of `table` included."""
    for name, command in built(app).commands.items():
        yield from (((name, sub), one) for sub, one in getattr(command, "commands", {}).items())
        yield (name,), command


@pytest.mark.parametrize("words", [words for words, _ in tree()], ids="-".join)
def test_h_is_help_in_groups(explorer, words):
    short, long = explorer(*words, "-h"), explorer(*words, "--help")
    assert short.code == 0 and short == long
    groups = [line[:-1] for line in short.out.splitlines() if line.rstrip(":") in PANELS]
    assert groups and groups == [name for name in PANELS if name in groups]
    assert "-h, --help" in short.out


@pytest.mark.parametrize("words", [(), ("emit",), ("table", "show")], ids=" ".join)
def test_help_is_a_command_too(explorer, words):
    asked = explorer("help", *words)
    assert asked.code == 0 and asked.out == explorer(*words, "--help").out
    assert explorer("help", "nothing").code == 2


def test_what_matters_first_comes_first(explorer):
    out = explorer("search", "--help").out
    order = ["--cols", "--dtype", "--budget", "--device", "--storage", "--mask-rows"]
    assert sorted(order, key=out.index) == order
    assert " --" not in out[: out.index("--cols")]


def test_the_groups_have_every_option_of_a_problem_and_no_option_that_is_gone():
    of_problems = f"{PANELS['Problem']} {PANELS['Problem, in detail']}".split()
    assert {name.replace("_", "-") for name in ProblemKeywords.__annotations__} <= {*of_problems}
    there_are = {option for _, one in tree() for each in one.params for option in each.opts}
    assert {f"--{name}" for names in PANELS.values() for name in names.split()} <= there_are


@pytest.mark.parametrize("words", [words for words, one in tree() if one.epilog], ids="-".join)
def test_the_example_of_a_help_parses(explorer, words, monkeypatch):
    command = dict(tree())[words]
    program, *typed = shlex.split(command.epilog)
    assert program == "explorer" and tuple(typed[: len(words)]) == words
    assert f"Example:\n  {command.epilog}\n" in explorer(*words, "-h").out
    command.make_context(words[-1], typed[len(words) :])  # raises for an option that is not there


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("words", [words for words, _ in tree()], ids="-".join)
def test_help_is_broken_between_words_alone(words, width):
    typed = {**HELP_NAMES, "resilient_parsing": True, "terminal_width": width}
    with dict(tree())[words].make_context(words[-1], [], **typed) as context:
        text = context.get_help()
    assert not [line for line in text.splitlines() if re.search(r"\w-$", line)]
    assert "\u2011" not in text
    assert max(map(len, text.partition("Example:")[0].splitlines())) <= width


@pytest.mark.parametrize("words", [words for words, _ in tree()], ids="-".join)
def test_help_names_arguments_without_types_of_python(explorer, words):
    out = explorer(*words, "--help").out
    assert "[[" not in out
    assert not re.search(r"<(str|path|int|float|list)", out)


def test_optional_arguments_stand_in_brackets(explorer):
    named = {"verify": "[WHAT]", "presets": "[TEXT]", "space": "[PARAMETER]...", "guide": "[NAME]"}
    for command, name in named.items():
        assert f"Usage: explorer {command} [OPTIONS] {name}\n" in explorer(command, "-h").out


@pytest.mark.parametrize(
    ("says", "commands"),
    [
        (" (needed, unless --shape says it).", "search space"),
        (" (needed, unless --shape says it or --again names a recording).", "record"),
        (" (needed, unless --shape says it or a file says it).", "time"),
        (" (needed, unless --shape says it or --study says it).", "emit show"),
        (" (needed, unless --shape says it or a file or --study says it).", "verify profile diff"),
        (" (needed, unless --shape says it or --from names a file).", "journey"),
        (" (needed, unless --shapes names a file).", "tune"),
        (" (needed, unless --draw, --shapes or --from is given).", "compare"),
        (" of a row.", "report presets"),
    ],
)
def test_help_says_where_columns_are_needed(explorer, says, commands):
    for command in commands.split():
        told = " ".join(explorer(command, "--help").out.split())
        start = told.index("--cols ")
        assert told[start : told.index("--rows ", start)].strip().endswith(says), command


def test_every_command_has_an_example():
    assert all(one.epilog for words, one in tree() if not hasattr(one, "commands"))


def test_commands_are_listed_in_groups_with_whole_sentences(explorer):
    out = explorer("-h").out
    assert "..." not in out.partition("Options:")[2]
    places = [out.index(f"{group}:") for group in COMMANDS]
    assert places == sorted(places)


# ------------------------------------------------------------------ completion


def offered(explorer, monkeypatch, line, shell):
    """Return what is offered at the end of a command line, by the protocol of the shell."""
    monkeypatch.setenv("_EXPLORER_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    ran = explorer()
    assert ran.code == 0 and ran.err == ""
    return ran.out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("explorer pro", "profile"),
        ("explorer search --dtype ", "f32 f16 bf16 f64"),
        ("explorer search --op log_softmax_", "log_softmax_backward"),
        ("explorer tune --dtype f16,", "f16,f32 f16,bf16 f16,f64"),
        ("explorer compare --op softmax_b", "softmax_backward"),
        ("explorer emit heu", "heuristic"),
        ("explorer profile oneflow-w", "oneflow-warp"),
        ("explorer guide py", "pytorch"),
        ("explorer search --device recorded:by", "recorded:by-hand"),
        ("explorer benchmark --strategy rand", "random"),
        ("explorer emit best --for c", "cupy cpp"),
        ("explorer search --colo", ""),
        ("explorer emit best --op logsumexp --also ", "maximum log_sum"),
        ("explorer emit best --op log_prob --also lse,ran", "lse,rank"),
        ("explorer emit best --op softmax --also ", ""),
        ("explorer emit best --also ", ""),
    ],
)
def test_values_are_completed_in_bash(explorer, recording, monkeypatch, line, expected):
    assert offered(explorer, monkeypatch, line, "bash").split() == expected.split()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_values_are_completed_in_other_shells(explorer, monkeypatch, shell):
    out = offered(explorer, monkeypatch, "explorer emit oneflow-", shell)
    lines = [line for line in out.splitlines() if line]
    assert len(lines) == 3 and all("oneflow-" in line for line in lines)  # one line for each
    assert "the row stays in registers" in out


def test_bash_completes_by_the_script_that_is_printed(tmp_path):
    """The script is sourced in bash, as after --install-completion, and completes a line."""
    program = tmp_path / "explorer"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m explorer "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(explorer --show-completion)"; COMP_WORDS=(explorer guide cu); COMP_CWORD=2;'
        ' _explorer_completion explorer; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert (ran.stdout, ran.stderr) == ("cupy\n", "")


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".bash_completions/explorer.sh"),
        ("zsh", ".zfunc/_explorer"),
        ("fish", ".config/fish/completions/explorer.fish"),
    ],
)
def test_completion_is_installed(explorer, tmp_path, monkeypatch, shell, file):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(shellingham, "detect_shell", lambda: (shell, f"/bin/{shell}"))
    script = explorer("--show-completion")
    assert script.code == 0 and "_EXPLORER_COMPLETE" in script.out
    ran = explorer("--install-completion")
    assert ran.code == 0 and file in ran.out.replace("\n", "")
    assert (tmp_path / file).read_text().strip() == script.out.strip()


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_no_shell_is_a_sentence(explorer, monkeypatch, option):
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("tcsh", "/bin/tcsh"))
    ran = explorer(option)
    assert ran.code == 2 and "run the command in bash, zsh" in ran.err
