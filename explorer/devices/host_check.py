"""Whether a file's launch() launches its kernels as they were verified: by the plan of its head."""

from collections.abc import Collection, Iterator
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
from explorer.codegen.variant import POINTER, HostCall, Launch
from explorer.model.errors import InvalidInput
from explorer.model.problem import MAX_ROWS, Problem, inputs, scalars
from explorer.model.work_split import WorkSplit
from explorer.ptx_emulator import MAX_GRID

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


AS_EMITTED = HostCheck()


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of launch(), and what it is due to do."""

    problem: Problem
    sms: int
    numbers: dict[str, Number | float]
    """The value of each argument by its name."""
    due: tuple[Launch, ...]

    @property
    def words(self) -> str:
        """The sizes of the call."""
        return f"at {self.problem.rows} rows of {self.problem.cols} columns, launch()"


def check_host(
    code: str, host: str, emitted: Collection[str], split: WorkSplit, plan: LaunchPlan
) -> HostCheck:
    """Return whether `host`, the host part of a file's `code`, makes the launches of `plan`.

    All texts are without comments; `emitted` are host parts that are emitted for the same problem
    and config. Functions of the names in FUNCTIONS are interpreted, and all else must be as in one
    of them.
    """
    names = [step.entry for step in plan.steps]
    part = HostPart(code, names)
    try:
        frames = [_frame_of(HostPart(text, names)) for text in emitted]
        if _frame_of(HostPart(host, names)) not in frames:
            return HostCheck(unknown="it is not as emitted outside of launch() and its sizes")
        faults = (_fault(part, call, split, plan) for call in _calls(split, plan))
        return HostCheck(fault=next(filter(None, faults), ""))
    except NotInterpreted as error:
        return HostCheck(unknown=f"{error} is not interpreted")
    except RecursionError:
        return HostCheck(unknown="its brackets are too deep")


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


def _calls(split: WorkSplit, plan: LaunchPlan) -> Iterator[_Call]:
    """Yield calls at sizes that a launch can have, with what is due."""
    problem, config = split.problem, split.config
    unit = split.row_width if split.aligned else 1
    width = [problem.cols]
    if not config.static_cols:
        width += sorted({max(1, cols // unit) * unit for cols in COLS} - {problem.cols})
    for cols in width:
        most = (min(blocks * split.block_rows, MAX_ROWS) for blocks in BLOCKS)
        for rows in (problem.rows, *ROWS, *most):
            rows = max(1, rows // problem.inner) * problem.inner
            try:
                sized = problem.resized(rows=rows, cols=cols)
                due = plan.launches(rows, cols)
            except InvalidInput:
                continue
            for sms in SMS if config.persistent else SMS[:1]:
                yield _Call(sized, sms, _numbers(sized), due)


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
        values["input"] = values["output"] = values["array" if problem.inner > 1 else "matrix"]
    return values


# ------------------------------------------------------------------ faults


def _fault(part: HostPart, call: _Call, split: WorkSplit, plan: LaunchPlan) -> str:
    """Return what launch() does wrong in a call, or an empty string."""
    host = HostCall.of(call.problem, split.config)
    stream = Number(_STREAM, 64, signed=False)
    arguments: list[Value] = [call.numbers[name] for name in host.names]
    try:
        error, made = part.launch([*arguments, stream], call.sms)
        wrong = _wrong_launches(call, error, made)
        scratch = wrong or _scratch_fault(part, call, host, plan)
        return scratch or _of_nothing(part, call, host, split)
    except Undefined as undefined:
        return f"{call.words} is undefined: {undefined}"


def _wrong_launches(call: _Call, error: int, made: list[HostLaunch]) -> str:
    """Return how the launches differ from those that are due, or an empty string."""
    wanted = [step.grid_on(call.sms) for step in call.due]
    if max(step.grid for step in call.due) > MAX_GRID[0]:
        return f"{call.words} launches a grid that no GPU has" if made else ""
    if error or len(made) != len(wanted):
        returned = "an error" if error else "success"
        return f"{call.words} makes {len(made)} launches, and returns {returned}"
    for launch, step, grid in zip(made, call.due, wanted, strict=True):
        fault = _launch_fault(call, launch, step, grid)
        if fault:
            return f"{call.words} launches {launch.entry} {fault}"
    return ""


def _launch_fault(call: _Call, made: HostLaunch, due: Launch, grid: int) -> str:
    passed = tuple(
        number.value if isinstance(number, Number) else number
        for number in (call.numbers[name] for name in due.arguments)
    )
    if made.entry != due.entry:
        return f"in place of {due.entry}"
    if (made.grid, made.block) != (grid, due.block):
        return f"with {made.grid} x {made.block} threads, and {grid} x {due.block} were verified"
    if made.shared_bytes < due.shared_bytes:
        return f"with {made.shared_bytes} bytes of shared memory, which takes {due.shared_bytes}"
    if made.shared_bytes > max(STATIC_SHARED_BYTES, made.attributes.get(_SHARED, 0)):
        return f"with {made.shared_bytes} bytes of shared memory, more than it is allowed"
    if due.cluster > USUAL_CLUSTER_BLOCKS and not made.attributes.get(_CLUSTER):
        return f"in clusters of {due.cluster} blocks, more than it is allowed"
    if made.stream != _STREAM:
        return "on another stream than it is given"
    if made.overlaps != due.overlaps:
        return f"{'' if made.overlaps else 'not '}to overlap the launch before"
    return "" if made.arguments == passed else _argument_fault(made, due, passed)


def _argument_fault(made: HostLaunch, due: Launch, passed: tuple[float, ...]) -> str:
    if len(made.arguments) != len(passed):
        return f"with {len(made.arguments)} arguments, and it takes {len(passed)}"
    pairs = zip(due.arguments, made.arguments, passed, strict=True)
    name = next(name for name, is_, should_be in pairs if is_ != should_be)
    return f"with another `{name}` than it is given"


def _scratch_fault(part: HostPart, call: _Call, host: HostCall, plan: LaunchPlan) -> str:
    if host.scratch_arguments is None:
        return ""
    asked = [call.numbers[argument.name] for argument in host.scratch_arguments]
    told = part.number("scratch_bytes", asked)
    needed = plan.scratch_bytes(call.problem.rows, call.problem.cols)
    at = f"at {call.problem.rows} rows of {call.problem.cols} columns"
    return f"{at}, scratch_bytes() is {told}, and {needed} are used" if told < needed else ""


def _of_nothing(part: HostPart, call: _Call, host: HostCall, split: WorkSplit) -> str:
    """Return what is wrong for no rows, for fewer, or for an array that is not aligned."""
    first = next(argument.name for argument in host.arguments if argument.kind == POINTER)
    rows = "outer" if "outer" in host.names else "rows"
    odd = [(rows, 0), (rows, -1)]
    if split.aligned and split.width > 1:
        odd.append((first, call.problem.dtype.itemsize))
    for name, value in odd:
        given = call.numbers[name]
        assert isinstance(given, Number)
        moved = Number.of(value + given.value * (name == first), given.bits, given.signed)
        told = {**call.numbers, name: moved}
        stream = Number(_STREAM, 64, signed=False)
        error, made = part.launch([*(told[n] for n in host.names), stream], call.sms)
        what = "is not aligned" if name == first else f"is {value}"
        if made:
            return f"launch() launches {made[0].entry} where `{name}` {what}"
        if (error == 0) != ((name, value) == (rows, 0)):
            return f"launch() returns {'an error' if error else 'success'} where `{name}` {what}"
    return ""
