"""The guides that come with the package (`explorer/guide/*.md`): list them, or show one."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from explorer.errors import InvalidInput
from explorer.report.table import Table, print_table, prose, words
from explorer.user_files import read_text

FOLDER = Path(__file__).resolve().parents[1] / "guide"

ORDER = (
    "pytorch",
    "cupy",
    "jax",
    "cpp",
    "search",
    "tune",
    "problems",
    "kernel",
    "measurement",
    "slow-cases",
    "without-gpu",
    "commands",
    "glossary",
    "troubleshooting",
)
"""The names of the guides, in the order in which they are listed: use first, then details."""

MOST_NEAREST = 3
"""How many guides a sentence names that resemble an unknown name."""

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[(?P<text>[^\[\]]+)\]\((?P<target>[^()\s]+)\)")


@dataclass(frozen=True, slots=True)
class Guide:
    """A guide: its name, and its Markdown without the comments that say how it is generated."""

    name: str
    text: str

    @property
    def title(self) -> str:
        """The heading of the guide."""
        return self.text.splitlines()[0].removeprefix("# ")

    @property
    def summary(self) -> str:
        """The first paragraph, which says what the reader learns."""
        return " ".join(self.text.split("\n\n")[1].split())


def read_guide(name: str) -> Guide:
    """Return a guide; raises InvalidInput, which names the nearest ones, where there is none."""
    if name not in ORDER:
        near = get_close_matches(name.lower(), ORDER, MOST_NEAREST, cutoff=0.6)
        near += [one for one in ORDER if name.lower() and name.lower() in one and one not in near]
        verb = "is" if len(near) == 1 else "are"
        named = f"the nearest {verb} {', '.join(near)}" if near else f"there are {', '.join(ORDER)}"
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

    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(shown, prose) for prose in parts[::2]]
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
        console.print(Markdown(guide.text))
    else:
        console.file.write(guide.text)
