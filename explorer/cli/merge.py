"""`explorer merge`: store the trials that a search had to keep in a file."""

from pathlib import Path
from typing import Annotated

import typer

from explorer.cli.options import Json, Storage
from explorer.cli.output import say

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="The file that the search named.", show_default=False),
]


def merge(file: File, storage: Storage = None, json: Json = False) -> None:
    """Store the trials that a search kept in a file because it could not write its database."""
    from explorer.report.json_data import as_text
    from explorer.report.text import counted
    from explorer.tuning import merge_trials, open_storage, read_unsaved

    unsaved = read_unsaved(file)
    merged = merge_trials(open_storage(storage), unsaved)
    if unsaved.is_cut:
        say(f"the last line of {file} was cut off: its trial is lost")
    if json:
        print(as_text(merged._asdict()))
        return
    known = f"; {merged.known} were there before" if merged.known else ""
    say(f"{counted(merged.added, 'trial')} added to study '{merged.study}'{known}")
    if merged.left:
        say(f"{merged.left} is being evaluated by another process: merge {file} again later")
    else:
        say(f"run the search again, so that its finals know of them; {file} can be deleted")
