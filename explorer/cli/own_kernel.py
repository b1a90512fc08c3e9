"""The options of a kernel of one's own, and the file that WHAT names where it names one."""

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.cli.options import option
from explorer.cli.output import is_given
from explorer.model.errors import InvalidInput
from explorer.model.query import ProblemQuery, option_of, whole_number
from explorer.system.user_files import cuda_file

if TYPE_CHECKING:
    from explorer.devices.own_kernel import OwnLaunch
    from explorer.devices.program_under_test import ProgramUnderTest


def is_file(what: str | None) -> bool:
    """Return whether WHAT names a file."""
    return what is not None and cuda_file(what) is not None


Kernel = Annotated[
    list[str] | None,
    option("--kernel NAME", "Your kernel in FILE.cu, with its template's arguments: NAME<256>."),
]
Block = Annotated[
    list[str] | None,
    option("--block N", "Threads of a block of your kernel; default: those that FILE.cu launches."),
]
Grid = Annotated[
    list[str] | None,
    option(
        "--grid BLOCKS",
        "Blocks of your kernel, in rows and cols, as '(rows + 7) / 8'; default: those that "
        "FILE.cu launches, else rows.",
    ),
]
Shared = Annotated[
    list[str] | None,
    option(
        "--shared BYTES",
        "Dynamic shared memory of a block of your kernel, as 'cols * 4'; default: what FILE.cu "
        "launches it with, else 0.",
    ),
]
Args = Annotated[
    list[str] | None,
    option(
        "--args A,A",
        "What the parameters of your kernel get, in their order: input,output,rows,cols, numbers, "
        "or expressions as cols/4; default: by their names, if these tell.",
    ),
]
Multiple = Annotated[
    int,
    option(
        "--cols-multiple N",
        "Your kernel is for multiples of so many columns: no others are tried.",
        whole_number("cols-multiple", 1),
    ),
]


With = Annotated[
    str | None,
    option(
        "--with FILE.cu",
        "Time a kernel of your own as well: FILE.cu, FILE.cu:KERNEL, or several between commas.",
    ),
]


@dataclass(frozen=True, slots=True)
class OwnOptions:
    """How a kernel of one's own is launched, where its file does not say it.

    An option that is given once is for all files that a command takes; one that is given as often
    as there are files is for each of them, in order.
    """

    kernel: Kernel = None
    block: Block = None
    grid: Grid = None
    shared: Shared = None
    args: Args = None
    cols_multiple: Multiple = 1

    @property
    def launch(self) -> "OwnLaunch":
        """What they say of one file. Raises InvalidInput as `launches`."""
        (launch,) = self.launches(1)
        return launch

    def launches(self, files: int) -> "tuple[OwnLaunch, ...]":
        """Return what they say of each of some files.

        Raises InvalidInput for an option that is given neither once nor for each.
        """
        from explorer.devices.own_kernel import OwnLaunch

        each: list[dict[str, Any]] = [{} for _ in range(files)]
        more = " for all, or once for each" if files > 1 else ""
        for name, given in asdict(self).items():
            values = given if isinstance(given, list) else [given]
            if len(values) not in (1, files):
                raise InvalidInput(
                    f"{option_of(name)} is given {len(values)} times, for {files} "
                    f"file{'s' if files > 1 else ''}: give it once{more}"
                )
            for one, value in zip(each, values * (files // len(values)), strict=True):
                one[name] = value
        return tuple(OwnLaunch(**one) for one in each)

    def program(
        self, context: typer.Context, what: str, query: ProblemQuery | None
    ) -> "ProgramUnderTest":
        """Return the program in the file that WHAT names, in the type that --dtype gives if it
        does. Raises InvalidInput.
        """
        from explorer.devices.own_kernel import read_file

        return read_file(what, self.launch, query, reads_dtype=not is_given(context, "dtype"))

    def beside(self, named: str | None) -> "dict[str, Any]":
        """Return the files between commas, and their launches, as functions take them."""
        files = [] if named is None else re.split(r",(?![^<]*>)", named)
        launches = self.launches(len(files)) if files else (self.launch,)
        return {"with_": [file.strip() for file in files], "own": launches}
