"""The guides that come with the package (`explorer/guide/*.md`): list them, or show one."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, TableElement

from explorer.model.errors import InvalidInput
from explorer.report.table import Column, Kind, Table, in_parts, print_table, prose, words
from explorer.system.plain_data import MOST_NEAREST, nearest_are
from explorer.system.user_files import read_text

FOLDER = Path(__file__).resolve().parents[1] / "guide"

ORDER = (
    "pytorch",
    "cupy",
    "jax",
    "cross-entropy",
    "decode-attention",
    "cpp",
    "search",
    "tune",
    "cluster",
    "problems",
    "learn",
    "kernel",
    "nsight",
    "your-kernel",
    "measurement",
    "slow-cases",
    "without-gpu",
    "commands",
    "glossary",
    "troubleshooting",
)
"""The names of the guides, in the order in which they are listed: use first, then details."""

_COMMENT = re.compile(r"^<!--(?:(?!-->).)*-->\n|<!--.*?-->", re.DOTALL | re.MULTILINE)
"""A comment: with the end of its line where nothing else stands on the line."""

_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>[^\[\]]+)\]\((?P<target>[^()\s]+)\)")


@dataclass(frozen=True, slots=True)
class Guide:
    """A guide: its name, and its Markdown without the comments that say how it is generated."""

    name: str
    text: str

    @property
    def summary(self) -> str:
        """The first paragraph, which says what the reader learns."""
        return " ".join(self.text.split("\n\n")[1].split())


def read_guide(name: str) -> Guide:
    """Return a guide; raises InvalidInput, which names the nearest ones, where there is none."""
    if name not in ORDER:
        near = get_close_matches(name.lower(), ORDER, MOST_NEAREST, cutoff=0.6)
        near += [one for one in ORDER if name.lower() and name.lower() in one and one not in near]
        named = nearest_are(near) or f"there are {', '.join(ORDER)}"
        raise InvalidInput(f"there is no guide {name!r}; {named}")
    return Guide(name, _reachable(_COMMENT.sub("", read_text(FOLDER / f"{name}.md"))))


def _reachable(text: str) -> str:
    """Return a guide without its links to files that are not here, whose words stay.

    An installed package has the guides, but not the results in studies/ to which they link.
    """

    def shown(found: re.Match[str]) -> str:
        target = found["target"]
        here = "://" in target or (FOLDER / target.partition("#")[0]).exists()
        return found[0] if here else found["text"]

    return _outside_code(_LINK, shown, text)


def _outside_code(
    pattern: re.Pattern[str], shown: Callable[[re.Match[str]], str], text: str
) -> str:
    """Return a guide in which `shown` has replaced what matches, but not in blocks of code."""
    parts = _FENCED.split(text)
    parts[::2] = [pattern.sub(shown, prose) for prose in parts[::2]]
    return "".join(parts)


def print_guides(console: Console) -> None:
    """Print the name of each guide and what its reader learns."""
    table = Table([*words("guide"), prose("what it is about")])
    for name in ORDER:
        table.add(name, read_guide(name).summary)
    print_table(table, console)
    console.print()
    console.print("explorer guide NAME shows one of them.")


def print_guide(guide: Guide, console: Console) -> None:
    """Print a guide: set for a terminal, else as the Markdown that it is."""
    if console.is_terminal:
        console.print(_Set(_with_paths(guide.text)))
    else:
        console.file.write(guide.text)


# ------------------------------------------------------------------ for a terminal


def _with_paths(text: str) -> str:
    """Return a guide whose links to files say their paths: a terminal cannot follow them.

    A path begins at the repository's root, or is a whole one where the package is installed.
    """
    package = FOLDER.parent
    root = package.parent if (package.parent / "studies").is_dir() else None

    def shown(found: re.Match[str]) -> str:
        target = found["target"]
        if "://" in target or target.startswith("#"):
            return found[0]
        path = (FOLDER / target.partition("#")[0]).resolve()
        said = str(path.relative_to(root) if root else path)
        return said if said == found["text"] else f"{found['text']} ({said})"

    return _outside_code(_LINK, shown, text)


class _InParts(TableElement):
    """A table of a guide, set as those of results are."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        headings = self.header.row.cells if self.header and self.header.row else []
        kinds = [Kind.NUMBER if one.justify == "right" else Kind.PROSE for one in headings]
        columns = [Column(one.content.plain, k) for one, k in zip(headings, kinds, strict=True)]
        rows = self.body.rows if self.body else []
        # What stands before the first number says what a row is of.
        keys = kinds.index(Kind.NUMBER) if Kind.NUMBER in kinds else 1
        table = Table(columns, keys=max(1, keys))
        table.rows += [[one.content.plain for one in row.cells] for row in rows]
        yield from in_parts(table, options.max_width)


class _Set(Markdown):
    """A guide as it is set for a terminal."""

    elements = {**Markdown.elements, "table_open": _InParts}  # noqa: RUF012
