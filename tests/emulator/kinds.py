"""Problems of every kind, and kernels of each made wrong on purpose: for the emulator and a GPU."""

from dataclasses import replace

from explorer.model.config import Config
from explorer.model.element import DType, IndexType
from explorer.model.problem import Mask, Problem
from explorer.ops import Op

HELD = Config(threads_per_row=64, cache_holds="input")
"""Rows in registers, several in a block, whose last is not whole."""

EVERY = "lse,entropy,rank,argmax,maximum,log_sum"
"""The results on request of log-probabilities."""

KINDS = {
    "softmax": {},
    "log_softmax": {"op": Op.LOG_SOFTMAX},
    "softmax_backward": {"op": Op.SOFTMAX_BACKWARD},
    "log_softmax_backward": {"op": Op.LOG_SOFTMAX_BACKWARD},
    "log-sum-exp": {"op": Op.LOGSUMEXP},
    "log-sum-exp, gaps": {"op": Op.LOGSUMEXP, "input_gap": 3, "output_gap": 2},
    "log-sum-exp, middle axis": {"op": Op.LOGSUMEXP, "inner": 100},
    "log-sum-exp, bf16, lengths": {
        "op": Op.LOGSUMEXP,
        "dtype": DType.BF16,
        "mask": Mask.LENGTHS,
    },
    "log-sum-exp and its terms": {"op": Op.LOGSUMEXP, "also": "maximum,log_sum"},
    "log-probabilities": {"op": Op.LOG_PROB, "also": EVERY, "ids_per_row": 3},
    "log-probabilities, int32, gaps": {
        "op": Op.LOG_PROB,
        "also": EVERY,
        "ids_dtype": IndexType.INT32,
        "ids_stride": 3,
        "input_gap": 24,
        "output_gap": 2,
    },
    "log-probabilities, bf16, scale": {
        "op": Op.LOG_PROB,
        "also": EVERY,
        "dtype": DType.BF16,
        "out_dtype": DType.BF16,
        "scale": -0.7,
    },
    "losses": {"op": Op.CROSS_ENTROPY, "also": "lse,maximum,log_sum"},
    "losses, bf16, scale, gaps": {
        "op": Op.CROSS_ENTROPY,
        "also": "lse",
        "dtype": DType.BF16,
        "scale": -0.7,
        "ignore_index": 0,
        "ids_dtype": IndexType.INT32,
        "ids_stride": 3,
        "input_gap": 24,
        "output_gap": 2,
    },
    "losses and mean gaps": {"op": Op.CROSS_ENTROPY, "also": "mean_gap", "scale": 0.7},
    "capped losses": {"op": Op.CROSS_ENTROPY, "also": "lse", "softcap": 30.0, "scale": 0.7},
    "capped losses, backward": {"op": Op.CROSS_ENTROPY_BACKWARD, "softcap": 5.0},
    "capped losses with gradients": {
        "op": Op.CROSS_ENTROPY_WITH_GRADIENT,
        "also": "loss",
        "softcap": 5.0,
        "label_smoothing": 0.1,
    },
    "losses, backward": {"op": Op.CROSS_ENTROPY_BACKWARD},
    "losses, backward, in place": {
        "op": Op.CROSS_ENTROPY_BACKWARD,
        "dtype": DType.BF16,
        "scale": 0.5,
        "ignore_index": 0,
        "in_place": True,
    },
    "losses with gradients": {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "also": "loss"},
    "losses with gradients, in place": {
        "op": Op.CROSS_ENTROPY_WITH_GRADIENT,
        "dtype": DType.F16,
        "in_place": True,
        "ids_dtype": IndexType.INT32,
    },
    "rows multiplied, in place": {
        "op": Op.MULTIPLY_ROWS,
        "dtype": DType.BF16,
        "in_place": True,
    },
    "losses, middle axis": {"op": Op.CROSS_ENTROPY, "also": "lse", "inner": 100},
    "capped losses with gradients, middle axis": {
        "op": Op.CROSS_ENTROPY_WITH_GRADIENT,
        "also": "loss",
        "softcap": 5.0,
        "inner": 100,
    },
    "losses and mean gaps, middle axis": {
        "op": Op.CROSS_ENTROPY,
        "also": "mean_gap",
        "inner": 100,
    },
    "losses, middle axis, backward, in place": {
        "op": Op.CROSS_ENTROPY_BACKWARD,
        "ignore_index": 0,
        "in_place": True,
        "inner": 100,
    },
    "losses with gradients, middle axis": {
        "op": Op.CROSS_ENTROPY_WITH_GRADIENT,
        "also": "loss",
        "ids_dtype": IndexType.INT32,
        "inner": 100,
    },
    "scale": {"scale": 0.3},
    "negative scale": {"op": Op.LOG_SOFTMAX, "scale": -0.5},
    "scale 0": {"scale": 0.0},
    "scaled backward": {"op": Op.SOFTMAX_BACKWARD, "scale": 128**-0.5},
    "causal": {"mask": Mask.CAUSAL},
    "causal, repeated": {"mask": Mask.CAUSAL, "mask_rows": 100, "op": Op.LOG_SOFTMAX},
    "lengths": {"mask": Mask.LENGTHS},
    "additive": {"mask": Mask.ADDITIVE},
    "additive, repeated, scaled": {"mask": Mask.ADDITIVE, "mask_rows": 4, "scale": 0.7},
    "gaps": {"input_gap": 24, "output_gap": 8},
    "ragged gaps": {"input_gap": 3, "output_gap": 5},
    "gaps, backward": {"input_gap": 8, "output_gap": 8, "op": Op.LOG_SOFTMAX_BACKWARD},
    "in place": {"in_place": True},
    "in place, gaps": {"in_place": True, "input_gap": 4, "output_gap": 4},
    "middle axis": {"inner": 100},
    "middle axis, in place": {"inner": 100, "in_place": True},
    "middle axis, backward": {"inner": 100, "op": Op.SOFTMAX_BACKWARD},
    "bf16": {"dtype": DType.BF16, "op": Op.LOG_SOFTMAX},
    "bf16, backward": {"dtype": DType.BF16, "op": Op.SOFTMAX_BACKWARD},
    "f16, backward": {"dtype": DType.F16, "op": Op.LOG_SOFTMAX_BACKWARD},
    "bf16 to f32": {"dtype": DType.BF16, "out_dtype": DType.F32},
    "f32 to f16": {"out_dtype": DType.F16},
    "f64": {"dtype": DType.F64},
    "f64, scaled": {"dtype": DType.F64, "op": Op.LOG_SOFTMAX, "scale": 128**-0.5},
    "f64, backward": {"dtype": DType.F64, "op": Op.SOFTMAX_BACKWARD},
}
"""Fields of a problem; gaps are elements between rows."""


def problem_of(kind: str, rows: int, cols: int) -> Problem:
    """A problem of a kind."""
    fields = dict(KINDS[kind])
    gaps = fields.pop("input_gap", 0), fields.pop("output_gap", 0)
    dense = Problem(rows, cols, **fields)
    strides = dense.input_stride + gaps[0], dense.output_stride + gaps[1]
    return replace(dense, input_stride=strides[0], output_stride=strides[1])


def held(problem: Problem, usual: Config = HELD) -> Config:
    """A usual config, by what makes sense for the operator: an algorithm, a cache, a function."""
    if not problem.operator.reduces:
        exp = usual.exp if problem.operator.allows("exp", usual.exp) else "expf"
        return replace(usual, cache="none", exp=exp)
    sensible = problem.operator.allows("algorithm", usual.algorithm)
    return usual if sensible else replace(usual, algorithm="online-block-max")


SABOTAGE = {
    # name: kind, text of the emitted code, what it becomes
    "log of the sum forgotten, one result": ("log-sum-exp", "+ log_sum;", ";"),
    "row of the result off by one": ("log-sum-exp", "output[index]", "output[index ^ 1]"),
    "infinite reference": (
        "log-sum-exp",
        "return fminf(fmaxf(maximum, -kGreatest), kGreatest);",
        "return maximum;",
    ),
    "log of the sum forgotten, beside another result": (
        "log-sum-exp and its terms",
        "log_sum_of_rows[index] = log_sum;",
        "log_sum_of_rows[index] = 0.0f;",
    ),
    "infinite maximum": (
        "log-sum-exp and its terms",
        "maximum_of_rows[index] = reference;",
        "maximum_of_rows[index] = reference > 3.4e38f ? infinity() : reference;",
    ),
    "no row is ignored": ("losses", "first_id == kIgnored ? 0.0f : ", ""),
    "a target that is no column is ignored": (
        "losses",
        "first_id == kIgnored ? ",
        "!has_target ? ",
    ),
    "the target among the others": (
        "losses",
        "log1pf(own == 1.0f ? rest : rest - 1.0f + own)",
        "log1pf(rest + own - 1.0f)",
    ),
    "the target is not hidden": (
        "losses",
        "{\n    hide_target(target -",
        "{\n    hide_target(-1 -",
    ),
    "the target of another row": (
        "losses, bf16, scale, gaps",
        " * ids_stride];",
        "];",
    ),
    "a mean over all but the target": (
        "losses and mean gaps",
        "static_cast<float>(kCols)",
        "static_cast<float>(kCols - has_target)",
    ),
    "the gap of the target forgotten": (
        "losses and mean gaps",
        "gaps += gap_of(target, maximum);",
        "",
    ),
    "gaps from the maximum of some elements": (
        "losses and mean gaps",
        "gap_of(state.maximum, reference)",
        "0.0f",
    ),
    "a gap of -inf forgotten": (
        "losses and mean gaps",
        "? mean + infinity() : mean",
        "? mean : mean",
    ),
    "a gap of what is beside the row": (
        "losses and mean gaps",
        "numbers = 0;\n",
        "",
    ),
    "the gaps of one share alone over a middle axis": (
        "losses and mean gaps, middle axis",
        "total.gaps += gaps_from(share, total.maximum);",
        "total.gaps = gaps_from(share, total.maximum);",
    ),
    "gaps from a thread's own maximum over a middle axis": (
        "losses and mean gaps, middle axis",
        "total.gaps += gaps_from(share, total.maximum);",
        "total.gaps += share.gaps;",
    ),
    "the cap left out of the loss": ("capped losses", "kSoftcap * tanh_u", "x"),
    "capped before it is scaled": (
        "capped losses",
        "capped(__fmul_rn(scale, x[i])).number",
        "scale * capped(x[i]).number",
    ),
    "-inf left out instead of capped": ("capped losses", "if (lowest <= 0)", "if (true)"),
    "what is beside the row capped": (
        "capped losses",
        "const int lowest = kCols",
        "const int lowest = kRowVectors * kWidth + kThreadsPerRow",
    ),
    "the target not capped": (
        "capped losses",
        "const float chosen = own.number;",
        "const float chosen = element_of(first_id, elements, scale);",
    ),
    "the cap left out of the gradient": ("capped losses, backward", "slopes[i] * (", "("),
    "the cap left out of the target's gradient": (
        "capped losses, backward",
        "own.slope * factor",
        "factor",
    ),
    "the derivative that cancels near the cap": (
        "capped losses, backward",
        "4.0f * e * inverse * inverse",
        "1.0f - tanh_u * tanh_u",
    ),
    "the derivative of what is not capped": (
        "capped losses with gradients",
        "x[i] = own.number;",
        "",
    ),
    "what smoothing takes from each not capped": (
        "capped losses with gradients",
        "y[i] = slopes[i] * (share * exponential(x[i], whole.maximum) - lost)",
        "y[i] = slopes[i] * share * exponential(x[i], whole.maximum) - lost",
    ),
    "the target's slope left out over a middle axis": (
        "capped losses with gradients, middle axis",
        "of_targets[i] *= target_slopes[i];",
        "",
    ),
    "the target capped with the others over a middle axis": (
        "capped losses with gradients, middle axis",
        "states[i].target = own;\n    vector.elements[i] = -infinity();",
        "states[i].target = own;",
    ),
    "the gradient of a row that is ignored": (
        "losses, backward, in place",
        "if (!has_target || first_id == kIgnored)",
        "if (!has_target)",
    ),
    "a probability next to 1 less 1": ("losses, backward", "expm1f(z)", "(expf(z) - 1.0f)"),
    "the target's gradient as any other": (
        "losses, backward",
        "set_target(target - k * kWidth, of_target, y);",
        "",
    ),
    "the gradient of another row's loss": (
        "losses, backward, in place",
        "loss_grad_of_rows[index]",
        "loss_grad_of_rows[index ^ 1]",
    ),
    "the target's share less 1": (
        "losses with gradients",
        "-share * whole.rest",
        "share * (whole.sum - whole.rest) - loss_grad_of_rows[index]",
    ),
    "a row multiplied by another's number": (
        "rows multiplied, in place",
        "loss_grad_of_rows[index]",
        "loss_grad_of_rows[index ^ 1]",
    ),
    "a row left as it is for a number of -1": (
        "rows multiplied, in place",
        "factor == 1.0f",
        "fabsf(factor) == 1.0f",
    ),
    "a row left as it is for nearly 1": (
        "rows multiplied, in place",
        "factor == 1.0f",
        "fabsf(factor - 1.0f) < 0.05f",
    ),
    "the target of the row beside over a middle axis": (
        "losses, middle axis",
        "ids[row + i]",
        "ids[(row + i) ^ 1]",
    ),
    "the target beside among the others over a middle axis": (
        "losses, middle axis",
        "kept[i] = -infinity();",
        "kept[i] = x[i];",
    ),
    "the target of one thread alone over a middle axis": (
        "losses, middle axis",
        "total.target += share.target;",
        "total.target = share.target;",
    ),
    "no row over a middle axis is ignored": (
        "losses, middle axis",
        "if (targets[i].is_ignored) loss = 0.0f;",
        "",
    ),
    "a target that is no column over a middle axis": (
        "losses, middle axis",
        "if (!targets[i].is_class) loss =",
        "if (false) loss =",
    ),
    "the gradient of a row over a middle axis that is ignored": (
        "losses, middle axis, backward, in place",
        "target.is_ignored || ",
        "",
    ),
    "the gradient beside a target that is no column over a middle axis": (
        "losses, middle axis, backward, in place",
        " || !target.is_class",
        "",
    ),
    "the target's share less 1 over a middle axis": (
        "losses with gradients, middle axis",
        "-shares[i] * whole.rest",
        "shares[i] * (whole.sum - whole.rest) - factor",
    ),
    "the place one further over a middle axis": (
        "losses with gradients, middle axis",
        "k == target.place",
        "k == target.place + 1",
    ),
    "the gradient of the loss beside over a middle axis": (
        "losses with gradients, middle axis",
        "loss_grad_of_rows[row + i]",
        "loss_grad_of_rows[row]",
    ),
    "rank among what is no less": ("log-probabilities", "+= x > chosen;", "+= x >= chosen;"),
    "rank of an id that is no column": (
        "log-probabilities",
        "isnan(chosen) ? -1 : state.above;",
        "state.above;",
    ),
    "the last of equal elements": (
        "log-probabilities",
        "kWidth - 1; i >= 0; --i",
        "0; i < kWidth; ++i",
    ),
    "entropy without rescaling": (
        "log-probabilities",
        "factor * (state.weighted + state.sum * (state.maximum - reference));",
        "factor * state.weighted;",
    ),
    "a result not written": ("log-probabilities", "lse_of_rows[index] =", "float lost ="),
    "an id cut to 32 bits": (
        "log-probabilities",
        "if (id < 0 || id >= kCols)",
        "id = static_cast<int>(id);\n  if (id < 0 || id >= kCols)",
    ),
    "an id that is no column read": (
        "log-probabilities",
        "if (id < 0 || id >= kCols)",
        "if (id < 0 || id > kCols)",
    ),
    "dense ids": (
        "log-probabilities, int32, gaps",
        "ids + loaded_row * ids_stride",
        "ids + loaded_row",
    ),
    "a result of the row before": (
        "log-probabilities, bf16, scale",
        "argmax_of_rows[index]",
        "argmax_of_rows[index > 0 ? index - 1 : 0]",
    ),
    "log of softmax": (
        "log_softmax",
        "x[i] - reference - log_sum;",
        "logf(expf(x[i] - reference) / expf(log_sum));",
    ),
    "log of the sum forgotten": ("log_softmax", "- reference - log_sum;", "- reference;"),
    "sum of products forgotten": ("softmax_backward", "return y * (dy - sum);", "return y * dy;"),
    "sum of gradients forgotten": ("log_softmax_backward", "0.0f) * sum", "0.0f) * 0.0f"),
    "output taken for its logarithm": ("log_softmax_backward", "exponential(y, 0.0f)", "y"),
    "gradient read for output": (
        "softmax_backward",
        "load_vector(row.input, k)",
        "load_vector(row.grad, k)",
    ),
    "scale forgotten backward": ("scaled backward", "return scale * y", "return y"),
    "-inf scaled to +inf": (
        "negative scale",
        "x[i] == -infinity() ? x[i] : __fmul_rn(scale, x[i])",
        "__fmul_rn(scale, x[i])",
    ),
    "scale on the result": ("scale", "__fmul_rn(scale, x[i])", "x[i] + scale"),
    "causal mask ignored": ("causal", "visible_elements(index, mask_rows);", "kCols;"),
    "causal mask one short": ("causal", "mask_row + 1 + kCols", "mask_row + kCols"),
    "causal mask from the top left": ("causal", "mask_row + 1 + kCols - mask_rows", "mask_row + 1"),
    "causal mask not repeated": (
        "causal, repeated",
        "index < mask_rows ? index : index % mask_rows",
        "index",
    ),
    "masked by whole vectors": (
        "causal",
        "k * kWidth + i >= row.visible",
        "k * kWidth >= row.visible",
    ),
    "one length for all rows": ("lengths", "lengths[index]", "lengths[0]"),
    "additive mask not repeated": (
        "additive, repeated, scaled",
        "mask + index % mask_rows * kCols",
        "mask",
    ),
    "mask scaled too": (
        "additive, repeated, scaled",
        "fmaf(scale, x[i], added[i])",
        "scale * (x[i] + added[i])",
    ),
    "dense output": (
        "gaps",
        "output += loaded_row * output_stride",
        "output += loaded_row * kCols",
    ),
    "dense input": ("gaps", "input += loaded_row * input_stride", "input += loaded_row * kCols"),
    "a gap written": (
        "gaps",
        "  const bool is_row = index < rows;\n",
        "  const bool is_row = index < rows;\n"
        "  if (thread_in_row == 0 && index + 1 < rows)\n"
        "    output[index * output_stride + kCols] = 0.0f;\n",
    ),
    "a gap written in place": (
        "in place, gaps",
        "  const bool is_row = index < rows;\n",
        "  const bool is_row = index < rows;\n"
        "  if (thread_in_row == 0 && index + 1 < rows)\n"
        "    output[index * output_stride + kCols] = 0.0f;\n",
    ),
    "nothing done in place": (
        "in place",
        "  reinterpret_cast<Word*>(row.output)[k] = as_word(vector);",
        "",
    ),
    "the row before in place": (
        "in place",
        "{input + index * kCols, output",
        "{input + index / 2 * 2 * kCols, output",
    ),
    "one warp's sum over a middle axis": (
        "middle axis",
        "reduce_rows(sums, Sum{});",
        "reduce_warp(sums, Sum{});",
    ),
    "the slice before over a middle axis": (
        "middle axis",
        "const long long slice = row / inner * kCols * inner;",
        "const long long slice = 0;",
    ),
    "rounded to bf16 on the way": (
        "bf16 to f32",
        "vector.elements[i] = x[i];",
        "vector.elements[i] = __bfloat162float(__float2bfloat16_rn(x[i]));",
    ),
    "f64 in single precision": (
        "f64",
        "return exp2((x - maximum) * kLog2E);",
        "return exp2f(static_cast<float>((x - maximum) * kLog2E));",
    ),
}


def sabotaged(name: str, source: str) -> str:
    """A kernel's source made wrong; asserts that there is what is changed."""
    _, text, becomes = SABOTAGE[name]
    assert text in source, f"{name}: the emitted code has no {text!r}"
    return source.replace(text, becomes)
