"""A finished search made by hand: three finalists, two of them tied, and a plain copy."""

from dataclasses import replace

import pytest

from explorer.codegen.units import emit
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.outcome import Contender, Environment, Measured, Resources, Stage, TrialRecord
from explorer.model.problem import Problem
from explorer.tuning.contest import Finals
from explorer.tuning.results import (
    Contrast,
    ParameterEffect,
    SearchResult,
    StudySummary,
    StudyView,
    Unpaired,
)

PROBLEM = Problem(8192, 4096, DType.F32)


def trial(number, time_us, registers=32, **changes):
    resources = Resources(registers=registers, static_shared_bytes=64, code_bytes=2048)
    config = Config(**changes)
    samples = (time_us * 0.99, time_us, time_us * 1.01)
    outcome = Measured(
        samples, error=2e-7, resources=resources, digest=emit(PROBLEM, config).digest
    )
    return TrialRecord(number, config, outcome)


def finalist(record, ratio, tied):
    return replace(
        Contender.of_trial(record),
        samples_us=tuple(record.outcome.time_us * (1 + n * 0.002) for n in (-2, -1, 0, 1, 2)),
        ratio_to_best=ratio,
        ratio_low=ratio * 0.999,
        ratio_high=ratio * 1.001,
        tied=tied,
    )


@pytest.fixture
def environment():
    return Environment(
        gpu="NVIDIA H200",
        arch="sm_90",
        driver="570.86",
        nvrtc="13.0",
        timing="cold",
        date="2026-03-04T05:06:07+00:00",
        space_version="1",
        template_digest="abcdefabcdef",
        explorer="0.1.0",
        limit_us=60.0,
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        peak_gbps=4800.0,
    )


@pytest.fixture
def finals():
    return Finals(
        finalists=(
            finalist(trial(41, 61.4), 1.0, tied=True),
            finalist(trial(7, 61.45, 40, threads=512, threads_per_row=512), 1.0008, tied=True),
            finalist(trial(230, 66.0, 48, cache="shared", exp="expf", unroll=4), 1.075, tied=False),
        ),
        limit_us=60.0,
        limit_spread=0.003,
        rounds=25,
        noise=0.0012,
        interleaved=True,
    )


@pytest.fixture
def result(environment, finals):
    return SearchResult(
        study="softmax-f32-8192x4096",
        problem=PROBLEM,
        environment=environment,
        finals=finals,
        trials=400,
        measured=310,
        duplicates=30,
        rejected={Stage.RESOURCES: 20, Stage.COMPILE: 40},
        elapsed_s=31.4,
        seed=3,
        replayed=False,
    )


@pytest.fixture
def summary():
    return StudySummary(
        name="softmax-f32-8192x4096",
        problem=PROBLEM,
        gpu="NVIDIA H200",
        timing="cold",
        space_version="1",
        is_current=True,
        trials=400,
        measured=310,
        best_us=61.4,
        limit_us=60.0,
        date="2026-03-04T05:06:07+00:00",
        replayed=False,
    )


@pytest.fixture
def view(summary, environment, finals):
    return StudyView(
        summary=summary,
        environment=environment,
        finals=finals,
        best=finals.winner.trial,
        since=None,
        rejected={Stage.INVALID: 20, Stage.COMPILE: 40},
        reasons=(
            (Stage.COMPILE, "ptxas: too many resources", 40),
            (Stage.INVALID, "whole-rows", 20),
        ),
        effects=(ParameterEffect("threads", 0.61, 0.52, 0.7, "256", 62.0, "32", 310.0),),
        contrasts=(
            Contrast("vector_bytes", 16, 4, 1.9, 1.84, 1.97, 40, 40),
            Contrast("vector_bytes", 16, 8, 1.1, 1.05, 1.2, 12, 11),
            Contrast("unroll", 1, 4, 1.001, 0.998, 1.003, 20, 11),
        ),
        unpaired=(Unpaired("cluster", (1, 61.4, 300), (2, 70.0, 10)),),
    )
