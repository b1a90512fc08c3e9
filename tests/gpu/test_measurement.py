"""What is measured: the limit, repeatability, large problems, the emitted program."""

import shutil
import subprocess
from dataclasses import replace
from statistics import median

import pytest
from cuda.bindings import driver

from explorer.choose import config_for
from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.cuda.bench import Bench
from explorer.devices.cuda.device import CudaDevice
from explorer.devices.cuda.limits import tools_sources
from explorer.devices.cuda.program import checked, gpu_spec
from explorer.devices.cuda.session import FEW_SAMPLES, SAMPLES
from explorer.devices.cuda.tools import Tools
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Measured
from explorer.model.problem import Mask, Problem
from explorer.ops import Op


def limit_of(problem):
    """Time a problem's limits in this process, where a test says which limit a problem has."""
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    gpu, stream = gpu_spec(device), checked(driver.cuStreamCreate(0))
    kernels = [Compiler(gpu.arch).compile(source) for source in tools_sources(problem)]
    tools = Tools([kernel.cubin for kernel in kernels], stream, Accuracy.DEFAULT)
    bench = Bench(problem, "cold", gpu, stream, tools, 0)
    try:
        name, _, samples = bench.limits[0]
        return name, problem.read_bytes / median(samples) * 1e-3, gpu.peak_gbps
    finally:
        bench.free()
        tools.free()
        driver.cuDevicePrimaryCtxRelease(device)


@pytest.mark.alone
@pytest.mark.usefixtures("is_read")
@pytest.mark.parametrize(
    "problem", [Problem(8192, 4096), Problem(4096, 8192, mask=Mask.ADDITIVE, mask_rows=4096)]
)
def test_the_limit_that_reads_is_about_the_memorys_bandwidth(problem):
    name, gbps, peak_gbps = limit_of(problem)
    print(f"\n{problem}: {gbps:.0f} GB/s by {name}")
    assert 0.75 * peak_gbps < gbps < 1.02 * peak_gbps


@pytest.mark.alone
def test_no_softmax_is_faster_than_copy():
    """Beyond noise: were one, the copy would not be the limit."""
    with DeviceEvaluator(Problem(8192, 4096), CudaDevice(0)) as live:
        config = Config(threads=512, threads_per_row=512, exp="ex2.approx")
        assert isinstance(live.evaluate(config), Measured)
        compared = live.compare([config, config], 15)
        first, second = map(median, compared.samples_us)
        assert first > 0.99 * median(compared.limit_us)
        assert abs(first / second - 1) < 0.01
        assert 0.9 < median(compared.limit_us) / live.facts.limit_us < 1.1
        assert live.environment.sm_clock_mhz > 0


@pytest.mark.alone
@pytest.mark.parametrize("timing", ["cold", "warm"])
def test_a_kernel_as_fast_as_the_best_has_all_samples_and_a_slower_one_few(timing):
    """Launches of a few microseconds, beside which the start of a graph counts."""
    device, config = CudaDevice(0), Config(threads=256, threads_per_row=256)
    with DeviceEvaluator(Problem(64, 1024), device, timing, for_fastest=True) as live:
        first = live.evaluate(config)
        live.submit(config)
        job = live.compiling(config).result()
        again = device.evaluate(live._sent_as(job))
        live._best_us = first.time_us / 1.2
        slower = device.evaluate(live._sent_as(replace(job, code_digest="another")))
        assert len(first.samples_us) == len(again.samples_us) == SAMPLES
        assert len(slower.samples_us) == (FEW_SAMPLES if timing == "cold" else SAMPLES)
        assert again.time_us == pytest.approx(first.time_us, rel=0.03)
        assert slower.time_us == pytest.approx(first.time_us, rel=0.03)


@pytest.mark.alone
def test_what_is_timed_first_takes_no_less_time_than_later():
    """Launches of a few microseconds, whose cost changes as a process begins to use the GPU."""
    config = Config(threads=64, threads_per_row=1, exp="ex2.approx", staging="span")
    device = CudaDevice(0)
    with DeviceEvaluator(Problem(100000, 17, DType.BF16), device) as live:
        first = live.evaluate(config).time_us
        for threads in (32, 96, 128, 256):
            assert isinstance(live.evaluate(replace(config, threads=threads)), Measured)
        compared = live.compare([config, config], 15)
        later = median(compared.samples_us[0])
        assert abs(first / later - 1) < 0.04
        assert abs(live.facts.limit_us / median(compared.limit_us) - 1) < 0.04


def test_a_kernel_whose_inputs_take_long_to_make_is_not_taken_to_hang():
    """The first one waits for 82 million elements of gradients that it is verified on."""
    problem = Problem(4, 524288, op=Op.SOFTMAX_BACKWARD)
    with DeviceEvaluator(problem, CudaDevice(0)) as live:
        outcome = live.evaluate(config_for(problem, live.gpu))
        assert isinstance(outcome, Measured), outcome


@pytest.mark.alone
def test_more_than_2_31_elements():
    """Row offsets are 64-bit: 8.6 GB of input and as much output, each element checked."""
    with DeviceEvaluator(Problem(524300, 4096), CudaDevice(0, kernel_limit_s=60)) as live:
        outcome = live.evaluate(Config())
        assert isinstance(outcome, Measured), outcome


def test_a_problem_beyond_memory_is_refused():
    with pytest.raises(InvalidInput, match="GB free"):
        DeviceEvaluator(Problem(2**24, 2**20), CudaDevice(0))


def test_an_unknown_gpu_is_refused():
    with pytest.raises(InvalidInput, match="cuda:99"):
        CudaDevice(99)


@pytest.mark.alone
def test_warm_is_faster_than_cold_where_the_cache_holds_it():
    problem = Problem(1024, 4096)
    times = {}
    for timing in ("cold", "warm"):
        with DeviceEvaluator(problem, CudaDevice(0), timing) as live:
            times[timing] = live.evaluate(Config()).time_us
    assert times["warm"] < 0.9 * times["cold"]


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (Problem(999, 4096), Config()),
        (Problem(999, 4097, DType.BF16), Config(cache="shared", static_cols=False)),
        (Problem(999, 33, DType.F16), Config(threads_per_row=8, vector_bytes=8)),
        (
            Problem(64, 300, DType.BF16, Op.DECODE_ATTENTION, group=4, key_heads=2, also="lse"),
            Config(core="mma", threads=128, static_cols=False, heads_per_thread=4),
        ),
    ],
    ids=str,
)
def test_the_emitted_file_is_a_program(problem, config, tmp_path):
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("nvcc is not installed")
    source = tmp_path / "softmax.cu"
    source.write_text(emit(problem, config, main=True).source)
    program = tmp_path / "softmax"
    subprocess.run([compiler, "-std=c++17", "-arch=native", "-o", program, source], check=True)
    ran = subprocess.run([program, "999"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "GB/s" in ran.stdout
