"""`explorer.decode_attention` and `merge_states`, for PyTorch, CuPy and JAX."""

from collections.abc import Mapping
from typing import Any, Never

from explorer.model.config import parameters
from explorer.model.element import USUAL_TYPE
from explorer.model.errors import InvalidInput
from explorer.model.problem import read_field
from explorer.ops import OPERATORS, Op
from explorer.runtime.attention_calls import Call
from explorer.runtime.functions import function_for
from explorer.runtime.layout import check_switch, plain_scale
from explorer.system.plain_data import shown, whole_of


def decode_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    lengths: Any = None,
    layout: str = "HND",
    scale: float | None = None,
    return_lse: bool = False,
    splits: int | None = None,
    batch_invariant: bool = False,
    check: bool = False,
    out: Any = None,
    **unserved: Never,
) -> Any:
    """Return softmax(q k^T * scale) v of one query a head and the keys and values of a cache.

    q                A tensor of PyTorch, or an array of CuPy or JAX, of 16-bit types or f32:
                     (batch, query_heads, D) or (batch, query_heads, 1, D), and with layout "NHD"
                     also (batch, 1, query_heads, D). D is 64, 128 or 256.
    k, v             Of q's type and device: (batch, key_heads, S, D), or (batch, S, key_heads, D)
                     with layout "NHD". query_heads is 1 to 8 times key_heads: query head h reads
                     key head h // (query_heads / key_heads). Arrays whose strides are multiples of
                     16 bytes, and alike for both, such as cache[:, :, :S], are read as they are;
                     others are copied.
    lengths          The number of keys of each sequence, counted from its first: whole numbers of
                     shape (batch,) on q's device, of int32 or converted to it. Keys beyond are not
                     read. A number below 0 counts as 0, and one beyond S as S.
    layout           "HND" or "NHD": the order of heads, keys (N) and D in k and v.
    scale            The factor of the scores; None is 1 / sqrt(D).
    return_lse       Whether to return (result, lse): the natural logarithm of the sum of e^score,
                     f32 of shape (batch, query_heads). `merge_states` merges by it.
    splits           Into how many parts, for as many blocks, the keys of a sequence are divided:
                     1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96 or 128, or fewer for sequences of
                     less than 64 keys a part. None is as many as are expected to be fast.
    batch_invariant  Whether a sequence has the same bits whatever the other sequences are, for the
                     same S and length. The call then waits for its kernel.
    check            Whether to raise InvalidInput for a length that is not from 0 to S. The call
                     then waits for the GPU, so that it can be neither captured nor compiled as one
                     graph.
    out              An array for the result, of q's shape and type; it is returned.

    The result has q's shape and type. Products and sums are of f32. A sequence of length 0 has the
    result 0 and the lse -inf. A score of NaN or +inf makes a head's result NaN, and so do scores
    that all are -inf. An infinite value may make its element NaN, as tensor cores multiply it by
    two parts of its probability, one of which may be 0.

    There is no argument for a mask: additive and boolean masks, windows, and several queries a
    head are not served. Neither is a gradient: tensors that require one are refused, except where
    gradients are disabled. Kernels and the framework's functions serve calls as for `softmax`, and
    `torch.compile` may trace them. A kernel serves all S up to a power of two, so that a cache that
    grows has a new one at each of these.

    Raises TypeError for another kind of array or of argument and under `jax.jit`, and
    `explorer.InvalidInput` for shapes, types, devices and numbers that do not go together.
    """
    _refuse(unserved)
    for name, value in (
        ("return_lse", return_lse),
        ("batch_invariant", batch_invariant),
        ("check", check),
    ):
        check_switch(name, value)
    call = Call(
        str(read_field("layout", layout)),
        None if scale is None else plain_scale(scale),
        return_lse,
        None if splits is None else _splits(splits),
        batch_invariant,
    )
    function = function_for(q, "decode_attention_of", "q")
    results = function(q, k, v, lengths, call, check, out)
    return tuple(results) if return_lse else results[0]


def _refuse(unserved: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a mask, as other functions of attention take one, and TypeError else.

    Such keywords are taken for this sentence alone: type checkers allow none.
    """
    for name, value in unserved.items():
        if "mask" in name and value is not None:
            raise InvalidInput(
                f"{name} is given, and a mask is not served: give lengths, or take the library's "
                "attention"
            )
        raise TypeError(f"decode_attention() got an unexpected keyword argument {name!r}")


_SPLITS = parameters(USUAL_TYPE, OPERATORS[Op.DECODE_ATTENTION])["splits"]


def _splits(splits: Any) -> int:
    count = whole_of(splits)
    if count is None or count not in _SPLITS:
        values = ", ".join(map(str, _SPLITS))
        raise InvalidInput(f"splits is {shown(splits)}; it must be None or one of {values}")
    return count


def merge_states(o: Any, lse: Any) -> tuple[Any, Any]:
    """Return the result and the lse of all keys from those of parts of the keys.

    o    The results of parts: a tensor of PyTorch, or an array of CuPy or JAX, of shape
         (..., parts, heads, D), such as torch.stack([first, second], dim=-3).
    lse  The natural logarithms of their sums of exponentials, (..., parts, heads).

    Returns o of shape (..., heads, D) and of its type, and lse of shape (..., heads), f32, in which
    all is computed (f64 for an o of f64). A part counts by its share e^lse of their sum. A part
    with the lse -inf, which has no keys, counts for nothing; if all have it, the result is 0 and
    the lse -inf. The library's functions compute it, with their gradients.

    Raises TypeError for another kind of array, and `explorer.InvalidInput` for shapes that do not
    go together.
    """
    result, merged_lse = function_for(o, "merge_states_of", "o")(o, lse)
    return result, merged_lse
