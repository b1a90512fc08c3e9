"""The sample of the space compiles, as Python plans it: the quick twin of every covering array."""

import pytest
from as_planned import asserted
from space_sample import Sampled, space_sample

from explorer.compile import Compiler
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.work_split import WorkSplit
from explorer.space import Space

ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")


def arch_of(number: int) -> str:
    """The architecture to compile a kernel of the sample for: each in turn, of those that can."""
    kernel = space_sample()[number]
    able = [a for a in ARCHS if Space(kernel.problem, known_gpu_for(a)).is_legal(kernel.config)]
    return able[number % len(able)]


def vectors(kernel: Sampled) -> str | None:
    """The constant that says how many vectors of a row a block has."""
    if kernel.problem.inner > 1:
        return None
    return "kBlockVectors" if kernel.config.cluster > 1 else "kRowVectors"


@pytest.mark.sampled(24)
@pytest.mark.parametrize("number", range(len(space_sample())), ids=lambda n: space_sample()[n].kind)
def test_it_compiles_as_planned(number):
    kernel = space_sample()[number]
    split = WorkSplit(kernel.problem, kernel.config)
    source = asserted(kernel.problem, kernel.config, vectors(kernel))
    compiled = Compiler(arch_of(number)).compile(source)
    assert compiled.cubin and compiled.ptx
    declared = compiled.resources.static_shared_bytes
    if kernel.config.cluster > 1 or kernel.problem.inner > 1:
        assert 0 <= split.scratch_bytes - declared <= 32, kernel
    else:
        assert 0 <= declared - split.static_bytes < 16, kernel


def test_every_architecture_has_some():
    assert {arch_of(number) for number in range(len(space_sample()))} == set(ARCHS)
