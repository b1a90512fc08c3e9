"""Evaluate configs on a device: emit, compile, check resources, verify, time; or look them up."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from explorer import __version__
from explorer.codegen.units import emit
from explorer.compile.compiler import (
    CompileFailure,
    CompilePool,
    Compiler,
    Mean,
    nvrtc_version,
)
from explorer.devices.device import FAR_SLOWER, Device, Facts, Job, Setting
from explorer.devices.job import job_of
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.space_version import space_version, template_version
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.errors import DeviceLost
from explorer.model.evaluator import Comparison
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Environment, Measured, Outcome, Rejected, Stage
from explorer.model.peer import Entered, NotEntered, PeerName
from explorer.model.problem import Problem
from explorer.presets.preset import fault_of
from explorer.space import Space

AHEAD_OF_A_CATALOGUE = 8
"""Configs that are proposed ahead where none compiles: as many as compile while one is evaluated in
a search on an H200's host, where a kernel takes 165 ms to compile and 20 ms to evaluate. The number
is the same on every machine, so that one seed gives the same trials."""

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


def environment_of(
    gpu: GpuSpec, setting: Setting, facts: Facts, nvrtc: str | None = None
) -> Environment:
    """Return the environment of what a GPU measures, or measured, on an opened problem.

    `nvrtc` is the version of the compiler, if that is not this process's.
    """
    if facts.environment is not None:
        return facts.environment
    return Environment(
        gpu=gpu.name,
        arch=gpu.arch,
        driver=facts.driver,
        nvrtc=nvrtc_version() if nvrtc is None else nvrtc,
        timing=setting.timing,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        space_version=space_version(setting.problem),
        template_digest=template_version(setting.problem),
        explorer=__version__,
        limit_us=facts.limit_us,
        limit_name=facts.limit_name,
        buffers=facts.buffers,
        launches_per_sample=facts.launches_per_sample,
        peak_gbps=gpu.peak_gbps,
        accuracy=setting.accuracy,
    )


class DeviceEvaluator:
    """Configs of `problem` on a device. Use as a context manager; closes the device.

    With `keep_device` the device stays open, for the next problem. Of a device with a catalogue
    nothing is compiled, and a config that it lacks is InvalidInput.
    """

    def __init__(
        self,
        problem: Problem,
        device: Device,
        timing: str = "cold",
        seed: int = 0,
        accuracy: Accuracy = Accuracy.DEFAULT,
        *,
        keep_device: bool = False,
        compiler: Callable[[str], Compiler] = Compiler,
        for_fastest: bool = False,
        threads: int | None = None,
    ) -> None:
        """By default kernels are compiled by threads of this process, one a core.

        With `for_fastest`, where a kernel matters only if it may be the fastest, one that is
        CLEARLY_SLOWER than the best gets three samples instead of nine. Raises as `Device.open`.
        """
        self.problem = problem
        self.device = device
        setting = Setting(problem, timing, seed, accuracy)
        self.facts = device.open(setting)
        self.gpu: GpuSpec = device.gpu
        self._keep_device = keep_device
        self._seed = seed
        is_short = 0 < self.facts.buffers * self.facts.limit_us < SHORTEST_GRAPH_US
        self._start_us = START_OF_A_GRAPH_US / self.facts.buffers if is_short else 0.0
        self._slower = CLEARLY_SLOWER if for_fastest else FAR_SLOWER
        self.catalogue = None if self.facts.catalogue is None else tuple(self.facts.catalogue)
        self.compared, self.notices = self.facts.compared, self.facts.notices
        self._space = Space(problem, self.gpu)
        self._pool = CompilePool(compiler(self.gpu.arch), threads)
        self._identities = dict(self.facts.catalogue or {})
        self._compiling: dict[Config, Future[Job | Rejected]] = {}
        self._by_cubin: dict[str, Outcome] = {}
        """By the digest of code and launches, as `_under_way`."""
        self._under_way: dict[str, Job] = {}
        """What the device has, or is to have next."""
        self._busy_since: float | None = None
        """When it began what it is at; None where it has nothing to do."""
        self._best_us = 0.0
        self._evaluated = Mean()
        self.environment = environment_of(self.gpu, setting, self.facts)

    @property
    def interleaves(self) -> bool:
        """Whether `compare` measures afresh, as no catalogue does."""
        return self.catalogue is None

    @property
    def ahead(self) -> int:
        """Compile times over evaluation times, and a few more, as both vary; no more than helps."""
        if self.catalogue is not None:
            return AHEAD_OF_A_CATALOGUE
        compiling, evaluating = self._pool.spent, self._evaluated
        if not (compiling.count and evaluating.count):
            return LEAST_AHEAD
        wanted = math.ceil(compiling.seconds / max(evaluating.seconds, 1e-3)) + SPARE_AHEAD
        return max(LEAST_AHEAD, min(wanted, 2 * self._pool.threads))

    def identity(self, config: Config) -> str:
        """Digest of the code and launches that `config` emits, or did when it was recorded."""
        if config not in self._identities:
            self._identities[config] = emit(self.problem, config).digest
        return self._identities[config]

    def submit(self, config: Config) -> None:
        """Start to compile `config` on another thread, if it is legal or has idle threads alone."""
        if self.catalogue is not None or config in self._compiling:
            return
        if fault_of(config, self._space) is None:
            variant, digest = emit(self.problem, config), self.identity(config)
            program = ProgramUnderTest.of(variant)
            # By the thread that compiles: the one that waits for the GPU would take 3 ms more for
            # each kernel, in which the GPU had nothing to do.
            made = partial(job_of, program, self.problem, self.gpu, digest)
            self._compiling[config] = self._pool.submit_then(variant.source, made)

    def compiling(self, config: Config) -> Future[Job | Rejected] | None:
        """Return a future that is done once `config` is compiled; None if it was not submitted."""
        return self._compiling.get(config)

    @property
    def workers(self) -> Sequence[str] | None:
        """A line on each GPU of a cluster; None for a single device."""
        return self.device.workers

    def begin(self, config: Config) -> None:
        """Have the GPU go on with `config` by itself, if it is compiled; does not wait.

        Where it waited until this process had learnt from an outcome and proposed more, the GPU had
        nothing to do for 3.7 ms of the 20 ms from one kernel to the next.
        """
        if self.catalogue is not None:
            self.device.begin(Job(config))
            return
        job = self._job(config)
        if job is None or job.code_digest in self._under_way or job.code_digest in self._by_cubin:
            return
        follows = self._under_way and self.workers is None
        if follows and len(job.cubin) > MOST_BYTES_TO_FOLLOW:
            return
        self._busy_since = self._busy_since or time.monotonic()
        self.device.begin(self._sent_as(job))

    def evaluating(self, config: Config) -> Future[Any] | None:
        """Return a future that is done once a begun config is evaluated; None if that is waited for
        in turn, or its outcome is known.
        """
        job = Job(config) if self.catalogue is not None else self._job(config)
        return None if job is None else self.device.evaluating(job)

    def _job(self, config: Config) -> Job | None:
        """Return what the device is asked of a config that is compiled; None if it is not."""
        compiling = self._compiling.get(config)
        return _compiled_job(compiling) if compiling is not None and compiling.done() else None

    def evaluate(self, config: Config) -> Outcome:
        """Compile if that was not started yet, verify, time; failures are outcomes."""
        if self.catalogue is not None:
            return self.device.evaluate(Job(config))
        fault = fault_of(config, self._space)
        if fault is not None:
            return Rejected(Stage.INVALID, fault)
        self.submit(config)
        return self._evaluated_once(self._compiling.pop(config))

    def enter(self, peer: PeerName, limit_s: float) -> Entered | NotEntered:
        """Prepare a peer and verify what it computes; it takes part in comparisons from then on."""
        return self.device.enter(peer, limit_s)

    def compare(self, configs: Sequence[Config], rounds: int) -> Comparison:
        """Time measured configs, limit and peers in turn; raises DeviceLost if one fails now."""
        compared = self.device.compare(self._jobs(configs), rounds, self._seed)
        self.environment = replace(
            self.environment,
            limit_name=compared.limit_name,
            sm_clock_mhz=compared.sm_clock_mhz,
            memory_clock_mhz=compared.memory_clock_mhz,
            throttle_reasons=compared.throttle_reasons,
        )
        return compared

    def _jobs(self, configs: Sequence[Config]) -> list[Job]:
        """Return the jobs of measured configs, which are compiled once more."""
        if self.catalogue is not None:
            return [Job(config) for config in configs]
        for config in configs:
            self.submit(config)
        contenders = [_launchable(self._compiling[config].result()) for config in configs]
        for config in set(configs):
            del self._compiling[config]
        return contenders

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
                self._by_cubin[job.code_digest] = self.device.evaluate(self._sent_as(job))
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

    def __enter__(self) -> "DeviceEvaluator":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()
        if not self._keep_device:
            self.device.close()


def _compiled_job(compiling: Future[Job | Rejected]) -> Job | None:
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
