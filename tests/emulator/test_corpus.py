"""Every planted bug is found, and what it was planted in is clean."""

from collections import Counter
from functools import cache

import pytest

nvrtc = pytest.importorskip("cuda.bindings.nvrtc")

from corpus import BASES, BUGS, EACH_BARRIER, SHARED_RACE, without_barrier  # noqa: E402
from corpus_run import run_variant, to_ptx  # noqa: E402

from explorer.codegen.units import emit  # noqa: E402
from explorer.model.gpu_spec import known_gpu  # noqa: E402
from explorer.space import Space  # noqa: E402

STEPS = 20_000
"""Far more than the bases take; a bug that makes a kernel endless ends here."""


def each_bug():
    """All bugs as parameters; quick is the first of each kind of finding."""
    met = set()
    for bug in BUGS:
        marks = [pytest.mark.exhaustive] if bug.shows <= met else []
        met |= bug.shows
        yield pytest.param(bug, id=bug.name, marks=marks)


@cache
def variant_of(base):
    return emit(*BASES[base])


@cache
def twin(base, lead=0):
    """The verdict on the base as emitted, under the limit that its bugs run under."""
    return run_variant(variant_of(base), lead=lead, steps=STEPS)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("base", BASES)
def test_bases_are_legal_and_clean(base):
    problem, config = BASES[base]
    assert Space(problem, known_gpu("NVIDIA H200")).is_legal(config)
    assert twin(base).clean, twin(base).text


@pytest.mark.parametrize("bug", [*each_bug()])
def test_bugs_are_found(bug):
    assert twin(bug.base, bug.lead).clean, twin(bug.base, bug.lead).text
    variant = variant_of(bug.base)
    planted = run_variant(variant, bug.plant(variant.source), lead=bug.lead, steps=STEPS)
    assert bug.shows <= planted.kinds, planted.text or "nothing was found"


@pytest.mark.sampled(7)
@pytest.mark.parametrize("base", EACH_BARRIER)
def test_each_barrier_is_missed(base):
    assert twin(base).clean, twin(base).text
    variant = variant_of(base)
    ptx = to_ptx(variant.source)
    number = 0
    while (without := without_barrier(ptx, number)) is not None:
        verdict = run_variant(variant, edit=lambda _, text=without: text, steps=STEPS)
        assert SHARED_RACE in verdict.kinds, f"without barrier {number}: {verdict.text}"
        number += 1
    assert number >= 2


def test_the_corpus_is_large_and_names_are_unique():
    assert len(BUGS) >= 200
    assert Counter(bug.name for bug in BUGS).most_common(1)[0][1] == 1
    assert {bug.base for bug in BUGS} == set(BASES)
