"""`explorer time` without a GPU: what it refuses, and what it makes of a stand-in's outcomes."""

import json
from dataclasses import replace

import pytest

import explorer as package
from explorer.devices.cuda.device import CudaDevice
from explorer.devices.cuda.messages import Open
from explorer.devices.device import Device, Facts, Setting
from explorer.devices.program_under_test import read_emitted
from explorer.devices.verdict import Verdict
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Measured, Rejected, Resources, Stage
from explorer.model.problem import Problem

CONFIG = '{"threads_per_row":64,"static_cols":false,"cache":"none","cache_holds":"input"}'
NO_GPU = "a time needs a GPU, and there is none: no NVIDIA driver (libcuda.so.1 is not found)"
MEASURED = Measured((10.0, 10.1, 9.9, 10.0), 1e-7, Resources(registers=32), "", 2.5, 0.5)


@pytest.fixture
def mine(explorer, tmp_path):
    """Return a file that was emitted."""
    ran = explorer(
        *("emit", CONFIG, "--cols", "512", "--rows", "64"),
        *("--output", "mine.cu", "--no-verify"),
    )
    assert ran.code == 0, ran.err
    return tmp_path / "mine.cu"


class StandIn(Device):
    """Answers as a GPU does, without one: what it is given comes out."""

    gpu = known_gpu("NVIDIA H200")
    outcome = MEASURED
    asked = None

    def __init__(self, index):
        self.index = index

    def open(self, setting):
        StandIn.asked = (setting.problem, self.index, setting.timing, setting.accuracy)
        return Facts("570.86", limit_us=9.5, limit_name="copy by 16 bytes", buffers=3)

    def verify(self, program, rows=None, then=()):
        return Verdict.of_outcome(program, self.outcome, self.gpu.name)


@pytest.fixture
def gpu(explorer, monkeypatch):
    """Pretend that there is a GPU: set `outcome` of what comes."""
    monkeypatch.setattr("explorer.devices.names.driver_problem", lambda: None)
    monkeypatch.setattr("explorer.devices.cuda.device.CudaDevice", StandIn)
    monkeypatch.setattr(StandIn, "outcome", MEASURED)
    return StandIn


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), NO_GPU),
        (("--device", "cuda:1"), NO_GPU),
        (("--device", "emulated"), "a time needs a GPU: take auto or cuda:N"),
        (("--device", "recorded:by-hand"), "a time needs a GPU: take auto or cuda:N"),
        (("--timing", "hot"), "timing is 'hot'; choose one of cold, warm"),
        (("--rows", "0"), "rows is '0'"),
        (("--accuracy", "lax"), "accuracy 'lax' is not known"),
    ],
)
def test_without_a_gpu_no_time_is_invented(explorer, mine, words, says):
    ran = explorer("time", mine, *words)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err and len(ran.err.splitlines()) == 1


def test_no_gpu_names_the_command_that_needs_none(explorer, mine):
    assert explorer("time", "mine.cu").err.endswith("explorer verify mine.cu\n")


@pytest.mark.parametrize("name", ["none.cu", "best", ".", "text.cu"])
def test_a_file_that_cannot_be_read(explorer, gpu, name, tmp_path):
    (tmp_path / "text.cu").write_text("// nothing\n")
    ran = explorer("time", name)
    assert (ran.code, ran.out) == (2, "") and len(ran.err.splitlines()) == 1
    assert "cannot be read" in ran.err or "has no 'explorer emit' line" in ran.err


def test_a_right_file_is_timed_beside_copy(explorer, mine, gpu):
    ran = explorer("time", "mine.cu")
    assert ran.code == 0, ran.err
    assert "verified on NVIDIA H200: largest relative error 1.0e-07, 2.5 ulp" in ran.out
    assert "10.00 ± 0.03 µs, 26 GB/s, 95.0 % of copy at 9.500 µs" in ran.out
    assert "driver 570.86" in ran.out and "edited" not in ran.out
    problem, device, timing, _ = gpu.asked
    assert (problem.rows, problem.cols, device, timing) == (64, 512, 0, "cold")


def test_a_program_gets_what_the_command_prints(explorer, mine, gpu):
    words = ("--rows", "7", "--cols", "1024", "--timing", "warm", "--json")
    data = json.loads(explorer("time", mine, *words).out)
    timed = package.time(mine, rows=7, cols=1024, timing="warm")
    assert isinstance(timed, package.TimedFile) and timed.measured.time_us == 10.0
    kept = {**data, "verification": {**data["verification"], "seed": timed.verdict.program.seed}}
    assert json.loads(json.dumps(timed.to_dict())) == kept
    assert repr(timed).endswith("7x1024: verified, 10.00 µs)")
    with pytest.raises(package.InvalidInput, match="mask says nothing of an emitted file"):
        package.time(mine, mask="causal")


def test_it_is_timed_at_what_the_options_say(explorer, mine, gpu):
    words = ("--rows", "7", "--cols", "1024", "--device", "cuda:2", "--timing", "warm")
    data = json.loads(explorer("time", mine, *words, "--json").out)
    problem, device, timing, _ = gpu.asked
    assert (problem.rows, problem.cols, device, timing) == (7, 1024, 2, "warm")
    assert data["problem"]["rows"] == 7 and data["verification"]["status"] == "verified"
    assert (data["time_us"], data["limit_us"], data["of_limit"]) == (10.0, 9.5, 0.95)
    assert data["gbps"] == pytest.approx(2 * 7 * 1024 * 4 / 10.0 * 1e-3)
    assert data["circumstances"]["timing"] == "warm" and not data["is_edited"]


@pytest.mark.parametrize(
    ("stage", "code", "status"),
    [
        (Stage.VERIFY, 1, "wrong"),
        (Stage.CRASH, 1, "wrong"),
        (Stage.TIMEOUT, 1, "wrong"),
        (Stage.COMPILE, 2, "unverified"),
        (Stage.RESOURCES, 2, "unverified"),
    ],
)
def test_what_is_not_verified_has_no_time(explorer, mine, gpu, stage, code, status):
    gpu.outcome = Rejected(stage, "because")
    ran = explorer("time", "mine.cu")
    assert ran.code == code and "because" in ran.out and "not timed" in ran.out
    assert "µs" not in ran.out
    shown = explorer("time", "mine.cu", "--json")
    data = json.loads(shown.out)
    assert shown.code == code and data["verification"]["status"] == status
    assert data["time_us"] is data["samples_us"] is data["of_limit"] is None


def test_an_edited_host_part_is_judged(explorer, mine, gpu):
    emitted = mine.read_text()
    mine.write_text(emitted.replace("cudaSuccess", "cudaErrorUnknown"))
    ran = explorer("time", "mine.cu")
    assert ran.code == 1 and "mine.cu, edited:" in ran.out
    assert "the host part is wrong: launch() returns an error where `rows` is 0" in ran.out
    mine.write_text(
        emitted.replace("  if (rows == 0", "  do {} while (rows == 7);\n  if (rows == 0")
    )
    ran = explorer("time", "mine.cu")
    assert ran.code == 2 and "the host part could not be checked: a statement with 'do'" in ran.out


def test_columns_of_another_kernel_are_refused(explorer, gpu):
    ran = explorer(
        *("emit", '{"threads_per_row":64}', "--cols", "512"),
        *("--output", "fixed.cu", "--no-verify"),
    )
    assert ran.code == 0
    ran = explorer("time", "fixed.cu", "--cols", "1024")
    assert ran.code == 2 and "the kernel is for 512 columns only" in ran.err


def test_the_kernel_is_compiled_verified_and_timed_by_one_job(explorer, mine, monkeypatch):
    """What the worker gets is the file's own text, with the runs that verify it."""

    class Gpu(CudaDevice):
        def __init__(self, problem):
            self.gpu, self.jobs = known_gpu("NVIDIA H200"), []
            self._opened = Open(Setting(problem), ())

        def evaluate(self, job):
            self.jobs.append(job)
            return MEASURED

    mine.write_text(mine.read_text().replace("kUnroll = 1", "kUnroll = 2"))
    program = read_emitted(mine)
    gpu = Gpu(Problem(64, 512))
    assert gpu.verify(program).outcome == MEASURED
    broken = replace(program, source=program.source.replace("threadIdx", "nought"))
    failed = gpu.verify(broken).outcome
    (job,) = gpu.jobs
    assert job.small_runs and job.launches == program.launches(Problem(64, 512))
    assert failed.stage is Stage.COMPILE and "does not compile for sm_90" in failed.reason
    assert "mine.cu" in failed.reason
