"""Evaluate on a GPU: emit, compile, check resources, verify, time."""

import hashlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from types import TracebackType

from explorer import __version__
from explorer.accuracy import Accuracy
from explorer.codegen import Launch, Variant, emit, template_digest
from explorer.codegen.variant import launches, scratch_bytes
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
from explorer.devices.cuda import CudaDevice, Job, SessionFacts, SmallRun
from explorer.devices.emulated.result import Status
from explorer.evaluate.emulation import Verdict, exceeded_resource
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.runs import gpu_runs
from explorer.evaluate.space_version import space_version
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


# ------------------------------------------------------------------ what a GPU is to run


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A compiled program, with all that is known of its evaluation before the GPU runs it."""

    job: Job
    key: str
    """A digest of the machine code and the launches: programs of one key are the same program."""
    exceeded: str | None
    """The limit of the GPU that it exceeds, in a sentence; None where there is none."""


def _prepared(
    program: ProgramUnderTest, problem: Problem, gpu: GpuSpec, kernel: Kernel, digest: str
) -> _Prepared:
    """Work out a program's job; `digest` is that of the variant, and empty for an edited file."""
    plan = _Launches(program, is_variant=bool(digest))
    launched = plan.launches(problem)
    shared = max(launch.shared_bytes for launch in launched)
    resources = replace(kernel.resources, dynamic_shared_bytes=shared)
    runs = tuple(
        SmallRun(
            run.case,
            plan.launches(run.problem),
            plan.scratch_bytes(run.problem),
            run.misaligned_by,
            run.accuracy,
        )
        for run in gpu_runs(program)
    )
    scratch = plan.scratch_bytes(problem)
    return _Prepared(
        job=Job(kernel.cubin, digest, resources, runs, launched, scratch),
        key=hashlib.sha256(kernel.cubin + repr(launched).encode()).hexdigest(),
        exceeded=exceeded_resource(resources, launched, gpu),
    )


class _Launches:
    """A program's launches at any rows and columns.

    Of a variant at its own columns they are worked out from its config: to evaluate the expressions
    of its header took 3 ms for the runs of one kernel. A test holds both to be the same.
    """

    def __init__(self, program: ProgramUnderTest, *, is_variant: bool) -> None:
        self._program = program
        # Over a middle axis the small runs have another `inner`, which the header takes.
        from_config = is_variant and program.problem.inner == 1
        self._own_cols = program.problem.cols if from_config else 0

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        """The launches; raises InvalidInput for columns that the program is not for."""
        if problem.cols != self._own_cols:
            return self._program.launches(problem)
        return launches(self._at(problem), self._program.config)

    def scratch_bytes(self, problem: Problem) -> int:
        """Bytes of the memory that the launches share; raises InvalidInput."""
        if problem.cols != self._own_cols:
            return self._program.scratch_bytes(problem)
        return scratch_bytes(self._at(problem), self._program.config)

    def _at(self, problem: Problem) -> Problem:
        """The program's own problem at other rows."""
        own = self._program.problem
        return own if problem.rows == own.rows else own.resized(problem.rows)


def _follows(
    compiling: "Future[Kernel]", then: Callable[[Kernel], _Prepared]
) -> "Future[_Prepared]":
    """What `then` makes of a kernel, in the thread that compiles it, or what either raises."""
    following: Future[_Prepared] = Future()

    def go_on(compiled: "Future[Kernel]") -> None:
        try:
            following.set_result(then(compiled.result()))
        except BaseException as error:  # whatever it is, who waits for it is to meet it
            following.set_exception(error)

    compiling.add_done_callback(go_on)
    return following


# ------------------------------------------------------------------ evaluator


class LiveEvaluator:
    """Configs of `problem` on a CUDA device. Use as a context manager; closes the device.

    With `keep_device` the device stays open, for the next problem. With `opens_meanwhile` the GPU's
    process prepares the problem while configs are submitted; `facts` and `circumstances`, and
    whatever runs on the GPU, wait for it, and raise what it raises.
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
        opens_meanwhile: bool = False,
    ) -> None:
        self.problem = problem
        self.gpu: GpuSpec = device.gpu
        self.accuracy = accuracy
        self._timing = timing
        self._device = device
        self._keep_device = keep_device
        self._seed = seed
        self._space = Space(problem, self.gpu)
        with_one = ThreadPoolExecutor(1, thread_name_prefix="opening")
        self._opening = with_one.submit(device.open, problem, timing, seed, accuracy)
        with_one.shutdown(wait=not opens_meanwhile)
        self._pool = CompilePool(Compiler(self.gpu.arch))
        self._identities: dict[Config, str] = {}
        self._preparing: dict[Config, Future[_Prepared]] = {}
        self._by_key: dict[str, Outcome] = {}
        self._best_us = 0.0
        self._evaluated = Mean()
        if not opens_meanwhile:
            self._opening.result()

    @property
    def facts(self) -> SessionFacts:
        """What the GPU's process found out while it prepared the problem."""
        return self._opening.result()

    @cached_property
    def circumstances(self) -> Circumstances:
        """Of the measurements."""
        return Circumstances(
            gpu=self.gpu.name,
            arch=self.gpu.arch,
            driver=self.facts.driver,
            nvrtc=nvrtc_version(),
            timing=self._timing,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            space_version=space_version(),
            template_digest=template_digest(),
            explorer=__version__,
            copy_us=self.facts.copy_us,
            copy_name=self.facts.copy_name,
            buffers=self.facts.buffers,
            launches_per_sample=self.facts.launches_per_sample,
            peak_gbps=self.gpu.peak_gbps,
            accuracy=self.accuracy,
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
        if config not in self._preparing and self._space.is_legal(config):
            variant = emit(self.problem, config)
            digest = self.identity(config)
            compiling = self._pool.submit(variant.source)
            self._preparing[config] = _follows(compiling, partial(self._job_of, variant, digest))

    def _job_of(self, variant: Variant, digest: str, kernel: Kernel) -> _Prepared:
        return _prepared(ProgramUnderTest.of(variant), self.problem, self.gpu, kernel, digest)

    def is_ready(self, config: Config) -> bool:
        """Whether a submitted config has been compiled, or will not be."""
        preparing = self._preparing.get(config)
        return preparing is None or preparing.done()

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
            prepared = self._preparing.pop(config).result()
        except CompileFailure as failure:
            return Rejected(Stage.COMPILE, str(failure))
        device = self._opened()
        with self._evaluated.measured():
            return self._run_prepared(device, prepared)

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
        return self._opened().enter(peer, limit_s)

    def compare_with_peers(self, configs: Sequence[Config], rounds: int) -> PeerTimes:
        """As `compare`, with all peers that entered."""
        for config in configs:
            self.submit(config)
        contenders = [self._preparing[config].result().job for config in configs]
        for config in set(configs):
            del self._preparing[config]
        compared = self._opened().compare(contenders, rounds, self._seed)
        self.circumstances = replace(
            self.circumstances,
            copy_name=compared.copy_name,
            sm_clock_mhz=compared.sm_clock_mhz,
            memory_clock_mhz=compared.memory_clock_mhz,
            throttle_reasons=compared.throttle_reasons,
        )
        return PeerTimes(Comparison(compared.samples_us, compared.copy_us), compared.peers)

    def _opened(self) -> CudaDevice:
        """The device, once the problem is prepared there."""
        self._opening.result()
        return self._device

    def _run(self, program: ProgramUnderTest, kernel: Kernel) -> Outcome:
        """As `_run_prepared`, for a program that may have been edited."""
        prepared = _prepared(program, self.problem, self.gpu, kernel, digest="")
        return self._run_prepared(self._opened(), prepared)

    def _run_prepared(self, device: CudaDevice, prepared: _Prepared) -> Outcome:
        """Verify and time a compiled program, unless the same machine code was run before."""
        if prepared.exceeded is not None:
            return Rejected(Stage.RESOURCES, prepared.exceeded)
        if prepared.key not in self._by_key:
            job = replace(prepared.job, best_us=self._best_us)
            self._by_key[prepared.key] = device.evaluate(job)
        outcome = self._by_key[prepared.key]
        if isinstance(outcome, Measured):
            self._best_us = min(self._best_us or outcome.time_us, outcome.time_us)
            return replace(outcome, digest=prepared.job.digest)
        return outcome

    def __enter__(self) -> "LiveEvaluator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.__exit__(kind, error, trace)
        wait([self._opening])
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
