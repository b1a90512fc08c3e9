"""A variant: the program that a config emits for a problem, and how it is launched."""

import hashlib
from dataclasses import dataclass, fields

from explorer.model.config import COHERENT_HINTS, Config
from explorer.model.element import IndexType
from explorer.model.key_split import KeySplit
from explorer.model.problem import Mask, Problem, scalars
from explorer.model.work_split import WorkSplit, borrows_ends

HOST_HEADING = f"// {'-' * 66} host"
"""The line before what a program calls: the host part begins there."""

MAIN_MACRO = "SOFTMAX_NO_MAIN"
"""The macro that leaves out a file's `main()`; no file without one names it."""

_HOST_BEGINS = (HOST_HEADING, "#ifndef __CUDACC_RTC__", "#if !defined(__CUDACC_RTC__)")


@dataclass(frozen=True, slots=True, repr=False)
class Launch:
    """One launch of a variant. `arguments` names what is passed, in order.

    Names are those of `operands`: arrays are passed by their addresses, numbers by value.
    """

    entry: str
    grid: int
    block: int
    shared_bytes: int
    arguments: tuple[str, ...]
    blocks_per_sm: int = 0
    """Where not 0, the grid is at most so many blocks on each SM: blocks stride over the rows."""
    cluster: int = 1
    """Blocks of a cluster, as the kernel declares them."""
    overlaps: bool = False
    """It may begin before the launch before it has ended, and waits in its code for that one."""

    def __repr__(self) -> str:
        """Return the text that digests hash.

        It leaves out `cluster`, `overlaps` and a `blocks_per_sm` of 0, so that digests from before
        these fields existed stay valid. The code itself says what a cluster is, and where a launch
        waits for another.
        """
        untold = {"cluster", "overlaps"} | (set() if self.blocks_per_sm else {"blocks_per_sm"})
        shown = [f for f in fields(self) if f.name not in untold]
        return f"Launch({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    def grid_on(self, sm_count: int) -> int:
        """Blocks to launch on a GPU of `sm_count` SMs."""
        return min(self.grid, self.blocks_per_sm * sm_count) if self.blocks_per_sm else self.grid


@dataclass(frozen=True, slots=True)
class Variant:
    """Source and launches, in order, of `config` for `problem`."""

    problem: Problem
    config: Config
    source: str
    launches: tuple[Launch, ...]
    scratch_bytes: int = 0
    """Device memory that launches share by the argument `scratch`; it begins undefined."""

    @property
    def code(self) -> str:
        """What the GPU runs: the source without header comment, host part and main program."""
        return split_source(self.source)[0]

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits over code and launches: equal digests run equal programs."""
        text = f"{self.code}\0{self.launches}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def split_source(source: str) -> tuple[str, str]:
    """Return what the GPU runs, and what the host does with it, both without the header comment."""
    lines = source.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    kernel: list[str] = []
    host: list[str] = []
    is_host = False
    for line in lines[start:]:
        is_host = is_host or line.startswith(_HOST_BEGINS)
        (host if is_host else kernel).append(line)
        is_host = is_host and not line.startswith("#endif")
    return "".join(kernel), "".join(host)


# ------------------------------------------------------------------ launches


def namespace(problem: Problem, config: Config) -> str:
    """Return the namespace by which a program calls what is emitted: the problem's.

    The code itself stands in one that has a digest of the code added to its name.
    """
    out = "" if problem.output_dtype is problem.usual_result else f"_{problem.output_dtype}"
    cols = f"_{problem.cols}" if config.static_cols else ""
    cols += f"_{problem.head_dim}_{problem.group}" if problem.attends else ""
    middle = "_middle" if problem.inner > 1 else ""
    kinds = {
        str(problem.mask): problem.mask is not Mask.NONE,
        "scaled": problem.scale is not None,
        "strided": not problem.is_dense,
        "in_place": problem.in_place,
    }
    kind = "".join(f"_{name}" for name, is_so in kinds.items() if is_so)
    op = problem.op.rpartition("_")[2] if problem.attends else problem.op  # lines have 100 columns
    return f"{op}{middle}_{problem.dtype}{out}{cols}{kind}{_name_of_ids(problem)}"


def _name_of_ids(problem: Problem) -> str:
    """Return the end of a namespace: how many ids, of which type, and which results on request.

    Of these there are the letters that their words begin with, because names would be too long.
    """
    several = f"_{problem.ids_per_row}_ids" if problem.ids_per_row > 1 else ""
    narrow = f"_{problem.ids_dtype}" if problem.ids_dtype is IndexType.INT32 else ""
    words = (result.name.split("_") for result in problem.results[1:])
    return several + narrow + "".join(f"_{''.join(word[0] for word in name)}" for name in words)


def entries(problem: Problem, config: Config) -> tuple[str, ...]:
    """Return the kernels' names, in the order of their launches."""
    name = namespace(problem, config)
    of_rows = ("_max", "_shift" if problem.operator.is_log else "_exp", "_sum")
    three = ("_score", "_softmax", "_value") if problem.attends else of_rows
    steps = {"three": three, "one": ("",)}
    two = ("_part", "_merge" if problem.attends else "_row")
    return tuple(f"{name}{step}_kernel" for step in steps.get(config.launches, two))


def has_one_row(problem: Problem, config: Config) -> bool:
    """Whether a block, or a cluster, works on one row at a time: its number is the block's."""
    return problem.inner == 1 and config.rows_per_block == 1


@dataclass(frozen=True, slots=True)
class NeededArch:
    """The first architecture that has what a kernel is made of."""

    number: int
    """Its compute capability, ten times: 90 for sm_90."""
    what: str
    """What older ones lack, in the plural."""


def needed_arch(problem: Problem, config: Config, overlapped: bool = False) -> NeededArch | None:
    """Return the first architecture for a config's kernel, or None where every one serves.

    `GpuSpec` has the same features of each GPU, by which rules exclude configs.
    """
    if config.cluster > 1:
        return NeededArch(90, "clusters of blocks")
    if config.staging == "bulk":
        return NeededArch(90, "bulk copies")
    if overlapped or config.launches == "two-overlapped":
        return NeededArch(90, "launches that overlap")
    if problem.attends and config.core == "mma":
        return NeededArch(80, "products by tensor cores")
    if config.uses_redux:
        return NeededArch(80, "maxima of a warp by redux")
    return NeededArch(80, "asynchronous copies") if config.staging == "async" else None


def can_overlap(config: Config) -> bool:
    """Return whether a config's launch can begin before that of another kernel has ended.

    Loads by the read-only path cannot: they are of what nothing writes as long as the kernel runs,
    and that other one may.
    """
    return config.launches == "one" and config.load_hint in COHERENT_HINTS


def overlaps_before(config: Config, overlapped: bool = False) -> tuple[bool, ...]:
    """Return of each launch, in order, whether it may begin before the one before it has ended."""
    if config.launches == "one":
        return (overlapped,)
    if config.launches == "three":
        return (False, False, False)
    return (False, config.launches == "two-overlapped")


def reads_rows(problem: Problem, config: Config) -> bool:
    """Whether a kernel asks how many rows there are."""
    strides = config.persistent > 0 or config.staging == "span"
    behind_rows = config.launches == "three"  # the maxima lie behind all rows' exponentials
    # Only at the matrix's ends is there no neighbour of which a vector may hold elements.
    of_several = strides or behind_rows or borrows_ends(problem, config)
    return of_several or not has_one_row(problem, config)


def arguments(problem: Problem, config: Config) -> tuple[str, ...]:
    """Return the names of what a kernel takes, in order: what it reads and no more."""
    taken = operand_names(problem, config)
    if problem.attends:
        return tuple(name for name in taken if name != "rows")
    return taken if reads_rows(problem, config) else tuple(n for n in taken if n != "rows")


def operand_names(problem: Problem, config: Config) -> tuple[str, ...]:
    """Return the names of what a launch takes, in the order of its arguments."""
    masks: dict[Mask, tuple[str, ...]] = {
        Mask.LENGTHS: ("lengths",),
        Mask.ADDITIVE: ("mask",),
    }
    strides = ("input_stride", "output_stride", *(("ids_stride",) if problem.ids_dtype else ()))
    cache = ("key_heads", "key_stride", "head_stride", "sequence_stride")
    return (
        *problem.operator.operands,
        *masks.get(problem.mask, ()),
        *(result.name for result in problem.results),
        *(("scratch",) if config.launches != "one" else ()),
        "rows",
        *(() if config.static_cols else ("cols",)),
        *(("mask_rows",) if problem.mask_rows else ()),
        *(("inner",) if problem.inner > 1 else ()),
        *(() if problem.is_dense else strides),
        *(cache if problem.attends else ()),
        *(() if problem.scale is None else ("scale",)),
    )


def launches(problem: Problem, config: Config, overlapped: bool = False) -> tuple[Launch, ...]:
    """Grid, block, shared bytes and arguments of each launch, in order."""
    if problem.attends:
        keys = KeySplit(problem, config)
        blocks, shared = keys.blocks, keys.dynamic_bytes
    else:
        split = WorkSplit(problem, config)
        blocks = -(-problem.rows // split.block_rows) * config.cluster * split.parts
        shared = split.cache_bytes
    return tuple(
        Launch(
            entry=entry,
            grid=blocks,
            block=config.threads,
            shared_bytes=0 if number else shared,
            arguments=arguments(problem, config),
            blocks_per_sm=config.persistent,
            cluster=config.cluster,
            overlaps=overlaps,
        )
        for number, (entry, overlaps) in enumerate(
            zip(entries(problem, config), overlaps_before(config, overlapped), strict=True)
        )
    )


def scratch_bytes(problem: Problem, config: Config) -> int:
    """Bytes of the array `scratch` that the launches for a problem share.

    A kernel of run-time cols may have been emitted for others: rows may start anywhere.
    """
    if config.launches == "one":
        return 0
    if problem.attends:
        return KeySplit(problem, config).scratch_bytes
    split = WorkSplit(problem, config)
    if config.launches != "three":
        return problem.rows * split.parts * 2 * problem.dtype.arithmetic.itemsize
    width = split.width
    kept = (problem.cols + 2 * (width - 1)) // width * width
    return problem.rows * (kept + 1) * problem.dtype.arithmetic.itemsize


# ------------------------------------------------------------------ how a program calls it
# `NAME::launch` in C++ and `NAME_launch` of the library that -DSOFTMAX_LIBRARY makes take the same.

POINTER = "pointer"
"""The kind of an array, which is passed by its address."""

LIBRARY_MACRO = "SOFTMAX_LIBRARY"
"""The macro with which nvcc compiles an emitted file to a library."""


@dataclass(frozen=True, slots=True)
class HostArgument:
    """One argument of `launch`."""

    name: str
    kind: str
    """POINTER, or the array name of a number's type: int32, int64, float32, float64."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """How a program calls what a config emits for a problem."""

    namespace: str
    arguments: tuple[HostArgument, ...]
    """All but the stream, which comes last."""
    scratch_arguments: tuple[HostArgument, ...] | None
    """Those of `scratch_bytes`; None where the kernels need no scratch memory."""

    @classmethod
    def of(cls, problem: Problem, config: Config) -> "HostCall":
        """Return the call of a config's file.

        In place one array, and one stride, stand for two. Over a middle axis the slices are told
        instead of the rows.
        """
        whole = "array" if problem.inner > 1 else "matrix"
        one = {"input": whole, "output": whole}
        one |= {"input_stride": "stride", "output_stride": "stride"}
        new = one if problem.in_place else {}
        new |= {"rows": "outer"} if problem.inner > 1 else {}
        names = (new.get(name, name) for name in operand_names(problem, config))
        arguments = tuple(_argument(problem, name) for name in dict.fromkeys(names))
        of_rows = config.static_cols or (problem.attends and config.splits_launches)
        rows = ("rows",) if of_rows else ("rows", "cols")
        scratch = None if config.launches == "one" else tuple(_argument(problem, n) for n in rows)
        return cls(namespace(problem, config), arguments, scratch)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments, in order."""
        return tuple(argument.name for argument in self.arguments)

    @property
    def function(self) -> str:
        """The library's C function, which returns a cudaError_t."""
        return f"{self.namespace}_launch"

    @property
    def scratch_function(self) -> str | None:
        """The library's C function that returns the bytes of `scratch`; None without scratch."""
        return None if self.scratch_arguments is None else f"{self.namespace}_scratch_bytes"


def _argument(problem: Problem, name: str) -> HostArgument:
    numbers = scalars(problem)
    same = {"outer": "rows", "stride": "input_stride"}.get(name, name)
    return HostArgument(name, numbers[same].dtype.array_name if same in numbers else POINTER)
