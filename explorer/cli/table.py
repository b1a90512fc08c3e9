"""`explorer table`: list, show and check tuned tables."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from explorer.cli.help import HELP_NAMES, Command, Group
from explorer.cli.options import Csv, Json, argument, one_format, option
from explorer.cli.output import show_result
from explorer.system.user_files import shipped_folder

File = Annotated[
    Path,
    argument(
        "FILE",
        "A table that explorer tune wrote, or the name of one that explorer table list shows.",
    ),
]
Wanted = Annotated[
    Path | None,
    option(
        "--problems FILE.csv",
        "The problems that it must have; default: those of the table's own list if it comes "
        "with the package, else those of a contributed table, studies/tuned/problems.csv.",
    ),
]

NOT_WHOLE = 1
"""The exit code of a table that has faults."""

table = typer.Typer(cls=Group, context_settings=HELP_NAMES, rich_markup_mode=None)


@table.callback(invoke_without_command=True)
def tables(context: typer.Context) -> None:
    """List, show or check tables that explorer tune wrote."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@table.command("list", cls=Command, epilog="explorer table list")
def list_(json: Json = False, csv: Csv = False) -> None:
    """List the tables that come with the package."""
    from explorer.model.tuned_table import read_table, shipped_tables
    from explorer.report.table import data_of, print_table, table_of
    from explorer.report.tune import SHIPPED

    form = one_format(json=json, csv=csv)
    tables = [(name, path, read_table(path)) for name, path in shipped_tables().items()]
    rows = [data_of(SHIPPED, one) for one in tables]
    show_result(
        form,
        lambda console: print_table(table_of(SHIPPED, tables), console),
        lambda: {"tables": rows},
        rows=lambda: rows,
    )


@table.command(cls=Command, epilog="explorer table show held-out/nvidia-h200")
def show(file: File, json: Json = False, csv: Csv = False) -> None:
    """Print the best config of each problem of a table."""
    from explorer.model.tuned_table import read_table
    from explorer.report.tune import print_tuned, tuned_data, tuned_rows
    from explorer.tuning.tune import TuneRun

    form = one_format(json=json, csv=csv)
    run = TuneRun(read_table(file), (), 0)
    show_result(
        form,
        partial(print_tuned, run, file),
        partial(tuned_data, run, file),
        rows=partial(tuned_rows, run),
    )


@table.command(cls=Command, epilog="explorer table check studies/tuned/nvidia-rtx-9999.json")
def check(file: File, problems: Wanted = None, json: Json = False) -> None:
    """List what must be mended before a table can be contributed.

    The exit code is 1 if there is anything to mend. A table must have every problem, each timed
    with every candidate of this version, cold, at the default accuracy, on a GPU that was not
    throttled, and no candidate may be wrong.
    """
    from explorer.model.tuned_table import read_table, table_file
    from explorer.report.text import as_json
    from explorer.report.tune import check_data, print_check
    from explorer.runtime.shapes import read_shapes
    from explorer.tuning.tune import table_faults

    path = table_file(file).resolve()
    read = read_table(path)
    shipped = shipped_folder("tuned", "studies/tuned").resolve()
    of_its_own = path.parent if path.is_relative_to(shipped) else shipped
    faults = table_faults(read, read_shapes(problems or of_its_own / "problems.csv"))
    if json:
        print(as_json(check_data(read, faults)))
    else:
        print_check(read, faults)
    if faults:
        raise typer.Exit(NOT_WHOLE)
