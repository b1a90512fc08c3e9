"""The options of a kernel of one's own, and the file that WHAT names where it names one."""

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.options import option
from explorer.cli.output import is_given
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery, option_of, whole_number

if TYPE_CHECKING:
    from explorer.devices.own_kernel import OwnLaunch
    from explorer.devices.program_under_test import ProgramUnderTest
    from explorer.model.peer import PeerName

_FILE = re.compile(r"(.+\.cu)(?::([\w:<>, ]+))?")
"""How a file is told from other things that WHAT can be: FILE.cu, or FILE.cu:KERNEL."""


def is_file(what: str | None) -> bool:
    """Return whether WHAT names a file."""
    return what is not None and _FILE.fullmatch(what) is not None


def _path_and_kernel(what: str) -> tuple[Path, str | None]:
    """Return the file that WHAT names, and its kernel if it names one."""
    match = _FILE.fullmatch(what)
    return (Path(match[1]), match[2]) if match else (Path(what), None)


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

    def check_none(self, what: str) -> None:
        """Raise InvalidInput if any is given, which says nothing of `what`."""
        usual = asdict(OwnOptions())
        given = [option_of(name) for name, one in asdict(self).items() if one != usual[name]]
        if given:
            raise InvalidInput(
                f"{' and '.join(given)} {'says' if len(given) == 1 else 'say'} how a kernel of "
                f"your own is launched, and {what}: leave {'it' if len(given) == 1 else 'them'} out"
            )

    def program(
        self, context: typer.Context, what: str, query: ProblemQuery | None
    ) -> "ProgramUnderTest | None":
        """Return the program in the file that WHAT names; None if WHAT names no file.

        Raises InvalidInput as `of_file`.
        """
        return self.of_file(context, what, query) if is_file(what) else None

    def peers(
        self, context: typer.Context, named: str | None, problem: Problem
    ) -> "tuple[PeerName, ...]":
        """Return the kernels of the files between commas as peers, each read for a problem.

        Raises InvalidInput as `of_file`, so that it is known before anything is measured.
        """
        from explorer.devices.own_kernel import own_peer

        if named is None:
            self.check_none("--with names no file")
            return ()
        found = []
        for what in re.split(r",(?![^<]*>)", named):
            query = ProblemQuery.of(problem)
            program = self.of_file(context, what.strip(), query, reads_dtype=False)
            path, kernel = _path_and_kernel(what.strip())
            launch = replace(self.launch, kernel=kernel or self.kernel)
            found.append(own_peer(path, launch, program))
        return tuple(found)

    def of_file(
        self,
        context: typer.Context,
        what: str,
        query: ProblemQuery | None,
        *,
        reads_dtype: bool = True,
    ) -> "ProgramUnderTest":
        """Return the program in a file.

        An emitted file tells its problem itself; that of a kernel of one's own is `query`, in the
        type of its first array if that is to be read and --dtype is not given. Raises InvalidInput
        for a file that cannot be read as either.
        """
        from explorer.devices.own_kernel import is_emitted, read_own
        from explorer.devices.program_under_test import read_emitted

        path, kernel = _path_and_kernel(what)
        launch = self.launch
        if kernel is not None and launch.kernel is not None:
            raise InvalidInput(
                f"the kernel is said twice: {kernel} and --kernel {launch.kernel}; give one"
            )
        if is_emitted(path):
            if kernel is not None:
                raise InvalidInput(f"{path} was written by explorer emit: leave :{kernel} out")
            self.check_none(f"the header of {what}, which explorer emit wrote, says it")
            return read_emitted(path).at_cols(None if query is None else query.cols)
        if query is None:
            raise InvalidInput(
                f"{what} has no 'explorer emit' line in its header comment, so that it is taken "
                "for a kernel of your own, and its columns are missing: give --cols 1000"
            )
        launch = replace(launch, kernel=kernel or launch.kernel)
        reads_dtype = reads_dtype and not is_given(context, "dtype")
        return read_own(path, launch, query, reads_dtype=reads_dtype)
