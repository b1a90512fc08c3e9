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
        assert call.schedule and call.schedule_bytes >= 12 * (call.sequences + 148 * 32)
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
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: it\nVersion: 0.3.1\n")
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
    (nothing / "PKG-INFO").unlink()
    assert flashinfer_decode.headers().version == "of a checkout"


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


# ------------------------------------------------------------------ what it launches


CUDA_RUNTIME = r"""
// CUDA's runtime for a GPU that is not there: its memory is the host's, launches are noted down.
#include <cstddef>
#include <cstring>
struct Grid { unsigned x, y, z; };
struct Config { Grid grid, block; size_t shared; void* stream; void* attributes; unsigned count; };
static const int kMultiprocessors = 132, kBlocks = 4;
extern "C" {
int launches = 0, overlapped = 0;
Grid first;
void note_launch(const void* params);
static int launched(Grid grid, void** arguments, bool is_overlapped) {
  if (launches++ == 0) {
    first = grid;
    overlapped = is_overlapped;
    note_launch(arguments[0]);
  }
  return 0;
}
int cudaLaunchKernel(const void*, Grid grid, Grid, void** arguments, size_t, void*) {
  return launched(grid, arguments, false);
}
int cudaLaunchKernelExC(const Config* config, const void*, void** arguments) {
  return launched(config->grid, arguments, config->count == 1);
}
int cudaGetDevice(int* device) { return *device = 0; }
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16 ? kMultiprocessors : attribute == 75 ? 9 : 0;
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, size_t, unsigned) {
  *blocks = kBlocks;
  return 0;
}
int cudaMemcpyAsync(void* to, const void* from, size_t size, int, void*) {
  std::memcpy(to, from, size);
  return 0;
}
int cudaStreamSynchronize(void*) { return 0; }
int cudaFuncSetAttribute(const void*, int, int) { return 0; }
const char* cudaGetErrorString(int) { return "an error"; }
void** __cudaRegisterFatBinary(void*) { static void* handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(
    void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
int __cudaGetKernel(void** kernel, const void* entry) {
  *kernel = const_cast<void*>(entry);
  return 0;
}
int __cudaLaunchKernel(void*, Grid, Grid, void**, size_t, void*) { return 1; }
unsigned __cudaPopCallConfiguration(Grid*, Grid*, size_t*, void*) { return 1; }
}
"""

READ_BY_HEADERS = """
#include "{source}"
static decode::Batch batch;
static decode::Single single;
static bool is_batch;
extern "C" void note_of(int kind) {{ is_batch = kind != 0; }}
extern "C" void note_launch(const void* params) {{
  if (is_batch) {{
    batch = *static_cast<const decode::Batch*>(params);
  }} else {{
    single = *static_cast<const decode::Single*>(params);
  }}
}}
extern "C" int64_t element_of_batch(int sequence, int head, int key) {{
  const auto& kv = batch.paged_kv;
  uint32_t page, entry;
  kv.page_size.divmod(kv.indptr[sequence] * kv.page_size + key, page, entry);
  return kv.get_elem_offset(kv.indices[page], head, entry, 0);
}}
extern "C" int length_in_batch(int sequence) {{ return batch.paged_kv.get_length(sequence); }}
extern "C" int request_of(int part) {{ return batch.request_indices[part]; }}
extern "C" int keys_of_a_part() {{ return *batch.kv_chunk_size_ptr; }}
extern "C" int64_t element_of_single(int head, int key) {{
  return int64_t{{key}} * single.kv_stride_n + head * single.kv_stride_h;
}}
extern "C" int keys_of_a_chunk() {{ return single.kv_chunk_size; }}
"""


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    """The library with a runtime of CUDA that launches nothing: FlashInfer's own host code runs."""
    try:
        folder, nvcc = flashinfer_decode.headers().folder, flashinfer_decode._nvcc()
    except ImportError as error:
        pytest.skip(str(error))
    at = tmp_path_factory.mktemp("flashinfer")
    (at / "runtime.cpp").write_text(CUDA_RUNTIME)
    (at / "read.cu").write_text(READ_BY_HEADERS.format(source=flashinfer_decode.SOURCE))
    given = ["-DELEMENT=__nv_bfloat16", "-DOF_HEAD=64", f"-I{folder}", "-cudart", "none"]
    command = [nvcc, *flashinfer_decode.FLAGS, *given, "-O1", "-arch=sm_90a"]
    files = [at / "runtime.cpp", at / "read.cu"]
    subprocess.run([*command, "-o", at / "host.so", *files], check=True, timeout=240)
    functions = ctypes.CDLL(str(at / "host.so"))
    functions.element_of_batch.restype = functions.element_of_single.restype = ctypes.c_int64
    return functions


ROOM = 132 * 4
"""Blocks that the GPU of `CUDA_RUNTIME` holds."""


def launched(functions, problem, kind, lengths=None):
    """The grid of the first of the launches, and how many there are."""
    names = [array.name for array in flashinfer_decode.read_by(problem)]
    tensors = [torch.zeros(8, dtype=torch.bfloat16) for _ in names]
    if lengths is not None:
        tensors[names.index("lengths")] = torch.tensor(lengths, dtype=torch.int32)
    decoder = Decoder(problem, Library(functions), 0, overlapped=True)
    arrays = (*tensors, torch.zeros(8, dtype=torch.bfloat16))
    functions.note_of(kind == "batch")
    parts = decoder.plan(*arrays) if kind == "batch" else None
    number = ctypes.c_int.in_dll(functions, "launches")
    number.value = 0
    getattr(decoder, kind)(*arrays)
    grid = (ctypes.c_uint * 3).in_dll(functions, "first")
    assert ctypes.c_int.in_dll(functions, "overlapped").value == (kind == "batch")
    assert parts in (None, grid[0]) and grid[2] == 1
    functions.kept = decoder  # its schedule and its pages are read later
    return grid[0], grid[1], number.value


def element(problem, sequence, head, key):
    """Where a key's vector begins in a cache."""
    order = (head, key) if problem.layout == "HND" else (key, head)
    heads, keys = problem.key_heads, problem.cols
    extents = (heads, keys) if problem.layout == "HND" else (keys, heads)
    return int(np.ravel_multi_index((sequence, *order), (sequence + 1, *extents))) * 64


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("keys", [256, 257, 4099, 131072])
def test_one_sequence_is_cut_to_fill_the_gpu(on_host, layout, keys):
    heads = {"head_dim": 64, "group": 4, "key_heads": 8, "layout": layout}
    problem = Problem(32, keys, DType.BF16, Op.DECODE_ATTENTION, **heads)
    chunks, of_heads, launches = launched(on_host, problem, "single")
    chunk = max(-(-keys // (ROOM // 8)), 256)
    assert (chunks, of_heads) == (-(-keys // chunk), 8) and launches == 1 + (keys > 256)
    assert on_host.keys_of_a_chunk() == (chunk if keys > 256 else keys)
    for head, key in ((0, 0), (7, keys - 1), (3, 77)):
        assert on_host.element_of_single(head, key) == element(problem, 0, head, key)


BATCHES = {
    "some": [700, 1, 0, 4099],
    "whole": [4099] * 4,
    "short": [100, 16, 17, 15],
    "many": [4099] * 66,
    "uneven": [4099, *[5] * 40],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_a_batch_is_cut_where_all_of_it_fits_the_gpu(on_host, layout, lengths):
    heads = {"head_dim": 64, "group": 4, "key_heads": 8, "layout": layout, "mask": "lengths"}
    rows = 32 * len(lengths)
    problem = Problem(rows, 4099, DType.BF16, Op.DECODE_ATTENTION, **heads)
    parts, of_heads, launches = launched(on_host, problem, "batch", lengths)
    expected, keys = cut(lengths)
    assert (parts, of_heads) == (len(expected), 8)
    assert [on_host.request_of(part) for part in range(parts)] == expected
    is_cut = parts > len(lengths)
    assert launches == 1 + is_cut and (not is_cut or on_host.keys_of_a_part() == keys)
    for sequence, length in enumerate(lengths):
        assert on_host.length_in_batch(sequence) == length
        for head, key in ((0, 0), (7, length - 1), (3, length // 2)):
            if 0 <= key < length:
                here = on_host.element_of_batch(sequence, head, key)
                assert here == element(problem, sequence, head, key)


def cut(lengths):
    """The sequence of each part, and the keys of a part: the fewest with which all parts fit."""
    pages = [max(-(-length // PAGE_KEYS), 1) for length in lengths]
    of_part = 128 // PAGE_KEYS
    if 8 * len(lengths) >= ROOM:
        return list(range(len(lengths))), 0
    while 8 * sum(-(-count // of_part) for count in pages) > ROOM:
        of_part += 1
    parts = [at for at, count in enumerate(pages) for _ in range(-(-count // of_part))]
    return parts, of_part * PAGE_KEYS
