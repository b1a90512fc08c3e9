"""What the programs of Python name of attention: its shapes, what refuses others, its arguments.

Queries are (sequences, heads, head_dim), and caches of keys and values have the axes of the
problem's layout. The numbers of sequences, key heads and keys, and the strides, are each call's.
"""

from collections.abc import Callable

from explorer.codegen.variant import Variant
from explorer.model.key_split import WORD_BYTES
from explorer.model.problem import Layout, Mask, Problem

Refusals = list[tuple[str, str]]
"""Conditions on which a function raises ValueError, each with its sentence."""

CACHES = ("key", "value")


def axes_of(problem: Problem) -> tuple[int, int]:
    """Return the axes of a cache's heads and of its keys."""
    return (1, 2) if problem.layout is Layout.HND else (2, 1)


def shape_of_cache(problem: Problem, sequences: str, heads: str, keys: str, dim: str) -> str:
    """Return the shape of a cache in the order of its axes."""
    inner = (heads, keys) if problem.layout is Layout.HND else (keys, heads)
    return f"({', '.join([sequences, *inner, dim])})"


def constants(problem: Problem) -> str:
    """Return the lines that say what the example is of."""
    told: dict[str, object] = {
        "SEQUENCES": problem.rows // problem.heads,
        "KEY_HEADS": problem.key_heads,
        "GROUP": problem.group,
        "KEYS": problem.cols,
        "HEAD_DIM": problem.head_dim,
    }
    scale = problem.of_head**-0.5 if problem.scale is None else float(problem.scale)
    lines = [f"{name} = {value!r}" for name, value in (told | {"SCALE": scale}).items()]
    cache = shape_of_cache(problem, "SEQUENCES", "KEY_HEADS", "KEYS", "HEAD_DIM")
    shape = "(SEQUENCES, KEY_HEADS * GROUP, HEAD_DIM)"
    return "\n".join([*lines, f"SHAPE = {shape}", f"CACHE_SHAPE = {cache}"])


def names(problem: Problem) -> dict[str, object]:
    """Return what the templates name otherwise than for rows of a matrix."""
    told = numbers(problem, str)
    return {
        "what": "Attention of each query to the keys of its sequence",
        "constants": constants(problem),
        "lengths_shape": "(SEQUENCES,)",
        "lengths_range": "1, KEYS + 1",
        "result_shape": "query.shape",
        "row_shape": "query.shape[:2]",
        "rows_of": told["rows"],
        "cols_of": told["cols"],
        "heads_first": problem.layout is Layout.HND,
        # What other problems have, and attention has not.
        **dict.fromkeys(
            ("additive", "across_rows", "backward", "gathers", "strided", "shared", "is_product"),
            False,
        ),
        "of_rows": [],
    }


# ------------------------------------------------------------------ what is refused


def unlike(variant: Variant, module: str) -> Refusals:
    """Return what refuses arrays of another type or shape, of those of a module such as torch."""
    problem = variant.problem
    heads, keys = axes_of(problem)
    dim, kind, group = problem.head_dim, problem.dtype.array_name, problem.group
    wanted = shape_of_cache(problem, "sequences", "key_heads", "keys", str(dim))
    of_query = f"query.ndim != 3 or query.shape[2] != {dim}"
    of_key = f"key.ndim != 4 or key.shape[0] != query.shape[0] or key.shape[3] != {dim}"
    refusals = [
        *((f"{n}.dtype != {module}.{kind}", f"{n} must be of {kind}") for n in ("query", *CACHES)),
        (of_query, f"query must have the shape (sequences, heads, {dim})"),
        (of_key, f"key must have the shape {wanted}"),
        ("value.shape != key.shape", "value must have the shape of key"),
        (
            f"query.shape[1] != {f'{group} * ' * (group != 1)}key.shape[{heads}]",
            f"there must be {group} query head{'s' * (group != 1)} for each key head",
        ),
        (f"key.shape[{keys}] < 1", "there must be 1 key at least"),
    ]
    if problem.mask is Mask.LENGTHS:
        other = "lengths.shape != (query.shape[0],)"
        refusals.append((other, "lengths must have the shape (sequences,)"))
    return refusals


def _laid_out(contiguous: str, strides: str, unit: str, word: int, units: str) -> Refusals:
    """Return what refuses arrays that lie otherwise, by how a framework says how they lie.

    A `unit` is the stride of neighbours, and a `word` so many of `units`: elements or bytes.
    """
    ragged = f"any(stride % {word} for stride in key.{strides}[:3])"
    return [
        (f"not query.{contiguous}", "query must be contiguous"),
        (f"key.{strides}[3] != {unit}", "the elements of a key must be neighbours"),
        (ragged, f"key's strides must be multiples of {word} {units}"),
        (f"value.{strides} != key.{strides}", "value must have the strides of key"),
    ]


def laid_out_in_torch(problem: Problem) -> Refusals:
    """Return what refuses tensors of PyTorch that lie otherwise."""
    elements = WORD_BYTES // problem.dtype.itemsize
    return _laid_out("is_contiguous()", "stride()", "1", elements, "elements")


def laid_out_in_cupy() -> Refusals:
    """Return what refuses arrays of CuPy that lie otherwise."""
    number = WORD_BYTES
    starts = [
        (f"{name}.data.ptr % {number}", f"{name} must begin at a multiple of {number} bytes")
        for name in ("query", *CACHES)
    ]
    return _laid_out("flags.c_contiguous", "strides", "key.itemsize", number, "bytes") + starts


# ------------------------------------------------------------------ what arguments are given


def numbers(problem: Problem, stride: Callable[[int], str]) -> dict[str, str]:
    """Return the numbers that arrays tell in Python; `stride` gives key's along an axis."""
    heads, keys = axes_of(problem)
    return {
        "rows": "query.shape[0] * query.shape[1]",
        "cols": f"key.shape[{keys}]",
        "key_heads": f"key.shape[{heads}]",
        "key_stride": stride(keys),
        "head_stride": stride(heads),
        "sequence_stride": stride(0),
        "scale": "scale",
    }


def numbers_in_xla(problem: Problem) -> dict[str, str]:
    """Return the numbers that XLA's buffers tell in C++, which are dense."""
    heads, keys = axes_of(problem)
    extents = [f"key.dimensions()[{axis}]" for axis in range(4)]
    return {
        "rows": "query.dimensions()[0] * query.dimensions()[1]",
        "cols": f"static_cast<int>({extents[keys]})",
        "key_heads": extents[heads],
        "key_stride": " * ".join(extents[keys + 1 :]),
        "head_stride": " * ".join(extents[heads + 1 :]),
        "sequence_stride": " * ".join(extents[1:]),
    }
