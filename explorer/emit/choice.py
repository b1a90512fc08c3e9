"""What to emit, as a user names it: best, a trial's number, or a config as JSON."""

from explorer.config import Config
from explorer.errors import InvalidInput

Choice = str | int | Config
"""`best`, a trial's number, or a config."""


def parse_choice(text: str) -> Choice:
    """Read WHAT of `explorer emit`; raises InvalidInput saying the three forms."""
    stripped = text.strip()
    if stripped == "best":
        return "best"
    if stripped.isascii() and stripped.isdigit():
        return int(stripped)
    if stripped.startswith("{"):
        return Config.from_json(stripped)
    raise InvalidInput(
        f"'{text}' cannot be emitted: write best, a trial's number such as 12, "
        "or a config as JSON such as '{\"threads\":256}'"
    )
