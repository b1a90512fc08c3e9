"""Remedies as their reader says them: by options of a command, or by parameters of a call."""

from typing import TYPE_CHECKING

from explorer.model.asked import option_of
from explorer.model.errors import ON_COMMAND_LINE

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


def said(parameter: str, option: str | None = None) -> str:
    """Return the option on the command line, such as --storage, and else the parameter's name.

    `option` is the option where its name is another than the parameter's.
    """
    return (option or option_of(parameter)) if ON_COMMAND_LINE.get() else parameter


def again() -> str:
    """Say that the same is to be done once more."""
    return "run the same command again" if ON_COMMAND_LINE.get() else "make the same call again"


def another_output() -> str:
    """Say that another file is to be named for a table."""
    return f"name another {said('output')}"


def named_thread(name: str) -> "ThreadPoolExecutor":
    """Return a pool of one thread, in which remedies are worded as in the thread that asks."""
    from concurrent.futures import ThreadPoolExecutor

    words = ON_COMMAND_LINE.get()  # a new thread begins with the defaults of all such variables
    return ThreadPoolExecutor(1, name, initializer=ON_COMMAND_LINE.set, initargs=(words,))
