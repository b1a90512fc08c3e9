"""A process of its own in which Optuna's TPE proposes configs, while the search does other work.

The threads of a search share one of Python's interpreters. On an H200's host they had it in use for
3.0 of the 3.6 s in which 200 kernels were evaluated, a third of that for what TPE proposed.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from explorer.model.config import Config
from explorer.model.parameters import Value
from explorer.system.processes import leave_interrupts, talking_to

if TYPE_CHECKING:  # Optuna takes a second to import: in the process once it ignores Ctrl-C
    from explorer.tuning.surrogate import OptunaSampler

ANSWER_LIMIT_S = 10.0
"""How long an answer is waited for; a proposal takes 5 to 20 ms, and the import of Optuna 1 s."""

MOST_AT_ONCE = 64
"""Outcomes that are sent together, of half a KB each: a pipe holds more."""

_Step = tuple[str, tuple[Any, ...]]
"""The name of a method of `OptunaSampler`, and its arguments."""


class SamplerProcess:
    """Another process, in which the TPE of one search is asked and told."""

    def __init__(self) -> None:
        """Start it; it imports Optuna, which takes a second."""
        self._connection, self._process = talking_to(_serve)
        self.pid = self._process.pid

    def sampler(
        self, values: Mapping[str, tuple[Value, ...]], seed: int, objectives: int
    ) -> "SamplerElsewhere":
        """Return TPE on the values of a space's parameters, as it is there."""
        return SamplerElsewhere(self._connection, dict(values), seed, objectives)

    def close(self) -> None:
        """End it, whatever it is at."""
        self._connection.close()
        self._process.kill()
        self._process.join()


class SamplerElsewhere:
    """TPE in another process, with the methods of `OptunaSampler`.

    The next proposal is made once something was told after the last one, before it is asked for.
    What is told in between comes too late for it: the outcome of a kernel or two, where others are
    under way as well. If the process has ended, or does not answer, TPE goes on in this one with
    all that it was told.
    """

    def __init__(
        self,
        connection: Connection,
        values: dict[str, tuple[Value, ...]],
        seed: int,
        objectives: int,
    ) -> None:
        self._connection = connection
        self._given = values, seed, objectives
        self._told: list[tuple[Config, tuple[float, ...]]] = []
        self._unsent: list[_Step] = []
        """What was told or forgotten, and goes with what is asked next."""
        self._here: OptunaSampler | None = None
        """In this process, once the other one is lost."""
        self._is_asked = False
        """Whether a proposal is being made."""
        self._is_due = False
        """Whether one is to be made once something is told."""
        with suppress(OSError):  # that the process has ended shows when it is asked
            connection.send(self._given)

    def ask(self) -> Config:
        """As `OptunaSampler.ask`."""
        if self._here is None:
            with suppress(EOFError, OSError):
                config = self._answer()
                if config is not None:
                    return config
            self._here = self._taken_over()
        return self._here.ask()

    def tell(self, config: Config, values: tuple[float, ...]) -> None:
        """As `OptunaSampler.tell`."""
        self._told.append((config, values))
        if self._here is None:
            self._note(("tell", (config, values)))
        else:
            self._here.tell(config, values)

    def forget(self, config: Config) -> None:
        """As `OptunaSampler.forget`."""
        if self._here is None:
            self._note(("forget", (config,)))
        else:
            self._here.forget(config)

    def _note(self, step: "_Step") -> None:
        self._unsent.append(step)
        if self._is_due and len(self._unsent) <= MOST_AT_ONCE:
            self._is_due = False
            with suppress(OSError):
                self._send(asks=True)

    def _answer(self) -> Config | None:
        """Return the next proposal; None if there is none in time."""
        if not self._is_asked:
            while len(self._unsent) > MOST_AT_ONCE:
                self._send(asks=False)
                if self._received() is None:
                    return None
            self._send(asks=True)
        config: Config | None = self._received()
        self._is_asked, self._is_due = False, True
        return config

    def _send(self, *, asks: bool) -> None:
        """Send what fits into the pipe, so that this process never waits for the other to read."""
        steps, self._unsent = self._unsent[:MOST_AT_ONCE], self._unsent[MOST_AT_ONCE:]
        self._is_asked = asks
        self._connection.send((steps, asks))

    def _received(self) -> Any:
        """Return an answer: a config, or True where none was asked for; None if it is late."""
        return self._connection.recv() if self._connection.poll(ANSWER_LIMIT_S) else None

    def _taken_over(self) -> "OptunaSampler":
        from explorer.tuning.surrogate import OptunaSampler

        sampler = OptunaSampler(*self._given)
        for config, values in self._told:
            sampler.tell(config, values)
        return sampler


# ------------------------------------------------------------------ in that process


def _serve(connection: Connection) -> None:
    """Do what is asked until the other process ends; an error ends this one.

    The other process then does the same itself, and shows the error if it is met there.
    """
    leave_interrupts()
    with suppress(Exception):
        from explorer.tuning.surrogate import OptunaSampler

        sampler = OptunaSampler(*connection.recv())
        while True:
            steps, asks = connection.recv()
            for name, arguments in steps:
                getattr(sampler, name)(*arguments)
            connection.send(sampler.ask() if asks else True)
    os._exit(0)  # Python's own end takes 0.15 s
