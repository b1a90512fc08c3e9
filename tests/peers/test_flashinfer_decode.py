"""FlashInfer's decode attention, as far as that goes without a GPU."""

import ctypes
import math
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from explorer.compile.built_libraries import Unavailable
from explorer.model.element import DType
from explorer.model.peer import PeerBuffers, PeerRefuses
from explorer.model.problem import Mask, Problem
from explorer.ops import Op

torch = pytest.importorskip("torch", reason="needs PyTorch")

from explorer.peers import flashinfer_decode  # noqa: E402
from explorer.peers.flashinfer_decode import (  # noqa: E402
    PAGE_KEYS,
    Call,
    Decoder,
    InBaseTwo,
    Library,
    pages_of,
)
from explorer.peers.torch_softmax import written_by  # noqa: E402
from tests.peers.attention_cases import assert_right, drawn, problem_of  # noqa: E402

# ------------------------------------------------------------------ calls


class FlashInfer:
    """The functions of the library, computed by PyTorch from the memory that a call names."""

    def __init__(self):
        self.planned = 0

    def single(self, call, stream):
        assert stream == 77 and call.sequences == 1
        self._attend(call, 0, range(call.keys), lambda key: (0, key))

    def plan(self, call, page_starts):
        assert page_starts.dtype is torch.int32 and page_starts.device.type == "cpu"
        assert page_starts.tolist() == _numbers(call.page_starts, call.sequences + 1)
        assert len(_memory(call.schedule, call.schedule_bytes, ctypes.c_uint8)) >= 2**23
        self.planned += 1
        call.plan[0] = 9

    def batch(self, call, stream):
        assert stream == 77 and call.plan[0] == 9
        starts = _numbers(call.page_starts, call.sequences + 1)
        pages = _numbers(call.pages, starts[-1])
        on_last = _numbers(call.on_last_page, call.sequences)
        for sequence in range(call.sequences):
            own = pages[starts[sequence] : starts[sequence + 1]]
            length = max(len(own) - 1, 0) * call.page_keys + on_last[sequence]

            def place(key, own=own):
                return own[key // call.page_keys], key % call.page_keys

            self._attend(call, sequence, range(length), place)

    def _attend(self, call, sequence, keys, place):
        dim, heads, all_heads = 64, call.key_heads, call.query_heads
        stride = dim if call.by_head else heads * dim
        of_head = call.keys * dim if call.by_head else dim

        def vector(base, element):
            bits = _memory(base + 2 * element, dim, ctypes.c_int16)
            return torch.tensor(bits, dtype=torch.int16).view(torch.bfloat16).double()

        def cached(base, head):
            at = [sum(place(key)) * stride + head * of_head for key in keys]
            return torch.stack([vector(base, element) for element in at])

        output = _memory(call.output, call.sequences * all_heads * dim, ctypes.c_int16)
        for head in range(all_heads):
            row = sequence * all_heads + head
            key, value = (cached(b, head // (all_heads // heads)) for b in (call.key, call.value))
            scores = (key @ vector(call.query, row * dim)) * call.scale
            made = (scores.softmax(0) @ value).bfloat16().view(torch.int16)
            output[row * dim : (row + 1) * dim] = made.tolist()
            if call.lse:
                of_rows = _memory(call.lse, call.sequences * all_heads, ctypes.c_float)
                of_rows[row] = scores.logsumexp(0).item() / math.log(2)


def _memory(address, count, kind):
    return (kind * count).from_address(address)


def _numbers(address, count):
    return list(_memory(address, count, ctypes.c_int32))


def called(problem, kind):
    """Arrays of a problem, what a call made of them, and the library that was called."""
    arrays, tensors = drawn(problem)
    library = FlashInfer()
    decoder = Decoder(problem, library, 77, overlapped=True)
    room = [array.empty() for array in written_by(problem)]
    if kind == "batch":
        assert decoder.plan(*tensors, *room) == 9
    made = [getattr(decoder, kind)(*tensors, *room) for _ in range(2)][-1]
    made = made if isinstance(made, tuple) else (made,)
    assert [one.data_ptr() for one in made] == [one.data_ptr() for one in room]
    output, *lse = made
    return arrays, (output, *(one * math.log(2) for one in lse)), library


@pytest.mark.parametrize("also", ["", "lse"])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_one_sequence_is_read_in_both_layouts(layout, also):
    heads = {"head_dim": 64, "group": 2, "key_heads": 3, "layout": layout, "also": also}
    problem = Problem(6, 37, DType.BF16, Op.DECODE_ATTENTION, scale=0.2, **heads)
    arrays, made, _ = called(problem, "single")
    assert_right(problem, arrays, made, coarse=500)


@pytest.mark.parametrize("mask", [Mask.NONE, Mask.LENGTHS])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_a_batch_is_read_by_pages_of_its_caches(layout, mask):
    problem = problem_of(DType.BF16, layout=layout, mask=mask, also="lse")
    arrays, made, library = called(problem, "batch")
    assert_right(problem, arrays, made, coarse=500)
    assert library.planned == 1


def test_pages_are_of_the_lengths_within_the_cache():
    problem = problem_of(DType.BF16, layout="NHD")
    starts, indices, on_last = pages_of(problem, torch.tensor([16, -1, 17, 99]))
    assert PAGE_KEYS == 16 and starts.tolist() == [0, 1, 1, 3, 6]
    assert indices.tolist() == [0, 74, 90, 111, 127, 143] and on_last.tolist() == [16, 0, 1, 5]
    assert {one.dtype for one in (starts, indices, on_last)} == {torch.int32}


def test_what_is_checked_of_a_logarithm_is_natural_and_poisoned_before():
    contender = InBaseTwo.__new__(InBaseTwo)
    problem = problem_of(DType.BF16, also="lse")
    contender._due = {array.name: array for array in written_by(problem)}
    contender.arrays, contender._natural = [()], {}
    output, lse = (array.empty() for array in written_by(problem))
    contender.results = {0: (output, lse.fill_(3.0))}
    address = contender.output(0, "lse")
    natural = np.array(_memory(address, problem.rows, ctypes.c_float))
    assert natural == pytest.approx(3 * math.log(2)) and address != lse.data_ptr()
    assert contender.output(0, "lse") == address and contender.output(0) == output.data_ptr()
    contender.renew()
    assert lse.isnan().all()


# ------------------------------------------------------------------ refusals


NO_BUFFERS = PeerBuffers((), ())
LONG = {"head_dim": 128, "group": 1, "key_heads": 8}


@pytest.mark.parametrize(
    ("kind", "problem", "says"),
    [
        ("single", problem_of(DType.BF16), "takes one sequence"),
        (
            "single",
            Problem(6, 37, DType.BF16, Op.DECODE_ATTENTION, mask="lengths", group=2, key_heads=3),
            "takes one sequence, of a length that the host knows",
        ),
        ("single", Problem(8, 2**22, DType.BF16, Op.DECODE_ATTENTION, **LONG), "in 32 bits"),
        ("batch", Problem(2**12, 2**20, DType.BF16, Op.DECODE_ATTENTION, **LONG), "in 32 bits"),
        ("batch", problem_of(DType.F32), "computes in f16, bf16, not in f32"),
        ("batch", Problem(8, 8), "adapted for decode_attention, not for softmax"),
    ],
)
def test_what_they_do_not_take_is_refused_in_a_sentence(kind, problem, says):
    with pytest.raises(PeerRefuses, match=says):
        getattr(flashinfer_decode, f"prepare_{kind}")(problem, NO_BUFFERS, 0)


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """A machine without headers, nvcc and a cache."""
    monkeypatch.delenv(flashinfer_decode.FOLDER, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return tmp_path


def with_headers(folder):
    """A folder like an unpacked sdist, whose headers are empty."""
    path = folder / "include" / "flashinfer" / "attention" / "decode.cuh"
    path.parent.mkdir(parents=True)
    path.write_text("")
    (folder / "version.txt").write_text("0.3.1\n")
    return folder


@pytest.mark.parametrize("kind", ["single", "batch"])
def test_without_headers_it_is_missing_and_says_what_to_install(kind, nothing):
    problem = Problem(6, 37, DType.BF16, Op.DECODE_ATTENTION, group=2, key_heads=3)
    with pytest.raises(ImportError, match="pip install flashinfer-python, or unpack its sdist"):
        getattr(flashinfer_decode, f"prepare_{kind}")(problem, NO_BUFFERS, 0)


def test_headers_are_of_the_named_folder(nothing, monkeypatch):
    monkeypatch.setenv(flashinfer_decode.FOLDER, str(nothing))
    with pytest.raises(ImportError, match=r"which has no include/flashinfer/.*; name the unpacked"):
        flashinfer_decode.headers()
    with_headers(nothing)
    assert flashinfer_decode.headers() == (nothing / "include", "0.3.1")


def test_without_nvcc_it_is_missing_too(nothing):
    folder = with_headers(nothing) / "include"
    with pytest.raises(ImportError, match="install the CUDA toolkit"):
        flashinfer_decode.load_library(folder, DType.BF16, 128, "90a")


def test_an_nvcc_that_fails_says_why(nothing, monkeypatch):
    folder = with_headers(nothing) / "include"
    nvcc = nothing / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'decode.cuh(9): error: what?' >&2; exit 2\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(nothing))
    with pytest.raises(Unavailable, match=r"exit code 2: decode.cuh\(9\): error: what\?"):
        flashinfer_decode.load_library(folder, DType.BF16, 128, "90a")


# ------------------------------------------------------------------ the library


STAND_IN = """
#include <cstdint>
#include <cstdio>
{call}
static char text[1000];
extern "C" const char* decode_failure() {{ return text; }}
extern "C" int decode_single(const Call* c, void* stream) {{
  std::snprintf(text, sizeof text,
    "Error in function 'f' at /x.cuh:9: "
    "%ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %d %d %d %d %d %d %d %g %ld",
    (long)c->query, (long)c->key, (long)c->value, (long)c->output, (long)c->lse, (long)c->parts,
    (long)c->schedule, (long)c->pages, (long)c->page_starts, (long)c->on_last_page,
    (long)c->parts_bytes, (long)c->schedule_bytes, (long)c->plan[0], (long)c->plan[9],
    c->sequences, c->keys, c->query_heads, c->key_heads, c->page_keys, c->by_head, c->overlapped,
    c->scale, (long)stream);
  return -1;
}}
extern "C" int decode_plan(Call* c, int32_t* page_starts) {{
  c->plan[1] = page_starts[1];
  return 0;
}}
extern "C" int decode_batch(const Call*, void*) {{
  std::snprintf(text, sizeof text, "no GPU");
  return 100;
}}
"""


@pytest.fixture
def stand_in(tmp_path):
    """A library of the same functions and of the same struct, which tells what it is given."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    call = re.search(r"^struct Call \{.*?^\};", flashinfer_decode.SOURCE.read_text(), re.M | re.S)
    source, library = tmp_path / "stand_in.cpp", tmp_path / "stand_in.so"
    source.write_text(STAND_IN.format(call=call[0]))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return Library(ctypes.CDLL(str(library)))


def test_a_call_is_what_the_library_reads(stand_in):
    names = [name for name, *_ in Call._fields_ if name != "plan"]
    call = Call(**{name: 2**33 + at for at, name in enumerate(names[:12])})
    for at, name in enumerate(names[12:-1]):
        setattr(call, name, 50 + at)
    call.scale, call.plan[0], call.plan[9] = -0.5, 2**34, 2**35
    wide = [2**33 + at for at in range(12)]
    given = [*wide, 2**34, 2**35, *range(50, 57), -0.5, 2**36]
    with pytest.raises(PeerRefuses, match=f"flashinfer refuses: {' '.join(map(str, given))}$"):
        stand_in.single(call, 2**36)
    stand_in.plan(call, torch.tensor([0, 7], dtype=torch.int32))
    assert call.plan[1] == 7
    with pytest.raises(RuntimeError, match="decode_batch: no GPU"):
        stand_in.batch(call, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_it_compiles_with_flashinfers_headers(dtype, head_dim, tmp_path, monkeypatch):
    """And refuses groups that it has no kernels of, which takes no GPU."""
    try:
        at = flashinfer_decode.headers()
        nvcc = flashinfer_decode._nvcc()
    except ImportError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path))
    load = partial(flashinfer_decode.load_library, at.folder, dtype, head_dim, "90a")
    library = load()
    call = Call(sequences=1, keys=1000, query_heads=10, key_heads=2, page_keys=16)
    starts = torch.tensor([0, 63], dtype=torch.int32)
    for refused in (partial(library.single, call, 0), partial(library.plan, call, starts)):
        with pytest.raises(PeerRefuses, match="flashinfer refuses: Unsupported group_size: 5"):
            refused()
    (kept,) = Path(os.environ["EXPLORER_CACHE_DIR"]).rglob("*.so")
    assert kept.stat().st_size < 4e6 and Path(nvcc).is_file()
    monkeypatch.setattr(flashinfer_decode, "_nvcc", lambda: "built twice")
    load()
