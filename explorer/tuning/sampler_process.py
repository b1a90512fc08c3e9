"""A process of its own in which Optuna's TPE proposes configs, while the search does other work.

The threads of a search share one of Python's interpreters. On an H200's host they had it in use for
3.0 of the 3.6 s in which 200 kernels were evaluated, a third of that for what TPE proposed.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection

from explorer.config import Config
from explorer.parameters import Value
from explorer.processes import leave_interrupts, talking_to
from explorer.tuning.surrogate import OptunaSampler


class SamplerProcess:
    """Another process, in which the TPE of one search is asked and told."""

    def __init__(self) -> None:
        """Start it; it imports Optuna, which takes a second."""
        self._connection, self._process = talking_to(_serve)

    def sampler(
        self, values: Mapping[str, tuple[Value, ...]], seed: int, objectives: int
    ) -> "SamplerElsewhere":
        """Return TPE on the values of a space's parameters, as it is there."""
        return SamplerElsewhere(self._connection, values, seed, objectives)

    def close(self) -> None:
        """End it, whatever it is at."""
        self._connection.close()
        self._process.kill()
        self._process.join()


class SamplerElsewhere(OptunaSampler):
    """Optuna's TPE in another process; in this one, with all that it was told, if that has ended.

    What is asked for was proposed after the config before was asked for: it knows nothing of what
    was told since. That is the outcome of a kernel or two, where others are under way as well.
    """

    def __init__(
        self,
        connection: Connection,
        values: Mapping[str, tuple[Value, ...]],
        seed: int,
        objectives: int,
    ) -> None:
        super().__init__(dict(values), seed, objectives)
        self._connection = connection
        self._history: list[tuple[Config, tuple[float, ...]]] = []
        """All that it was told, for a sampler of this process."""
        self._is_elsewhere = True
        self._send("open", dict(values), seed, objectives)
        self._send("ask")

    def ask(self) -> Config:
        """As `OptunaSampler.ask`; the next config is proposed from here on."""
        with suppress(EOFError, OSError):
            if self._is_elsewhere:
                config: Config = self._connection.recv()
                self._send("ask")
                return config
        self._take_over()
        return super().ask()

    def tell(self, config: Config, values: tuple[float, ...]) -> None:
        """As `OptunaSampler.tell`."""
        self._history.append((config, values))
        if self._is_elsewhere:
            self._send("tell", config, values)
        else:
            super().tell(config, values)

    def forget(self, config: Config) -> None:
        """As `OptunaSampler.forget`."""
        if self._is_elsewhere:
            self._send("forget", config)
        else:
            super().forget(config)

    def _send(self, name: str, *arguments: object) -> None:
        """Say what is to be done there; whether that process has ended shows when it is asked."""
        with suppress(OSError):
            self._connection.send((name, arguments))

    def _take_over(self) -> None:
        if self._is_elsewhere:
            self._is_elsewhere = False
            for config, values in self._history:
                super().tell(config, values)


# ------------------------------------------------------------------ in that process


def _serve(connection: Connection) -> None:
    """Do what is asked until the other process ends; an error ends this one, and shows there."""
    leave_interrupts()
    sampler: OptunaSampler | None = None
    with suppress(Exception):
        while True:
            name, arguments = connection.recv()
            if name == "open":
                sampler = OptunaSampler(*arguments)
            elif name == "ask":
                connection.send(getattr(sampler, name)())
            else:
                getattr(sampler, name)(*arguments)
    os._exit(0)  # Python's own end takes 0.15 s
