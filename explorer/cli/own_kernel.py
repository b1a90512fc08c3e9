"""The options of a kernel of one's own, and the file that WHAT names where it names one."""

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.options import option
from explorer.cli.output import is_given
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery, whole_number
from explorer.system.user_files import cuda_file

if TYPE_CHECKING:
    from explorer.devices.own_kernel import OwnLaunch
    from explorer.devices.program_under_test import ProgramUnderTest
    from explorer.model.peer import PeerName


def is_file(what: str | None) -> bool:
    """Return whether WHAT names a file."""
    return what is not None and cuda_file(what) is not None


Kernel = Annotated[
    str | None,
    option("--kernel NAME", "Your kernel in FILE.cu, with its template's arguments: NAME<256>."),
]
Block = Annotated[
    str | None,
    option("--block N", "Threads of a block of your kernel; default: those that FILE.cu launches."),
]
Grid = Annotated[
    str | None,
    option(
        "--grid BLOCKS",
        "Blocks of your kernel, in rows and cols, as '(rows + 7) / 8'; default: those that "
        "FILE.cu launches, else rows.",
    ),
]
Shared = Annotated[
    str | None,
    option(
        "--shared BYTES",
        "Dynamic shared memory of a block of your kernel, as 'cols * 4'; default: what FILE.cu "
        "launches it with, else 0.",
    ),
]
Args = Annotated[
    str | None,
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
    """How a kernel of one's own is launched, where its file does not say it."""

    kernel: Kernel = None
    block: Block = None
    grid: Grid = None
    shared: Shared = None
    args: Args = None
    cols_multiple: Multiple = 1

    @property
    def launch(self) -> "OwnLaunch":
        """What they say."""
        from explorer.devices.own_kernel import OwnLaunch

        return OwnLaunch(**asdict(self))

    def program(
        self, context: typer.Context, what: str, query: ProblemQuery | None
    ) -> "ProgramUnderTest":
        """Return the program in the file that WHAT names, in the type that --dtype gives if it
        does. Raises InvalidInput.
        """
        from explorer.devices.own_kernel import read_file

        return read_file(what, self.launch, query, reads_dtype=not is_given(context, "dtype"))

    def peers(self, named: str | None, problem: Problem) -> "tuple[PeerName, ...]":
        """Return the kernels of the files between commas as peers; raises InvalidInput."""
        from explorer.devices.own_kernel import own_peer

        if named is None:
            self.launch.check_none("--with names no file")
            return ()
        whats = re.split(r",(?![^<]*>)", named)
        return tuple(own_peer(what.strip(), self.launch, problem) for what in whats)
