"""One problem on one GPU, inside the worker: verify a kernel, time it, compare several."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from cuda.bindings import driver

from explorer.codegen import Launch
from explorer.devices.cuda.buffers import RotatingPairs
from explorer.devices.cuda.clocks import ClockReader
from explorer.devices.cuda.copy_limit import Enqueue, copies, fastest_copy
from explorer.devices.cuda.driver import CudaError, checked
from explorer.devices.cuda.messages import Compare, Compared, Job, Open, SessionFacts
from explorer.devices.cuda.program import Program
from explorer.devices.cuda.timing import LaunchGraph, Stopwatch
from explorer.devices.cuda.tools import Tools
from explorer.devices.cuda.verification import Verifier
from explorer.gpu_spec import GpuSpec
from explorer.outcome import Measured, Outcome, Rejected, Stage, spread

SAMPLES = 9
"""Graph replays a kernel is timed by."""

FEW_SAMPLES = 3
"""Replays of a kernel that is far slower than the best: its rank needs no more."""

FAR_SLOWER = 2.0
SAMPLE_US = 400.0
"""A sample lasts at least this long at copy's speed, so that the clock's 0.5 us vanish."""

_REFUSED = {
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_INVALID_IMAGE",
}
"""Failures of a launch that leave the context whole."""


class Session:
    """Buffers, tools and the copy limit of one problem. Raises InvalidInput if it does not fit."""

    def __init__(self, request: Open, gpu: GpuSpec, device: Any, stream: Any) -> None:
        self._problem = request.problem
        self._stream = stream
        self._tools = Tools(request.tools_cubin, stream)
        self._stopwatch = Stopwatch(stream)
        self._clocks = ClockReader(device)
        self._pairs = RotatingPairs(request.problem, gpu.l2_bytes, request.timing)
        count = self._pairs.input_bytes // request.problem.dtype.itemsize
        self._tools.fill_input(self._pairs.input(0), count, request.seed)
        self._flush = self._cache_flush(gpu, request.timing)
        self._verifier = Verifier(request.problem, self._tools, stream, request.seed)
        self._verifier.check_the_check()
        self._measure_copy()

    def _measure_copy(self) -> None:
        size = self._problem.rows * self._problem.row_bytes
        candidates = copies(self._tools, self._pairs, size, self._stream)
        self._launches = self._pairs.count
        rough_us = min(self._time(candidates["cuMemcpyDtoDAsync"], FEW_SAMPLES))
        self._launches *= max(1, round(SAMPLE_US / (rough_us * self._pairs.count)))
        self._copy_name, self._copy_samples = fastest_copy(candidates, self._time)
        self._copy = candidates[self._copy_name]

    def _time(self, enqueue: Enqueue, samples: int) -> list[float]:
        with self._graph(enqueue, self._launches) as graph:
            graph.sample_us(self._stopwatch)
            return [graph.sample_us(self._stopwatch) for _ in range(samples)]

    def _graph(self, enqueue: Enqueue, launches: int) -> LaunchGraph:
        return LaunchGraph(self._stream, launches, enqueue, self._flush)

    def _cache_flush(self, gpu: GpuSpec, timing: str) -> Callable[[], None] | None:
        """What empties the L2 before a sample, where buffers to rotate over do not suffice.

        Each launch of a sample then has buffers of its own, which it is the first to touch.
        """
        if timing == "warm" or self._pairs.exceed_cache:
            return None
        size = 4 * gpu.l2_bytes
        scratch = checked(driver.cuMemAlloc(size))
        return lambda: checked(driver.cuMemsetD8Async(scratch, 0, size, self._stream))

    def facts(self) -> SessionFacts:
        """What was found out while preparing."""
        return SessionFacts(
            driver=self._clocks.driver_version(),
            copy_us=median(self._copy_samples),
            copy_spread=spread(self._copy_samples),
            copy_name=self._copy_name,
            buffers=self._pairs.count,
            launches_per_sample=self._launches,
        )

    def evaluate(self, job: Job) -> Outcome:
        """Verify on the small problem, then on the whole one, then time. Raises CudaError."""
        try:
            program = Program(job.cubin)
        except CudaError as refusal:
            return Rejected(Stage.RESOURCES, f"the driver does not load it: {refusal.name}")
        with program:
            try:
                reason, error = self._verifier.fault(program, job)
            except CudaError as failure:
                if failure.name not in _REFUSED:
                    raise
                return Rejected(Stage.RESOURCES, f"the driver does not launch it: {failure.name}")
            if reason is not None:
                return Rejected(Stage.VERIFY, reason)
            return self._whole_problem(program, job, error)

    def _whole_problem(self, program: Program, job: Job, error: float) -> Outcome:
        """Check the output of the problem that is timed, then time it."""
        nan = 0xFF
        size = self._problem.rows * self._problem.row_bytes
        checked(driver.cuMemsetD8Async(self._pairs.output(0), nan, size, self._stream))
        first_us = self._stopwatch.time_us(lambda: self._enqueue(program, job.launches, 0))
        found = self._tools.check_rows(self._problem, self._pairs.input(0), self._pairs.output(0))
        if found.wrong:
            return Rejected(
                Stage.VERIFY,
                f"{found.wrong} of {self._problem.rows * self._problem.cols} elements of the whole "
                f"problem are wrong, the first in row {found.row}, column {found.col}",
            )
        samples = self._samples(program, job, first_us)
        return Measured(samples, max(error, found.error), job.resources, job.digest)

    def _samples(self, program: Program, job: Job, first_us: float) -> tuple[float, ...]:
        """Microseconds a launch, one a replay; few where the kernel is far from the best."""
        slow = job.best_us > 0 and first_us > 4 * FAR_SLOWER * job.best_us
        count = self._pairs.count if slow else self._launches
        enqueue = partial(self._enqueue, program, job.launches)
        with self._graph(enqueue, count) as graph:
            warm_up = graph.sample_us(self._stopwatch)
            far = job.best_us > 0 and warm_up > FAR_SLOWER * job.best_us
            return tuple(
                graph.sample_us(self._stopwatch) for _ in range(FEW_SAMPLES if far else SAMPLES)
            )

    def _enqueue(self, program: Program, launches: tuple[Launch, ...], index: int) -> None:
        values = {
            "input": self._pairs.input(index),
            "output": self._pairs.output(index),
            "rows": self._problem.rows,
            "cols": self._problem.cols,
        }
        for launch in launches:
            program.launch(launch, values, self._stream)

    def compare(self, request: Compare) -> Compared:
        """Time contenders and copy in turn; each round in another random order."""
        with ExitStack() as stack:
            graphs = [stack.enter_context(self._graph(self._copy, self._launches))]
            for contender in request.contenders:
                program = stack.enter_context(Program(contender.cubin))
                enqueue = partial(self._enqueue, program, contender.launches)
                graphs.append(stack.enter_context(self._graph(enqueue, self._launches)))
            samples = self._interleave(graphs, request)
            clocks = self._clocks.read()
        return Compared(
            samples_us=tuple(tuple(row) for row in samples[1:]),
            copy_us=tuple(samples[0]),
            sm_clock_mhz=clocks.sm_mhz,
            memory_clock_mhz=clocks.memory_mhz,
            throttle_reasons=clocks.throttle_reasons,
        )

    def _interleave(self, graphs: list[LaunchGraph], request: Compare) -> list[list[float]]:
        order = list(range(len(graphs)))
        rng = random.Random(request.seed)
        samples: list[list[float]] = [[] for _ in graphs]
        for graph in graphs:
            graph.sample_us(self._stopwatch)
        for _ in range(request.rounds):
            rng.shuffle(order)
            for index in order:
                samples[index].append(graphs[index].sample_us(self._stopwatch))
        return samples
