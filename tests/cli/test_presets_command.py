"""Presets by name: listed, emitted, verified, profiled."""

import json

import pytest

from explorer.presets.published import PRESETS


def test_presets_are_listed_with_their_sources(explorer):
    ran = explorer("presets")
    assert ran.code == 0, ran.err
    text = " ".join(ran.out.split())
    assert all(preset.name in text for preset in PRESETS)
    assert "llm.c, dev/cuda/softmax_forward.cu" in text and "also fast-softmax-10" in text
    assert f"{len(PRESETS)} presets; explorer emit NAME" in text


def test_a_problem_says_which_are_legal_and_why_others_are_not(explorer):
    text = " ".join(explorer("presets", "--cols", "1500", "--dtype", "bf16").out.split())
    assert "not here: it is for rows of at most 1024 columns" in text
    assert "here: online-branchy, 1024 threads" in text and "legal for softmax bf16" in text


def test_presets_as_json(explorer):
    data = json.loads(explorer("presets", "--json").out)["presets"]
    assert {line["legal"] for line in data} == {None}
    data = json.loads(explorer("presets", "--cols", "1500", "--json").out)["presets"]
    by_name = {line["name"]: line for line in data}
    assert by_name["oneflow-warp"]["legal"] is False and by_name["oneflow-warp"]["why_not"]
    assert by_name["shared-tree"]["legal"] and by_name["shared-tree"]["config"]["threads"] == 256
    assert by_name["llm.c-9"]["source"]["revision"] == "pull request 841"


def test_a_preset_is_verified_emitted_and_profiled_by_any_of_its_names(explorer, tmp_path):
    ran = explorer("verify", "fast-softmax-3", "--cols", "300")
    assert ran.code == 0 and "shared-tree" in ran.out
    emitted = explorer("emit", "shared-tree", "--cols", "300", "--output", "tree.cu")
    assert emitted.code == 0 and "verified" in emitted.err
    assert "shared-tree" in (tmp_path / "tree.cu").read_text()
    assert explorer("profile", "shared-tree", "--cols", "300").code == 0


@pytest.mark.parametrize("words", [("--cols", "1500"), ()])
def test_an_op_of_no_preset_is_one_sentence(explorer, words):
    ran = explorer("presets", "--op", "log_prob", *words)
    assert ran.code == 0 and len(ran.out.strip().splitlines()) == 1
    assert "no published kernel computes log_prob; explorer presets lists" in ran.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("emit", "shared-three", "--cols", "300"), "the nearest are shared-tree,"),
        (("emit", "oneflow-warp", "--cols", "3000"), "preset 'oneflow-warp' is not for softmax"),
        (
            ("verify", "shared-tree", "--cols", "300", "--op", "softmax_backward"),
            "it cannot do softmax_backward; it does softmax and log_softmax",
        ),
        (("presets", "--cols", "0"), "cols is '0'"),
        (("presets", "--cols", "8", "--gpu", "V100"), "GPU 'V100' is not known"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(explorer, words, says):
    ran = explorer(*words)
    assert ran.code == 2 and says in ran.err and ran.out == ""
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("oneflw",),
            "no preset has 'oneflw' in its name, in what it does or in what it is from;",
        ),
        (("nosuch",), f"in what it is from; explorer presets lists all {len(PRESETS)}"),
        (("--op", "softmax", "--dtype", "f64"), "no preset is all that was asked for;"),
    ],
)
def test_where_no_preset_is_left_a_sentence_says_why(explorer, words, says):
    ran = explorer("presets", *words)
    assert ran.code == 0 and says in ran.out and len(ran.out.splitlines()) == 1
