"""How large the project is, part by part, and which names stand for several things.

    python -m tests.house [FOLDER]

measures a checkout, this one by default: that of another revision shows what a change has done. A
line of code is one with a token that is no comment and no docstring.
"""

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

APART = "ptx_emulator"
"""The folder that executes PTX, which knows nothing of the rest and is counted apart."""

SMALL_LINES = 35
"""Lines of a file that is more likely a paragraph than a chapter."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of_code(source: str) -> int:
    """Count the lines of Python with code on them, not those of comments and docstrings."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings |= set(range(node.lineno, node.end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def parts(package: Path) -> dict[str, list[Path]]:
    """Return the Python files of each folder of the package, and of the package itself."""
    found = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).as_posix()
        found[inside.split("/")[0] if "/" in inside else "explorer"].append(path)
    return dict(found)


def shared_names(package: Path) -> dict[str, list[str]]:
    """Return the names of modules that two folders have, with those folders."""
    found = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        if not path.stem.startswith("__"):
            found[path.stem].append(path.parent.name)
    return {name: places for name, places in found.items() if len(places) > 1}


def report(folder: Path) -> list[str]:
    """Return the lines that the command prints."""
    package = folder / "explorer"
    lines, files, code, small = [], 0, 0, 0
    for part, paths in parts(package).items():
        own = sum(lines_of_code(path.read_text()) for path in paths)
        lines.append(f"{part:18}{len(paths):5} files{own:7} lines of code")
        if part != APART:
            files, code = files + len(paths), code + own
            small += sum(len(path.read_text().splitlines()) <= SMALL_LINES for path in paths)
    tests = sorted((folder / "tests").rglob("*.py"))
    tested = sum(lines_of_code(path.read_text()) for path in tests)
    templates = sorted((folder / "templates").rglob("*.j2"))
    length = sum(len(path.read_text().splitlines()) for path in templates)
    units = sum(path.read_text().count("{# unit ") for path in templates)
    shared = [f"{n} ({', '.join(places)})" for n, places in shared_names(package).items()]
    return [
        *lines,
        f"beside the emulator: {files} files, {code} lines of code, {small} files of "
        f"{SMALL_LINES} lines or fewer",
        f"tests: {len(tests)} files, {tested} lines of code",
        f"templates: {len(templates)} files, {length} lines, {units} units",
        f"module names of two folders: {len(shared)}: {', '.join(shared)}",
    ]


if __name__ == "__main__":
    print("\n".join(report(Path(sys.argv[1] if len(sys.argv) > 1 else "."))))
