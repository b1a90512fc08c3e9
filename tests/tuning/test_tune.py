"""Tuning a list of problems on a fake bench: what is timed, kept, resumed and left out."""

import json
import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
from fake_evaluator import RestsOnRegisters
from fake_peers import FakePeerBench, peers

from explorer.choose import config_for
from explorer.codegen.units import emit
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Rejected, Stage
from explorer.model.problem import Mask, Problem
from explorer.model.tuned_table import (
    journal_line,
    read_journal,
    read_table,
    table_text,
    write_table,
)
from explorer.ops import OPERATORS, Extent, Op
from explorer.space import Space
from explorer.space.candidates import candidates, residencies, variations
from explorer.tuning.objective import Effort
from explorer.tuning.tune import distance, tune, tune_problem

PROBLEMS = [Problem(8192, 4096), Problem(16384, 2048), Problem(8192, 2048, DType.BF16)]


class FakeBenches:
    def __init__(self, bench=FakePeerBench):
        self.bench = bench
        self.gpu = bench().gpu
        self.opened = []
        self.ahead = []

    @contextmanager
    def on(self, problem):
        self.opened.append(problem)
        yield self.bench(problem)

    def compile_ahead(self, problem, configs):
        self.ahead.append((problem, len(list(configs))))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    told = []
    run = tune(
        FakeBenches(), PROBLEMS, folder / "journal", torch=peers("torch")[0], tell=told.append
    )
    return run, folder / "journal", told


def test_each_candidate_is_timed_and_the_best_are_compared(tuned):
    run, _, told = tuned
    assert [one.problem for one in run.table.problems] != []
    assert {one.problem for one in run.table.problems} == set(PROBLEMS)
    for one in run.table.problems:
        met = {t.config for t in one.timed} | {*one.failed}
        digests = {emit(one.problem, config).digest for config in met}
        listed = candidates(one.problem, run.table.gpu, one.untuned)
        assert {emit(one.problem, config).digest for config in listed} <= digests
        assert [t.time_us for t in one.timed] == sorted(t.time_us for t in one.timed)
        assert one.untuned == listed[0]
        assert one.best.tied and one.best.ratio_low <= 1.01
        assert one.gain > 0.99
        assert one.torch_over_best > 1.2
        assert one.environment.limit_us > 0
    assert [p.done for p in told] == [0, 1, 2] and told[-1].remaining_s is not None
    assert told[0].total == 3 and told[-1].kernels > 60


def test_what_was_best_nearby_is_tried(tuned):
    run, _, _ = tuned
    first, second = (
        next(one for one in run.table.problems if one.problem == problem)
        for problem in PROBLEMS[:2]
    )
    if Space(second.problem, run.table.gpu).is_legal(first.best.config):
        digest = emit(second.problem, first.best.config).digest
        met = [t.config for t in second.timed] + [*second.failed]
        assert digest in {emit(second.problem, config).digest for config in met}


def test_a_run_goes_on_where_it_was_stopped(tuned, tmp_path):
    run, journal, _ = tuned
    lines = journal.read_text().splitlines(keepends=True)
    torn = tmp_path / "journal"
    torn.write_text(lines[0] + lines[1][: len(lines[1]) // 2])
    benches = FakeBenches()
    again = tune(benches, PROBLEMS, torn)
    assert again.resumed == 1 and benches.opened == PROBLEMS[1:]
    assert [one.problem for one in again.table.problems] == [
        one.problem for one in run.table.problems
    ]
    assert tune(FakeBenches(), PROBLEMS, torn).resumed == 3
    anew = FakeBenches()
    tune(anew, PROBLEMS, torn, resumes=lambda one: one.problem != PROBLEMS[1])
    assert anew.opened == [PROBLEMS[1]]
    assert {one.effort for one in again.table.problems} == {"default"}


def test_a_damaged_journal_is_said_and_kept(tmp_path):
    journal = tmp_path / "journal"
    journal.write_text('{"format":1}\n')
    with pytest.raises(InvalidInput, match=r"line 1, is no tuned problem .* move the file away"):
        tune(FakeBenches(), PROBLEMS, journal)
    assert journal.read_text() == '{"format":1}\n'


def test_a_problem_that_cannot_be_measured_is_left_out(tmp_path):
    class Wrong(FakePeerBench):
        def evaluate(self, config):
            if self.problem.cols == 2048:
                return Rejected(Stage.VERIFY, "relative error 0.5")
            return super().evaluate(config)

    run = tune(FakeBenches(Wrong), PROBLEMS[:2], tmp_path / "journal")
    assert [one.problem for one in run.table.problems] == PROBLEMS[:1]
    (left_out,) = run.untuned
    assert left_out.problem == PROBLEMS[1] and "verify: relative error 0.5" in left_out.reason


def test_more_effort_varies_the_best():
    counts = []
    for effort in Effort:
        bench = FakePeerBench(PROBLEMS[0])
        one = tune_problem(bench, effort=effort)
        counts.append(len(one.timed) + len(one.failed))
        assert one.torch_us == 0.0 and one.torch_over_best is None
    assert counts[0] < counts[1] <= counts[2]


def test_the_best_few_are_timed_with_their_residencies_and_the_best_states_its_own():
    class Bench(RestsOnRegisters, FakePeerBench):
        pass

    bench = Bench(PROBLEMS[0])
    one = tune_problem(bench, effort=Effort.QUICK)
    assert bench.resources(one.best.config).is_stated(one.best.config)
    met = {timed.config for timed in one.timed} | {*one.failed}
    digests = {emit(one.problem, config).digest for config in met}
    resting = [timed.config for timed in one.timed[:6]]
    resting = [c for c in resting if bench.resources(c).rests_on_registers]
    assert resting
    for config in resting:
        wanted = residencies(config, bench.resources(config), one.problem, bench.gpu)
        assert emit(one.problem, wanted[0]).digest in digests if wanted else True


def test_a_table_is_read_as_it_was_written(tuned, tmp_path):
    run, _, _ = tuned
    path = tmp_path / "nvidia-h200.json"
    write_table(run.table, path)
    again = read_table(path)
    assert table_text(again) == path.read_text()
    assert [one.best.config for one in again.problems] == [
        one.best.config for one in run.table.problems
    ]
    assert again.gpu == run.table.gpu
    later = replace(again.problems[0], torch_us=1.0)
    assert again.with_([later]).problems == (later, *again.problems[1:])
    line = tmp_path / "journal"
    line.write_text(journal_line(later, again.gpu) + "\n")
    assert read_journal(line, again.gpu) == [later]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(format=2), "format is 2; it must be 1"),
        (lambda t: t.pop("configs"), "table has no configs"),
        (lambda t: t["problems"][1].pop("untuned"), r"problems\[1\]: it has no untuned"),
        (lambda t: t["problems"][0].update(untuned=10**6), r"config is 1000000; it must be"),
        (lambda t: t["problems"][0].update(finalists=[]), "finalists is empty"),
        (lambda t: t["problems"][0]["timed"][0].pop(), "timed has an entry of 2 values"),
        (lambda t: t["problems"][0]["timed"][0].__setitem__(1, -1), "time is -1"),
        (lambda t: t["configs"].__setitem__(0, {"threads": 0}), "threads"),
    ],
)
def test_a_damaged_table_is_refused_by_a_sentence(tuned, tmp_path, change, said):
    run, _, _ = tuned
    values = json.loads(table_text(run.table))
    change(values)
    path = tmp_path / "table.json"
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidInput, match=said) as raised:
        read_table(path)
    assert str(path) in str(raised.value) and "explorer tune" in str(raised.value)


def test_problems_are_alike_by_columns_more_than_by_rows():
    base = Problem(1000, 4096)
    assert distance(base, base) == 0
    assert distance(base, Problem(2000, 4096)) < distance(base, Problem(1000, 6000))
    for other in (
        Problem(1000, 4096, DType.BF16),
        Problem(1000, 4096, op=Op.LOG_SOFTMAX),
        Problem(4096, 4096, mask=Mask.CAUSAL),
        Problem(4096, 1024, inner=4),
    ):
        assert distance(base, other) == math.inf


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla T4"])
@pytest.mark.parametrize("cols", [1, 17, 1000, 4097, 131072, 1048576])
def test_every_problem_has_legal_candidates(cols, name):
    gpu = known_gpu(name)
    for dtype in DType:
        for op in Op:
            if OPERATORS[op].over is Extent.CACHE and dtype.in_double:
                continue
            problem = Problem(max(1, 2**24 // cols), cols, dtype, op)
            listed = candidates(problem, gpu, config_for(problem, gpu))
            varied = variations(listed[0], problem, gpu)
            space = Space(problem, gpu)
            assert listed and len(set(listed)) == len(listed) <= 120
            assert all(space.is_legal(config) for config in [*listed, *varied])


def test_a_restricted_table_has_kernels_with_the_values_that_are_left(tmp_path):
    (problem, *_), where = PROBLEMS, {"cache": ("shared",), "threads": (128, 256)}
    journal, benches = tmp_path / "journal", FakeBenches()
    run = tune(benches, [problem], journal, where={problem: where})
    (one,) = run.table.problems
    assert one.where == "cache=shared threads=128,256"
    configs = [timed.config for timed in one.timed]
    assert len(configs) > 8 and {c.cache for c in configs} == {"shared"}
    assert {c.threads for c in configs} <= {128, 256}
    assert one.best.config.cache == "shared" and one.gain is None
    path = tmp_path / "table.json"
    write_table(run.table, path)
    assert read_table(path).problems[0].where == one.where
