"""The errors a user can meet. The library raises them; the command line alone prints them."""


class ExplorerError(Exception):
    """Something the user can act on: one sentence that says what, the value, and what to do."""


class InvalidInput(ExplorerError):
    """A value that cannot be used: rows, cols, dtype, device, config, storage."""


class NotFound(ExplorerError):
    """A study, trial, recording or device that does not exist."""


class DeviceLost(ExplorerError):
    """The GPU's worker process could not be started or brought back."""


class WrongKernel(ExplorerError):
    """A kernel that was checked and found wrong, where only a right one will do."""
