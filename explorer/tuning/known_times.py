"""What kernels were measured to take: looked up in a study, a tuned table and recordings.

Times are compared only if they come from one source, and were taken in one way: by the finals of a
search, in which kernels are timed in turn, or one after the other. A kernel is known by the digest
of its code. A source that is older than the templates has it by its config.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from optuna.storages import BaseStorage

from explorer.codegen.variant import Variant
from explorer.devices.recording import Recording, list_recordings, read_recording
from explorer.evaluate.space_version import template_version
from explorer.model.errors import ExplorerError, NotFound
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Environment, Measured, TrialRecord
from explorer.model.tuned_table import TunedProblem, read_table, table_path
from explorer.system.user_files import is_there, shipped_folder
from explorer.tuning.objective import Goal
from explorer.tuning.study_reader import StoredStudy, fitting, meant_by

# ------------------------------------------------------------------ what is found


@dataclass(frozen=True, slots=True)
class KnownTimes:
    """What one source says of some variants of one problem."""

    source: str
    """Such as `study 'NAME'` or `recording NAME`."""
    in_turn: bool
    """Whether the times were taken in turn, so that drift of the GPU hits all alike."""
    times_us: tuple[float | None, ...]
    """Median microseconds a launch of each variant; None for one that the source does not have."""
    other_code: tuple[bool, ...]
    """Whether a time may be of code that earlier templates emitted for the config."""
    environment: Environment
    """With the time of the limit beside which the kernels were timed; 0 where it is not known."""

    @property
    def known(self) -> int:
        """How many of the variants have a time."""
        return sum(time is not None for time in self.times_us)


def known_times(
    variants: Sequence[Variant], gpu: GpuSpec, storage: BaseStorage | None, goal: Goal
) -> KnownTimes | None:
    """Return the source that knows most of the variants of one problem on a GPU, or None.

    Of several that know as many, a study goes first, then a tuned table, then a recording.
    """
    best: KnownTimes | None = None
    for found in _sources(variants, gpu, storage, goal):
        if best is None or found.known > best.known:
            best = found
        if best.known == len(variants):
            break
    return best if best and best.known else None


def _sources(
    variants: Sequence[Variant], gpu: GpuSpec, storage: BaseStorage | None, goal: Goal
) -> Iterator[KnownTimes]:
    """Look up the variants in each source, the one that goes first before the others."""
    if storage is not None:
        yield from _of_studies(variants, gpu, storage, goal)
    yield from _of_tables(variants, gpu)
    yield from _of_recordings(variants, gpu)


# ------------------------------------------------------------------ where they are looked for


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel that a source has a time of."""

    config: str
    digest: str
    time_us: float


def _looked_up(
    variants: Sequence[Variant],
    kernels: Sequence[_Kernel],
    source: str,
    environment: Environment,
    *,
    in_turn: bool,
) -> KnownTimes:
    """Look variants up among the kernels of a source: by digest, else by config."""
    by_digest = {kernel.digest: kernel for kernel in reversed(kernels) if kernel.digest}
    by_config = {kernel.config: kernel for kernel in reversed(kernels)}
    same_templates = environment.template_digest == template_version(variants[0].problem)
    times: list[float | None] = []
    other: list[bool] = []
    for variant in variants:
        exact = by_digest.get(variant.digest)
        found = exact or by_config.get(variant.config.to_json())
        times.append(None if found is None else found.time_us)
        other.append(found is not None and exact is None and not same_templates)
    return KnownTimes(source, in_turn, tuple(times), tuple(other), environment)


def _of_studies(
    variants: Sequence[Variant], gpu: GpuSpec, storage: BaseStorage, goal: Goal
) -> Iterator[KnownTimes]:
    """Yield what each study of the problem on the GPU says, the one searched last first."""
    try:
        studies = fitting(storage, variants[0].problem, goal)
    except NotFound:
        return
    for study in meant_by(goal, [one for one in studies if one.environment.gpu == gpu.name]):
        yield from _of_study(variants, study)


def _of_study(variants: Sequence[Variant], study: StoredStudy) -> Iterator[KnownTimes]:
    """Yield the study's finals, then what its trials measured one after the other."""
    name, finals = f"study '{study.name}'", study.finals
    if finals is not None:
        yield _looked_up(
            variants,
            [_of_trial(finalist.trial, finalist.time_us) for finalist in finals.finalists],
            f"{name}, finals",
            study.environment,
            in_turn=finals.interleaved,
        )
    kernels = [_of_trial(trial, trial.outcome.time_us) for trial in study.measured()]
    yield _looked_up(variants, kernels, name, study.environment, in_turn=False)


def _of_trial(trial: TrialRecord, time_us: float) -> _Kernel:
    return _Kernel(trial.config.to_json(), trial.outcome.digest, time_us)


def _of_tables(variants: Sequence[Variant], gpu: GpuSpec) -> Iterator[KnownTimes]:
    """Yield the finals of the problem in the GPU's tuned table, then the times before them."""
    own = table_path(gpu)
    for path in dict.fromkeys((own, shipped_folder("tuned", "studies/tuned") / own.name)):
        if not is_there(path):
            continue
        try:
            problems = read_table(path).problems
        except ExplorerError:  # `explorer table check` says what is wrong with it
            continue
        tuned = next((one for one in problems if one.problem == variants[0].problem), None)
        if tuned is not None:
            yield from _of_tuned(variants, tuned, f"tuned table {path.name}")


def _of_tuned(variants: Sequence[Variant], tuned: TunedProblem, name: str) -> Iterator[KnownTimes]:
    environment = tuned.environment
    finals = [_Kernel(one.config.to_json(), "", one.time_us) for one in tuned.finalists]
    yield _looked_up(variants, finals, f"{name}, finals", environment, in_turn=True)
    timed = [_Kernel(one.config.to_json(), "", one.time_us) for one in tuned.timed]
    yield _looked_up(variants, timed, name, environment, in_turn=False)


def _of_recordings(variants: Sequence[Variant], gpu: GpuSpec) -> Iterator[KnownTimes]:
    """Yield what recordings of the problem on the GPU hold; one that is damaged is passed over."""
    problem = variants[0].problem
    for file in list_recordings():
        if (
            file.header is None
            or file.header.problem != problem
            or file.header.gpu.name != gpu.name
        ):
            continue
        try:
            recording = read_recording(file.path)
        except ExplorerError:
            continue
        yield from _of_recording(variants, recording)


def _of_recording(variants: Sequence[Variant], recording: Recording) -> Iterator[KnownTimes]:
    """Its comparison of the best, then what it measured one after the other."""
    name, environment = f"recording {recording.name}", recording.header.environment
    configs = {kernel.digest: kernel.config.to_json() for kernel in recording.kernels}
    compared = recording.comparison
    if compared is not None:
        timed = zip(compared.digests, compared.samples_us, strict=True)
        kernels = [_Kernel(configs[digest], digest, median(us)) for digest, us in timed]
        yield _looked_up(variants, kernels, f"{name}, finals", environment, in_turn=True)
    kernels = [
        _Kernel(kernel.config.to_json(), kernel.digest, kernel.outcome.time_us)
        for kernel in recording.kernels
        if isinstance(kernel.outcome, Measured)
    ]
    yield _looked_up(variants, kernels, name, environment, in_turn=False)
