"""What `--help` prints: commands and options in groups, what matters first, and an example of each.

Typer has Rich draw groups as boxes. Here they are plain sections, whose options stand in one table
(`PANELS`): help needs no import of Rich, and a narrow terminal has its width for text.
"""

import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# ------------------------------------------------------------------ groups of options


OPTIONS = "Options"
"""What a command alone has."""

PANELS = {
    "Problem": "cols rows dtype op shapes draw",
    OPTIONS: "",
    "Measurement": "device seed timing gpu accuracy objectives batch-invariant",
    "Results": "output force missing save from against plot json csv markdown t4 storage study",
    "Problem, in detail": "out-dtype scale mask mask-rows inner input-stride output-stride "
    "in-place shape axis ids-per-row ids-dtype ids-stride also ignore-index label-smoothing z-loss "
    "softcap head-dim group key-heads layout",
}
"""The groups of options, and the options of each, in the order in which they are printed."""

_PANEL_OF = {f"--{name}": panel for panel, names in PANELS.items() for name in names.split()}


_WHOLE = 1000
"""Characters of a sentence in a list of commands: more than any has."""

HELP_NAMES: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
"""The context settings by which `-h` is `--help`."""


_TYPE = re.compile(r" <[^<>]*>$")
"""What Typer puts behind the name of an argument: a type of Python's."""

_HYPHEN = "\N{NON-BREAKING HYPHEN}"

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of all errors of usage, which Typer does not export."""


def _unbroken(ctx: typer.Context) -> Any:
    """Return a formatter of help texts that breaks lines between words, and not at hyphens."""
    formatter: Any = ctx.make_formatter()
    kind = type(formatter)

    def write_text(text: str) -> None:
        kind.write_text(formatter, text.replace("-", _HYPHEN))

    def write_dl(rows: Any, *more: Any, **options: Any) -> None:
        whole = [tuple(text.replace("-", _HYPHEN) for text in row) for row in rows]
        kind.write_dl(formatter, whole, *more, **options)

    formatter.write_text, formatter.write_dl = write_text, write_dl
    return formatter


class _Help:
    """The help of a command or of a group, without lines that end in the middle of a word.

    An error of usage says of which command it is, so that it can name that command's help.
    """

    def get_help(self, ctx: Any) -> str:
        """Return the whole help."""
        formatter = _unbroken(ctx)
        self.format_help(ctx, formatter)  # type: ignore[attr-defined]
        return str(formatter.getvalue()).rstrip("\n").replace(_HYPHEN, "-")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        try:
            read: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except UsageError as error:
            if getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise
        return read


def _place(parameter: Any) -> int:
    """Return where help prints an option of a group; a command's own come as it declares them."""
    names = list(_PANEL_OF)
    return names.index(parameter.opts[-1]) if parameter.opts[-1] in names else -1


class Command(_Help, TyperCommand):
    """A command whose help has its options in groups, and ends in an example."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the arguments, then each group of options that is not empty."""
        arguments: list[tuple[str, str]] = []
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in PANELS}
        for parameter in sorted(self.get_params(ctx), key=_place):
            line = parameter.get_help_record(ctx)
            if line is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append((_TYPE.sub("", line[0]), line[1]))
            else:
                groups[_PANEL_OF.get(parameter.opts[-1], OPTIONS)].append(line)
        for title, lines in {"Arguments": arguments, **groups}.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def format_epilog(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the example as it is typed: a line of it is never broken."""
        if self.epilog:
            with formatter.section("Example"):
                formatter.write(f"  {self.epilog}\n")


class Group(_Help, TyperGroup):
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
