"""Make the job that a device is asked, of a program and its compiled kernel."""

import hashlib

from explorer.compile.compiler import Kernel
from explorer.compile.resources import exceeded_resource, resources_on
from explorer.devices.device import Job, SmallRun
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.runs import gpu_runs
from explorer.model.gpu_spec import GpuSpec
from explorer.model.outcome import Rejected, Stage
from explorer.model.problem import Problem


def job_of(
    program: ProgramUnderTest, problem: Problem, gpu: GpuSpec, digest: str, kernel: Kernel
) -> Job | Rejected:
    """Work out what a GPU is asked of a kernel, or why it need not be asked; raises InvalidInput.

    `digest` is that of the source; empty where it may have been edited.
    """
    launched = program.launches(problem)
    resources = resources_on(gpu, launched, kernel.resources)
    exceeded = exceeded_resource(resources, launched, gpu)
    if exceeded is not None:
        return Rejected(Stage.RESOURCES, exceeded)
    small_runs = tuple(
        SmallRun(
            run.case,
            program.launches(run.problem),
            program.scratch_bytes(run.problem),
            run.misaligned_by,
            run.accuracy,
            program.promise,
        )
        for run in gpu_runs(program)
    )
    return Job(
        program.config,
        cubin=kernel.cubin,
        digest=digest,
        code_digest=hashlib.sha256(kernel.cubin + repr(launched).encode()).hexdigest(),
        resources=resources,
        small_runs=small_runs,
        launches=launched,
        scratch_bytes=program.scratch_bytes(problem),
    )
