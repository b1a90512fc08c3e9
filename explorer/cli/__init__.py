"""The command line: it parses, wires, prints and sets the exit code; the rest is the library's."""

from explorer.cli.app import app


def main() -> None:
    """Entry point of the `explorer` script."""
    app(prog_name="explorer")


__all__ = ["app", "main"]
