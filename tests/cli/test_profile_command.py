"""What a kernel does, counted without a GPU."""

import json
import re
import shlex

import pytest
from by_hand import SHAPE

from explorer.report.profile import mixed

CONFIG = '{"threads_per_row":64}'


def test_a_profile_tells_traffic_and_occupancy(explorer):
    ran = explorer("profile", CONFIG, *SHAPE)
    assert ran.code == 0, ran.err
    for fact in ("100.0 %", "16 B", "warps", "waves", "registers", "ld.global", "NVIDIA H200"):
        assert fact in ran.out, fact


def test_the_heading_says_what_is_counted_for_a_warp_and_what_for_a_thread(explorer):
    ran = explorer("profile", "heuristic", "--cols", "64", "--rows", "64")
    heading = (
        "PTX instructions: one for each warp in total; of an element 32, for lanes that idle too"
    )
    assert ran.code == 0 and heading in ran.out.splitlines()


def test_few_instructions_are_named_if_they_use_tensor_cores():
    rows = dict(mixed({"mma": 1.0, "fma": 1000.0, "prmt": 2.0, "neg": 3.0}))
    assert rows == {"fma": [1000.0], "mma": [1.0], "others": [5.0], "all": [1006.0]}


def test_a_launch_of_one_block_is_told_as_one(explorer):
    ran = explorer("profile", CONFIG, "--cols", "512", "--rows", "2")
    assert ran.code == 0 and " 1 block of 256 threads" in ran.out


def test_as_json(explorer):
    data = json.loads(explorer("profile", CONFIG, *SHAPE, "--json", "--gpu", "Tesla T4").out)
    assert data["gpu"] == "Tesla T4" and data["arch"] == "sm_75"
    assert data["global_bytes_of_model"] == 1.0 and data["global_bytes_per_element"] == 8.0
    loads = data["counts"]["global_loads"]
    assert loads["sectors"] * 32 == loads["bytes"] == data["emulated_rows"] * 512 * 4
    assert data["counts"]["shared_loads"]["bank_conflicts"] == 0
    assert data["occupancy"]["blocks_per_sm"] == 4 and data["nsight"] is None
    assert data["resources"]["resident_blocks"] == 4 and data["states_residency"] is True


@pytest.mark.parametrize(("stated", "says"), [(6, "ask other compilers"), (1, "do not state that")])
def test_it_says_whether_launch_bounds_state_the_resident_blocks(explorer, stated, says):
    """320 threads with 32 registers: 6 blocks of an H200's SM, with 40 only 4."""
    config = f'{{"threads":320,"threads_per_row":320,"min_blocks":{stated}}}'
    ran = explorer("profile", config, "--cols", "5120", "--rows", "7000", "--gpu", "H200", "--json")
    data = json.loads(ran.out)
    blocks = data["resources"]["resident_blocks"]
    assert blocks == data["occupancy"]["blocks_per_sm"] and data["resources"]["rests_on_registers"]
    assert data["states_residency"] is (blocks == stated)
    ran = explorer("profile", config, "--cols", "5120", "--rows", "7000", "--gpu", "H200")
    said = f"An SM holds {blocks} of its blocks at the same time. Its launch bounds {says}"
    assert said in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((CONFIG, *SHAPE, "--device", "abacus"), "device 'abacus'"),
        ((CONFIG, *SHAPE, "--device", "cuda:0"), "no NVIDIA driver"),
        (("worst", *SHAPE), "'worst' is no kernel: give best"),
        ((CONFIG, *SHAPE, "--gpu", "Abacus"), "GPU 'Abacus'"),
        (('{"threads":100}', *SHAPE), "threads is 100"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(explorer, words, says):
    ran = explorer("profile", *words)
    assert ran.code == 2 and says in ran.err and ran.out == ""


def test_ptx_stands_below_the_lines_of_the_source(explorer):
    ran = explorer("profile", "thread-per-row", "--cols", 64, "--rows", 64, "--show", "ptx")
    assert ran.code == 0, ran.err
    _, _, below = ran.out.partition("ptx, below each line of the source")
    source = re.findall(r"^ *\d+ \| (.*)$", below, re.MULTILINE)
    assert any("blockIdx.x" in line for line in source) and "ld.global" in below
    assert ".loc" not in below
    ran = explorer("profile", "thread-per-row", "--cols", 64, "--show", "source")
    assert ran.code == 2 and "write some of ptx, sass" in ran.err


@pytest.mark.exhaustive
def test_attention_has_a_ladder_of_its_own(explorer):
    asked = ("journey", "--ladder", "--op", "decode_attention")
    data = json.loads(explorer(*asked, "--json").out)
    names = [rung["preset"] for rung in data["rungs"]]
    assert names[0] == "llm.c-attention-1" and names[-1] == "flash-decoding"
    assert data["problem"]["group"] == 4 and data["problem"]["key_heads"] == 8
    assert all(rung["config"] and rung["time_us"] for rung in data["rungs"])
    ran = explorer(*asked, "--dtype", "f32", "--cols", 64, "--rows", 1, "--head-dim", 64)
    assert (
        "a ladder of 8 ideas, 6 of them for this problem" in ran.out
        and "so no times are known" in ran.out
    )
    assert "changed  256 threads → 128 threads, registers → shared, three launches" in ran.out
    assert "left out  cols is 64; one part has 512 keys: take vllm-paged-v1" in ran.out
    other = json.loads(explorer(*asked, "--group", 2, "--json").out)
    assert other["problem"]["group"] == 2


def test_a_ladder_needs_no_gpu_and_no_columns(explorer):
    ran = explorer("journey", "--ladder", "--cols", 64, "--rows", 64)
    assert ran.code == 0, ran.err
    assert (
        "18. tile" in ran.out
        and "besides  __expf → expf" in ran.out
        and "so no times are known" in ran.out
    )
    data = json.loads(explorer("journey", "--ladder", "--json").out)
    assert data["rungs"][0]["time_us"] and data["circumstances"]["gpu"] == "NVIDIA H200"
    (between,) = (one for one in data["rungs"] if one["preset"] == "register-float4-256")
    assert between["time_us"] and between["changes"] == "register-float4"
    ran = explorer(*shlex.split(between["emit"])[1:], "--output", "-")
    assert ran.code == 0 and "a block of 256 threads" in ran.out
