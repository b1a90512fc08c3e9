"""The command line: it parses, wires, prints and sets the exit code; the rest is the library's."""

import sys
import warnings

from explorer.cli.app import app


def main() -> None:
    """Entry point of the `explorer` script."""
    if not sys.warnoptions:  # what libraries warn their callers of is nothing to a user
        warnings.simplefilter("ignore")
    app(prog_name="explorer")


__all__ = ["app", "main"]
