"""Evaluate on a GPU: emit, compile, check resources, verify, time."""

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType

from explorer import __version__
from explorer.accuracy import Accuracy
from explorer.codegen import emit
from explorer.compile import (
    SOURCE_NAME,
    CompileFailure,
    CompilePool,
    Compiler,
    Kernel,
    Mean,
    nvrtc_version,
)
from explorer.config import Config
from explorer.devices.cuda import CudaDevice, Job, SmallRun
from explorer.devices.emulated.result import Status
from explorer.evaluate.emulation import Verdict, exceeded_resource
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.runs import gpu_runs
from explorer.evaluate.space_version import space_version, template_version
from explorer.evaluator import Comparison
from explorer.gpu_spec import GpuSpec
from explorer.outcome import Circumstances, Measured, Outcome, Rejected, Stage
from explorer.peer import Entered, NotEntered, PeerName, PeerTimes
from explorer.problem import Problem
from explorer.space import Space

LEAST_AHEAD = 4
"""Configs that compile ahead before times are known, and where compiling takes no time."""


SPARE_AHEAD = 4
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
    ) -> None:
        self.problem = problem
        self.gpu: GpuSpec = device.gpu
        self.facts = device.open(problem, timing, seed, accuracy)
        self._device = device
        self._keep_device = keep_device
        self._seed = seed
        self._space = Space(problem, self.gpu)
        self._pool = CompilePool(Compiler(self.gpu.arch))
        self._identities: dict[Config, str] = {}
        self._compiling: dict[Config, Future[Kernel]] = {}
        self._by_cubin: dict[str, Outcome] = {}
        self._best_us = 0.0
        self._evaluated = Mean()
        self.circumstances = Circumstances(
            gpu=self.gpu.name,
            arch=self.gpu.arch,
            driver=self.facts.driver,
            nvrtc=nvrtc_version(),
            timing=timing,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            space_version=space_version(),
            template_digest=template_version(),
            explorer=__version__,
            copy_us=self.facts.copy_us,
            copy_name=self.facts.copy_name,
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
            variant = emit(self.problem, config)
            self._identities[config] = variant.digest
            self._compiling[config] = self._pool.submit(variant.source)

    def is_ready(self, config: Config) -> bool:
        """Whether a submitted config has been compiled, or will not be."""
        compiling = self._compiling.get(config)
        return compiling is None or compiling.done()

    def evaluate(self, config: Config) -> Outcome:
        """Compile if that was not started yet, verify, time; failures are outcomes."""
        foreign = self._space.foreign_value(config)
        if foreign is not None:
            return Rejected(Stage.INVALID, foreign)
        rule = self._space.broken_rule(config)
        if rule is not None:
            return Rejected(Stage.INVALID, rule.reason(config))
        self.submit(config)
        try:
            kernel = self._compiling.pop(config).result()
        except CompileFailure as failure:
            return Rejected(Stage.COMPILE, str(failure))
        variant = emit(self.problem, config)
        with self._evaluated.measured():
            return self._run(ProgramUnderTest.of(variant), kernel, variant.digest)

    def measure(self, program: ProgramUnderTest) -> Outcome:
        """Compile, verify and time a program, also one that was edited; failures are outcomes."""
        try:
            kernel = self._pool.submit(program.source).result()
        except CompileFailure as failure:
            told = str(failure).replace(SOURCE_NAME, program.file)
            return Rejected(Stage.COMPILE, f"it does not compile for {self.gpu.arch}: {told}")
        return self._run(program, kernel)

    def judge(self, program: ProgramUnderTest) -> Verdict:
        """Verify a program, also one that was edited, on small problems and on this one."""
        return verdict_on(program, self.measure(program), self.gpu.name)

    def compare(self, configs: Sequence[Config], rounds: int) -> Comparison:
        """Time measured configs and copy in turn; raises DeviceLost if one fails now."""
        return self.compare_with_peers(configs, rounds).ours

    def enter(self, peer: PeerName, limit_s: float) -> Entered | NotEntered:
        """Prepare a peer and verify what it computes; it takes part in comparisons from then on."""
        return self._device.enter(peer, limit_s)

    def compare_with_peers(self, configs: Sequence[Config], rounds: int) -> PeerTimes:
        """As `compare`, with all peers that entered."""
        for config in configs:
            self.submit(config)
        variants = [emit(self.problem, config) for config in configs]
        contenders = [
            self._job(ProgramUnderTest.of(variant), self._compiling[c].result(), variant.digest)
            for c, variant in zip(configs, variants, strict=True)
        ]
        for config in set(configs):
            del self._compiling[config]
        compared = self._device.compare(contenders, rounds, self._seed)
        self.circumstances = replace(
            self.circumstances,
            copy_name=compared.copy_name,
            sm_clock_mhz=compared.sm_clock_mhz,
            memory_clock_mhz=compared.memory_clock_mhz,
            throttle_reasons=compared.throttle_reasons,
        )
        return PeerTimes(Comparison(compared.samples_us, compared.copy_us), compared.peers)

    def _run(self, program: ProgramUnderTest, kernel: Kernel, digest: str = "") -> Outcome:
        """Verify and time a compiled program, unless the same machine code was run before."""
        launched = program.launches(self.problem)
        shared = max(launch.shared_bytes for launch in launched)
        resources = replace(kernel.resources, dynamic_shared_bytes=shared)
        exceeded = exceeded_resource(resources, launched, self.gpu)
        if exceeded is not None:
            return Rejected(Stage.RESOURCES, exceeded)
        key = hashlib.sha256(kernel.cubin + repr(launched).encode()).hexdigest()
        if key not in self._by_cubin:
            job = self._job(program, replace(kernel, resources=resources), digest)
            self._by_cubin[key] = self._device.evaluate(job)
        outcome = self._by_cubin[key]
        if isinstance(outcome, Measured):
            self._best_us = min(self._best_us or outcome.time_us, outcome.time_us)
            return replace(outcome, digest=digest)
        return outcome

    def _job(self, program: ProgramUnderTest, kernel: Kernel, digest: str) -> Job:
        return Job(
            cubin=kernel.cubin,
            digest=digest,
            resources=kernel.resources,
            small_runs=tuple(
                SmallRun(
                    run.case,
                    program.launches(run.problem),
                    program.scratch_bytes(run.problem),
                    run.misaligned_by,
                    run.accuracy,
                )
                for run in gpu_runs(program)
            ),
            launches=program.launches(self.problem),
            scratch_bytes=program.scratch_bytes(self.problem),
            best_us=self._best_us,
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


def verdict_on(program: ProgramUnderTest, outcome: Outcome, gpu: str) -> Verdict:
    """What an outcome on a GPU says of a program: what cannot be launched is not wrong."""
    if isinstance(outcome, Measured):
        sentence = f"largest relative error {outcome.error:.1e}, {outcome.max_ulp:.3g} ulp"
        return Verdict(program, Status.VERIFIED, sentence, gpu)
    if outcome.stage is Stage.COMPILE:
        return Verdict(program, Status.UNVERIFIED, outcome.reason, gpu)
    launchable = outcome.stage is not Stage.RESOURCES
    status = Status.WRONG if launchable else Status.UNVERIFIED
    return Verdict(program, status, f"{outcome.stage}: {outcome.reason}", gpu)
