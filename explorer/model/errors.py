"""The errors a user can meet. The library raises them; the command line alone prints them."""

from typing import Any


class ExplorerError(Exception):
    """Something the user can act on: one sentence that says what, the value, and what to do."""


class InvalidInput(ExplorerError, ValueError):
    """A value that cannot be used: rows, cols, dtype, device, config, storage."""


class NotFound(ExplorerError):
    """A study, trial, recording or device that does not exist."""


class DeviceLost(ExplorerError):
    """The GPU's worker process could not be started or brought back."""


LONGEST_SENTENCE = 600
"""Characters of a sentence that repeats what a user's file says, which may be of any length."""


def brief(sentence: object) -> str:
    """Return a sentence, cut in its middle where it is too long to read."""
    text = str(sentence)
    if len(text) <= LONGEST_SENTENCE:
        return text
    return f"{text[: LONGEST_SENTENCE - 200]} ... {text[-195:]}"


class WrongKernel(ExplorerError):
    """A kernel that was checked and found wrong, where only a right one will do."""

    verdict: Any = None
    """The `Verdict` with what was found, where a single kernel was checked."""
