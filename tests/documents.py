"""The README and the guides: their blocks of code are run, their measured figures generated.

    python -m tests.documents

writes the README, its picture and the guides anew, from what commands print and from what is kept
in studies/.

A block of code is of one kind, by the language of its fence:

sh        Commands, which must end with exit code 0.
console   A command after `$ `, and what it prints, which is written anew.
python    A program, which must end without an exception.

A comment before the fence, `<!-- run: ... -->`, says more, separated by semicolons:

needs X        It is run by the tests that have X (see `NEEDS`), not by the quick ones.
exits N        The exit code that the last command must have; those before it end with 0.
prints stderr  The block shows what is printed on stderr, not on stdout.
lines N to M   The block shows these lines of it, counted from 1.

`<!-- generated: NAME WORDS -->` and `<!-- end -->` enclose what the function NAME of
`document_figures.py` returns for WORDS.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT / "explorer" / "guide"
DOCUMENTS = (ROOT / "README.md", *sorted(GUIDES.glob("*.md")))

NEEDS = {
    "": "tests/test_documents.py",
    "time": "tests/test_documents.py, where they are exhaustive",
    "nvcc": "tests/test_documents.py, where they are exhaustive",
    "cluster": "tests/tuning/test_cluster.py, where Dask is installed",
    "several hosts": "nobody: tests/tuning/test_cluster.py has the processes of one host",
    "torch": "tests/runtime/test_torch_documents.py; on a GPU tests/gpu/test_documents_on_gpu.py",
    "gpu": "tests/gpu/test_documents_on_gpu.py",
    "gpu cluster": "tests/gpu/test_documents_on_gpu.py",
    "gpu torch": "tests/gpu/test_documents_on_gpu.py",
    "gpu cupy": "tests/gpu/test_documents_on_gpu.py",
    "gpu jax": "tests/gpu/test_documents_on_gpu.py",
    "gpu torch nvcc": "tests/gpu/test_documents_on_gpu.py",
    "gpu jax nvcc": "tests/gpu/test_documents_on_gpu.py",
    "gpu nvcc": "tests/gpu/test_documents_on_gpu.py",
    "set-up": ".ci/run, since they make an environment",
}
"""What blocks may need, and who runs those that do."""

LANGUAGES = ("sh", "console", "python")

_BLOCK = re.compile(
    r"(?:^<!-- run: (?P<marks>[^>]*?) -->\n)?^```(?P<language>\S*)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
GENERATED = re.compile(
    r"(?P<begin><!-- generated: (?P<call>[^>]*?) -->)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL
)
_ELAPSED = re.compile(r"\bin [0-9.]+ s\b")
"""How long something took: the one thing that differs when a replay is run again."""


# ------------------------------------------------------------------ blocks


@dataclass(frozen=True)
class Block:
    """A block of code of a document."""

    path: Path
    line: int
    language: str
    body: str
    needs: str = ""
    exits: int = 0
    stderr: bool = False
    lines: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        """`README.md:12`."""
        return f"{self.path.name}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """Return the blocks of code outside generated text; raises ValueError for unknown marks."""
    text = path.read_text()
    spans = [found.span() for found in GENERATED.finditer(text)]
    return [
        _block(path, text, found)
        for found in _BLOCK.finditer(text)
        if not any(begin < found.start() < end for begin, end in spans)
    ]


def _block(path: Path, text: str, found: re.Match[str]) -> Block:
    line = text.count("\n", 0, found.start("body"))
    made = {"needs": "", "exits": 0, "stderr": False, "lines": None}
    for mark in filter(None, map(str.strip, (found["marks"] or "").split(";"))):
        if mark.startswith("needs "):
            made["needs"] = mark.removeprefix("needs ")
        elif re.fullmatch(r"exits \d+", mark):
            made["exits"] = int(mark.split()[1])
        elif mark == "prints stderr":
            made["stderr"] = True
        elif shown := re.fullmatch(r"lines (\d+) to (\d+)", mark):
            made["lines"] = int(shown[1]), int(shown[2])
        else:
            raise ValueError(f"{path.name}:{line}: nobody knows the mark {mark!r}")
    return Block(path, line, found["language"], found["body"], **made)


# ------------------------------------------------------------------ running them


@dataclass(frozen=True)
class Printed:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


RunCommand = Callable[[list[str]], Printed]
"""Runs `explorer WORDS` in the folder of the document's blocks."""


class Runner:
    """Runs the blocks of one document in one folder, in their order."""

    def __init__(self, folder: Path, explorer: RunCommand) -> None:
        self._folder = folder
        self._explorer = explorer
        (folder / "studies").mkdir(exist_ok=True)  # as in a checkout, not the user's data folder

    def run(self, block: Block) -> str:
        """Run a block; return its body with what its commands print today.

        Raises AssertionError where a block ends otherwise than it says.
        """
        if block.language == "python":
            self._python(block)
        elif block.language == "sh":
            *first, last = commands(block.body)
            for command in first:
                self._check(replace(block, exits=0), command, self._command(command))
            self._check(block, last, self._command(last))
        elif block.language == "console":
            return self._console(block)
        else:
            raise AssertionError(f"{block.place}: a block of {block.language!r} is never run")
        return block.body

    def _python(self, block: Block) -> None:
        code = compile("\n" * block.line + block.body, block.path, "exec")
        with contextlib.chdir(self._folder), contextlib.redirect_stdout(io.StringIO()):
            exec(code, {"__name__": "__main__"})

    def _console(self, block: Block) -> str:
        shown = ""
        for line in block.body.splitlines():
            if not line.startswith("$ "):
                continue
            printed = self._command(line.removeprefix("$ "))
            self._check(block, line, printed)
            lines = (printed.err if block.stderr else printed.out).splitlines()
            first, last = block.lines or (1, len(lines))
            kept = "\n".join(text.rstrip() for text in lines[first - 1 : last])
            shown += f"{line}\n{kept}\n"
        return shown

    def _command(self, command: str) -> Printed:
        words = shlex.split(command, comments=True)
        if words[0] == "explorer" and not {"|", "&&", ";", ">"} & set(words):
            return self._explorer(words[1:])
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self._folder,
            env=os.environ | {"PATH": f"{self._programs()}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        return Printed(ran.returncode, ran.stdout, ran.stderr)

    def _programs(self) -> Path:
        """A folder with `explorer` and `python`, which are those of this Python."""
        folder = self._folder / ".programs"
        folder.mkdir(exist_ok=True)
        for name, what in (
            ("explorer", f"{sys.executable} -m explorer"),
            ("python", sys.executable),
        ):
            program = folder / name
            program.write_text(f'#!/bin/sh\nexec {what} "$@"\n')
            program.chmod(0o755)
        return folder

    @staticmethod
    def _check(block: Block, command: str, printed: Printed) -> None:
        assert printed.code == block.exits, (
            f"{block.place}: {command} ended with exit code {printed.code}: {printed.err}"
        )


def commands(body: str) -> list[str]:
    """Return the commands of a block: a backslash joins lines, comments are left out."""
    lines = body.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def same(one: str, other: str) -> bool:
    """Whether two printed texts are the same but for how long something took."""
    return _ELAPSED.sub("in a moment", one) == _ELAPSED.sub("in a moment", other)


# ------------------------------------------------------------------ written anew


def with_generated(text: str) -> str:
    """Return a document with what stands between its marks made anew."""
    from document_figures import FIGURES

    def made(found: re.Match[str]) -> str:
        name, *words = shlex.split(found["call"])
        value = FIGURES[name](*words)
        if found["body"].startswith("\n"):
            value = f"\n{value.rstrip()}\n"
        return f"{found['begin']}{value}{found['end']}"

    return GENERATED.sub(made, text)


def with_printed(path: Path, runner: Runner, needs: tuple[str, ...] = ("",)) -> str:
    """Run the blocks of a document that need one of `needs`; return it with what they print today.

    A block that prints the same but for how long something took stays as it is.
    """
    text = path.read_text()
    for block in blocks(path):
        if block.needs not in needs:
            continue
        today = runner.run(block)
        if not same(today, block.body):
            text = text.replace(f"```console\n{block.body}```", f"```console\n{today}```")
    return text


RESULTS = ROOT / "studies" / "results"
TUNED = ROOT / "studies" / "tuned"
PICTURE, RACE = RESULTS / "peers-h200.svg", RESULTS / "race.svg"
"""The README's pictures that are drawn here; `peer_picture.py` says how the report's is."""

RACING = ROOT / "tests" / "own_kernels" / "race.cu"


def picture() -> str:
    """The README's picture, drawn from the committed comparisons."""
    from document_figures import TYPES, compared
    from peer_picture import Panel, peers_svg

    from explorer.model.tuned_table import read_table
    from explorer.ops import Op
    from explorer.report.compare import read_compared

    losses = read_table(TUNED / "losses" / "nvidia-h200.json").problems
    gradients = ("gradients-f32", "gradients-bf16", "log-gradients-f32")
    panels = {f"softmax, {dtype}": Panel.of([compared(dtype)]) for dtype in TYPES}
    panels |= {
        "gradients": Panel.of([*map(compared, gradients)]),
        "log-sum-exp, log-prob": Panel.of([read_compared(RESULTS / "few-results-h200.json")]),
        "cross-entropy": Panel.of_table([p for p in losses if p.problem.op is Op.CROSS_ENTROPY]),
        "decode attention": Panel.of([compared("attention")]),
    }
    return peers_svg(panels, compared(next(iter(TYPES))).comparisons[0].environment)


def race(explorer: RunCommand) -> str:
    """The picture of a race that `explorer verify` finds, as it prints it."""
    from peer_picture import terminal_svg

    shutil.copy(RACING, RACING.name)
    words = [
        "verify",
        RACING.name,
        *shlex.split("--cols 1000 --args input,output,rows,cols --block 128"),
    ]
    lines = explorer([*words, "--seed", "0"]).out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("wrong"))
    verdict = [line.rstrip() for line in lines[1:3]]  # a sentence on two lines
    return terminal_svg(shlex.join(["explorer", *words]), verdict + lines[first : first + 5])


def write_generated() -> None:
    """Write what stands between marks anew, in every document, and the picture: no command runs."""
    PICTURE.write_text(picture())
    for path in DOCUMENTS:
        text = path.read_text()
        if (made := with_generated(text)) != text:
            path.write_text(made)


def prose(text: str) -> str:
    """A document without its code, its generated parts and its comments."""
    text = GENERATED.sub("", text)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)


def main() -> None:
    """Write the README and the guides anew."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cli")]
    import pytest
    from command_line import command_line

    write_generated()
    for path in DOCUMENTS:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            runner = Runner(Path(folder), adapted(command_line(patch, folder)))
            path.write_text(with_printed(path, runner, ("", "time")))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        RACE.write_text(race(adapted(command_line(patch, folder))))


def adapted(run: Callable[..., Printed]) -> RunCommand:
    """The tests' `explorer(*words)` as a function of a list."""
    return lambda words: run(*words)


if __name__ == "__main__":
    main()
