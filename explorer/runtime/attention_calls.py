"""Attention of one query a head, on arrays of any library: by our kernels, or by the library."""

import math
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.key_split import WORD_BYTES
from explorer.model.problem import HEAD_DIMS, MOST_GROUP, Layout, Mask, Problem
from explorer.ops import Op
from explorer.runtime import recipes
from explorer.runtime.kernels import problem_of_kernel
from explorer.runtime.launcher import Plan
from explorer.runtime.layout import DTYPES, LENGTH_DTYPES, Shape
from explorer.runtime.service import Asked, log_once

if TYPE_CHECKING:
    from explorer.runtime.library import Library, RowFunctions

# ------------------------------------------------------------------ calls


class Call(NamedTuple):
    """The arguments of `explorer.decode_attention` that are no arrays."""

    layout: str = Layout.HND
    scale: float | None = None
    return_lse: bool = False
    splits: int | None = None
    batch_invariant: bool = False


class Cache(NamedTuple):
    """The sizes of a cache of keys and values, and how many query heads share a key head."""

    sequences: int
    key_heads: int
    keys: int
    group: int
    head_dim: int

    @property
    def heads(self) -> int:
        """Query heads of a sequence."""
        return self.key_heads * self.group


ONE_QUERY = "(batch, query_heads, head_dim) or (batch, query_heads, 1, head_dim)"


def heads_of(q: Shape, layout: str) -> int:
    """Return the number of query heads. Raises InvalidInput unless each has one query."""
    if len(q) == 3 or (len(q) == 4 and q[2] == 1):
        return q[1]
    if len(q) == 4 and layout == Layout.NHD and q[1] == 1:
        return q[2]
    raise InvalidInput(
        f"q is of shape {q}; it must be {ONE_QUERY}, or with layout 'NHD' (batch, 1, query_heads, "
        "head_dim): more queries a head are not served"
    )


def cache_of(q: Shape, k: Shape, v: Shape, layout: str) -> Cache:
    """Return the sizes of a call's arrays. Raises InvalidInput for shapes that do not go together.

    Shapes are those of `explorer.decode_attention`.
    """
    heads, sequences, head_dim = heads_of(q, layout), q[0], q[-1]
    axes = "key_heads, keys" if layout == Layout.HND else "keys, key_heads"
    if len(k) != 4 or k[0] != sequences or k[-1] != head_dim:
        raise InvalidInput(
            f"k is of shape {k}; beside q of shape {q} it must be ({sequences}, {axes}, {head_dim})"
        )
    if v != k:
        raise InvalidInput(f"v is of shape {v}; it must be that of k, {k}")
    if head_dim not in HEAD_DIMS:
        dims = " or ".join(map(str, HEAD_DIMS))
        raise InvalidInput(
            f"q has {head_dim} elements a head; it must have {dims}: take the library's attention"
        )
    key_heads, keys = (k[1], k[2]) if layout == Layout.HND else (k[2], k[1])
    if not key_heads or not heads or heads % key_heads:
        raise InvalidInput(
            f"q has {heads} heads and k has {key_heads}; each key head must have as many query "
            "heads as the others, and one at least: check layout"
        )
    if heads // key_heads > MOST_GROUP:
        raise InvalidInput(
            f"q has {heads} heads and k has {key_heads}; at most {MOST_GROUP} query heads can "
            "share a key head: take the library's attention"
        )
    return Cache(sequences, key_heads, keys, heads // key_heads, head_dim)


def is_served(dtype: str) -> bool:
    """Return whether kernels have a type, by its name."""
    return dtype in DTYPES and not DTYPES[dtype].in_double


def wide_type(library: "Library", x: Any) -> Any:
    """Return the type in which an array's elements are computed with, and their log-sum-exp."""
    return library.type_of(DTYPES[library.name_of(x.dtype)].arithmetic.array_name)


def check_arrays(
    library: "RowFunctions",
    q: Any,
    k: Any,
    v: Any,
    lengths: Any,
    call: Call,
    out: Any,
) -> Cache:
    """Return the sizes of a call's arrays. Raises TypeError and InvalidInput for wrong ones."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        library.check_beside(name, array, q, "q")
    dtype = library.name_of(q.dtype)
    if not is_served(dtype):
        names = " or ".join(one.array_name for one in DType if is_served(one.array_name))
        raise InvalidInput(f"q is of {dtype}; it must be of {names}: convert it")
    for name, array in (("k", k), ("v", v)):
        if array.dtype != q.dtype:
            own = library.name_of(array.dtype)
            raise InvalidInput(f"{name} is of {own}; it must be of q's type, {dtype}")
    cache = cache_of(tuple(q.shape), tuple(k.shape), tuple(v.shape), call.layout)
    if lengths is not None:
        library.check_beside("lengths", lengths, q, "q")
        own, shape = library.name_of(lengths.dtype), tuple(lengths.shape)
        if own not in LENGTH_DTYPES:
            raise InvalidInput(f"lengths is of {own}; it must be of {', '.join(LENGTH_DTYPES)}")
        if shape != (cache.sequences,):
            raise InvalidInput(
                f"lengths is of shape {shape}; it must be of shape ({cache.sequences},): a number "
                "for each sequence"
            )
    if out is not None:
        library.check_out(q, tuple(q.shape), q.dtype, out)
    return cache


def check_lengths(library: "RowFunctions", lengths: Any, keys: int) -> None:
    """Raise InvalidInput that names the first length that is none; wait for the GPU for it."""
    place = library.first_place((lengths < 0) | (lengths > keys))
    if place is not None:
        raise InvalidInput(
            f"lengths is {int(lengths[place])} at {place[0]}; it must be from 0 to {keys}, which "
            "is how many keys a sequence has room for"
        )


# ------------------------------------------------------------------ by kernels


@lru_cache(4096)
def _problem(cache: Cache, dtype: str, limited: bool, call: Call) -> Problem:
    """Return the problem whose kernel serves a call; raises InvalidInput if none does."""
    problem = Problem(
        rows=cache.sequences * cache.heads,
        cols=max(cache.keys, 64 * ((call.splits or 1) - 1) + 1),  # enough for as many parts
        dtype=DTYPES[dtype],
        op=Op.DECODE_ATTENTION,
        scale=call.scale,
        mask=Mask.LENGTHS if limited else Mask.NONE,
        also="lse" if call.return_lse else "",
        head_dim=cache.head_dim,
        group=cache.group,
        key_heads=cache.key_heads,
    )
    return problem_of_kernel(problem)


def plan_of(library: "Library", call: Call, cache: Cache, q: Any, *, limited: bool) -> Plan | None:
    """Return this thread's plan for a call; None if the library must compute it, now or always."""
    if not library.is_on_gpu(q) or not cache.sequences or not cache.keys:
        place = "a cache that is empty" if library.is_on_gpu(q) else "an array that is on no GPU"
        log_once(place)
        return None
    scale = None if call.scale is None else 1.0
    try:
        problem = _problem(cache, library.name_of(q.dtype), limited, call._replace(scale=scale))
    except InvalidInput as error:
        log_once(str(error))
        return None
    asked = Asked(call.batch_invariant, call.splits)
    return recipes.plan_of(library, problem, library.device(q), asked)


def serve(
    library: "Library", call: Call, q: Any, k: Any, v: Any, lengths: Any = None, out: Any = None
) -> list[Any] | None:
    """Launch, and return the results, the first one in `out`; None if there is no kernel.

    The plan's kernel is that of more keys. What it is told are the call's own.
    """
    cache = cache_of(tuple(q.shape), tuple(k.shape), tuple(v.shape), call.layout)
    plan = plan_of(library, call, cache, q, limited=lengths is not None)
    if plan is None:
        return None
    query, (key, value, strides) = _aligned(library, q), _placed(library, k, v, call.layout)
    address, type_of = library.address, library.type_of
    told = {"key": address(key), "value": address(value), "cols": cache.keys, **strides}
    told["key_heads"] = cache.key_heads
    read: tuple[Any, ...] = (query, key, value)
    if lengths is not None:
        if library.name_of(lengths.dtype) == "int64":
            lengths = lengths.clip(0, cache.keys)
        lengths = library.converted(lengths, type_of("int32"), q)
        told["lengths"], read = address(lengths), (*read, lengths)
    fits = out is not None and _may_be_written(library, out, read)
    results = [out if fits else library.empty(tuple(q.shape), q.dtype, q)]
    if call.return_lse:
        results.append(library.empty((cache.sequences, cache.heads), wide_type(library, q), q))
        told["lse"] = address(results[1])
    if plan.kernel.scratch_bytes:
        scratch = library.empty((plan.kernel.scratch_bytes,), type_of("uint8"), q)
        told["scratch"] = address(scratch)
    if call.scale is not None:
        plan.scale(call.scale)
    library.launch(plan, library.device(q), address(query), address(results[0]), told)
    if fits:
        library.written(out)
    elif out is not None:
        results[0] = library.copied(results[0], out)
    return results


def _strides(library: "Library", array: Any) -> Shape:
    """Return the strides of an array in elements."""
    found = library.strides(array)
    if found is not None:
        return tuple(found)
    return tuple(accumulate(reversed(array.shape[1:]), mul, initial=1))[::-1]


def _is_aligned(library: "Library", array: Any) -> bool:
    return library.address(array) % WORD_BYTES == 0


def _aligned(library: "Library", array: Any) -> Any:
    """Return a dense array that begins at a word; the array itself if it is one."""
    if library.is_dense(array) and _is_aligned(library, array):
        return array
    return library.copied(array, library.empty(tuple(array.shape), array.dtype, array))


@lru_cache(4096)
def _steps(shape: Shape, strides: Shape, itemsize: int) -> Shape | None:
    """Return by how many elements neighbours differ, 0 along axes of one; None if no kernel reads.

    A kernel reads heads whose elements are neighbours, and which begin at a word.
    """
    steps = tuple(s if n > 1 else 0 for n, s in zip(shape[:-1], strides, strict=False))
    whole = all(step * itemsize % WORD_BYTES == 0 for step in steps)
    return steps if strides[-1] == 1 and whole else None


def _placed(library: "Library", k: Any, v: Any, layout: str) -> tuple[Any, Any, dict[str, int]]:
    """Return keys and values that lie alike, dense copies if need be, and how they lie."""
    shape, itemsize = tuple(k.shape), k.itemsize
    steps, other = (_steps(shape, _strides(library, one), itemsize) for one in (k, v))
    if steps is None or steps != other or not all(_is_aligned(library, one) for one in (k, v)):
        k, v = _aligned(library, k), _aligned(library, v)
        steps = _steps(shape, _strides(library, k), itemsize) or ()
    sequence, first, second = steps
    head, key = (first, second) if layout == Layout.HND else (second, first)
    return k, v, {"sequence_stride": sequence, "head_stride": head, "key_stride": key}


def _may_be_written(library: "Library", out: Any, read: tuple[Any, ...]) -> bool:
    """Return whether a kernel can write to an output, which lies over none of its inputs."""
    if not (library.is_dense(out) and _is_aligned(library, out)):
        return False
    begin, end = _range(library, out)
    ranges = (_range(library, array) for array in read)
    return all(upper <= begin or end <= lower for lower, upper in ranges)


def _range(library: "Library", array: Any) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the one behind its last."""
    strides = _strides(library, array)
    reach = [(n - 1) * stride for n, stride in zip(array.shape, strides, strict=True)]
    begin = library.address(array)
    lower, upper = sum(min(0, one) for one in reach), sum(max(0, one) for one in reach)
    return begin + lower * array.itemsize, begin + (upper + 1) * array.itemsize


# ------------------------------------------------------------------ by the library


def compute(
    library: "Library", call: Call, q: Any, k: Any, v: Any, lengths: Any = None, out: Any = None
) -> list[Any]:
    """Return the results by our kernel, or else by the library; the first one in `out`."""
    results = serve(library, call, q, k, v, lengths, out)
    if results is None:
        results = by_library(library, call, q, k, v, lengths)
        results[0] = results[0] if out is None else library.copied(results[0], out)
    return results


def by_library(
    library: "Library", call: Call, q: Any, k: Any, v: Any, lengths: Any = None
) -> list[Any]:
    """Compute by the library's functions in f32, as kernels do: what lengths hide is not used."""
    cache = cache_of(tuple(q.shape), tuple(k.shape), tuple(v.shape), call.layout)
    numpy, wide = library.numpy, wide_type(library, q)
    query, key, value = (library.cast(array, wide, q) for array in (q, k, v))
    query = query.reshape((cache.sequences, cache.key_heads, cache.group, cache.head_dim))
    if call.layout == Layout.NHD:
        key, value = numpy.moveaxis(key, 1, 2), numpy.moveaxis(value, 1, 2)
    scale = cache.head_dim**-0.5 if call.scale is None else call.scale
    hidden = None
    if lengths is not None:
        hidden = library.counted(cache.keys, q) >= lengths[:, None]
        key, value = (numpy.where(hidden[:, None, :, None], 0.0, one) for one in (key, value))
    scores = library.product("bhgd,bhsd->bhgs", query, key) * scale
    if hidden is not None:
        scores = numpy.where(hidden[:, None, None], -math.inf, scores)
    terms, total, lse = _exponentials(numpy, scores) if cache.keys else (scores, scores, None)
    result = library.product("bhgs,bhsd->bhgd", terms, value)
    if lse is None:  # there are no keys, of which there is no maximum
        lse = scores.sum(-1) - math.inf
    else:
        result = result / total
        lse = lse[..., 0]
    if lengths is not None:
        result = numpy.where((lengths <= 0)[:, None, None, None], 0.0, result)
    result = library.cast(result.reshape(tuple(q.shape)), q.dtype, q)
    return [result, lse.reshape((cache.sequences, cache.heads))] if call.return_lse else [result]


def _exponentials(numpy: Any, scores: Any, axis: int = -1) -> tuple[Any, Any, Any]:
    """Return e^(score - maximum), their sum and the scores' log-sum-exp along an axis.

    Scores of -inf alone have terms of 0.
    """
    maximum = numpy.amax(scores, axis=axis, keepdims=True)
    reference = numpy.where(maximum == -math.inf, 0.0, maximum)
    reference = reference.detach() if hasattr(reference, "detach") else reference
    terms = numpy.exp(scores - reference)
    total = numpy.sum(terms, axis=axis, keepdims=True)
    empty = total == 0
    logarithm = numpy.log(numpy.where(empty, 1.0, total)) + reference
    return terms, total, numpy.where(empty, -math.inf, logarithm)


def merged(library: "Library", o: Any, lse: Any) -> tuple[Any, Any]:
    """Merge the results of parts of the keys, as `explorer.merge_states` documents it.

    Raises InvalidInput for arrays that do not go together.
    """
    shape, dtype = tuple(o.shape), library.name_of(o.dtype)
    if dtype not in DTYPES or len(shape) < 3 or not shape[-3]:
        raise InvalidInput(
            f"o is {dtype} of shape {shape}; it must be of floating-point numbers and of shape "
            "(..., parts, heads, head_dim), with one part at least"
        )
    own = library.name_of(lse.dtype)
    if own not in DTYPES:
        raise InvalidInput(f"lse is of {own}; it must be of floating-point numbers")
    if tuple(lse.shape) != shape[:-1]:
        raise InvalidInput(
            f"lse is of shape {tuple(lse.shape)}; it must be that of o without its last axis, "
            f"{shape[:-1]}"
        )
    numpy, wide = library.numpy, wide_type(library, o)
    states, parts = library.cast(lse, wide, o), library.cast(o, wide, o)
    weights, total, merged_lse = _exponentials(numpy, states, -2)
    known = numpy.where((states == -math.inf)[..., None], 0.0, parts)
    shares = weights / numpy.where(total == 0, 1.0, total)
    result = numpy.sum(known * shares[..., None], axis=-3)
    return library.cast(result, o.dtype, o), merged_lse[..., 0, :]
