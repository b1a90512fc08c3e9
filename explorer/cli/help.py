"""What `--help` prints: commands and options in groups, what matters first, and an example of each.

Typer has Rich draw its groups as boxes. Here they are plain sections with the same names
(`rich_help_panel`): help needs no import of Rich, and a narrow terminal has its width for text.
"""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# ------------------------------------------------------------------ groups of options


PROBLEM = "Problem"
OPTIONS = "Options"
"""What a command alone has."""
MEASUREMENT = "Measurement"
RESULTS = "Results"
DETAILS = "Problem, in detail"

PANELS = (PROBLEM, OPTIONS, MEASUREMENT, RESULTS, DETAILS)
"""In the order in which they are printed."""


_WHOLE = 1000
"""Characters of a sentence in a list of commands: more than any has."""

HELP_NAMES: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
"""The context settings by which `-h` is `--help`."""


class Command(TyperCommand):
    """A command whose help has its options in groups, and ends in an example."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the arguments, then each group of options that is not empty."""
        arguments: list[tuple[str, str]] = []
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in PANELS}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append(line)
            else:
                groups[getattr(parameter, "rich_help_panel", None) or OPTIONS].append(line)
        for title, lines in {"Arguments": arguments, **groups}.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def format_epilog(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the example as it is typed: a line of it is never broken."""
        if self.epilog:
            with formatter.section("Example"):
                formatter.write(f"  {self.epilog}\n")


class Group(TyperGroup):
    """A group of commands whose help lists them in groups, each with its whole first sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read `help COMMAND`, as other tools have it, as `COMMAND --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write each group of commands in the order in which the first of each was added."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            title = getattr(command, "rich_help_panel", None) or "Commands"
            groups.setdefault(title, []).append((name, command.get_short_help_str(_WHOLE)))
        for title, lines in groups.items():
            with formatter.section(title):
                formatter.write_dl(lines)
