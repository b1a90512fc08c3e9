"""How long a GPU may take for a kernel grows with what it is verified on."""

from explorer.codegen.units import emit
from explorer.devices.cuda.device import making_s
from explorer.devices.device import Job, SmallRun
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.runs import gpu_runs
from explorer.model.config import Config
from explorer.model.outcome import Resources
from explorer.model.problem import Problem
from explorer.ops import Op


def _making_s(problem, config):
    variant = emit(problem, config)
    program = ProgramUnderTest.of(variant)
    runs = tuple(SmallRun(run.case, program.launches(run.problem)) for run in gpu_runs(program))
    resources = Resources(registers=0, code_bytes=0)
    return making_s(Job(variant.config, "", b"", "", resources, runs, variant.launches))


def test_a_kernel_may_take_longer_where_its_inputs_take_long_to_make():
    """On two cores, inputs of such gradients took 9 s."""
    usual = _making_s(Problem(8192, 4096), Config())
    twice = Config(threads=1024, threads_per_row=1024, cache="none", cache_holds="input", unroll=4)
    wide = _making_s(Problem(4, 524288, op=Op.SOFTMAX_BACKWARD), twice)
    assert usual <= 1
    assert 9 <= wide <= 20
