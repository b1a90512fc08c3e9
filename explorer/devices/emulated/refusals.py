"""What the emulator cannot run, as errors of this project."""

from collections.abc import Iterator
from contextlib import contextmanager

from explorer.model.errors import ExplorerError
from explorer.ptx_emulator import EmulatorError, UnsupportedPtx


class NotEmulated(ExplorerError):
    """PTX that the emulator does not know: the kernel stays unverified. `opcodes` names them."""

    def __init__(self, opcodes: tuple[str, ...], sentence: str) -> None:
        self.opcodes = opcodes
        super().__init__(sentence)


class LaunchRefused(ExplorerError):
    """A launch that the emulator cannot make: wrong arguments, block or cluster."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise the emulator's errors as NotEmulated or LaunchRefused."""
    try:
        yield
    except UnsupportedPtx as error:
        raise NotEmulated(error.opcodes, str(error)) from None
    except EmulatorError as error:
        raise LaunchRefused(str(error)) from None
