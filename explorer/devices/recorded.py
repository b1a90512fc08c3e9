"""The device `recorded:NAME`: it answers by the outcomes of a recording, without a GPU."""

from collections.abc import Sequence
from dataclasses import replace

from explorer.codegen.variant import launches
from explorer.compile.resources import resources_on
from explorer.devices.device import Compared, Device, Facts, Job, Setting
from explorer.devices.recording import (
    RecordedComparison,
    RecordedKernel,
    Recording,
    find_recording,
    load_recording,
)
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Measured, Outcome, Rejected, Stage
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery
from explorer.space import Space


class RecordedDevice(Device):
    """Replays the recording of a name, or at a path; of no name, the latest of a problem.

    A kernel that was rejected under a recording's stricter accuracy stays rejected. Kernels whose
    config the installed space does not allow are passed over.
    """

    def __init__(self, name: str = "", recording: Recording | None = None) -> None:
        """With a `recording` none is read."""
        self._name = name
        self._given = recording

    def open(self, setting: Setting) -> Facts:
        """Read the recording. Raises NotFound where there is none, and InvalidInput.

        A recording cannot be used that is of another problem or timing, that has no kernel which
        the space allows, or that does not tell whether kernels meet the accuracy.
        """
        problem, passed_over = setting.problem, list[str]()
        self._recording = self._given or self._read(problem, passed_over)
        header = self._recording.header
        self.gpu, self._accuracy = header.gpu, setting.accuracy
        space = Space(problem, self.gpu)
        legal = [kernel for kernel in self._recording.kernels if space.is_legal(kernel.config)]
        self._kernels = {kernel.config: kernel for kernel in legal}
        self._check_some_are_legal()
        self._check_errors_are_known()
        timed = header.environment.timing
        if setting.timing == "warm" != timed:
            raise InvalidInput(
                f"timing is warm, and the recording of {problem} was timed {timed}; leave timing "
                "out, or measure on a GPU"
            )
        comparison = self._recording.comparison
        compared = set(comparison.digests) if comparison else set()
        return Facts(
            catalogue={kernel.config: kernel.digest for kernel in legal},
            compared=frozenset(kernel.config for kernel in legal if kernel.digest in compared),
            environment=replace(header.environment, accuracy=setting.accuracy),
            notices=(*passed_over, *self._limitations()),
        )

    def _read(self, problem: Problem, passed_over: list[str]) -> Recording:
        if not self._name:
            return find_recording(ProblemQuery.of(problem), passed_over.append)
        recording = load_recording(self._name)
        recorded = recording.header.problem
        if recorded != problem:
            raise InvalidInput(
                f"recording '{self._name}' is of {recorded}, not of {problem}; ask for "
                f"{' '.join(ProblemQuery.of(recorded).options)}"
            )
        return recording

    def evaluate(self, job: Job) -> Outcome:
        """Return the recorded outcome; raises InvalidInput for a config that was not recorded.

        A kernel that was measured under a looser accuracy is rejected if its recorded errors exceed
        the limits. Its residency follows from its resources, where it was not recorded.
        """
        outcome = self._kernel(job).outcome
        if not isinstance(outcome, Measured):
            return outcome
        problem = self._recording.header.problem
        if not outcome.resources.resident_blocks:
            resources = resources_on(self.gpu, launches(problem, job.config), outcome.resources)
            outcome = replace(outcome, resources=resources)
        if not self._is_stricter:
            return outcome
        fault = _fault(outcome, problem.output_dtype, self._accuracy)
        return Rejected(Stage.VERIFY, fault) if fault else outcome

    def compare(self, jobs: Sequence[Job], rounds: int, seed: int) -> Compared:
        """Return the recorded comparison if it has all jobs, else samples of their evaluations.

        These are not interleaved, and the result says so.
        """
        kernels = [self._kernel(job) for job in jobs]
        digests = [kernel.digest for kernel in kernels]
        recorded, made = self._recording.comparison, self._recording.header.environment
        if recorded is not None and set(recorded.digests).issuperset(digests):
            samples_us, limit_us = _in_turn(recorded, digests), recorded.limit_us
            is_interleaved = True
        else:
            samples_us = _one_after_the_other(kernels, rounds)
            limit_us = (made.limit_us,) if made.limit_us else ()
            is_interleaved = False
        return Compared(
            samples_us=samples_us,
            limit_us=limit_us,
            limit_name=made.limit_name,
            sm_clock_mhz=made.sm_clock_mhz,
            memory_clock_mhz=made.memory_clock_mhz,
            throttle_reasons=made.throttle_reasons,
            interleaved=is_interleaved,
        )

    def _kernel(self, job: Job) -> RecordedKernel:
        if job.config not in self._kernels:
            raise InvalidInput(
                f"config {job.config.to_json(brief=True)} is not in recording "
                f"{self._recording.name}; evaluate it on a GPU"
            )
        return self._kernels[job.config]

    @property
    def _recorded_accuracy(self) -> Accuracy:
        return self._recording.header.environment.accuracy

    @property
    def _is_stricter(self) -> bool:
        return self._accuracy.is_stricter_than(self._recorded_accuracy)

    def _limitations(self) -> list[str]:
        """Return sentences on what the recording lacks; mostly none."""
        sentences = []
        left_out = len(self._recording.kernels) - len(self._kernels)
        if left_out:
            sentences.append(
                f"{left_out} of {len(self._recording.kernels)} recorded kernels are passed over: "
                "the installed space does not allow their configs"
            )
        if self._recorded_accuracy.is_stricter_than(self._accuracy):
            sentences.append(
                f"the recording was made under --accuracy {self._recorded_accuracy}: what that "
                f"rejected stays rejected, though {self._accuracy} might let it pass"
            )
        return sentences

    def _check_some_are_legal(self) -> None:
        if not self._kernels:
            raise InvalidInput(
                f"recording {self._recording.name} has {len(self._recording.kernels)} kernels, of "
                "which the installed space allows no config; make it again on a GPU with "
                "explorer record"
            )

    def _check_errors_are_known(self) -> None:
        outcomes = [k.outcome for k in self._recording.kernels]
        known = all(o.max_ulp is not None for o in outcomes if isinstance(o, Measured))
        if self._is_stricter and not known:
            raise InvalidInput(
                f"the recording of {self._recording.header.problem} has no errors in ulps, so that "
                f"none of its kernels is known to meet --accuracy {self._accuracy}; make it again "
                "on a GPU with explorer record, or leave --accuracy out"
            )


def _fault(outcome: Measured, dtype: DType, accuracy: Accuracy) -> str:
    """Return why a kernel that met a looser accuracy does not meet this one, or an empty string."""
    assert outcome.max_ulp is not None and outcome.mean_ulp is not None  # checked when opened
    tolerance = accuracy.tolerance(dtype)
    if outcome.error > tolerance.relative and outcome.max_ulp > tolerance.steps + 0.5:
        error, limit = tolerance.error_and_limit(outcome.error, outcome.max_ulp)
        return f"too inexact: {error}, the limit under {accuracy} is {limit}"
    return accuracy.excess(dtype, outcome.max_ulp, outcome.mean_ulp)


Rows = tuple[tuple[float, ...], ...]
"""Samples in microseconds a launch: a row a contender, a column a round."""


def _one_after_the_other(kernels: Sequence[RecordedKernel], rounds: int) -> Rows:
    """Return the samples of evaluations, which were not taken in turn.

    A kernel's second entry is its samples shifted by half, so that it differs by their noise.
    """
    seen: set[str] = set()
    rows: list[tuple[float, ...]] = []
    for kernel in kernels:
        samples = kernel.outcome.samples_us if isinstance(kernel.outcome, Measured) else ()
        shift = len(samples) // 2 if kernel.digest in seen else 0
        seen.add(kernel.digest)
        rows.append(samples[shift:] + samples[:shift])
    shortest = min(rounds, *map(len, rows))
    return tuple(row[:shortest] for row in rows)


def _in_turn(recorded: RecordedComparison, digests: Sequence[str]) -> Rows:
    """Return the recorded rows of samples in the order of `digests`.

    Only the recording's best was entered twice. The second row of another kernel is its first one,
    changed in each round as the best's was.
    """
    changes = [b / a for a, b in zip(recorded.samples_us[0], recorded.again_us, strict=True)]
    rows: list[tuple[float, ...]] = []
    seen: set[str] = set()
    for digest in digests:
        first = recorded.samples_us[recorded.digests.index(digest)]
        if digest not in seen:
            rows.append(first)
        elif digest == recorded.digests[0]:
            rows.append(recorded.again_us)
        else:
            rows.append(tuple(us * change for us, change in zip(first, changes, strict=True)))
        seen.add(digest)
    return tuple(rows)
