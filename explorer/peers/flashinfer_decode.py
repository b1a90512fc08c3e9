"""FlashInfer's decode attention on CUDA cores: of one sequence, and of a batch with paged caches.

Its headers are compiled by nvcc with `flashinfer_decode.cu` beside this file, once for each element
type and head dimension, as its own JIT does. That takes ten seconds of a core, and needs neither
its Python package nor its dependencies.
"""

import ctypes
import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from explorer.compile.built_libraries import Unavailable, built, load_kept
from explorer.model.element import DType
from explorer.model.peer import PeerBuffers, PeerRefuses, ReadyPeer
from explorer.model.problem import Layout, Mask, Problem
from explorer.ops import Op
from explorer.peers.attention import HEADS
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import Results, TorchContender, read_by
from explorer.system.user_files import MAX_TEXT_BYTES, read_bytes, read_text

# ------------------------------------------------------------------ headers


FOLDER = "EXPLORER_FLASHINFER"
"""The environment variable that names a folder with FlashInfer's `include`, such as its sdist."""

_DECODE = Path("flashinfer", "attention", "decode.cuh")


class Headers(NamedTuple):
    """The folder to include FlashInfer's headers from, and their version."""

    folder: Path
    version: str


def headers() -> Headers:
    """Return the headers of the folder that a user names, or of the package flashinfer-python.

    Raises ImportError, which says what to install.
    """
    named = os.environ.get(FOLDER)
    if named:
        folder = Path(named) / "include"
        if not (folder / _DECODE).is_file():
            raise ImportError(
                f"{FOLDER} is {named}, which has no include/{_DECODE}; "
                "name the unpacked sdist of flashinfer-python"
            )
        return Headers(folder, _version_of(Path(named)))
    spec = importlib.util.find_spec("flashinfer")
    for root in (spec.submodule_search_locations or []) if spec else []:
        if (Path(root, "data", "include") / _DECODE).is_file():
            return Headers(Path(root, "data", "include"), version("flashinfer-python"))
    raise ImportError(
        f"pip install flashinfer-python, or unpack its sdist and name that folder in {FOLDER}"
    )


def _version_of(sdist: Path) -> str:
    """Return the version of an unpacked sdist; a checkout does not say which it has."""
    about = sdist / "PKG-INFO"
    told = re.search(r"^Version: (\S+)", read_text(about), re.M) if about.is_file() else None
    return told[1] if told else "of a checkout"


# ------------------------------------------------------------------ library


SOURCE = Path(__file__).with_name("flashinfer_decode.cu")

ELEMENTS = {DType.F16: "__half", DType.BF16: "__nv_bfloat16"}

FLAGS = (
    *("-O3", "-std=c++17", "-use_fast_math", "-DNDEBUG", "-shared", "-Xcompiler", "-fPIC"),
    *(f"-DFLASHINFER_ENABLE_{kind}" for kind in ("F16", "BF16", "FP8_E4M3", "FP8_E5M2")),
)
"""Those of FlashInfer's JIT, for a library that ctypes loads."""

LONGEST_S = 240.0
"""Seconds after which nvcc is stopped. It takes ten on a free core."""


class Call(ctypes.Structure):
    """What one call of the library reads and writes, as `flashinfer_decode.cu` has it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "output", "lse")),
        *((name, ctypes.c_void_p) for name in ("parts", "schedule")),
        *((name, ctypes.c_void_p) for name in ("pages", "page_starts", "on_last_page")),
        *((name, ctypes.c_int64) for name in ("parts_bytes", "schedule_bytes")),
        ("plan", ctypes.c_int64 * 10),
        *((name, ctypes.c_int32) for name in ("sequences", "keys", "query_heads", "key_heads")),
        *((name, ctypes.c_int32) for name in ("page_keys", "by_head", "overlapped")),
        ("scale", ctypes.c_float),
    )


_PLACE = re.compile(r"^Error in function .*?:\d+: ")
"""What FlashInfer's messages begin with."""


class Library:
    """A built library's functions. They raise PeerRefuses for what FlashInfer refuses, and
    RuntimeError for what CUDA does.
    """

    REFUSED = -1

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._functions = functions
        functions.decode_failure.restype = ctypes.c_char_p

    def single(self, call: Call, stream: int) -> None:
        """Launch the attention of one sequence."""
        self._call("decode_single", ctypes.byref(call), ctypes.c_void_p(stream))

    def plan(self, call: Call, page_starts: Tensor) -> None:
        """Fill in a batch's plan, and its schedule. `page_starts` is in host memory."""
        starts = ctypes.c_void_p(page_starts.data_ptr())
        self._call("decode_plan", ctypes.byref(call), starts)

    def batch(self, call: Call, stream: int) -> None:
        """Launch the attention of a batch by its plan."""
        self._call("decode_batch", ctypes.byref(call), ctypes.c_void_p(stream))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._functions, name)(*arguments)
        if status == 0:
            return
        text = self._functions.decode_failure().decode(errors="replace")
        if status == self.REFUSED:
            raise PeerRefuses(f"flashinfer refuses: {_PLACE.sub('', text)}")
        raise RuntimeError(f"{name}: {text}")


def load_library(folder: Path, dtype: DType, head_dim: int, arch: str) -> Library:
    """Return the library of an element type and a head dimension, built unless it is in the cache.

    `arch` is of the GPU, such as 90a. Raises ImportError without nvcc, and Unavailable if nvcc
    fails.
    """
    given = [*FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    given += [f"-DELEMENT={ELEMENTS[dtype]}", f"-DOF_HEAD={head_dim}"]

    def build() -> bytes:
        return built([_nvcc(), *given, f"-I{folder}", str(SOURCE)], LONGEST_S)

    def load(path: Path, _: Path) -> ctypes.CDLL:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(str(error)) from None

    return Library(load_kept(_key(folder, given), build, load))


def _key(folder: Path, given: Sequence[str]) -> str:
    """Return the digest of all that decides a library, but for the version of nvcc."""
    texts = hashlib.sha256(SOURCE.read_bytes())
    for within in (folder / "flashinfer", folder / _DECODE.parent):
        for path in sorted(within.glob("*.*h")):
            texts.update(read_bytes(path, most_bytes=MAX_TEXT_BYTES))
    return hashlib.sha256(json.dumps([texts.hexdigest(), given]).encode()).hexdigest()[:32]


def _nvcc() -> str:
    """Return nvcc's path: of the PATH, or of the toolkit. Raises ImportError."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")
    found = shutil.which("nvcc") or shutil.which("nvcc", path=str(toolkit))
    if found is None:
        raise ImportError("nvcc, which compiles FlashInfer's kernels: install the CUDA toolkit")
    return found


# ------------------------------------------------------------------ a batch's pages


PAGE_KEYS = 16
"""Keys of a page, as in FlashInfer's documentation. Its plan cuts sequences between pages, into
parts of 128 keys and more: larger pages would let it balance them less."""


class Pages(NamedTuple):
    """Where the pages of a batch lie. They begin anywhere in a cache: nothing is copied."""

    starts: Tensor
    """Where each sequence's pages begin in `indices`, and where the last one's end."""
    indices: Tensor
    """By how many strides of keys each page is from the cache's beginning."""
    on_last: Tensor
    """Keys on each sequence's last page."""


def pages_of(problem: Problem, lengths: Tensor) -> Pages:
    """Return the pages of sequences of some lengths, in host memory."""
    heads, keys = problem.key_heads or 1, problem.cols
    lengths = lengths.long().clamp(0, keys)
    counts = (lengths + PAGE_KEYS - 1) // PAGE_KEYS
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    owner = torch.repeat_interleave(torch.arange(len(lengths)), counts)
    within = torch.arange(len(owner)) - starts[owner]
    of_sequence = keys * heads if problem.layout is Layout.HND else keys
    on_last = lengths - PAGE_KEYS * (counts - 1).clamp(min=0)
    table = (starts, owner * of_sequence + within * PAGE_KEYS, on_last)
    return Pages(*(one.int() for one in table))


# ------------------------------------------------------------------ calls


PARTS_BYTES = 128 * 2**20
"""Bytes for the parts of sequences, as its documentation has them: no plan needs so many."""

MOST_BLOCKS = 2**13
"""Blocks that a GPU holds at most, with room: 148 multiprocessors hold 32 each. A plan has no more
parts, unless there are more sequences."""


class Decoder:
    """FlashInfer's calls of one problem: `single` and `batch` take the operands, then the results.

    Parts of sequences lie in one buffer, since launches follow one another on the stream.
    """

    def __init__(
        self, problem: Problem, library: Library, stream: int, *, overlapped: bool
    ) -> None:
        self._problem = problem
        self._library = library
        self._stream = stream
        self._overlapped = overlapped
        self._parts: Tensor | None = None
        self._planned: dict[int, Call] = {}
        self._kept: list[Tensor] = []

    def single(self, *arrays: Tensor) -> Results:
        """Launch the attention of one sequence."""
        self._library.single(self._call_of(arrays), self._stream)
        return self._results(arrays)

    def plan(self, *arrays: Tensor) -> int:
        """Plan the batch of a set, and return into how many parts its sequences are cut.

        A user plans once for all layers of a decoder, outside of what is timed. The plan is the one
        without `use_cuda_graph`, which pads the grid for graphs that are replayed with other
        lengths: these stay.
        """
        problem, call = self._problem, self._call_of(arrays)
        whole = torch.full((call.sequences,), problem.cols)
        lengths = arrays[3].view(-1).cpu() if problem.mask is Mask.LENGTHS else whole
        pages = pages_of(problem, lengths)
        device = arrays[0].device
        placed = [table.to(device) for table in pages]
        size = 16 * (call.sequences + MOST_BLOCKS)  # three numbers a part, and some padding
        schedule = torch.empty(size, dtype=torch.uint8, device=device)
        self._kept += [*placed, schedule]
        call.page_starts, call.pages, call.on_last_page = (one.data_ptr() for one in placed)
        call.schedule, call.schedule_bytes = schedule.data_ptr(), size
        self._library.plan(call, pages.starts)
        self._planned[call.key] = call
        padded, *_ = call.plan
        return int(padded)

    def batch(self, *arrays: Tensor) -> Results:
        """Launch the attention of a batch that is planned."""
        self._library.batch(self._planned[arrays[1].data_ptr()], self._stream)
        return self._results(arrays)

    def _results(self, arrays: Sequence[Tensor]) -> Results:
        output, *lse = arrays[len(read_by(self._problem)) :]
        return (output, *lse) if lse else output

    def _call_of(self, arrays: Sequence[Tensor]) -> Call:
        problem = self._problem
        output, *lse = arrays[len(read_by(problem)) :]
        if self._parts is None:
            self._parts = torch.empty(PARTS_BYTES, dtype=torch.uint8, device=output.device)
        return Call(
            *(array.data_ptr() for array in arrays[:3]),
            output=output.data_ptr(),
            lse=lse[0].data_ptr() if lse else None,
            parts=self._parts.data_ptr(),
            parts_bytes=PARTS_BYTES,
            sequences=problem.rows // problem.heads,
            keys=problem.cols,
            query_heads=problem.heads,
            key_heads=problem.key_heads or 1,
            page_keys=PAGE_KEYS,
            by_head=problem.layout is Layout.HND,
            overlapped=self._overlapped,
            scale=problem.of_head**-0.5 if problem.scale is None else problem.scale,
        )


# ------------------------------------------------------------------ peers


class InBaseTwo(TorchContender):
    """Its log-sum-exp has base 2: what is checked is its natural logarithm, which is not timed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._natural: dict[int, Tensor] = {}

    def output(self, index: int, name: str = "output") -> int:
        """Return the address of a result."""
        address = super().output(index, name)
        if name != "lse":
            return address
        place = index % len(self.arrays)
        _, lse = self.results[place]
        if place not in self._natural:
            self._natural[place] = torch.empty_like(lse)
        return int(torch.mul(lse, math.log(2), out=self._natural[place]).data_ptr())

    def renew(self) -> None:
        """Poison what it writes, since what is checked is not written by its launches."""
        for _, *lse in self.results.values():
            for one in lse:
                one.fill_(math.nan)


def prepare_single(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare single_decode_with_kv_cache, which cuts a sequence to fill the GPU."""
    _check_scope("flashinfer.single", problem)
    if problem.mask is Mask.LENGTHS or problem.rows > problem.heads:
        raise PeerRefuses("flashinfer.single takes one sequence, of a length that the host knows")
    if problem.cols * (problem.key_heads or 1) * problem.of_head >= 2**32:
        raise PeerRefuses("flashinfer.single counts a cache's elements in 32 bits")
    decoder, at = _decoder(problem, stream)
    contender = InBaseTwo(problem, buffers, stream, decoder.single)
    contender.version, contender.note = at, "single decode on CUDA cores"
    return contender


def prepare_batch(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare BatchDecodeWithPagedKVCacheWrapper, planned for the lengths of each set."""
    _check_scope("flashinfer.batch", problem)
    sequences, heads = problem.rows // problem.heads, problem.key_heads or 1
    if sequences * heads * problem.cols >= 2**31 or problem.rows * problem.of_head >= 2**31:
        raise PeerRefuses("flashinfer.batch counts keys and a query's elements in 32 bits")
    decoder, at = _decoder(problem, stream)
    contender = InBaseTwo(problem, buffers, stream, decoder.batch)
    parts = [decoder.plan(*arrays) for arrays in contender.arrays]
    kind = f"batch decode on CUDA cores, pages of {PAGE_KEYS}"
    contender.version, contender.note = at, f"{kind}, {parts[0]} parts of {sequences} sequences"
    return contender


def _check_scope(peer: str, problem: Problem) -> None:
    scope: dict[str, Any] = {"ops": (Op.DECODE_ATTENTION,), "dtypes": tuple(ELEMENTS)}
    check_scope(peer, problem, **scope, also=("lse",), takes=(*HEADS, "mask"))


def _decoder(problem: Problem, stream: int) -> tuple[Decoder, str]:
    """Return the calls of a problem on the current GPU, and the library's name and version."""
    at = headers()
    major, minor = torch.cuda.get_device_capability()
    arch = f"{major}{minor}{'a' if major >= 9 else ''}"
    told = f"flashinfer {at.version}"
    try:
        library = load_library(at.folder, problem.dtype, problem.of_head, arch)
    except Unavailable as error:
        raise PeerRefuses(f"{told}: {error}") from None
    return Decoder(problem, library, stream, overlapped=major >= 9), told
