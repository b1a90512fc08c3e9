"""The record of the GPU tests: on which GPUs they last passed, and whether that was today's code.

`pytest -m gpu --record` writes it. Nobody without a GPU can run those tests; the record, with a
digest of the code that they test, says what they can rely on.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from explorer.codegen import template_dir
from explorer.errors import InvalidInput

TESTED = ("codegen", "reference", "compile", "devices/cuda")
"""Folders of the package that the digest is of, beside the templates."""

RECORD = Path("studies") / "results" / "gpu-suite.json"

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run of the GPU tests on one GPU."""

    gpu: str
    date: str
    driver: str
    nvrtc: str
    code: str
    """Digest of the templates and of the code in `TESTED`."""
    passed: int
    failed: int
    skipped: dict[str, int]
    """Why tests were skipped, to how many."""
    seconds: float
    workers: int
    """Tests that ran side by side."""
    not_run: int = 0
    """Tests that were selected but not run, because the run was stopped before its end."""
    figures: dict[str, float] = field(default_factory=dict)
    """What tests measured beside passing, such as kernels that gave the emulator's bits."""

    @property
    def is_of_this_code(self) -> bool:
        """Whether the templates and the code that it tested are those that are here."""
        return self.code == code_digest()


@cache
def code_digest() -> str:
    """Return twelve hexadecimal digits over the names and texts of what the GPU tests test."""
    digest = hashlib.sha256()
    roots = [template_dir(), *(_PACKAGE / folder for folder in TESTED)]
    for root in roots:
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".j2", ".py", ".cu")):
            digest.update(f"{root.name}/{path.relative_to(root).as_posix()}".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def record_path() -> Path | None:
    """Return where the record is kept, or None outside a checkout."""
    root = _PACKAGE.parent
    return root / RECORD if (root / "studies" / "results").is_dir() else None


def read_runs(path: Path) -> tuple[SuiteRun, ...]:
    """Return the latest run of each GPU, by its name; raises InvalidInput for another file."""
    try:
        entries: Any = json.loads(path.read_text())
        return tuple(SuiteRun(**entry) for entry in entries)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{path} is no record of the GPU tests: {error}") from None


def write_run(path: Path, run: SuiteRun) -> None:
    """Put a run into the record, in the place of an earlier one on the same GPU."""
    others = [other for other in read_runs(path) if other.gpu != run.gpu]
    runs = sorted([*others, run], key=lambda each: each.gpu)
    path.write_text(json.dumps([asdict(each) for each in runs], indent=2) + "\n")


def sentence(runs: tuple[SuiteRun, ...]) -> str:
    """Say on which GPUs the tests passed, when, and whether the code has changed since."""
    if not runs:
        return "the GPU tests have no record; make one with pytest -m gpu --record"
    told = []
    for run in runs:
        counts = {"failed": run.failed, "not run": run.not_run}
        rest = "".join(f", {number} {what}" for what, number in counts.items() if number)
        code = "of this code" if run.is_of_this_code else "the code has changed since"
        told.append(f"{run.gpu} {run.date[:10]}: {run.passed} passed{rest}, {code}")
    return "; ".join(told)


def readme_sentences(runs: tuple[SuiteRun, ...]) -> str:
    """Return the README's lines on how the emulator compares with GPUs, from their last runs."""
    return "\n".join(
        f"Beside an {run.gpu} ({run.date[:10]}) the emulator gave the same bits for "
        f"{_of(run, 'f32_softmax')} f32 softmax kernels and "
        f"{_of(run, 'kinds', 'ways')} of other ops, types, masks and layouts, and for the rest "
        f"numbers within 2 ulp; the GPU rejected all {run.figures['planted_rejected']:g} planted "
        "bugs it was given."
        for run in runs
        if "planted_rejected" in run.figures
    )


def _of(run: SuiteRun, *groups: str) -> str:
    """Return `164 of 176`: of how many kernels the emulator's output has the GPU's bits."""
    same = sum(run.figures[f"{group}_same_bits"] for group in groups)
    return f"{same:g} of {sum(run.figures[f'{group}_compared'] for group in groups):g}"


README_BEGIN = "<!-- emulator: begin (generated: pytest -m gpu --record) -->"
README_END = "<!-- emulator: end -->"


def with_sentences(readme: str, runs: tuple[SuiteRun, ...]) -> str:
    """Return a README's text with the lines between its marks made anew."""
    head, _, rest = readme.partition(README_BEGIN)
    _, _, tail = rest.partition(README_END)
    return f"{head}{README_BEGIN}\n{readme_sentences(runs)}\n{README_END}{tail}"
