"""Launches that begin before the one before has ended: verified, and what breaks them is found."""

from dataclasses import replace

import pytest
from planted import planted
from space_sample import space_sample
from verified import FAULTLESS

from explorer.codegen.units import emit
from explorer.codegen.variant import can_overlap
from explorer.compile.compiler import Compiler
from explorer.devices.host_check import AS_EMITTED
from explorer.devices.program_under_test import ProgramUnderTest, read_emitted
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Mask, Problem

SAMPLE = [k for k in space_sample() if can_overlap(k.config)]

PROBLEM = Problem(7, 512)
CONFIG = Config(
    algorithm="online-block-max", threads=64, threads_per_row=64, load_hint="cs", cache="registers"
)
WAIT = "  wait_for_launch_before();\n"


def overlapped(problem=PROBLEM, config=CONFIG):
    return ProgramUnderTest.of(emit(problem, config, overlapped=True))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kernel", SAMPLE[::6], ids=lambda kernel: kernel.kind)
def test_kernels_of_the_sample_wait_before_they_read_or_write(emulator, kernel):
    verdict = emulator.verify(overlapped(kernel.problem, kernel.config))
    assert verdict.status in FAULTLESS, f"{kernel}: {verdict.sentence}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernel", SAMPLE[::9], ids=lambda kernel: kernel.kind)
def test_no_load_is_of_what_is_only_read(kernel):
    """As `__restrict__` allows the compiler, which knows nothing of the launch before."""
    variant = emit(kernel.problem, kernel.config, overlapped=True)
    ptx = Compiler("sm_90").compile(variant.code).ptx
    before, _, after = ptx.partition("griddepcontrol.wait;")
    started = before[before.index(".entry") :]
    assert not any(access in started for access in ("ld.global", "st.global", "cp.async"))
    assert after and ".nc" not in after
    assert [launch.overlaps for launch in variant.launches] == [True]


DEFECTS = {
    "the launch before is not waited for": [(WAIT, "")],
    "some threads do not wait": [(WAIT, "  if (threadIdx.x < 32) wait_for_launch_before();\n")],
    "the input is loaded as what nothing writes": [
        ("return __ldcs(address);", "return __ldg(address);")
    ],
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_found(emulator, defect):
    verdict = emulator.verify(planted(overlapped(), DEFECTS[defect]))
    assert verdict.status is Status.WRONG
    assert "launch before" in verdict.sentence


def test_a_wait_at_the_end_is_too_late(emulator):
    program = overlapped()
    kernel = program.source.index("softmax_f32_512_kernel(const")
    end = program.source.index("\n}\n", kernel) + 1
    late = f"{program.source[:end]}{WAIT}{program.source[end:]}".replace(WAIT, "", 1)
    verdict = emulator.verify(replace(program, source=late))
    assert verdict.status is Status.WRONG and "launch before" in verdict.sentence


@pytest.mark.parametrize("mask", [Mask.ADDITIVE, Mask.LENGTHS])
def test_a_mask_is_waited_for_too(emulator, mask):
    problem = Problem(64, 256, DType.BF16, mask=mask, mask_rows=1 if mask is Mask.ADDITIVE else 0)
    assert emulator.verify(overlapped(problem)).status in FAULTLESS


def test_what_cannot_overlap_is_refused():
    for config in (
        Config(load_hint="nc"),
        Config(launches="three", cache="none", cache_holds="input"),
    ):
        assert not can_overlap(config)
        with pytest.raises(InvalidInput, match="needs one launch, and loads with hint default or"):
            emit(PROBLEM, config, overlapped=True)


def test_the_file_says_that_it_overlaps(tmp_path):
    variant = emit(PROBLEM, CONFIG, overlapped=True)
    path = tmp_path / "kernel.cu"
    path.write_text(variant.source)
    program = read_emitted(path)
    assert not program.is_edited and program.host == AS_EMITTED
    assert program.launches(PROBLEM) == variant.launches
    assert "cudaLaunchAttributeProgrammaticStreamSerialization" in variant.source
    assert variant.digest != emit(PROBLEM, CONFIG).digest
