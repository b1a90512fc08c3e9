"""`explorer studies`: what was searched so far."""

from typing import Annotated

import typer

from explorer.cli.exits import say
from explorer.cli.options import Json, Storage
from explorer.errors import InvalidInput


def studies(
    storage: Storage = None,
    json: Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table of their results.")
    ] = False,
) -> None:
    """List the studies of a storage."""
    from explorer.report.console import results
    from explorer.report.json_data import as_text, summary_data
    from explorer.report.markdown import markdown_notices, markdown_table
    from explorer.report.studies_report import print_studies
    from explorer.tuning import list_views, open_storage, survey

    opened = open_storage(storage, read_only=True)
    found = survey(opened)
    summaries = found.summaries
    if found.faults and not summaries:
        raise InvalidInput(f"the storage has no study that can be read: {found.faults[0]}")
    for fault in found.faults:
        say(fault)
    if json:
        print(as_text({"studies": [summary_data(summary) for summary in summaries]}))
    elif markdown:
        views = list_views(opened)
        for notice in markdown_notices(summaries, views):
            say(notice)
        print(markdown_table(views), end="")
    else:
        print_studies(summaries, results())
