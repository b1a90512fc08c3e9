"""What to emit, as a user names it.

`best`, a trial's number, `heuristic`, a preset, or a config as JSON.
"""

from typing import TypeGuard

from explorer.config import Config
from explorer.errors import InvalidInput
from explorer.plain_data import shown
from explorer.presets import Preset, find_preset

BEST = "best"
HEURISTIC = "heuristic"

MOST_DIGITS = 15
"""Of a trial's number."""

Choice = str | int | Config | Preset
"""BEST or HEURISTIC, a trial's number, a config, or a published kernel."""


def is_of_study(choice: Choice) -> TypeGuard[str | int]:
    """Whether it is a trial of a study: its best, or one by its number."""
    return isinstance(choice, int) or choice == BEST


def parse_choice(text: str) -> Choice:
    """Read WHAT of `explorer emit`; raises InvalidInput saying its forms."""
    stripped = text.strip()
    if stripped in (BEST, HEURISTIC):
        return stripped
    if stripped.isascii() and stripped.isdigit():
        if len(stripped) > MOST_DIGITS:
            raise InvalidInput(
                f"a trial's number has {MOST_DIGITS} digits at most, and {shown(stripped)} has "
                f"{len(stripped)}; explorer show lists the best trials"
            )
        return int(stripped)
    if stripped.startswith("{"):
        return Config.from_json(stripped)
    try:
        return find_preset(stripped)
    except InvalidInput as error:
        raise InvalidInput(
            f"'{text}' cannot be emitted: write best, a trial's number such as 12, heuristic, "
            f"a preset, or a config as JSON such as '{{\"threads\":256}}'; {error}"
        ) from None
