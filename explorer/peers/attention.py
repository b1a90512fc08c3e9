"""Attention of one query a head: PyTorch's, by each of its backends, and FlashAttention 3's."""

import warnings
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from explorer.model.element import DType
from explorer.model.peer import PeerBuffers, PeerRefuses, ReadyPeer
from explorer.model.problem import Layout, Mask, Problem
from explorer.ops import Op
from explorer.peers.registry import FOUR, check_scope
from explorer.peers.torch_softmax import Call, Results, TorchContender, read_by

HEADS = ("head_dim", "group", "key_heads", "layout", "scale")
"""The fields of a problem that all take."""

# ------------------------------------------------------------------ PyTorch


def prepare_flash(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare scaled_dot_product_attention by FlashAttention 2."""
    return _prepare_torch(problem, buffers, stream, SDPBackend.FLASH_ATTENTION)


def prepare_cudnn(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare scaled_dot_product_attention by cuDNN."""
    return _prepare_torch(problem, buffers, stream, SDPBackend.CUDNN_ATTENTION)


def prepare_efficient(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare scaled_dot_product_attention by xFormers' memory-efficient kernels."""
    return _prepare_torch(problem, buffers, stream, SDPBackend.EFFICIENT_ATTENTION)


def prepare_math(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare scaled_dot_product_attention by products of matrices and a softmax."""
    return _prepare_torch(problem, buffers, stream, SDPBackend.MATH)


def _prepare_torch(
    problem: Problem, buffers: PeerBuffers, stream: int, backend: SDPBackend
) -> ReadyPeer:
    if problem.mask is Mask.LENGTHS:
        raise PeerRefuses("torch's scaled_dot_product_attention takes no lengths of sequences")
    scope: dict[str, Any] = {"ops": (Op.DECODE_ATTENTION,), "dtypes": FOUR, "takes": HEADS}
    check_scope("torch-sdpa", problem, **scope)
    contender = TorchContender(problem, buffers, stream, attention_of(problem, backend))
    contender.note = backend.name.lower()
    try_once(contender)
    return contender


def attention_of(problem: Problem, backend: SDPBackend) -> Call:
    """Return the function of a problem's queries, keys and values, by one backend."""

    def call(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        caches = (by_head(problem, cache) for cache in (key, value))
        queries = query.view(-1, problem.heads, 1, problem.of_head)
        options = {"scale": problem.scale, "enable_gqa": problem.of_group > 1}
        with sdpa_kernel(backend):
            made = torch.nn.functional.scaled_dot_product_attention(queries, *caches, **options)
        return made.reshape(problem.rows, problem.of_head)

    return call


def by_head(problem: Problem, cache: Tensor) -> Tensor:
    """Return keys or values as (sequences, key heads, keys, head_dim), a view of their memory."""
    heads, keys, dim = problem.key_heads or 1, problem.cols, problem.of_head
    if problem.layout is Layout.HND:
        return cache.view(-1, heads, keys, dim)
    return cache.view(-1, keys, heads, dim).transpose(1, 2)


def try_once(contender: ReadyPeer) -> None:
    """Launch once; raises PeerRefuses, with PyTorch's reasons, if a backend takes no such call."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            contender.launch(0)
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            reasons = [str(one.message).split(" (Triggered")[0].strip() for one in told]
            because = " ".join(["its backend takes no such call", *reasons])
            raise PeerRefuses(f"torch {torch.__version__}: {because}") from None


# ------------------------------------------------------------------ FlashAttention 3


def prepare_fa3(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare FlashAttention 3's function for a cache, of the wheel fa3-fwd."""
    scope: dict[str, Any] = {"ops": (Op.DECODE_ATTENTION,), "dtypes": (DType.BF16,)}
    check_scope("fa3", problem, **scope, also=("lse",), takes=(*HEADS, "mask"))
    if problem.layout is not Layout.NHD:
        raise PeerRefuses("fa3 is adapted for caches of the layout NHD, which is its own")
    import fa3_fwd_interface

    if torch.cuda.get_device_capability() != (9, 0):
        raise PeerRefuses("fa3 is compiled for GPUs of compute capability 9.0 alone")
    contender = TorchContender(problem, buffers, stream, fa3_of(problem, fa3_fwd_interface))
    contender.version = f"fa3-fwd {version('fa3-fwd')}"
    if problem.mask is Mask.LENGTHS:
        for index in range(len(contender.arrays)):
            contender.launch(index)  # plans the lengths of each set, before any is timed
    return contender


def fa3_of(problem: Problem, library: Any) -> Call:
    """Return the function of a problem's operands by `library`, FlashAttention's module.

    How it shares out sequences of some lengths is worked out once for each set, before the timed
    launches: a decoder does it once for all of its layers.
    """
    heads, keys, dim = problem.key_heads or 1, problem.cols, problem.of_head
    count = len(read_by(problem))
    plans: dict[int, Tensor] = {}

    def planned(lengths: Tensor) -> Tensor:
        at = lengths.data_ptr()
        if at not in plans:
            sizes = (len(lengths), 1, keys, problem.heads, heads, dim)
            plans[at] = library.get_scheduler_metadata(*sizes, lengths, qkv_dtype=torch.bfloat16)
        return plans[at]

    def call(query: Tensor, key: Tensor, value: Tensor, *others: Tensor) -> Results:
        caches = (cache.view(-1, keys, heads, dim) for cache in (key, value))
        options: dict[str, Any] = {"softmax_scale": problem.scale}
        if count > 3:
            lengths = others[0].view(-1)
            options |= {"cache_seqlens": lengths, "scheduler_metadata": planned(lengths)}
        queries = query.view(-1, 1, problem.heads, dim)
        made, lse, *_ = library.flash_attn_with_kvcache(
            queries, *caches, return_softmax_lse=True, **options
        )
        output = made.reshape(problem.rows, dim)
        return (output, lse.reshape(problem.rows)) if problem.also else output

    return call
