"""The page of what a file keeps: a comparison, a journey or a tuned table."""

import shlex
from pathlib import Path

from explorer.devices.recorded import SUFFIX, read_header
from explorer.model.asked import AskedProblem
from explorer.model.errors import InvalidInput
from explorer.model.tuned_table import read_table, table_file
from explorer.report.compare import comparison_page, read_compared
from explorer.report.journey import journey_page, read_journey
from explorer.report.page import KeptPage
from explorer.report.tune import table_page
from explorer.system.user_files import COMPARISON, JOURNEY, TUNED_TABLE, kind_of, read_json


def kept_page(named: Path) -> KeptPage:
    """Return the page of a file. Raises InvalidInput for a file that keeps nothing.

    A comparison, a journey and a tuned table are known by their keys. A tuned table may also be
    named as `explorer table list` does.
    """
    path = table_file(named)
    if path.name.endswith(SUFFIX):
        raise InvalidInput(_of_a_recording(path))
    kind = kind_of(read_json(path, "name a comparison, a journey or a tuned table"))
    if kind == COMPARISON:
        return comparison_page(read_compared(path))
    if kind == JOURNEY:
        return journey_page(read_journey(path))
    if kind == TUNED_TABLE:
        return table_page(read_table(path))
    raise InvalidInput(
        f"{path} is none of the files that a report shows; name what explorer compare --save, "
        "explorer journey --save or explorer tune wrote"
    )


def _of_a_recording(path: Path) -> str:
    """Say which commands show what a recording holds; raises its own error for a damaged one."""
    options = shlex.join(AskedProblem.of(read_header(path).problem).options)
    device = shlex.join(["--device", f"recorded:{path}"])
    return (
        f"{path} is a recording, which a report shows once a search has replayed it: give "
        f"explorer search {options} {device}, and then explorer report {options}"
    )
