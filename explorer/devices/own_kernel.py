"""A person's own CUDA kernel as a program to check, launched as the options and its file say.

The file needs no header of this project. What its text tells is read from it: the parameters, the
arguments of a template, the block, the grid and the shared memory of its only launch. Anything else
is asked for. The program has a launch plan as an emitted file has one.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from explorer.codegen.launch_plan import LaunchPlan, PlannedLaunch
from explorer.codegen.own_launches import HostLaunches, split
from explorer.codegen.own_source import (
    ENTRY,
    Operand,
    OwnKernel,
    OwnSource,
    element_of,
    with_entry,
)
from explorer.devices.program_under_test import (
    HALF_ULP,
    ROUNDINGS_A_TERM,
    SPARE_TERMS,
    ProgramUnderTest,
    has_command,
    read_emitted,
    read_source,
)
from explorer.model.config import Config
from explorer.model.element import TYPE_BYTES, DType
from explorer.model.errors import InvalidInput, brief
from explorer.model.peer import PeerName
from explorer.model.problem import Problem, inputs, results, scalars
from explorer.model.query import ProblemQuery, option_of
from explorer.ptx_emulator import MAX_BLOCK
from explorer.reference.inputs import Held
from explorer.reference.layout import Promise
from explorer.system.plain_data import shown
from explorer.system.user_files import cuda_file

# ------------------------------------------------------------------ what the options say


@dataclass(frozen=True, slots=True)
class OwnLaunch:
    """How a kernel of one's own is launched; None and "" for what its file is to say."""

    kernel: str | None = None
    """Its name, with a template's arguments as NAME<256>."""
    block: str | None = None
    """Threads of a block."""
    grid: str | None = None
    """Blocks, as an expression of rows and cols."""
    shared: str | None = None
    """Bytes of dynamic shared memory a block, as an expression of rows and cols."""
    args: str | None = None
    """What each parameter gets, between commas."""
    cols_multiple: int = 1
    """The kernel is for multiples of so many columns."""

    def __post_init__(self) -> None:
        """Read a list of arguments; raise InvalidInput for what is neither text nor a number."""
        for name, value in asdict(self).items():
            if isinstance(value, list | tuple):
                object.__setattr__(self, name, ",".join(map(str, value)))
            elif isinstance(value, int) and not isinstance(value, bool) and name != "cols_multiple":
                object.__setattr__(self, name, str(value))
            elif value is not None and not isinstance(value, str | int):
                raise InvalidInput(f"{name} is {shown(value)}; it must be text, as of --{name}")

    def check_none(self, what: str) -> None:
        """Raise InvalidInput if anything is said, which says nothing of `what`."""
        usual = asdict(OwnLaunch())
        given = [option_of(name) for name, one in asdict(self).items() if one != usual[name]]
        if given:
            raise InvalidInput(
                f"{' and '.join(given)} {'says' if len(given) == 1 else 'say'} how a kernel of "
                f"your own is launched, and {what}: leave {'it' if len(given) == 1 else 'them'} out"
            )


# ------------------------------------------------------------------ the program


CONSTANT_GRID = 2**30
"""Rows of a tile where the grid does not grow with the rows: blocks stride over them."""

MANY_ROWS = 2**22
"""Rows for which a grid that is bounded, as min(rows, 2048), has as many blocks as it ever has."""

ROUNDINGS_OF_FAST_EXP = 256
"""Roundings that explain the error of `__expf`: 2 + 1.16 |x| ulp, by the CUDA C++ Programming
Guide, for the x of -104 of the smallest results."""


@dataclass(frozen=True, slots=True)
class OwnProgram(ProgramUnderTest):
    """A person's own kernel, launched by ENTRY; `config` holds its threads and rows a block."""

    entry_source: str = ""
    """What is compiled: the lines of the file that the kernel needs, and ENTRY."""
    launch_words: str = ""
    """The launch as host code would have it."""
    cols_multiple: int = 1
    """The number of which its columns are multiples."""
    has_bounded_grid: bool = False
    """Whether its blocks have to stride over many rows."""

    @property
    def compiled_source(self) -> str:
        """The text that is compiled, whose lines have the file's numbers."""
        return self.entry_source

    @property
    def is_own(self) -> bool:
        """Whether it is a kernel that a person wrote without this project."""
        return True

    @property
    def words(self) -> str:
        """The launch, in words."""
        return self.launch_words

    @property
    def told_by(self) -> str:
        """What tells its launches, in words."""
        return f"the launch of {self.words}"

    @property
    def any_alignment(self) -> bool:
        """Whether its matrices may be unaligned: those of cudaMalloc are not."""
        return False

    @property
    def promise(self) -> Promise | None:
        """Nothing is promised: matrices are as aligned as cudaMalloc returns them."""
        return None

    @property
    def cols_unit(self) -> int:
        """Number of which its run-time cols are multiples."""
        return self.cols_multiple

    @property
    def judged_on(self) -> Held | None:
        """Rows of numbers: on others published kernels differ, and it is said how this one does."""
        return Held.FINITE

    @property
    def rewrites(self) -> bool:
        """Whether the output may be written more than once."""
        return True

    def rounding(self, problem: Problem) -> float:
        """Return the largest relative error that a right kernel's roundings explain.

        Any order of the sum is allowed, also one after another, and so is `__expf`.
        """
        if problem.dtype.in_double:
            return 0.0
        terms = SPARE_TERMS + ROUNDINGS_OF_FAST_EXP + problem.cols
        return ROUNDINGS_A_TERM * terms * HALF_ULP


def is_emitted(path: Path) -> bool:
    """Return whether a file says by which `explorer emit` it was written; raises InvalidInput."""
    return has_command(read_source(path))


def read_file(
    what: str, launch: OwnLaunch, query: ProblemQuery | None, *, reads_dtype: bool = True
) -> ProgramUnderTest:
    """Return the program in FILE.cu, or in FILE.cu:KERNEL.

    An emitted file tells its problem itself, but for its columns; that of a kernel of one's own is
    `query`, in the type of its first array with `reads_dtype`. Raises InvalidInput for a file that
    cannot be read as either.
    """
    path, kernel = cuda_file(what) or (Path(what), None)
    if kernel is not None and launch.kernel is not None:
        raise InvalidInput(
            f"the kernel is said twice: {kernel} and --kernel {launch.kernel}; give one"
        )
    if is_emitted(path):
        if kernel is not None:
            raise InvalidInput(f"{path} was written by explorer emit: leave :{kernel} out")
        launch.check_none(f"the header of {what}, which explorer emit wrote, says it")
        return read_emitted(path).at_cols(None if query is None else query.cols)
    if query is None:
        raise InvalidInput(
            f"{what} has no 'explorer emit' line in its header comment, so that it is taken "
            "for a kernel of your own, and its columns are missing: give --cols 1000"
        )
    launch = replace(launch, kernel=kernel or launch.kernel)
    return read_own(path, launch, query, reads_dtype=reads_dtype)


def read_own(
    path: Path, launch: OwnLaunch, query: ProblemQuery, *, reads_dtype: bool = False
) -> OwnProgram:
    """Return the program of a file that a person wrote.

    With `reads_dtype` the element type is that of the kernel's first array. Raises InvalidInput for
    a file without the kernel, for what it does not tell and nobody says, and for what is not
    served, each with its place.
    """
    text = read_source(path)
    try:
        source = OwnSource.read(text, path.name)
        kernel, arguments = source.kernel(launch.kernel)
        if reads_dtype:
            query = _with_dtype_of(kernel, arguments, query)
        problem = query.problem()
        return _planned(source, kernel, arguments, launch, problem)
    except InvalidInput as error:
        raise InvalidInput(brief(error)) from None


def _with_dtype_of(
    kernel: OwnKernel, arguments: tuple[str, ...], query: ProblemQuery
) -> ProblemQuery:
    """Return a query for the element type of a kernel's first array, if it has one of ours."""
    element = element_of(kernel, arguments)
    dtype = next((one for one in DType if one.cuda.name == element), None)
    if dtype is None or dtype is query.dtype:
        return query
    return query.with_dtype(dtype)


def _planned(
    source: OwnSource,
    kernel: OwnKernel,
    arguments: tuple[str, ...],
    launch: OwnLaunch,
    problem: Problem,
) -> OwnProgram:
    """Return the program of a kernel on a problem; raises InvalidInput."""
    _check_served(source, kernel, problem)
    operands = _operands(problem)
    passed = _passed(source, kernel, launch, operands)
    entry_source, taken = with_entry(source, kernel, arguments, passed, operands)
    launches = _launches(source, kernel, passed, arguments)
    block = _block(source.file, launches, launch, kernel)
    grid, shared = (
        _blocks_or_bytes(source.file, launches, launch, name) for name in ("grid", "shared")
    )
    if launch.grid is None:
        grid = _in_rows(grid, launches, passed)
    numbers = {"blocks": grid, **({"shared": shared} if shared != "0" else {})}
    sizes = {f"sizeof({name})": str(size) for name, size in TYPE_BYTES.items()}
    plan = LaunchPlan(
        (PlannedLaunch(ENTRY, str(block), taken, takes_shared="shared" in numbers),), numbers, sizes
    )
    tile_rows = _tile_rows(plan, grid, problem.cols)
    template = f"<{', '.join(arguments)}>" if arguments else ""
    third = f", {shared}" if shared != "0" else ""
    program = OwnProgram(
        source.text,
        problem,
        _standing_for(block, tile_rows, problem, is_static="cols" not in _names(passed)),
        plan,
        source.file,
        has_own_text=True,
        entry_source=entry_source,
        launch_words=(f"{kernel.name}{template}<<<{grid}, {block}{third}>>>({', '.join(passed)})"),
        cols_multiple=launch.cols_multiple,
        has_bounded_grid=tile_rows == CONSTANT_GRID,
    )
    if problem.cols % launch.cols_multiple:
        raise InvalidInput(
            f"cols is {problem.cols}, and --cols-multiple {launch.cols_multiple} says that the "
            "kernel is for multiples of that: give --cols "
            f"{-(-problem.cols // launch.cols_multiple) * launch.cols_multiple}"
        )
    program.launches(problem)
    return program


def _standing_for(block: int, tile_rows: int, problem: Problem, *, is_static: bool) -> Config:
    """Return a config with a kernel's threads and rows a block, by which sizes to try are chosen.

    All else of it is of a simple kernel, of which nothing is said.
    """
    rows = min(tile_rows, MAX_BLOCK[0]) if tile_rows != CONSTANT_GRID else 1
    return Config(
        threads=block,
        threads_per_row=max(1, block // rows),
        rows_per_thread=max(1, rows // block),
        vector_bytes=problem.dtype.itemsize,
        cache="none",
        cache_holds="input",
        static_cols=is_static,
    )


def _tile_rows(plan: LaunchPlan, grid: str, cols: int) -> int:
    """Return how many rows a block works on, by the blocks of few rows; raises InvalidInput."""

    def blocks(rows: int) -> int:
        return plan.launches(rows, cols)[0].grid

    if blocks(1) < 1:
        raise InvalidInput(
            f"grid is {grid}, which is {blocks(1)} for 1 row: write it so that the last rows have "
            "a block, too, such as (rows + 7) / 8"
        )
    if blocks(MANY_ROWS) == blocks(2 * MANY_ROWS):
        return CONSTANT_GRID
    return next(rows for rows in range(1, MANY_ROWS) if blocks(rows + 1) != blocks(1))


def _names(passed: tuple[str, ...]) -> set[str]:
    return {word for text in passed for word in re.findall(r"[A-Za-z_]\w*", text)}


# ------------------------------------------------------------------ what is not served


def _check_served(source: OwnSource, kernel: OwnKernel, problem: Problem) -> None:
    """Raise InvalidInput for a problem or a kernel that is not checked as one's own."""
    if problem.attends or problem.inner > 1:
        what = "attention" if problem.attends else "an axis that is not the last one"
        raise InvalidInput(
            f"a kernel of one's own is checked over the rows of a matrix, not for {what}: leave "
            "--axis and --inner out, and give another --op"
        )
    for item in source.reached(kernel):
        beside = re.search(r"\b(threadIdx|blockIdx|blockDim|gridDim)\.[yz]", item.text)
        if beside:
            raise InvalidInput(
                f"{source.file}, line {source.line(item.start + beside.start())}, uses "
                f"{beside[0]}: blocks and grids of two dimensions are not served; make them one, "
                "with threadIdx.x / 32 and threadIdx.x % 32 for a block of 32 x 8"
            )
        cluster = re.search(r"__cluster_dims__", item.text)
        if cluster:
            raise InvalidInput(
                f"{source.file}, line {source.line(item.start + cluster.start())}, launches "
                "clusters of blocks, which is served for emitted kernels alone"
            )


# ------------------------------------------------------------------ arguments


_MEANT = {
    "input": ("in", "inp", "x", "src", "logits"),
    "output": ("out", "y", "dst", "probs"),
    "rows": ("num_rows", "n_rows", "nrows", "numRows", "nRows"),
    "cols": ("columns", "num_cols", "n_cols", "ncols", "numCols", "nCols"),
}
"""Names of parameters that tell which operand they get. N and M do not: either is used for both."""


def _operands(problem: Problem) -> dict[str, Operand]:
    """Return what can be passed, by its name, in the order in which it is."""
    arrays = {one.name: Operand(one.dtype.cuda.name, True, True) for one in inputs(problem)}
    if problem.in_place:
        arrays["input"] = Operand(problem.dtype.cuda.name, True)
    arrays |= {one.name: Operand(one.dtype.cuda.name, True) for one in results(problem)}
    numbers = {
        name: Operand(one.dtype.cuda.name, False)
        for name, one in scalars(problem).items()
        if (name != "scale" or problem.scale is not None) and name != "inner"
    }
    return {**arrays, **numbers}


def _passed(
    source: OwnSource, kernel: OwnKernel, launch: OwnLaunch, operands: Mapping[str, Operand]
) -> tuple[str, ...]:
    """Return what each parameter gets: what is said, or what the parameters' names tell."""
    if launch.args is not None:
        return tuple(part.strip() for part in launch.args.split(","))
    meant = {other: name for name, others in _MEANT.items() for other in (name, *others)}
    meant |= {name: name for name in operands}
    named = [meant.get(one.name, "") for one in kernel.parameters]
    fits = all(
        name in operands and operands[name].is_array == one.is_pointer
        for name, one in zip(named, kernel.parameters, strict=True)
    )
    if fits and len(set(named)) == len(named):
        return tuple(named)
    listed = [name if name in operands else "" for name in named]
    raise InvalidInput(
        f"what {source.file} passes to {kernel.signature} cannot be read from the names of its "
        f"parameters ({','.join(name or '?' for name in listed)}): say it in their order by "
        f"--args, such as --args {','.join(_example(kernel, listed))}"
    )


def _example(kernel: OwnKernel, known: Sequence[str]) -> Iterator[str]:
    """Yield what each parameter may be given, where it is not known already."""
    arrays, numbers = (
        iter([one for one in usual if one not in known])
        for usual in (("input", "output"), ("rows", "cols"))
    )
    for one, name in zip(kernel.parameters, known, strict=True):
        yield name or next(
            arrays if one.is_pointer else numbers, "nullptr" if one.is_pointer else "0"
        )


# ------------------------------------------------------------------ block, grid and shared memory


_PLACES = {"grid": 0, "block": 1, "shared": 2}
_FORMS = {
    "block": "--block 256, its threads",
    "grid": "--grid rows, --grid '(rows + 7) / 8' for 8 rows a block, or 'min(rows, 2048)'",
    "shared": "--shared, its bytes, such as --shared 'cols * 4'",
}


def _launches(
    source: OwnSource, kernel: OwnKernel, passed: tuple[str, ...], arguments: tuple[str, ...]
) -> HostLaunches:
    """Return the launches of a kernel in its file, with its names for rows and columns."""
    launches = HostLaunches.of(source.text, kernel.name).with_template(arguments)
    lists = [[one.name for one in kernel.parameters]]
    lists += [split(theirs) for _, _, theirs in launches.found]
    operands = {
        name: operand
        for theirs in lists
        if len(theirs) == len(passed)
        for name, operand in zip(theirs, passed, strict=True)
        if operand in ("rows", "cols") and name.isidentifier()
    }
    return launches.named(operands)


def _said(file: str, launches: HostLaunches, launch: OwnLaunch, name: str) -> str | None:
    """Return block, grid or shared memory as an expression: what is given, else what is read.

    None if neither an option nor the file says anything. Raises InvalidInput for what is not one
    expression that can be evaluated.
    """
    given = getattr(launch, name)
    if given is not None:
        return str(given)
    told = launches.configured(_PLACES[name])
    if not told:
        return None
    resolved = [launches.resolved(text) for text in told]
    if len(set(resolved)) > 1 or resolved[0] is None:
        raise InvalidInput(
            f"{file} launches the kernel with {' and with '.join(told)} as its {name}, "
            f"which {'are several' if len(told) > 1 else 'its text does not explain'}: give "
            f"{_FORMS[name]}"
        )
    return resolved[0]


def _block(file: str, launches: HostLaunches, launch: OwnLaunch, kernel: OwnKernel) -> int:
    """Return the threads of a block; raises InvalidInput."""
    said = _said(file, launches, launch, "block")
    if said is None:
        raise InvalidInput(
            f"{file} does not launch {kernel.name}, so that its threads are not known: give "
            f"{_FORMS['block']}, and --grid '(rows + 7) / 8' if a block works on 8 rows"
        )
    sizes = re.findall(r"[^,xX()\s]+", said.replace("dim3", ""))
    if len(sizes) > 1 and all(size.isdigit() for size in sizes) and re.search("[,xX]", said):
        if any(size != "1" for size in sizes[1:]):
            raise InvalidInput(
                f"block is {said}; blocks of two dimensions are not served: make it one of "
                f"{' * '.join(sizes)} threads, with threadIdx.x / {sizes[0]} and threadIdx.x % "
                f"{sizes[0]}"
            )
        said = sizes[0]
    try:
        block = LaunchPlan((), {}).value(said)
    except InvalidInput:
        raise InvalidInput(f"block is {shown(said)}; write its threads, such as 256") from None
    if not 1 <= block <= MAX_BLOCK[0]:
        raise InvalidInput(
            f"block is {block}; a block has 1 to {MAX_BLOCK[0]} threads"
            + (": take fewer, and let each thread have several columns" if block > 0 else "")
        )
    return block


def _in_rows(grid: str, launches: HostLaunches, passed: tuple[str, ...]) -> str:
    """Return a file's grid in rows where it is of an example's number of rows.

    So it is of a launch that passes that number as rows, if the grid has it once.
    """
    for _, _, theirs in launches.found:
        given = [launches.resolved(text) for text in split(theirs)]
        if len(given) != len(passed) or "rows" not in passed:
            continue
        example = given[passed.index("rows")]
        if example and example.isdigit() and len(re.findall(rf"\b{example}\b", grid)) == 1:
            return re.sub(rf"\b{example}\b", "rows", grid)
    return grid


def _blocks_or_bytes(file: str, launches: HostLaunches, launch: OwnLaunch, name: str) -> str:
    """Return the grid, or the shared memory, as an expression; raises InvalidInput."""
    usual = {"grid": "rows", "shared": "0"}[name]
    said = _said(file, launches, launch, name) or usual
    if "," in re.sub(r"(min|max)\([^()]*\)", "", said):
        parts = split(said)
        if any(part != "1" for part in parts[1:]):
            raise InvalidInput(
                f"{name} is {said}; grids of two dimensions are not served: make it one"
            )
        said = parts[0]
    sizes = {f"sizeof({kind})": str(size) for kind, size in TYPE_BYTES.items()}
    try:
        LaunchPlan((), {}, sizes).value(said, {"rows": 1000, "cols": 1000})
    except InvalidInput:
        raise InvalidInput(
            f"{name} is {shown(said)}, which cannot be evaluated: write it in rows, cols, whole "
            "numbers, + - * / %, min and max, such as (rows + 7) / 8"
        ) from None
    return said


# ------------------------------------------------------------------ as a peer


TARGET = "explorer.devices.cuda.own_peer:prepare_of"


def own_peer(what: str, launch: OwnLaunch, problem: Problem) -> PeerName:
    """Return the peer of FILE.cu or FILE.cu:KERNEL, named by the file and its kernel.

    Raises as `read_file`, on a problem, so that it is known before anything is measured.
    """
    program = read_file(what, launch, ProblemQuery.of(problem), reads_dtype=False)
    path, named = cuda_file(what) or (Path(what), None)
    launch = replace(launch, kernel=named or launch.kernel)
    kernel = program.words.partition("<")[0] if program.is_own else "edited"
    name = path.stem.replace(".", "_")  # a dot would begin one of several forms
    given = json.dumps({"path": str(path.absolute()), **asdict(launch)})
    return PeerName(f"{name}:{kernel}", TARGET, given)
