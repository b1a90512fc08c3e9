"""`explorer studies`: what was searched so far."""

from typing import Annotated

import typer

from explorer.cli.options import Json, Storage


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
    from explorer.report.markdown import markdown_table
    from explorer.report.studies_report import print_studies
    from explorer.search import list_studies, load_study, open_storage

    opened = open_storage(storage, read_only=True)
    summaries = list_studies(opened)
    if json:
        print(as_text({"studies": [summary_data(summary) for summary in summaries]}))
    elif markdown:
        problems = {s.problem for s in summaries if s.measured and s.is_current}
        ordered = sorted(problems, key=lambda p: (p.dtype, p.cols, p.rows))
        print(markdown_table([load_study(opened, problem) for problem in ordered]), end="")
    else:
        print_studies(summaries, results())
