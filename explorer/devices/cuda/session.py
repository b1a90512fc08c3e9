"""One problem on one GPU, inside the worker: verify a kernel, time it, compare several."""

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from cuda.bindings import driver

from explorer.codegen import Launch
from explorer.devices.cuda.bench import Bench
from explorer.devices.cuda.clocks import ClockReader
from explorer.devices.cuda.driver import CudaError, checked
from explorer.devices.cuda.messages import Compare, Compared, Job, Open, SessionFacts
from explorer.devices.cuda.program import Program
from explorer.devices.cuda.tools import Tools
from explorer.devices.cuda.verification import NAN_BYTE, Verifier, sentence
from explorer.errors import ExplorerError
from explorer.gpu_spec import GpuSpec
from explorer.outcome import Measured, Outcome, Rejected, Stage

SAMPLES = 9
"""Graph replays a kernel is timed by."""

FEW_SAMPLES = 3
"""Replays of a kernel that is far slower than the best: its rank needs no more."""

FAR_SLOWER = 2.0

SLOW_SAMPLE_US = 100_000.0
"""A kernel so slow that one launch on each pair of buffers takes longer gets fewer launches."""

CHECKED_PAIRS = 2
"""Outputs of the timed launches that are checked afterwards."""

_REFUSED = {
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_INVALID_IMAGE",
}
"""Failures of a launch that leave the context whole."""


class Session:
    """Bench, tools and checks of one problem. Raises InvalidInput if it does not fit the GPU."""

    def __init__(self, request: Open, gpu: GpuSpec, device: Any, stream: Any) -> None:
        self._problem = request.problem
        self._stream = stream
        self._clocks = ClockReader(device)
        self._tools = Tools(request.tools_cubin, stream)
        self._verifier = Verifier(request.problem, self._tools, stream, request.seed)
        self._verifier.check_the_check()
        self._bench = Bench(request.problem, request.timing, gpu, stream, self._tools, request.seed)

    def facts(self) -> SessionFacts:
        """What was found out while preparing."""
        name, _, samples = self._bench.copies[0]
        return SessionFacts(
            driver=self._clocks.driver_version(),
            copy_us=median(samples),
            copy_name=name,
            buffers=self._bench.pairs.count,
            launches_per_sample=self._bench.launches,
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
        """Time it on the whole problem; what the timed launches wrote is checked after."""
        self._poison_outputs()
        samples = self._samples(program, job)
        reason, whole_error = self._outputs_fault()
        if reason is not None:
            return Rejected(Stage.VERIFY, reason)
        return Measured(samples, max(error, whole_error), job.resources, job.digest)

    def _samples(self, program: Program, job: Job) -> tuple[float, ...]:
        """Microseconds a launch, one a replay; few where the kernel is far from the best."""
        enqueue = partial(self._enqueue, program, job.launches)
        with self._bench.graph(enqueue, 1) as graph:
            one_us = self._bench.laps_us(graph, 1)[0]
        enough = max(CHECKED_PAIRS, int(SLOW_SAMPLE_US / one_us))  # what is checked is written
        launches = min(self._bench.pairs.count, enough)
        with self._bench.graph(enqueue, launches) as graph:
            first_us = self._bench.laps_us(graph, 1)[0]
            is_far = job.best_us > 0 and first_us > FAR_SLOWER * job.best_us
            if is_far or launches < self._bench.pairs.count:
                return tuple(self._bench.laps_us(graph, FEW_SAMPLES))
        return tuple(self._bench.samples_us(enqueue, SAMPLES))

    def _poison_outputs(self) -> None:
        for index in range(min(CHECKED_PAIRS, self._bench.pairs.count)):
            address = self._bench.pairs.output(index)
            size = self._bench.matrix_bytes
            checked(driver.cuMemsetD8Async(address, NAN_BYTE, size, self._stream))

    def _outputs_fault(self) -> tuple[str | None, float]:
        """What is wrong with what launches left in the buffers, and the largest relative error."""
        pairs = self._bench.pairs
        worst = 0.0
        for index in range(min(CHECKED_PAIRS, pairs.count)):
            found = self._tools.check_rows(self._problem, pairs.input(index), pairs.output(index))
            if found.wrong:
                reason = sentence(found, self._problem, pairs.output(index))
                return f"on the whole problem, {reason}", found.error
            worst = max(worst, found.error)
        return None, worst

    def _enqueue(self, program: Program, launches: tuple[Launch, ...], index: int) -> None:
        values = {
            "input": self._bench.pairs.input(index),
            "output": self._bench.pairs.output(index),
            "rows": self._problem.rows,
            "cols": self._problem.cols,
        }
        for launch in launches:
            program.launch(launch, values, self._stream)

    def compare(self, request: Compare) -> Compared:
        """Verify contenders once more, then time them and the fastest copies in turn.

        Raises ExplorerError if a contender is wrong.
        """
        with ExitStack() as stack:
            graphs = []
            for job in request.contenders:
                program = stack.enter_context(Program(job.cubin))
                enqueue = partial(self._enqueue, program, job.launches)
                graph = stack.enter_context(self._bench.graph(enqueue))
                self._check_contender(program, job, graph.replay)
                graphs.append(graph)
            copies = [
                stack.enter_context(self._bench.graph(enqueue))
                for _, enqueue, _ in self._bench.copies
            ]
            samples, clocks = self._bench.interleaved_us(
                graphs + copies, request.rounds, request.seed, self._clocks
            )
        copy_samples = samples[len(graphs) :]
        fastest = min(range(len(copies)), key=lambda i: median(copy_samples[i]))
        return Compared(
            samples_us=tuple(tuple(row) for row in samples[: len(graphs)]),
            copy_us=tuple(copy_samples[fastest]),
            copy_name=self._bench.copies[fastest][0],
            sm_clock_mhz=clocks.sm_mhz,
            memory_clock_mhz=clocks.memory_mhz,
            throttle_reasons=clocks.throttle_reasons,
        )

    def _check_contender(self, program: Program, job: Job, replay: Any) -> None:
        """Contenders may come from an earlier run: another compiler, another driver."""
        reason, _ = self._verifier.fault(program, job)
        if reason is None:
            self._poison_outputs()
            replay()
            reason, _ = self._outputs_fault()
        if reason is not None:
            raise ExplorerError(f"a finalist is wrong now: {reason}")
