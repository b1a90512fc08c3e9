"""A problem of attention, operands of it in PyTorch's tensors, and whether results are right."""

import numpy as np
import torch

from explorer.model.element import DType
from explorer.model.problem import Problem, inputs
from explorer.ops import Op
from explorer.peers.torch_softmax import TORCH_TYPES, read_by, written_by
from explorer.reference.layout import in_memory
from explorer.reference.truth import truths_of


def problem_of(dtype=DType.F32, **more):
    heads = {"head_dim": 64, "group": 2, "key_heads": 3, **more}
    return Problem(24, 37, dtype, Op.DECODE_ATTENTION, **heads)


def drawn(problem):
    """Arrays by name, and the tensors of a call: each in the order of memory."""
    rng = np.random.default_rng(0)
    arrays, tensors = {}, []
    for operand, array in zip(inputs(problem), read_by(problem), strict=True):
        if operand.name == "lengths":
            values = rng.integers(1, problem.cols + 1, array.shape).astype(np.int32)
            arrays[operand.name] = values[:, 0]
        else:
            values = arrays[operand.name] = rng.standard_normal(array.shape).astype(
                operand.dtype.numpy
            )
        stored = in_memory(problem, operand, values).copy()
        wide = stored.astype(np.float64 if operand.name != "lengths" else np.int32)
        tensors.append(torch.from_numpy(wide).to(TORCH_TYPES[operand.dtype]))
    return arrays, tensors


def assert_right(problem, arrays, made, coarse=1.0):
    for array, tensor in zip(written_by(problem), made, strict=True):
        assert tuple(tensor.shape) == array.shape and tensor.dtype == TORCH_TYPES[array.dtype]
        truth = truths_of(problem, arrays)[array.name]
        expected = truth.values.reshape(array.shape).astype(float)
        off = np.abs(tensor.double().numpy() - expected)
        size = truth.magnitude.reshape(array.shape).astype(float)
        assert (off <= coarse * 4e-6 * size).all(), array.name
