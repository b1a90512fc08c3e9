"""Where emitted source goes: a file that is never lost to another, or standard output."""

from enum import StrEnum
from pathlib import Path

from explorer.codegen import Variant
from explorer.errors import InvalidInput
from explorer.user_files import check_writable, read_text, write_file

FOLDER = Path("generated")
"""Emitted kernels' folder, in the current directory."""

DIGEST_DIGITS = 12

REMEDY = "name a file with --output, or - for stdout"
"""What to do where a file cannot be written."""


class Written(StrEnum):
    """What became of the file."""

    NEW = "written"
    SAME = "already there, unchanged"
    REPLACED = "written over"


def default_path(variant: Variant) -> Path:
    """`generated/softmax_f32_4096_<digest>.cu`: equal names hold equal code."""
    problem = variant.problem
    stem = f"{problem.op}_{problem.dtype}_{problem.cols}_{variant.digest[:DIGEST_DIGITS]}"
    return FOLDER / f"{stem}.cu"


def write_source(variant: Variant, path: Path, *, force: bool = False) -> Written:
    """Write the variant's source. A file with other code is replaced by `force` alone.

    The header comment does not count: it names the config, and several emit the same code.
    Raises InvalidInput where the file holds other code, or cannot be written.
    """
    check_writable(path, REMEDY)
    present = _present(path)
    if present == variant.source:
        return Written.SAME
    if present is not None and _code(present) != variant.code and not force:
        raise InvalidInput(
            f"{path} exists and holds other code; nothing was written: choose another --output, "
            "or replace it with --force"
        )
    write_file(path, variant.source, REMEDY)
    return Written.NEW if present is None else Written.REPLACED


def _present(path: Path) -> str | None:
    """What a file holds, as far as it may be a source: a larger one is other code; or None."""
    if not path.exists():
        return None
    try:
        return read_text(path)
    except InvalidInput:  # it can be written, so it is a file, but with what is no source
        return ""


def _code(source: str) -> str:
    lines = source.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return "".join(lines[start:])
