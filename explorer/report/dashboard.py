"""The command line of optuna-dashboard, an extra."""

import shutil
import sys
from pathlib import Path

from explorer.errors import NotFound
from explorer.tuning.storage import DEFAULT_PATH, open_storage
from explorer.tuning.study_reader import read_studies

PROGRAM = "optuna-dashboard"


def dashboard_program() -> str | None:
    """The path of optuna-dashboard: beside this Python, else anywhere on PATH."""
    beside = shutil.which(PROGRAM, path=str(Path(sys.executable).parent))
    return beside or shutil.which(PROGRAM)


def dashboard_command(storage: str | None, port: int) -> list[str]:
    """What to run; raises NotFound without the extra, and where the storage has no studies.

    Raises InvalidInput for a storage that cannot be read.
    """
    program = dashboard_program()
    if program is None:
        raise NotFound(f"{PROGRAM} is not installed: pip install 'softmax-explorer[dashboard]'")
    list(read_studies(open_storage(storage, read_only=True)))  # what it cannot read it cannot show
    url = storage or str(DEFAULT_PATH)
    if "://" not in url:
        url = f"sqlite:///{url}"
    return [program, url, "--port", str(port)]
