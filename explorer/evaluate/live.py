"""Evaluate on a GPU: emit, compile, check resources, verify, time."""

import hashlib
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import TracebackType

from explorer import __version__
from explorer.codegen.units import emit
from explorer.compile.compiler import (
    SOURCE_NAME,
    CompileFailure,
    CompilePool,
    Compiler,
    Kernel,
    Mean,
    nvrtc_version,
)
from explorer.devices.cuda.device import CudaDevice
from explorer.devices.cuda.messages import FAR_SLOWER, Job, SmallRun
from explorer.devices.emulated.result import Status
from explorer.evaluate.emulation import Verdict, exceeded_resource
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.residency import resources_on
from explorer.evaluate.runs import gpu_runs
from explorer.evaluate.space_version import space_version, template_version
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import DeviceLost
from explorer.model.evaluator import Comparison
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Environment, Measured, Outcome, Rejected, Stage
from explorer.model.peer import Entered, NotEntered, PeerName, PeerTimes
from explorer.model.problem import Problem
from explorer.space import Space

LEAST_AHEAD = 4
"""Configs that compile ahead before times are known, and where compiling takes no time."""


MOST_BYTES_TO_FOLLOW = 2**16
"""Bytes of the code of a kernel that is sent while another one is evaluated, at most. It has to fit
into the pipe, or whoever sends it would wait until the other one is evaluated. The largest of 319
kernels had 54 KB."""

CLEARLY_SLOWER = 1.05
"""In a search for the fastest, a kernel that takes more than so many times as long as the best so
far is timed by three samples instead of nine. The median of a kernel's samples differs from run to
run by 0.2 % on an H200. Where only kernels that took twice the time of the best had three samples,
samples took 1.8 of the 2.8 to 3.5 s in which 200 kernels were verified and timed there."""

START_OF_A_GRAPH_US = 5.0
"""Microseconds that a graph of launches takes to start.

Warm, where there is one set of buffers, an H200 took 6 us for a graph of one launch of a kernel
that takes 1.6 us among others, so that every kernel after the first seemed slow. Where graphs are
so short, kernels are compared with the best as such a graph would time it.
"""

SHORTEST_GRAPH_US = 50.0
"""Microseconds of one launch on each set of buffers, at the limit's speed, from which the start of
their graph need not be counted."""

SPARE_AHEAD = 6
"""Configs that compile ahead beyond what the mean times ask for. With two, the GPU waited for code
during a quarter of the evaluations of a search on an H200's host."""


class LiveEvaluator:
    """Configs of `problem` on a CUDA device. Use as a context manager; closes the device.

    With `keep_device` the device stays open, for the next problem.
    """

    catalogue = None
    interleaves = True

    def __init__(
        self,
        problem: Problem,
        device: CudaDevice,
        timing: str = "cold",
        seed: int = 0,
        accuracy: Accuracy = Accuracy.DEFAULT,
        *,
        keep_device: bool = False,
        compiler: Compiler | None = None,
        for_fastest: bool = False,
    ) -> None:
        """Without a `compiler`, kernels are compiled by threads of this process.

        With `for_fastest`, where a kernel matters only if it may be the fastest, one that is
        CLEARLY_SLOWER than the best gets three samples instead of nine.
        """
        self.problem = problem
        self.gpu: GpuSpec = device.gpu
        self.facts = device.open(problem, timing, seed, accuracy)
        self._device = device
        self._keep_device = keep_device
        self._seed = seed
        is_short = self.facts.buffers * self.facts.limit_us < SHORTEST_GRAPH_US
        self._start_us = START_OF_A_GRAPH_US / self.facts.buffers if is_short else 0.0
        self._slower = CLEARLY_SLOWER if for_fastest else FAR_SLOWER
        self._space = Space(problem, self.gpu)
        self._pool = CompilePool(compiler or Compiler(self.gpu.arch))
        self._identities: dict[Config, str] = {}
        self._compiling: dict[Config, Future[Job | Rejected]] = {}
        self._by_cubin: dict[str, Outcome] = {}
        """By the digest of code and launches, as `_under_way`."""
        self._under_way: dict[str, Job] = {}
        """What the GPU's process has, or is to have next."""
        self._busy_since: float | None = None
        """When it began what it is at; None where it has nothing to do."""
        self._best_us = 0.0
        self._evaluated = Mean()
        self.environment = Environment(
            gpu=self.gpu.name,
            arch=self.gpu.arch,
            driver=self.facts.driver,
            nvrtc=nvrtc_version(),
            timing=timing,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            space_version=space_version(problem),
            template_digest=template_version(problem),
            explorer=__version__,
            limit_us=self.facts.limit_us,
            limit_name=self.facts.limit_name,
            buffers=self.facts.buffers,
            launches_per_sample=self.facts.launches_per_sample,
            peak_gbps=self.gpu.peak_gbps,
            accuracy=accuracy,
        )

    @property
    def ahead(self) -> int:
        """Compile times over evaluation times, and a few more, as both vary; no more than helps."""
        compiling, evaluating = self._pool.spent, self._evaluated
        if not (compiling.count and evaluating.count):
            return LEAST_AHEAD
        wanted = math.ceil(compiling.seconds / max(evaluating.seconds, 1e-3)) + SPARE_AHEAD
        return max(LEAST_AHEAD, min(wanted, 2 * self._pool.threads))

    def identity(self, config: Config) -> str:
        """Digest of the code and launches that `config` emits."""
        if config not in self._identities:
            self._identities[config] = emit(self.problem, config).digest
        return self._identities[config]

    def submit(self, config: Config) -> None:
        """Start to compile `config` on another thread, if it is legal."""
        if config not in self._compiling and self._space.is_legal(config):
            variant, digest = emit(self.problem, config), self.identity(config)
            prepared = partial(self._prepared, ProgramUnderTest.of(variant), digest)
            self._compiling[config] = self._pool.submit_then(variant.source, prepared)

    def compiling(self, config: Config) -> Future[Job | Rejected] | None:
        """Return a future that is done once `config` is compiled or refused; None if illegal."""
        return self._compiling.get(config)

    def begin(self, config: Config) -> None:
        """Have the GPU go on with `config` by itself, if it is compiled; does not wait.

        Where it waited until this process had learnt from an outcome and proposed more, the GPU had
        nothing to do for 3.7 ms of the 20 ms from one kernel to the next.
        """
        compiling = self._compiling.get(config)
        if compiling is None or not compiling.done():
            return
        job = _job_of(compiling)
        if job is None or job.code_digest in self._under_way or job.code_digest in self._by_cubin:
            return
        if self._under_way and len(job.cubin) > MOST_BYTES_TO_FOLLOW:
            return
        self._busy_since = self._busy_since or time.monotonic()
        self._device.begin(self._sent_as(job))

    def evaluate(self, config: Config) -> Outcome:
        """Compile if that was not started yet, verify, time; failures are outcomes."""
        foreign = self._space.foreign_value(config)
        if foreign is not None:
            return Rejected(Stage.INVALID, foreign)
        rule = self._space.broken_rule(config)
        if rule is not None:
            return Rejected(Stage.INVALID, rule.reason(config))
        self.submit(config)
        return self._evaluated_once(self._compiling.pop(config))

    def measure(self, program: ProgramUnderTest) -> Outcome:
        """Compile, verify and time a program, also one that was edited; failures are outcomes."""
        prepared = partial(self._prepared, program, "")
        outcome = self._evaluated_once(self._pool.submit_then(program.source, prepared))
        if isinstance(outcome, Rejected) and outcome.stage is Stage.COMPILE:
            reason = outcome.reason.replace(SOURCE_NAME, program.file)
            return Rejected(Stage.COMPILE, f"it does not compile for {self.gpu.arch}: {reason}")
        return outcome

    def judge(self, program: ProgramUnderTest) -> Verdict:
        """Verify a program, also one that was edited, on small problems and on this one."""
        return verdict_on(program, self.measure(program), self.gpu.name)

    def compare(self, configs: Sequence[Config], rounds: int) -> Comparison:
        """Time measured configs and the limit in turn; raises DeviceLost if one fails now."""
        return self.compare_with_peers(configs, rounds).ours

    def enter(self, peer: PeerName, limit_s: float) -> Entered | NotEntered:
        """Prepare a peer and verify what it computes; it takes part in comparisons from then on."""
        return self._device.enter(peer, limit_s)

    def compare_with_peers(self, configs: Sequence[Config], rounds: int) -> PeerTimes:
        """As `compare`, with all peers that entered."""
        for config in configs:
            self.submit(config)
        contenders = [_launchable(self._compiling[config].result()) for config in configs]
        for config in set(configs):
            del self._compiling[config]
        compared = self._device.compare(contenders, rounds, self._seed)
        self.environment = replace(
            self.environment,
            limit_name=compared.limit_name,
            sm_clock_mhz=compared.sm_clock_mhz,
            memory_clock_mhz=compared.memory_clock_mhz,
            throttle_reasons=compared.throttle_reasons,
        )
        return PeerTimes(Comparison(compared.samples_us, compared.limit_us), compared.peers)

    def _evaluated_once(self, compiling: Future[Job | Rejected]) -> Outcome:
        """Verify and time a kernel once it is compiled, unless the same code was run before."""
        try:
            job = compiling.result()
        except CompileFailure as failure:
            return Rejected(Stage.COMPILE, str(failure))
        if isinstance(job, Rejected):
            return job
        if job.code_digest not in self._by_cubin:
            began = self._busy_since or time.monotonic()
            try:
                self._by_cubin[job.code_digest] = self._device.evaluate(self._sent_as(job))
            finally:
                self._under_way.pop(job.code_digest, None)
                self._evaluated.add(time.monotonic() - began)
                self._busy_since = time.monotonic() if self._under_way else None
        outcome = self._by_cubin[job.code_digest]
        if isinstance(outcome, Measured):
            self._best_us = min(self._best_us or outcome.time_us, outcome.time_us)
            return replace(outcome, digest=job.digest)
        return outcome

    def _sent_as(self, job: Job) -> Job:
        """Return the job that the GPU's process has of the same code, or is to have."""
        best_us = self._best_us + self._start_us if self._best_us else 0.0
        sent = replace(job, best_us=best_us, slower=self._slower)
        return self._under_way.setdefault(job.code_digest, sent)

    def _prepared(self, program: ProgramUnderTest, digest: str, kernel: Kernel) -> Job | Rejected:
        """Work out what the GPU's process is asked, or why it need not be asked.

        The threads that compile do so: the one that waits for the GPU would take 3 ms more for each
        kernel, in which the GPU had nothing to do.
        """
        launched = program.launches(self.problem)
        resources = resources_on(self.gpu, launched, kernel.resources)
        exceeded = exceeded_resource(resources, launched, self.gpu)
        if exceeded is not None:
            return Rejected(Stage.RESOURCES, exceeded)
        small_runs = tuple(
            SmallRun(
                run.case,
                program.launches(run.problem),
                program.scratch_bytes(run.problem),
                run.misaligned_by,
                run.accuracy,
            )
            for run in gpu_runs(program)
        )
        return Job(
            cubin=kernel.cubin,
            digest=digest,
            code_digest=hashlib.sha256(kernel.cubin + repr(launched).encode()).hexdigest(),
            resources=resources,
            small_runs=small_runs,
            launches=launched,
            scratch_bytes=program.scratch_bytes(self.problem),
        )

    def __enter__(self) -> "LiveEvaluator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.__exit__(kind, error, trace)
        if not self._keep_device:
            self._device.close()


def _job_of(compiling: Future[Job | Rejected]) -> Job | None:
    """Return the job of a kernel that is compiled; None if it cannot be launched."""
    try:
        job = compiling.result()
    except Exception:
        return None
    return job if isinstance(job, Job) else None


def _launchable(job: Job | Rejected) -> Job:
    """Return the job of a measured kernel; raises DeviceLost if it cannot be launched now."""
    if isinstance(job, Rejected):
        raise DeviceLost(f"a kernel that was measured cannot be launched now: {job.reason}")
    return job


def verdict_on(program: ProgramUnderTest, outcome: Outcome, gpu: str) -> Verdict:
    """Return the verdict of an outcome on a GPU: what cannot be launched is not wrong."""
    if isinstance(outcome, Measured):
        sentence = f"largest relative error {outcome.error:.1e}, {outcome.max_ulp:.3g} ulp"
        return Verdict(program, Status.VERIFIED, sentence, gpu)
    if outcome.stage is Stage.COMPILE:
        return Verdict(program, Status.UNVERIFIED, outcome.reason, gpu)
    launchable = outcome.stage is not Stage.RESOURCES
    status = Status.WRONG if launchable else Status.UNVERIFIED
    return Verdict(program, status, f"{outcome.stage}: {outcome.reason}", gpu)
