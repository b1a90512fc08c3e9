"""A peer, inside the worker: prepared, captured as a graph, verified by its replay."""

import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.bench import CHECKED_SETS, SLOW_SAMPLE_US, Bench, LaunchGraph
from explorer.devices.cuda.buffers import poison_of
from explorer.devices.cuda.program import CudaError, checked
from explorer.devices.cuda.tools import DeviceCheck, Tools, combined
from explorer.devices.cuda.verification import INEXACT, sentence
from explorer.model.element import DType
from explorer.model.errors import ExplorerError
from explorer.model.peer import (
    Entered,
    NotEntered,
    PeerBuffers,
    PeerName,
    PeerRefuses,
    Prepare,
    ReadyPeer,
    Renews,
)
from explorer.model.problem import Operand, Problem, inputs, results
from explorer.ops import Extent
from explorer.reference.inputs import Case, pattern_count

# ------------------------------------------------------------------ rows


Check = Callable[[DeviceCheck, Operand], bool]
"""Returns whether a result's wrong elements are a fault rather than coarse rounding."""

Addresses = Callable[[int], dict[str, int]]
"""Returns the addresses of the last results for an index, by their names."""


def wrong_rows(
    bench: Bench,
    tools: Tools,
    seed: int,
    replay: Callable[[], None],
    written: Addresses,
    is_fault: Check,
) -> tuple[str, ...]:
    """Return the names of the verification patterns on which a replayed graph is wrong.

    The patterns temporarily replace the first rows of set 0, so that the very launches that are
    timed are checked, and none of another shape. All inputs are filled again afterwards. Ids are
    columns: other libraries do not look, or end with an error. Of attention there are none: what
    lies in a cache is nobody's row.
    """
    problem, first = bench.problem, bench.sets.at(0)
    if problem.attends:
        return ()
    case = Case(problem.resized(rows=min(problem.rows, pattern_count(problem))))
    arrays, operands = case.arrays(seed), (*inputs(problem), *results(problem))
    if "ids" in arrays:
        arrays["ids"] %= problem.cols
    for operand in inputs(problem):
        data = arrays[operand.name].tobytes()
        checked(driver.cuMemcpyHtoD(first[operand.name], data, len(data)))
    replay()
    one, wrong = problem.resized(rows=1), []
    for row, pattern in enumerate(case.patterns):
        begin = {**first, **written(0)}
        addresses = {o.name: begin[o.name] + row * o.stride * o.dtype.itemsize for o in operands}
        checks = zip(tools.check_rows(one, addresses), results(problem), strict=True)
        if any(check.wrong and is_fault(check, result) for check, result in checks):
            wrong.append(pattern.name)
    bench.sets.fill(tools, seed)
    return tuple(dict.fromkeys(wrong))


# ------------------------------------------------------------------ entry


GIVEN = {"input", "grad", "ids"}
"""The arrays that a peer can read beside those of `_others_read` (`PeerBuffers`)."""

WARM_UPS = 2
LEAST_US = 0.1
"""Shortest time of a launch that is assumed: a graph without launches takes no time at all."""

INEXACT_ULP = 8.0
"""Largest error of 16-bit outputs, in ulps, that comes from rounding."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class PeerWrong(ExplorerError):
    """Raised if a peer's output is not what its operator makes of its input."""


class PeerEntry:
    """A contender, and the graph by which it is timed. Raises whatever the peer raises."""

    def __init__(self, name: str, contender: ReadyPeer, bench: Bench, stream: Any) -> None:
        self.name = name
        self.contender = contender
        self._bench = bench
        self._stream = stream
        for index in range(WARM_UPS):
            contender.launch(index)
        checked(driver.cuStreamSynchronize(stream))
        with self._captured(1) as one:
            one_us = max(min(bench.laps_us(one, 2)), LEAST_US)
        self.launches = max(1, min(bench.launches, int(SLOW_SAMPLE_US / one_us)))
        self.graph = self._captured(self.launches)

    def _captured(self, launches: int) -> LaunchGraph:
        handle = self.contender.capture(launches)
        if handle is None:
            return self._bench.graph(self.contender.launch, launches)
        return self._bench.graph_of(handle, launches)

    def verified(self, tools: Tools, seed: int) -> Entered:
        """Replay the graph on poisoned outputs and check them; raises PeerWrong.

        A peer that is wrong only on patterns of verification is timed; the patterns are reported.
        """
        problem, sets = self._bench.problem, self._bench.sets
        checked_sets = min(CHECKED_SETS, sets.count, self.launches)
        for index in range(checked_sets):
            written = self._written(index)
            for result in results(problem):
                at, poison = written[result.name], poison_of(result.dtype)
                checked(driver.cuMemsetD8Async(at, poison, result.bytes, self._stream))
        self._replay()
        checks, inexact = [], ""
        for index in range(checked_sets):
            written = self._written(index)
            checks.append(tools.check_rows(problem, {**sets.at(index), **written}))
            for check, result in zip(checks[-1], results(problem), strict=True):
                if check.wrong:
                    at = written[result.name]
                    inexact = sentence(check, problem, result, at, tools.accuracy)
                    if not _is_rounding(check, result):
                        raise PeerWrong(inexact)
        of_results = combined(checks)
        return Entered(
            name=self.name,
            version=self.contender.version,
            note=self.contender.note,
            error=max(check.error for check in of_results),
            max_ulp=max(check.max_ulp for check in of_results),
            inexact=inexact,
            wrong_rows=self._wrong_rows(tools, seed),
        )

    def _written(self, index: int) -> dict[str, int]:
        """Return the addresses of the last results for an index, by their names."""
        others = [result.name for result in results(self._bench.problem)[1:]]
        output = {"output": self.contender.output(index)}
        return output | {name: self.contender.output(index, name) for name in others}

    def _wrong_rows(self, tools: Tools, seed: int) -> tuple[str, ...]:
        def is_fault(check: DeviceCheck, result: Operand) -> bool:
            return not _is_rounding(check, result)

        return wrong_rows(self._bench, tools, seed, self._replay, self._written, is_fault)

    def _replay(self) -> None:
        """Replay the graph on operands that have changed."""
        if isinstance(self.contender, Renews):
            self.contender.renew()
        self.graph.replay()

    def close(self) -> None:
        """Give up graph and memory."""
        self.graph.__exit__(None, None, None)
        with suppress(Exception):  # its times are known, so a failure no longer matters
            self.contender.close()


def enter(
    peer: PeerName, bench: Bench, tools: Tools, stream: Any, seed: int
) -> tuple[Entered | NotEntered, PeerEntry | None]:
    """Prepare, capture and verify a peer; every failure is returned as NotEntered."""
    contender, entry = None, None
    try:
        if {one.name for one in inputs(bench.problem)} - {*GIVEN, *_others_read(bench.problem)}:
            raise PeerRefuses(f"peers are given no mask; {bench.problem} reads one")
        contender = _prepare(peer)(bench.problem, _buffers(bench), int(stream))
        entry = PeerEntry(peer.name, contender, bench, stream)
        return entry.verified(tools, seed), entry
    except ImportError as error:
        stage, reason, trace = "missing", f"not installed: {error}", traceback.format_exc()
    except PeerRefuses as error:
        stage, reason, trace = "refused", str(error), ""
    except PeerWrong as error:
        stage, reason, trace = "wrong", str(error), ""
    except (Exception, SystemExit) as error:
        stage, reason, trace = "failed", _brief(error), traceback.format_exc()
    lost = _recovered(stream)
    if entry is not None and not lost:
        entry.close()
    elif contender is not None and not lost:
        with suppress(Exception):  # the first failure is the one that is reported
            contender.close()
    reason += f"; the GPU's context is lost: {lost}" if lost else ""
    return NotEntered(peer.name, reason, stage, trace, context_lost=bool(lost)), None


def _prepare(peer: PeerName) -> Prepare:
    """Return the function that a peer names."""
    named = resolve_name(peer.target)
    prepare: Prepare = named(peer.given) if peer.given else named
    return prepare


def _buffers(bench: Bench) -> PeerBuffers:
    sets = bench.sets
    every = [sets.at(index) for index in range(sets.count)]

    def of(name: str) -> tuple[int, ...]:
        return tuple(one[name] for one in every if name in one)

    asked = [result.name for result in results(bench.problem)[1:]]
    return PeerBuffers(
        inputs=of("input"),
        outputs=tuple(sets.output(index) for index in range(sets.count)),
        grads=of("grad"),
        ids=of("ids"),
        others={name: of(name) for name in (*_others_read(bench.problem), *asked)},
    )


def _others_read(problem: Problem) -> list[str]:
    """Return the operands that are a number of each row; of attention, all."""
    if problem.attends:
        return [operand.name for operand in inputs(problem)]
    return [name for name, extent in problem.operator.operands.items() if extent is Extent.ROW]


def _is_rounding(check: DeviceCheck, result: Operand) -> bool:
    """Return whether coarse rounding of an element or a sum can explain the wrong elements."""
    if check.infinite or not isinstance(result.dtype, DType):
        return False
    return check.max_ulp <= INEXACT_ULP if result.dtype.is_half else check.error < INEXACT


def _brief(error: BaseException) -> str:
    """Return an exception's type and the first line of its text, without a terminal's colours."""
    lines = _COLOUR.sub("", str(error)).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}".removesuffix(": ")


def _recovered(stream: Any) -> str:
    """End an interrupted capture, and return why the context is lost, or an empty string."""
    status, capturing = driver.cuStreamIsCapturing(stream)
    if status == 0 and int(capturing) != 0:
        _, graph = driver.cuStreamEndCapture(stream)
        if graph is not None and int(graph):
            driver.cuGraphDestroy(graph)
    try:
        checked(driver.cuCtxSynchronize())
    except CudaError as error:
        return error.name
    return ""
