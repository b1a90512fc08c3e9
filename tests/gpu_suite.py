"""The record of the GPU tests: on which GPUs they last passed, and whether that was today's code.

`pytest -m gpu --record` writes it. Nobody without a GPU can run those tests. The
record, with a digest of the code that they test, says what they can rely on.
"""

import hashlib
import json
import re
import tokenize
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

from explorer.system.user_files import template_dir

TESTED = ("codegen", "reference", "compile", "devices/cuda", "devices/device.py")
"""Folders and files of the package that the digest is of, beside the templates."""

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "explorer"
RECORD = ROOT / "studies" / "results" / "gpu-suite.json"


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A run of the GPU tests on one GPU, and later ones of tests that had not passed in it."""

    gpu: str
    date: str
    driver: str
    nvrtc: str
    code: str
    """Digest of the templates and of the code in `TESTED`."""
    passed: int
    failed: tuple[str, ...]
    """The tests that failed."""
    skipped: dict[str, int]
    """Why tests were skipped, to how many."""
    seconds: float
    """What the first run took."""
    workers: int
    """Tests that ran side by side."""
    not_run: tuple[str, ...] = ()
    """The tests that were selected but not run, because the run was stopped before its end."""
    passed_later: int = 0
    """How many of those that passed did so in a later run of this code, not in the first."""
    figures: dict[str, float] = field(default_factory=dict)
    """What tests measured beside passing, such as kernels that gave the emulator's bits."""


@cache
def code_digest() -> str:
    """Return twelve hexadecimal digits over the names and code of what the GPU tests test.

    Comments and docstrings do not count, so that a wrong figure in one can be mended without a GPU.
    """
    digest = hashlib.sha256()
    roots = [template_dir(), *(PACKAGE / folder for folder in TESTED)]
    for root in roots:
        files = root.rglob("*") if root.is_dir() else [root]
        for path in sorted(file for file in files if file.suffix in _CODE_OF):
            digest.update(f"{root.name}/{path.relative_to(root).as_posix()}".encode())
            code = _CODE_OF[path.suffix](path.read_text(encoding="utf-8"))
            lines = (line.rstrip() for line in code.splitlines())
            digest.update("\n".join(filter(None, lines)).encode())
    return digest.hexdigest()[:12]


def _python_code(text: str) -> str:
    """Python without comments and strings that are statements, such as docstrings."""
    lines = text.splitlines(keepends=True)
    begins = True  # a statement
    for token, after in pairwise(tokenize.generate_tokens(iter(lines).__next__)):
        (row, start), (last, _) = token.start, token.end
        if token.type == tokenize.COMMENT:
            lines[row - 1] = lines[row - 1][:start] + "\n"
        elif token.type == tokenize.STRING and begins and after.type in _AFTER_A_STATEMENT:
            lines[row - 1 : last] = ["\n"] * (last - row + 1)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in _BEFORE_A_STATEMENT
    return "".join(lines)


_BEFORE_A_STATEMENT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_AFTER_A_STATEMENT = (tokenize.NEWLINE, tokenize.COMMENT)

_CODE_OF: dict[str, Callable[[str], str]] = {
    ".py": _python_code,
    ".cu": partial(re.sub, r"//.*", ""),
    ".j2": partial(re.sub, r"(?s)\{#.*?#\}", ""),  # `//` divides where Jinja computes
}
"""By a file's suffix, what takes out of its text what does nothing."""


def read_runs(path: Path) -> tuple[SuiteRun, ...]:
    """Return the latest run of each GPU, by its name; none if there is no record."""
    if not path.is_file():
        return ()
    tests = ("failed", "not_run")
    return tuple(
        SuiteRun(**entry | {name: tuple(entry.get(name, ())) for name in tests})
        for entry in json.loads(path.read_text())
    )


def write_run(path: Path, run: SuiteRun, chosen: frozenset[str]) -> None:
    """Put a run of the tests `chosen` into the record, for what is there of the same GPU.

    A run of nothing but tests that had failed, or were not run, with the same code, is added to the
    earlier run; any other replaces it.
    """
    runs = {each.gpu: each for each in read_runs(path)}
    before = runs.get(run.gpu)
    if before and before.code == run.code and chosen <= {*before.failed, *before.not_run}:
        run = _added(before, run, chosen)
    runs[run.gpu] = run
    path.write_text(json.dumps([asdict(runs[gpu]) for gpu in sorted(runs)], indent=2) + "\n")


def _added(before: SuiteRun, run: SuiteRun, chosen: frozenset[str]) -> SuiteRun:
    """An earlier run with what has become of the tests `chosen`."""
    figures = Counter(before.figures)
    figures.update(run.figures)
    return replace(
        before,
        date=run.date,
        passed=before.passed + run.passed,
        passed_later=before.passed_later + run.passed,
        failed=tuple(sorted({*before.failed} - chosen | {*run.failed})),
        not_run=tuple(sorted({*before.not_run} - chosen | {*run.not_run})),
        skipped=dict(Counter(before.skipped) + Counter(run.skipped)),
        figures=dict(sorted(figures.items())),
    )


def sentence(runs: tuple[SuiteRun, ...]) -> str:
    """Say on which GPUs the tests passed, when, and whether the code has changed since."""
    if not runs:
        return "the GPU tests have no record; make one with pytest -m gpu --record"
    told = []
    for run in runs:
        counts = {
            "of them in a later run": run.passed_later,
            "failed": len(run.failed),
            "not run": len(run.not_run),
        }
        rest = "".join(f", {number} {what}" for what, number in counts.items() if number)
        code = "of this code" if run.code == code_digest() else "the code has changed since"
        told.append(f"{run.gpu} {run.date[:10]}: {run.passed} passed{rest}, {code}")
    return "; ".join(told)


def compared_sentences(runs: tuple[SuiteRun, ...]) -> str:
    """Return the lines of the guides on how the emulator compares with GPUs, from their last runs.

    GPUs on which all figures are the same share a line.
    """
    gpus: dict[str, list[str]] = {}
    for run in runs:
        if "planted_rejected" in run.figures:
            gpus.setdefault(_compared(run), []).append(f"an {run.gpu} ({run.date[:10]})")
    return "\n".join(f"Beside {' and '.join(names)}, {told}" for told, names in gpus.items())


def _compared(run: SuiteRun) -> str:
    rejected = f"{run.figures['planted_rejected']:g}"
    if "planted_given" in run.figures:
        rejected += f" of {run.figures['planted_given']:g}"
    return (
        f"the emulator gave the same bits for {_of(run, 'f32_softmax')} f32 softmax kernels and "
        f"for {_of(run, 'kinds', 'ways')} kernels of other ops, types, masks and layouts. The "
        "results of the remaining kernels differed by 2 ulp at most. Of the planted bugs, the GPU "
        f"rejected {rejected}."
    )


def _of(run: SuiteRun, *groups: str) -> str:
    """Return `164 of 176`: of how many kernels the emulator's output has the GPU's bits."""
    same = sum(run.figures[f"{group}_same_bits"] for group in groups)
    return f"{same:g} of {sum(run.figures[f'{group}_compared'] for group in groups):g}"
