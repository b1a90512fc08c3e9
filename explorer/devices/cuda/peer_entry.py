"""A peer, inside the worker: prepared, captured as a graph, verified by its replay."""

import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.bench import CHECKED_SETS, SLOW_SAMPLE_US, Bench, LaunchGraph
from explorer.devices.cuda.buffers import NAN_BYTE
from explorer.devices.cuda.program import CudaError, checked
from explorer.devices.cuda.tools import DeviceCheck, Tools, combined
from explorer.devices.cuda.verification import INEXACT, sentence
from explorer.model.errors import ExplorerError
from explorer.model.peer import (
    Entered,
    NotEntered,
    PeerBuffers,
    PeerName,
    PeerRefuses,
    Prepare,
    ReadyPeer,
)
from explorer.model.problem import inputs, output, results
from explorer.reference.inputs import Case, pattern_count

# ------------------------------------------------------------------ rows


Check = Callable[[DeviceCheck], bool]
"""Returns whether a check's wrong elements are a fault rather than coarse rounding."""


def wrong_rows(
    bench: Bench,
    tools: Tools,
    seed: int,
    replay: Callable[[], None],
    output: Callable[[int], int],
    is_fault: Check,
) -> tuple[str, ...]:
    """Return the names of the verification patterns on which a replayed graph is wrong.

    The patterns temporarily replace the first rows of set 0, so that the very launches that are
    timed are checked, and none of another shape. All inputs are filled again afterwards.
    """
    problem, first = bench.problem, bench.sets.at(0)
    case = Case(problem.resized(rows=min(problem.rows, pattern_count(problem))))
    arrays, read = case.arrays(seed), [operand.name for operand in inputs(problem)]
    for name in read:
        data = arrays[name].tobytes()
        checked(driver.cuMemcpyHtoD(first[name], data, len(data)))
    replay()
    one, wrong = problem.resized(rows=1), []
    for row, pattern in enumerate(case.patterns):
        addresses = {name: first[name] + row * problem.row_bytes for name in read}
        written = row * problem.result_cols * problem.output_dtype.itemsize
        addresses["output"] = output(0) + written
        (check,) = tools.check_rows(one, addresses)
        if check.wrong and is_fault(check):
            wrong.append(pattern.name)
    bench.sets.fill(tools, seed)
    return tuple(dict.fromkeys(wrong))


# ------------------------------------------------------------------ entry


GIVEN = {"input", "grad"}
"""The arrays that a peer can read (`PeerBuffers`)."""

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
        checked_sets, result = min(CHECKED_SETS, sets.count, self.launches), output(problem)
        for index in range(checked_sets):
            at, size = self.contender.output(index), problem.written_bytes
            checked(driver.cuMemsetD8Async(at, NAN_BYTE, size, self._stream))
        self.graph.replay()
        checks, inexact = [], ""
        for index in range(checked_sets):
            at = self.contender.output(index)
            checks.append(tools.check_rows(problem, {**sets.at(index), "output": at}))
            (check,) = checks[-1]
            if check.wrong:
                inexact = sentence(check, problem, result, at, tools.accuracy)
                if not _is_rounding(check, result.dtype.itemsize):
                    raise PeerWrong(inexact)
        (both,) = combined(checks)
        return Entered(
            name=self.name,
            version=self.contender.version,
            note=self.contender.note,
            error=both.error,
            max_ulp=both.max_ulp,
            inexact=inexact,
            wrong_rows=self._wrong_rows(tools, seed),
        )

    def _wrong_rows(self, tools: Tools, seed: int) -> tuple[str, ...]:
        itemsize = self._bench.problem.output_dtype.itemsize

        def is_fault(check: DeviceCheck) -> bool:
            return not _is_rounding(check, itemsize)

        replay, output = self.graph.replay, self.contender.output
        return wrong_rows(self._bench, tools, seed, replay, output, is_fault)

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
        if {operand.name for operand in inputs(bench.problem)} - GIVEN:
            raise PeerRefuses(f"peers are given no mask and no ids; {bench.problem} reads some")
        if len(results(bench.problem)) > 1:
            raise PeerRefuses(f"peers are asked for one result; {bench.problem} has more")
        prepare: Prepare = resolve_name(peer.target)
        contender = prepare(bench.problem, _buffers(bench), int(stream))
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


def _buffers(bench: Bench) -> PeerBuffers:
    sets = bench.sets
    every = [sets.at(index) for index in range(sets.count)]
    return PeerBuffers(
        inputs=tuple(one["input"] for one in every),
        outputs=tuple(sets.output(index) for index in range(sets.count)),
        grads=tuple(one["grad"] for one in every if "grad" in one),
    )


def _is_rounding(check: DeviceCheck, itemsize: int) -> bool:
    """Return whether coarse rounding of an element or a sum can explain the wrong elements."""
    if check.infinite:
        return False
    return check.max_ulp <= INEXACT_ULP if itemsize == 2 else check.error < INEXACT


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
