"""One problem on one GPU, inside the worker: verify a kernel, time it, compare several."""

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from explorer.codegen.variant import Launch
from explorer.devices.cuda.bench import (
    CHECKED_SETS,
    SLOW_SAMPLE_US,
    Bench,
    ClockReader,
    LaunchGraph,
)
from explorer.devices.cuda.buffers import Scratch
from explorer.devices.cuda.limits import Enqueue
from explorer.devices.cuda.messages import Compare, Open
from explorer.devices.cuda.peer_entry import PeerEntry, enter
from explorer.devices.cuda.program import CudaError, Program, bound
from explorer.devices.cuda.tools import Checks, Tools, combined
from explorer.devices.cuda.verification import LastRows, Verifier, first_wrong, last_part
from explorer.devices.device import FAR_SLOWER, Compared, Facts, Job
from explorer.model.errors import ExplorerError
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Measured, Outcome, Rejected, Stage
from explorer.model.peer import Entered, NotEntered, PeerName
from explorer.model.problem import results
from explorer.reference.inputs import Case
from explorer.reference.layout import of_result

SAMPLES = 9
"""Graph replays that a kernel is timed by."""

FEW_SAMPLES = 3
"""Graph replays of a kernel that takes more than `Job.slower` times as long as the best so far."""

_REFUSED = {
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE",
}
"""Errors of a launch after which the context is still usable."""


class Session:
    """Bench, tools and checks of one problem. Raises InvalidInput if it does not fit the GPU."""

    def __init__(self, request: Open, gpu: GpuSpec, device: Any, stream: Any) -> None:
        setting = request.setting
        self._problem = setting.problem
        self._stream = stream
        self._seed = setting.seed
        self._clocks = ClockReader(device)
        self._tools = Tools(request.tools_cubins, stream, setting.accuracy)
        self._verifier = Verifier(setting.problem, self._tools, stream, setting.seed)
        self._verifier.check_the_reference()
        self._verifier.settle()
        self._bench = Bench(setting.problem, setting.timing, gpu, stream, self._tools, setting.seed)
        part, sets = last_part(setting.problem), self._bench.sets
        self._last_rows = None
        if part is not None:
            case = Case(part, only=setting.only)
            self._last_rows = LastRows(setting.problem, case, sets, setting.seed, stream)
        self._peers: list[PeerEntry] = []

    def facts(self) -> Facts:
        """Return the facts that were measured while the problem was prepared."""
        name, _, samples = self._bench.limits[0]
        return Facts(
            driver=self._clocks.driver_version(),
            limit_us=median(samples),
            limit_name=name,
            buffers=self._bench.sets.count,
            launches_per_sample=self._bench.launches,
        )

    def evaluate(self, job: Job) -> Outcome:
        """Verify a kernel on small problems, then time and check it on the whole one.

        Raises CudaError.
        """
        try:
            program = Program(job.cubin)
        except CudaError as refusal:
            return Rejected(Stage.RESOURCES, f"the driver does not load it: {refusal.name}")
        with program:
            try:
                reason, checks = self._verifier.fault(program, job)
            except CudaError as failure:
                if failure.name not in _REFUSED:
                    raise
                return Rejected(Stage.RESOURCES, f"the driver does not launch it: {failure.name}")
            if reason is not None:
                return Rejected(Stage.VERIFY, reason)
            sets = self._bench.sets.count
            lacking = Scratch.lacking(job.scratch_bytes, sets)
            if lacking is not None:
                return Rejected(Stage.RESOURCES, lacking)
            with Scratch(job.scratch_bytes, sets) as scratch:
                return self._whole_problem(program, job, scratch, checks)

    def _whole_problem(
        self, program: Program, job: Job, scratch: Scratch, small: Checks
    ) -> Outcome:
        """Time a kernel on the whole problem, then check what the timed launches wrote.

        In place, a timed launch reads what the last one wrote, which soon are all the same numbers.
        They take equally long, but a separate launch on the original input is checked instead.
        """
        enqueue = partial(self._enqueue, program, job.launches, scratch)
        self._prepare_results()
        samples = self._samples(enqueue, job)
        if self._problem.in_place:
            self._prepare_results()
            for index in range(self._checked_sets):
                enqueue(index)
        reason, checks = self._results_fault()
        if reason is None:
            reason, last = self._last_rows_fault(enqueue)
            checks = [*checks, *last]
        if reason is not None:
            return Rejected(Stage.VERIFY, reason)
        return self._outcome(samples, job, combined([small, *checks]))

    def _outcome(self, samples: tuple[float, ...], job: Job, checks: Checks) -> Outcome:
        """Return the outcome of a kernel whose elements are all right, by all errors together."""
        for check, result in zip(checks, results(self._problem), strict=True):
            excess = self._tools.accuracy.excess(result.dtype, check.max_ulp, check.mean_ulp)
            if excess:
                return Rejected(Stage.VERIFY, f"{excess}{of_result(result.name)}")
        return Measured(
            samples_us=samples,
            error=max(check.error for check in checks),
            resources=job.resources,
            digest=job.digest,
            max_ulp=max(check.max_ulp for check in checks),
            mean_ulp=max(check.mean_ulp for check in checks),
        )

    def _samples(self, enqueue: Enqueue, job: Job) -> tuple[float, ...]:
        """Return microseconds a launch, one for each replay; fewer for a slow kernel."""
        with self._bench.graph(enqueue, 1) as graph:
            one_us = self._bench.laps_us(graph, 1)[0]
        enough = max(CHECKED_SETS, int(SLOW_SAMPLE_US / one_us))  # checked sets must be written
        launches = min(self._bench.sets.count, enough)
        with self._bench.graph(enqueue, launches) as graph:
            if launches == self._bench.launches:
                return self._samples_of(graph, job)
            first_us = self._bench.laps_us(graph, 1)[0]
            is_far = job.best_us > 0 and first_us > FAR_SLOWER * job.best_us
            if is_far or launches < self._bench.sets.count:
                return tuple(self._bench.laps_us(graph, FEW_SAMPLES))
        with self._bench.graph(enqueue) as graph:
            return self._samples_of(graph, job)

    def _samples_of(self, graph: LaunchGraph, job: Job) -> tuple[float, ...]:
        """Return samples of a graph that has as many launches as the best kernel's.

        The time that a graph takes to start, 2 % of one launch on each set, is then the same in
        both.
        """
        few = self._bench.laps_us(graph, FEW_SAMPLES)
        if job.best_us > 0 and min(few) > job.slower * job.best_us:
            return tuple(few)
        return tuple(few + self._bench.laps_us(graph, SAMPLES - FEW_SAMPLES))

    @property
    def _checked_sets(self) -> int:
        return min(CHECKED_SETS, self._bench.sets.count)

    def _prepare_results(self) -> None:
        for index in range(self._checked_sets):
            self._bench.sets.prepare(index, self._stream)

    def _results_fault(self) -> tuple[str | None, list[Checks]]:
        """Return the fault of the timed launches' results, or None, and the errors of each set."""
        sets, checks = self._bench.sets, []
        for index in range(self._checked_sets):
            checks.append(self._tools.check_rows(self._problem, sets.checked_at(index)))
            wrong = first_wrong(checks[-1], self._problem, sets.at(index), self._tools.accuracy)
            if wrong:
                return f"on the whole problem, {wrong}", checks
        return None, checks

    def _last_rows_fault(self, enqueue: Enqueue) -> tuple[str | None, list[Checks]]:
        """Return the fault of a launch whose last rows are patterns, or None, and its errors."""
        if self._last_rows is None:
            return None, []
        self._last_rows.put()
        enqueue(0)
        wrong, checks = self._last_rows.check(self._tools)
        self._last_rows.restore()
        if wrong:
            wrong = f"in the last rows of the whole problem, which held patterns, {wrong}"
        return wrong, [checks]

    def _enqueue(
        self, program: Program, launches: tuple[Launch, ...], scratch: Scratch, index: int
    ) -> None:
        values = bound(self._problem, {**self._bench.sets.at(index), **scratch.at(index)})
        for launch in launches:
            program.launch(launch, values, self._stream)

    def enter(self, peer: PeerName) -> Entered | NotEntered:
        """Prepare and verify a peer, which all following comparisons then time."""
        reply, entry = enter(peer, self._bench, self._tools, self._stream, self._seed)
        self._peers += [entry] if entry else []
        return reply

    def close(self) -> None:
        """Free all memory on the GPU."""
        for peer in self._peers:
            peer.close()
        if self._last_rows is not None:
            self._last_rows.free()
        self._verifier.free()
        self._bench.free()
        self._tools.free()

    def compare(self, request: Compare) -> Compared:
        """Verify contenders once more, then time them, peers and the fastest limits in turn.

        No two launches overlap, so contenders share scratch memory. Raises ExplorerError if a
        contender is wrong, or needs more memory than is free.
        """
        with ExitStack() as stack:
            graphs = []
            most = max((job.scratch_bytes for job in request.contenders), default=0)
            lacking = Scratch.lacking(most, self._bench.sets.count)
            if lacking is not None:
                raise ExplorerError(f"a contender cannot be timed beside the others: {lacking}")
            stack.callback(self._bench.restore_inputs)
            scratch = stack.enter_context(Scratch(most, self._bench.sets.count))
            for job in request.contenders:
                program = stack.enter_context(Program(job.cubin))
                enqueue = partial(self._enqueue, program, job.launches, scratch)
                self._check_contender(program, job, enqueue)
                graphs.append(stack.enter_context(self._bench.graph(enqueue, self._few(enqueue))))
            limits = [
                stack.enter_context(self._bench.graph(enqueue))
                for _, enqueue, _ in self._bench.limits
            ]
            graphs_in_turn = [*graphs, *(peer.graph for peer in self._peers), *limits]
            samples, clocks = self._bench.interleaved_us(
                graphs_in_turn, request.rounds, request.seed, self._clocks
            )
        peer_samples = samples[len(graphs) : len(samples) - len(limits)]
        limit_samples = samples[len(samples) - len(limits) :]
        fastest = min(range(len(limits)), key=lambda i: median(limit_samples[i]))
        return Compared(
            samples_us=tuple(tuple(row) for row in samples[: len(graphs)]),
            limit_us=tuple(limit_samples[fastest]),
            limit_name=self._bench.limits[fastest][0],
            sm_clock_mhz=clocks.sm_mhz,
            memory_clock_mhz=clocks.memory_mhz,
            throttle_reasons=clocks.throttle_reasons,
            peers={p.name: tuple(row) for p, row in zip(self._peers, peer_samples, strict=True)},
        )

    def _few(self, enqueue: Enqueue) -> int:
        """Return the launches of a contender's graph: fewer than usual for a very slow one.

        These may omit some of the sets, so that the others are in the cache, but memory is not what
        so slow a kernel waits for.
        """
        with self._bench.graph(enqueue, 1) as graph:
            one_us = self._bench.laps_us(graph, 1)[0]
        return max(1, min(self._bench.launches, int(SLOW_SAMPLE_US / one_us)))

    def _check_contender(self, program: Program, job: Job, enqueue: Enqueue) -> None:
        """Raise ExplorerError if a contender is wrong.

        It may come from an earlier run, with another compiler or driver.
        """
        reason, _ = self._verifier.fault(program, job)
        if reason is None:
            self._prepare_results()
            for index in range(self._checked_sets):
                enqueue(index)
            reason, _ = self._results_fault()
        if reason is None:
            reason, _ = self._last_rows_fault(enqueue)
        if reason is not None:
            raise ExplorerError(f"a finalist is wrong now: {reason}")
