"""Emitted files: which config, which name, and that nothing is lost."""

import re
import shlex

import pytest

import explorer
from explorer.codegen.units import emit
from explorer.evaluate.residency import MeasuredWith
from explorer.export.choice import (
    Chosen,
    Scope,
    checked_config,
    chosen_variant,
    overlapping,
    parse_choice,
    variant_of,
    with_main,
)
from explorer.export.emission import checked, compile_for, default_path, write_source
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Measured, Resources, TrialRecord
from explorer.model.problem import Mask, Problem
from explorer.model.query import ProblemQuery, query_from_words
from explorer.ops import Op
from explorer.tuning.objective import Goal

PROBLEM = Problem(64, 4096, DType.F32)
H200 = known_gpu("NVIDIA H200")


def test_choices():
    assert parse_choice("best") == "best"
    assert parse_choice("12") == 12
    assert parse_choice('{"threads":512}').config == Config(threads=512)


@pytest.mark.parametrize("op", [op for op in Op if op not in (Op.DECODE_ATTENTION, Op.LOG_PROB)])
def test_what_a_config_leaves_out_is_what_the_operator_has(op):
    problem = Problem(64, 1024, DType.F32, op)
    assert checked_config(parse_choice('{"unroll":1}').fitted(problem, H200), problem, H200)


def test_what_a_config_leaves_out_of_attention_is_what_its_type_has():
    problem = Problem(32, 1024, DType.F32, Op.DECODE_ATTENTION, group=4, key_heads=8)
    config = parse_choice('{"threads":64}').fitted(problem, H200)
    assert (config.threads, config.core, config.static_cols) == (64, "fma", False)
    with pytest.raises(InvalidInput, match="core is mma; its values for f32 are fma"):
        checked_config(parse_choice('{"core":"mma"}').fitted(problem, H200), problem, H200)


@pytest.mark.parametrize("text", ["worst", "-1", "1.5", "", "²", "{", '{"threads":"many"}', "[1]"])
def test_other_choices_are_refused(text):
    with pytest.raises(InvalidInput):
        parse_choice(text)


def test_an_illegal_config_is_refused_with_the_rules_sentence():
    with pytest.raises(InvalidInput, match="threads_per_row divides threads"):
        checked_config(Config(threads=96, threads_per_row=64), PROBLEM, H200)
    with pytest.raises(InvalidInput, match="threads is 100; its values"):
        checked_config(Config(threads=100), PROBLEM, H200)


@pytest.mark.parametrize(
    ("arch", "config", "why"),
    [
        ("sm_80", Config(), "the kernel is for sm_80"),
        (
            "sm_90",
            Config(load_hint="nc"),
            "launches one and load_hint nc, but only a kernel of one",
        ),
        (
            "sm_90",
            Config(launches="three", cache="none", cache_holds="input"),
            "launches three and load_hint default, but",
        ),
    ],
)
def test_a_launch_that_cannot_overlap_is_refused(arch, config, why):
    variant = emit(PROBLEM, config)
    with pytest.raises(InvalidInput, match=f"{why}.*: leave overlapped out, or "):
        overlapping(variant, arch)


def test_name_tells_problem_and_code():
    path = default_path(emit(PROBLEM, Config()))
    assert re.fullmatch(r"generated/softmax_f32_4096_[0-9a-f]{12}\.cu", path.as_posix())
    assert default_path(emit(PROBLEM, Config(exp="expf"))) != path


def test_written_once_then_left_alone(tmp_path):
    variant, path = emit(PROBLEM, Config()), tmp_path / "softmax.cu"
    assert write_source(variant, path) == "written"
    assert path.read_text() == variant.source
    assert write_source(variant, path) == "already there, unchanged"


def test_other_code_is_not_replaced_unless_forced(tmp_path):
    path = tmp_path / "softmax.cu"
    path.write_text("// mine\nint x;\n")
    variant = emit(PROBLEM, Config())
    with pytest.raises(InvalidInput, match="force=True"):
        write_source(variant, path)
    assert path.read_text() == "// mine\nint x;\n"
    assert write_source(variant, path, force=True) == "written over"


def test_a_comment_that_differs_is_renewed(tmp_path):
    variant, path = emit(PROBLEM, Config()), tmp_path / "softmax.cu"
    path.write_text("// an older comment\n\n" + variant.source.partition("\n\n")[2])
    assert write_source(variant, path) == "written over"


def test_a_main_program_comes_and_goes_but_not_what_was_edited(tmp_path):
    path, bare = tmp_path / "softmax.cu", emit(PROBLEM, Config())
    whole = with_main(bare)
    assert write_source(bare, path) == "written"
    assert write_source(whole, path) == "written over" and path.read_text() == whole.source
    assert write_source(bare, path) == "written over"
    path.write_text(bare.source.replace("return cudaSuccess", "return cudaErrorUnknown"))
    with pytest.raises(InvalidInput, match="holds other code"):
        write_source(bare, path)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be written"):
        write_source(emit(PROBLEM, Config()), tmp_path)


def test_a_trial_of_other_templates_is_not_emitted_as_if_it_were_the_same():
    digest = emit(PROBLEM, Config()).digest
    resources = Resources(registers=32)
    good = TrialRecord(3, Config(), Measured((1.0,), 0.0, resources, digest))
    assert variant_of(good, PROBLEM).digest == digest
    stale = TrialRecord(3, Config(), Measured((1.0,), 0.0, resources, "0" * 16))
    with pytest.raises(NotFound, match="run the search again, or emit the config"):
        variant_of(stale, PROBLEM)


def test_the_command_that_emits_its_config_anew_says_all_of_the_problem():
    problem = Problem(64, 4096, op=Op.LOG_SOFTMAX, scale=0.5, mask=Mask.CAUSAL, mask_rows=64)
    config = Config(cache_holds="input")
    stale = TrialRecord(3, config, Measured((1.0,), 0.0, Resources(registers=32), "0" * 16))
    with pytest.raises(NotFound) as caught:
        variant_of(stale, problem)
    _, _, command = str(caught.value).rpartition("as it is now: ")
    words = shlex.split(command)
    assert words[:2] == ["explorer", "emit"] and Config.from_json(words[2]) == config
    assert query_from_words(words[3:]).problem() == problem


def test_resources_come_from_the_compiler():
    variant = emit(PROBLEM, Config(cache="shared", cache_holds="input"))
    resources = compile_for("sm_90", known_gpu("NVIDIA H200"), variant)
    assert resources.registers > 0
    assert resources.dynamic_shared_bytes == 4 * 4096


def test_a_kernel_for_a_gpu_without_known_limits_is_compiled_and_has_no_residency():
    """Of sm_86 no GPU's number of SMs is known."""
    resources = compile_for("sm_86", None, emit(PROBLEM, Config()))
    assert resources.registers > 0 and resources.resident_blocks == 0
    told: list[str] = []
    chosen = Chosen(emit(PROBLEM, Config()), "sm_86", None, measured=MeasuredWith("12.0", 255))
    checked(chosen, chosen.variant, Accuracy.DEFAULT, told.append, verify=False)
    assert [text.partition(" with")[0] for text in told] == ["compiles for sm_86"]


def test_a_trial_tells_what_it_was_measured_with_on_the_gpu_that_measured_it(tmp_path):
    storage = f"sqlite:///{tmp_path}/studies.db"
    found = explorer.search(cols=128, trials=3, storage=storage)
    best = found.best.trial.outcome.resources.registers
    told: list[str] = []

    def chosen(gpu):
        query = ProblemQuery.of(found.problem)
        return chosen_variant("best", Scope(query, gpu, storage, Goal(), told.append))

    assert chosen(None).measured == MeasuredWith("13.0", best)
    assert chosen("NVIDIA H200").measured == MeasuredWith("13.0", best)
    assert chosen("NVIDIA A100-SXM4-80GB").measured is None
