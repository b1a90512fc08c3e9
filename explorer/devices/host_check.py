"""Whether a file's launch() launches its kernels as they were verified: by the plan of its head."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from explorer.codegen.host_part import (
    HostLaunch,
    HostPart,
    NotInterpreted,
    Number,
    Undefined,
    Value,
)
from explorer.codegen.launch_plan import LaunchPlan
from explorer.codegen.variant import POINTER, HostCall, Launch, entries, split_source
from explorer.model.errors import InvalidInput
from explorer.model.problem import MAX_COLS, MAX_ROWS, Problem, inputs, scalars
from explorer.model.work_split import WorkSplit
from explorer.ptx_emulator import MAX_GRID
from explorer.reference.inputs import with_other_arguments

FUNCTIONS = ("launch", "shared_bytes", "scratch_bytes")
"""What of the host part is interpreted. The rest must be as it is emitted."""

SMS = (1, 132)

STATIC_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory of a block beyond which a kernel must be allowed to have it."""

USUAL_CLUSTER_BLOCKS = 8
"""Blocks of a cluster beyond which a kernel must be allowed to have them."""

ROWS = (1, 2, 3, 7, 1000, 8191, 100_003, 3_000_017)
BLOCKS = (MAX_GRID[0], MAX_GRID[0] + 1, 2 * MAX_GRID[0] + 7)
COLS = (1, 2, 3, 37, 512, 4097, 70_000)
"""Rows, blocks of rows and columns at which launch() is called, beside the kernel's own."""

LARGEST_WIDTH = 16
"""Elements of the largest vector, which is a whole number of every smaller one."""

MOST_SURPLUS = 8
"""Most blocks beside those that are due whose launches are verified: they find no rows."""

_SHARED = "cudaFuncAttributeMaxDynamicSharedMemorySize"
_CLUSTER = "cudaFuncAttributeNonPortableClusterSizeAllowed"
_STREAM = 77 << 20


@dataclass(frozen=True, slots=True)
class HostCheck:
    """What is known of a host part: neither text if it is right."""

    fault: str = ""
    """What it does wrong."""
    unknown: str = ""
    """Why it could not be checked."""
    surplus: int = 0
    """How many blocks more than the plan each launch has, at any size."""


AS_EMITTED = HostCheck()


class _Otherwise(Exception):
    """Something other than what was verified, which may be right."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of launch(), and what it is due to do."""

    problem: Problem
    numbers: dict[str, Number | float]
    """The value of each argument by its name."""
    due: tuple[Launch, ...]

    @property
    def words(self) -> str:
        """The sizes of the call."""
        return f"at {self.problem.rows} rows of {self.problem.cols} columns, launch()"


@dataclass(frozen=True, slots=True)
class _Host:
    """What is checked: the texts are without comments."""

    code: str
    emitted: str
    """What is emitted for the same problem and config."""
    split: WorkSplit
    plan: LaunchPlan

    @property
    def part(self) -> HostPart:
        """The file's host part, in a program that has called nothing yet."""
        return HostPart(self.code, [step.entry for step in self.plan.steps])

    @property
    def emitted_part(self) -> HostPart:
        """The host part of what is emitted."""
        return HostPart(self.emitted, entries(self.split.problem, self.split.config))

    def arguments(self, numbers: Mapping[str, Value]) -> list[Value]:
        """Return what launch() is called with."""
        names = HostCall.of(self.split.problem, self.split.config).names
        return [*(numbers[name] for name in names), Number(_STREAM, 64, signed=False)]


def check_host(
    code: str, emitted: str, frames: Collection[str], split: WorkSplit, plan: LaunchPlan
) -> HostCheck:
    """Return whether the host part of a file's `code` makes the launches of `plan`.

    All texts are without comments; `emitted` is emitted for the same problem and config. Functions
    of the names in FUNCTIONS are interpreted, and all else must be as in one of `frames`, which are
    host parts as emitted.
    """
    file = _Host(code, emitted, split, plan)
    names = [step.entry for step in plan.steps]
    try:
        host = HostPart(host_of(code), names)
        if _frame_of(host) not in [_frame_of(HostPart(text, names)) for text in frames]:
            return HostCheck(unknown="it is not as emitted outside of launch() and its sizes")
        return _judged(file, [int(word, 0) for word in host.tokens if word.isdigit()])
    except NotInterpreted as error:
        return HostCheck(unknown=f"{error} is not interpreted")
    except RecursionError:
        return HostCheck(unknown="its brackets are too deep")


def host_of(code: str) -> str:
    """Return the host part of a code without comments."""
    return split_source(code)[1]


def _judged(file: _Host, singled_out: Sequence[int]) -> HostCheck:
    """Return what the calls show: a fault, or else something that was not verified."""
    calls = [*_calls(file.split, file.plan, singled_out)]
    unknown, more = "", set[int]()
    for sms in SMS if file.split.config.persistent else SMS[:1]:
        part = file.part
        for call in calls:
            fault = ""
            try:
                fault = _fault(file, part, call, sms, more)
            except _Otherwise as otherwise:
                unknown = unknown or str(otherwise)
            except Undefined as undefined:
                fault = f"{call.words} is undefined: {undefined}"
            if fault:
                return HostCheck(fault)
    fault = _of_odd_arguments(file, calls[0]) or _of_errors(file, calls[0])
    if len(more) > 1 or max(more, default=0) > MOST_SURPLUS:
        unknown = unknown or f"it launches up to {max(more)} blocks more than are due"
    return HostCheck(fault, unknown, 0 if fault or unknown else max(more, default=0))


def _frame_of(part: HostPart) -> list[str]:
    """Return the host part without the bodies of what is interpreted."""
    code = part.tokens
    spans = sorted((s, e) for name in FUNCTIONS for _, s, e in part.bodies(name))
    kept, at = list[str](), 0
    for start, end in spans:
        kept += code[at : start + 1]
        at = end
    return kept + code[at:]


# ------------------------------------------------------------------ calls


def _calls(split: WorkSplit, plan: LaunchPlan, singled_out: Sequence[int]) -> Iterator[_Call]:
    """Yield calls at sizes that a launch can have, with what is due, and at other arguments.

    Numbers that the host part names are among the rows, and among the columns that it takes at run
    time, and so are their neighbours.
    """
    problem, config = split.problem, split.config
    unit = split.row_width if split.aligned else 1
    width = [problem.cols]
    if not config.static_cols:
        width += sorted({max(1, cols // unit) * unit for cols in COLS} - {problem.cols})
    near = {more for n in singled_out for more in (n - 1, n, n + 1, 2 * n, 64 * n)}
    own = sorted(n for n in near if 0 < n <= MAX_ROWS)
    for cols in _widths_named(near, unit) if not config.static_cols else ():
        yield from _called(plan, problem.resized(cols=cols), problem.rows)
    for cols in width:
        most = (min(blocks * split.block_rows, MAX_ROWS) for blocks in BLOCKS)
        for rows in (problem.rows, *ROWS, *own, *most):
            yield from _called(plan, problem.resized(cols=cols), rows)
    for other in with_other_arguments(problem, split.rows_together):
        yield from _called(plan, other, other.rows)


def _widths_named(near: Collection[int], unit: int) -> list[int]:
    """Return numbers near those that the host part names, as columns in whole units."""
    return sorted({n // unit * unit for n in near if unit <= n <= MAX_COLS})


def _called(plan: LaunchPlan, problem: Problem, rows: int) -> Iterator[_Call]:
    """Yield a call at so many rows, or nothing if no launch can have these sizes."""
    rows = max(1, rows // problem.inner) * problem.inner
    try:
        sized = problem.resized(rows=rows)
        yield _Call(sized, _numbers(sized), plan.launches(rows, problem.cols))
    except InvalidInput:
        return


def _numbers(problem: Problem) -> dict[str, Number | float]:
    """Return a value for each name of an argument, of arrays an address."""
    names = [one.name for one in inputs(problem)] + [one.name for one in problem.results]
    arrays = ("input", "output", *names, "scratch", "matrix", "array")
    values: dict[str, Number | float] = {
        name: Number((place + 1) << 32, 64, signed=False)
        for place, name in enumerate(dict.fromkeys(arrays))
    }
    for name, number in scalars(problem).items():
        kind = number.dtype.array_name
        is_int = kind.startswith("int")
        values[name] = Number(int(number.value), int(kind[3:])) if is_int else float(number.value)
    values["outer"] = Number(problem.rows // problem.inner, 64)
    if "input_stride" in values:
        values["stride"] = values["input_stride"]
    if problem.in_place:
        values["input"] = values["output"] = values["array"] = values["matrix"]
    return values


# ------------------------------------------------------------------ faults


def _fault(file: _Host, part: HostPart, call: _Call, sms: int, more: set[int]) -> str:
    """Return what launch() does wrong in a call, or an empty string.

    The number of blocks that are launched beside those that are due is added to `more`. Raises
    _Otherwise for what may be right, but is not what is verified.
    """
    error, made = part.launch(file.arguments(call.numbers), sms)
    wrong = _wrong_launches(call, error, made, sms, more)
    return wrong or _scratch_fault(file, part, call)


def _wrong_launches(
    call: _Call, error: int, made: list[HostLaunch], sms: int, more: set[int]
) -> str:
    """Return how the launches differ from those that are due, or an empty string."""
    if max(step.grid for step in call.due) > MAX_GRID[0]:
        return f"{call.words} launches a grid that no GPU has" if made else ""
    if not error and len(made) > len(call.due):
        raise _Otherwise(f"{call.words} makes {len(made)} launches, and {len(call.due)} are due")
    if error or len(made) != len(call.due):
        returned = "an error" if error else "success"
        return f"{call.words} makes {len(made)} launches, and returns {returned}"
    for launch, step in zip(made, call.due, strict=True):
        fault = _launch_fault(call, launch, step)
        if fault:
            return f"{call.words} launches {launch.entry} {fault}"
        more.add(_surplus(call, launch, step, sms))
    return ""


def _launch_fault(call: _Call, made: HostLaunch, due: Launch) -> str:
    passed = tuple(
        number.value if isinstance(number, Number) else number
        for number in (call.numbers[name] for name in due.arguments)
    )
    if made.entry != due.entry:
        return f"in place of {due.entry}"
    if made.grid < due.grid and not due.blocks_per_sm:
        return f"with {made.grid} blocks, and {due.grid} are due"
    if made.block != due.block:
        return f"with blocks of {made.block} threads, and {due.block} are due"
    if made.shared_bytes < due.shared_bytes:
        return f"with {made.shared_bytes} bytes of shared memory, which takes {due.shared_bytes}"
    if made.shared_bytes > max(STATIC_SHARED_BYTES, made.attributes.get(_SHARED, 0)):
        return f"with {made.shared_bytes} bytes of shared memory, more than it is allowed"
    if due.cluster > USUAL_CLUSTER_BLOCKS and not made.attributes.get(_CLUSTER):
        return f"in clusters of {due.cluster} blocks, more than it is allowed"
    if made.stream != _STREAM:
        return "on another stream than it is given"
    if made.overlaps and not due.overlaps:
        return "to overlap the launch before"
    return "" if made.arguments == passed else _argument_fault(made, due, passed)


def _surplus(call: _Call, made: HostLaunch, due: Launch, sms: int) -> int:
    """Return how many blocks more than those that are due are launched.

    Raises _Otherwise for a grid that may be right, but is not known to be: with fewer blocks that
    stride over the rows each has more of them, and without an overlap a kernel waits in vain.
    """
    grid = due.grid_on(sms)
    launches = f"{call.words} launches {made.entry}"
    if made.overlaps != due.overlaps:
        raise _Otherwise(f"{launches} not to overlap the launch before, as was verified")
    if due.blocks_per_sm and made.grid != grid:
        raise _Otherwise(f"{launches} with {made.grid} blocks, and {grid} were verified")
    return made.grid - grid


def _argument_fault(made: HostLaunch, due: Launch, passed: tuple[float, ...]) -> str:
    if len(made.arguments) != len(passed):
        return f"with {len(made.arguments)} arguments, and it takes {len(passed)}"
    pairs = zip(due.arguments, made.arguments, passed, strict=True)
    name = next(name for name, is_, should_be in pairs if is_ != should_be)
    return f"with another `{name}` than it is given"


def _scratch_fault(file: _Host, part: HostPart, call: _Call) -> str:
    host = HostCall.of(call.problem, file.split.config)
    if host.scratch_arguments is None:
        return ""
    asked = [call.numbers[argument.name] for argument in host.scratch_arguments]
    told = part.number("scratch_bytes", asked)
    needed = file.plan.scratch_bytes(call.problem.rows, call.problem.cols)
    at = f"at {call.problem.rows} rows of {call.problem.cols} columns"
    return f"{at}, scratch_bytes() is {told}, and {needed} are used" if told < needed else ""


def _of_odd_arguments(file: _Host, call: _Call) -> str:
    """Return what is wrong where the emitted launch() refuses its arguments, or launches nothing.

    So it does for no rows, for fewer, for a stride less than a row, and for an array that is not
    aligned.
    """
    part, emitted = file.part, file.emitted_part
    for argument in HostCall.of(call.problem, file.split.config).arguments:
        given = call.numbers[argument.name]
        if not isinstance(given, Number):
            continue
        here = {given.value + call.problem.dtype.itemsize}
        if argument.kind != POINTER:
            here = {-given.value, -1, 0, 1, given.value - 1, given.value + 1}
            here.add(call.problem.cols - LARGEST_WIDTH)
        for value in sorted(here):
            numbers = {**call.numbers, argument.name: Number.of(value, given.bits, given.signed)}
            due, made = (_outcome(file, one, numbers) for one in (emitted, part))
            if (bool(due[0]), due[1]) != (bool(made[0]), made[1]):
                what = "is not aligned" if argument.kind == POINTER else f"is {value}"
                does = f"returns {made[1]}" if due[0] or not made[0] else f"launches {made[0]}"
                return f"launch() {does} where `{argument.name}` {what}"
    return ""


def _outcome(file: _Host, part: HostPart, numbers: Mapping[str, Value]) -> tuple[str, str]:
    """Return what launch() launches first, if anything, and in words what it returns."""
    try:
        error, made = part.launch(file.arguments(numbers), SMS[0])
    except Undefined:
        return "", "what is undefined"
    return made[0].entry if made else "", "an error" if error else "success"


def _of_errors(file: _Host, call: _Call) -> str:
    hides = file.part.hides_errors(file.arguments(call.numbers), SMS[0])
    return "launch() returns success where CUDA reports an error" if hides else ""
