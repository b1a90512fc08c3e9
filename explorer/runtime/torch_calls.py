"""Calls on PyTorch's tensors: computed by our kernel if there is one, else by PyTorch."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from explorer.model.element import IndexType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.ops import BACKWARD, FORWARD, OPERATORS, Op
from explorer.runtime import launcher, shapes
from explorer.runtime.launcher import Plan
from explorer.runtime.layout import (
    DTYPES,
    Call,
    Described,
    Ids,
    Masking,
    Matrix,
    check_floating,
    dense_matrix,
    is_converted,
    matrix_of,
    plain_scale,
    positive,
    problem_of,
)
from explorer.runtime.service import log_once, service
from explorer.system.plain_data import parse_name

Function = TypeVar("Function", bound=Callable[..., Any])


def skips_dynamo(function: Function) -> Function:
    """Keep `torch.compile` from compiling a function, and all functions that it calls.

    Compiled code traces `traced`, which inlines what it needs. But if PyTorch gives that up, as
    under the transforms of `torch.func`, it runs the caller uncompiled and compiles the functions
    that this calls, ours included: 2 to 4 s for each shape. `torch.compiler.disable` would do, but
    its wrapper takes 1 us a call. A PyTorch without this private interface compiles them.
    """
    inner: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    skip = getattr(getattr(inner, "_FrameAction", None), "SKIP", None)
    if skip is not None and hasattr(inner, "set_code_exec_strategy"):
        strategy = inner._FrameExecStrategy(skip, skip)  # of its frame, and of those below
        inner.set_code_exec_strategy(function.__code__, strategy)
    return function


DTYPE_OF = {getattr(torch, name): dtype for name, dtype in DTYPES.items()}

# ------------------------------------------------------------------ checks


def checked_call(
    log: bool,
    shape: torch.Size,
    dim: int,
    scale: float | None,
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    dtype: torch.dtype | None,
) -> Call:
    """Return a call on a tensor of a shape. Raises InvalidInput and IndexError."""
    masking = Masking(causal, _described(mask), _described(lengths))
    checked = Call(FORWARD[log], positive(dim, len(shape)), scale, mask, lengths, masking, dtype)
    masking.check(tuple(shape), checked.dim)
    return checked


def _described(tensor: Tensor | None) -> Described | None:
    if tensor is None:
        return None
    return Described(tuple(tensor.shape), dtype_name(tensor))


def check_kind(target: torch.dtype, *, is_argument: bool) -> None:
    """Raise InvalidInput for a result of whole numbers (`check_floating`)."""
    check_floating(str(target), "torch.float32", is_argument=is_argument)


def check_dense(**tensors: Tensor | None) -> None:
    """Raise InvalidInput for a sparse tensor, which PyTorch's own softmax refuses, too."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.layout in _SPARSE:
            raise InvalidInput(
                f"{name} is of layout {tensor.layout}; it must be dense: give {name}.to_dense()"
            )


_SPARSE = (
    *(torch.sparse_coo, torch.sparse_csr, torch.sparse_csc),
    *(torch.sparse_bsr, torch.sparse_bsc),
)
"""Layouts of tensors that do not store each element."""


def framework(call: Call, x: Tensor) -> Tensor:
    """Compute a call by PyTorch's own functions, for which we have no kernel."""
    if call.dtype is not None:
        x = x.to(call.dtype)
    target = x.dtype
    check_kind(target, is_argument=call.dtype is not None)
    if target.itemsize == 2 and (call.scale is not None or call.mask is not None):
        x = x.float()  # as kernels do, which round the result alone
    x = scaled(x, call.scale)
    if call.mask is not None:
        x = x + call.mask.to(x.device, target).to(x.dtype)
    hidden = hidden_elements(x, call.masking.causal, call.lengths)
    if hidden is not None:
        x = x.masked_fill(hidden, float("-inf"))
    return (torch.log_softmax if OPERATORS[call.op].is_log else torch.softmax)(x, call.dim).to(
        target
    )


def scaled(x: Tensor, scale: float | None) -> Tensor:
    """Return a tensor times a scale, as kernels count it: -inf stays -inf whatever the scale."""
    if scale is None:
        return x
    if scale > 0 or x.is_complex():
        return x * scale
    return (x * scale).masked_fill(x == float("-inf"), float("-inf"))


def hidden_elements(x: Tensor, causal: bool, lengths: Tensor | None) -> Tensor | None:
    """Return which elements a causal mask or lengths hide, of a shape that broadcasts to x's."""
    if causal:
        rows, cols = x.shape[-2:]
        return ~torch.ones(rows, cols, dtype=torch.bool, device=x.device).tril(cols - rows)
    if lengths is not None:
        return torch.arange(x.shape[-1], device=x.device) >= lengths.to(x.device).unsqueeze(-1)
    return None


# ------------------------------------------------------------------ plans


MOST_RECIPES = 4096
"""Most recipes of a thread, of 2 KB each: a program may use an unlimited number of shapes."""


class _Threads(threading.local):
    """Each thread's recipes, because a plan belongs to one thread."""

    def __init__(self) -> None:
        self.recipes: dict[Any, Recipe] = {}

    def keep(self, key: Any, recipe: "Recipe") -> None:
        """Store a recipe. If there are too many, all are dropped, and made again when needed."""
        if len(self.recipes) >= MOST_RECIPES:
            self.recipes.clear()
        self.recipes[key] = recipe


_threads = _Threads()
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
"""The functions of PyTorch's own compiled code; `torch.cuda.current_stream` takes 1 us."""


def plan_of(problem: Problem, device: int) -> Plan | None:
    """Return this thread's plan for a problem; None if its kernel is not loaded."""
    shapes.count_call(problem)
    loaded = service.get(problem, device, may_load=not torch.cuda.is_current_stream_capturing())
    return None if loaded is None else launcher.plan_of(loaded)


def launch(
    plan: Plan, device: int, source: int, output: int, scale: float | None, others: dict[str, int]
) -> bool:
    """Launch a plan on the current stream; return False if an array is misaligned."""
    addresses = {"input": source, "output": output, **others}
    if any(addresses.get(name, 0) & plan.mask for name in plan.aligned):
        log_once(f"an array does not begin at a multiple of {plan.mask + 1} bytes")
        return False
    if scale is not None:
        plan.scale(scale)
    if plan.kernel.scratch_bytes:
        scratch = torch.empty(plan.kernel.scratch_bytes, dtype=torch.uint8, device=device)
        others = {**others, "scratch": scratch.data_ptr()}
    if _current_device() == device:
        plan.launch(_raw_stream(device), source, output, **others)
    else:
        with torch.cuda.device(device):
            plan.launch(_raw_stream(device), source, output, **others)
    return True


def matrix(x: Tensor, dim: int) -> Matrix | None:
    """Return a tensor as the rows of an op; None if no kernel can read it as it is."""
    return matrix_of(tuple(x.shape), x.stride(), dim)


def unserved(x: Tensor, target: torch.dtype) -> str:
    """Return why no kernel can compute a call, or an empty string."""
    if not x.is_cuda:
        return f"a tensor on {x.device.type}"
    other = next((dtype for dtype in (x.dtype, target) if dtype not in DTYPE_OF), None)
    if other is not None:
        return f"elements of {other}"
    return "an empty tensor" if x.numel() == 0 else ""


# ------------------------------------------------------------------ recipes


class Recipe:
    """How calls of one kind are served: the conversion of the input, and the launches."""

    __slots__ = (
        "cast", "copies", "in_place", "input_bytes", "is_alike", "is_plain", "output_bytes",
        "plan", "problem", "target",
    )  # fmt: skip

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        target: torch.dtype,
        *,
        cast: bool = False,
        copies: bool = False,
        is_alike: bool = False,
    ) -> None:
        self.problem = problem
        self.plan = plan
        self.target = target
        self.cast = cast
        self.copies = copies
        self.in_place = problem.in_place
        self.is_plain = not (cast or copies or plan.kernel.scratch_bytes)
        """Whether a call without masks only has to launch."""
        self.is_alike = is_alike
        """Whether the input is dense and of the output's type."""
        self.input_bytes = problem.input_elements * problem.dtype.itemsize
        self.output_bytes = problem.output_elements * problem.output_dtype.itemsize

    def serve(
        self,
        x: Tensor,
        out: Tensor | None = None,
        scale: float | None = None,
        mask: Tensor | None = None,
        lengths: Tensor | None = None,
        beside: Mapping[str, Tensor] | None = None,
    ) -> Tensor | None:
        """Launch on tensors, and return the output; None if this kernel cannot take them.

        `beside` has ids and other results, by the names of the kernel's arguments.
        """
        if self.is_plain and mask is None and lengths is None and not beside:
            return self._run_plain(x, out, scale)
        return self._run(x, out, scale, mask, lengths, beside or {})

    def _run_plain(self, x: Tensor, out: Tensor | None, scale: float | None) -> Tensor | None:
        """Serve a call that only has to launch."""
        plan, given = self.plan, out is not None
        if self.is_alike and out is None:  # 0.4 us less than with arguments
            out = torch.empty_like(x)
        elif out is None:
            out = torch.empty_like(x, dtype=self.target, memory_format=torch.contiguous_format)
        source, output = x.data_ptr(), out.data_ptr()
        if given and not self.in_place and self._covers(output, source, self.input_bytes):
            return None
        device = x.get_device()
        if (source | output) & plan.mask or _current_device() != device:
            return self._run(x, out, scale, None, None, {})
        if scale is not None:
            plan.scale(scale)
        plan.launch_pair(_raw_stream(device), source, output)
        if given:
            increment_version(out)
        return out

    def _run(
        self,
        x: Tensor,
        out: Tensor | None,
        scale: float | None,
        mask: Tensor | None,
        lengths: Tensor | None,
        beside: Mapping[str, Tensor],
    ) -> Tensor | None:
        """Serve any call: convert, copy and allocate scratch memory as needed."""
        if self.cast:  # which also makes it dense
            x = x.to(self.target, memory_format=torch.contiguous_format)
        elif self.copies:
            x = x.contiguous()
        given = out is not None
        if out is None:
            out = torch.empty(x.shape, dtype=self.target, device=x.device)
        elif not self.in_place and self._covers(out.data_ptr(), x.data_ptr(), self.input_bytes):
            log_once("an output that lies over a part of the input")
            return None
        others = {name: tensor.data_ptr() for name, tensor in beside.items()}
        other = None  # a reference that keeps it allocated until the launch
        if mask is not None:
            other = mask.to(x).contiguous().resolve_neg()
            others["mask"] = other.data_ptr()
        elif lengths is not None:
            other = _whole(lengths, x.shape[-1]).to(device=x.device, dtype=torch.int32)
            other = other.expand(x.shape[:-1]).contiguous()
            others["lengths"] = other.data_ptr()
        if (
            given
            and other is not None
            and self._covers(out.data_ptr(), other.data_ptr(), other.nbytes)
        ):
            log_once("an output that lies over a mask or lengths")
            return None
        device = x.get_device()
        if not launch(self.plan, device, x.data_ptr(), out.data_ptr(), scale, others):
            return None
        if given:
            increment_version(out)  # as PyTorch does, so that a backward that saved it raises
        return out

    def _covers(self, output: int, other: int, size: int) -> bool:
        """Return whether an output overlaps another array of `size` bytes."""
        return other < output + self.output_bytes and output < other + size


def _whole(lengths: Tensor, cols: int) -> Tensor:
    """Return lengths that fit 32 bits: those beyond a row's end become its end."""
    return lengths.clamp(0, cols) if lengths.dtype is torch.int64 else lengths


def _recipe(call: Call, x: Tensor, out: Tensor | None) -> Recipe | None:
    """Return how a call is served; None if the framework must compute it, now or always."""
    target = call.dtype or x.dtype
    reason = unserved(x, target)
    if reason:
        log_once(reason)
        return None
    shape = tuple(x.shape)
    mask_dtype = x.dtype if call.mask is None else call.mask.dtype
    cast = is_converted(DTYPE_OF[x.dtype], DTYPE_OF[target], DTYPE_OF.get(mask_dtype))
    source = None if cast else matrix(x, call.dim)
    copies = source is None
    dense = dense_matrix(shape, call.dim)
    try:
        problem = call.problem(
            shape,
            DTYPE_OF[target if cast else x.dtype],
            DTYPE_OF[target],
            source or dense,
            dense if out is None else matrix(out, call.dim),
            in_place=out is not None and not copies and out.data_ptr() == x.data_ptr(),
        )
    except InvalidInput as error:
        log_once(str(error))
        return None
    plan = plan_of(problem, x.get_device())
    if plan is None:
        return None
    is_alike = target is x.dtype and x.is_contiguous()
    return Recipe(problem, plan, target, cast=cast, copies=copies, is_alike=is_alike)


def recipe_of(
    log: bool,
    x: Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    scale: float | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    lengths: Tensor | None = None,
    out: Tensor | None = None,
) -> Recipe | None:
    """Check a call, and return how it is served; None if the framework must compute it.

    Only the first call of a kind is checked. Later ones find its recipe by a key.
    """
    device = x.get_device()
    layout = True if x.is_contiguous() else x.stride()
    key: tuple[Any, ...] = (log, dim, x.dtype, x.shape, layout, device, scale is None, dtype)
    if out is not None:
        check_out(x, dtype or x.dtype, out)
        out_layout = True if out.is_contiguous() else out.stride()
        key += (out_layout, out.data_ptr() == x.data_ptr())
    if causal or mask is not None or lengths is not None:
        key += (
            causal,
            None if mask is None else (mask.shape, mask.dtype),
            None if lengths is None else (lengths.shape, lengths.dtype),
        )
    recipe = _threads.recipes.get(key)
    if recipe is None:
        checked = checked_call(log, x.shape, dim, scale, mask, causal, lengths, dtype)
        recipe = _recipe(checked, x, out)
        if recipe is not None:
            _threads.keep(key, recipe)
    else:
        shapes.count_call(recipe.problem)
    return recipe


def recipe_for(
    op: Op,
    x: Tensor,
    dim: int,
    scale: float | None,
    out: Tensor,
    ids: Tensor | None = None,
    also: str = "",
) -> Recipe | None:
    """Return how an op without masks is served, into an output that has all axes of x.

    The rows of `ids` lie one stride apart, and `also` names results beside the output.
    """
    layouts = tuple(True if one.is_contiguous() else one.stride() for one in (x, out))
    shared = out.data_ptr() == x.data_ptr()
    key: tuple[Any, ...] = (op, dim, x.dtype, x.shape, layouts, x.get_device(), scale is None)
    key += (out.dtype, shared, also)
    if ids is not None:
        key += (ids.dtype, ids.shape, ids.stride())
    recipe = _threads.recipes.get(key)
    if recipe is None:
        told = None if ids is None else _ids(ids)
        call = Call(op, dim, scale, None, None, Masking(False, None, None), out.dtype, told, also)
        recipe = _recipe(call, x, out)
        if recipe is not None:
            _threads.keep(key, recipe)
    else:
        shapes.count_call(recipe.problem)
    return recipe


def _ids(ids: Tensor) -> Ids:
    """Return the layout of ids whose rows lie one stride apart."""
    rows = matrix(ids, ids.dim() - 1)
    assert rows is not None
    return Ids(rows.cols, rows.stride, parse_name(IndexType, "ids", dtype_name(ids)))


def dtype_name(tensor: Tensor) -> str:
    """Return the name of a tensor's type, such as int32."""
    return str(tensor.dtype).removeprefix("torch.")


@skips_dynamo
def call(
    log: bool,
    x: Tensor,
    dim: int,
    scale: float | None,
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    dtype: torch.dtype | None,
    out: Tensor | None,
    keep: Callable[[Recipe, Tensor], None] | None = None,
) -> Tensor:
    """Compute without gradients, by our kernel or else by PyTorch's functions.

    If a kernel has served the call, `keep` is called with its recipe and the result.
    """
    try:
        recipe = recipe_of(log, x, dim, dtype, scale, mask, causal, lengths, out)
        if recipe is not None:
            result = recipe.serve(x, out, scale, mask, lengths)
            if result is not None:
                if keep is not None:
                    keep(recipe, result)
                return result
        checked = checked_call(log, x.shape, dim, scale, mask, causal, lengths, dtype)
        result = framework(checked, x)
        return result if out is None else out.copy_(result)
    except (RuntimeError, OverflowError):  # checks for the reason, which cost other calls nothing
        check_dense(x=x, mask=mask, lengths=lengths, out=out)
        if scale is not None:
            plain_scale(scale)
        raise


def check_out(
    x: Tensor, dtype: torch.dtype, out: Tensor, shape: tuple[int, ...] | None = None
) -> None:
    """Raise InvalidInput for an output that does not fit a call; the usual shape is x's."""
    shape = x.shape if shape is None else shape
    fits = out.dtype is dtype and out.get_device() == x.get_device() and out.shape == shape
    if not x.is_cuda:  # whose devices all have the number -1
        fits = fits and out.device == x.device
    if not fits:
        check_kind(dtype, is_argument=dtype is not x.dtype)
        raise InvalidInput(
            f"out is {out.dtype} of shape {tuple(out.shape)} on {out.device}; it must be {dtype} "
            f"of shape {tuple(shape)} on {x.device}"
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise InvalidInput("out wants a gradient; it must be a tensor that wants none")


# ------------------------------------------------------------------ backward


@skips_dynamo
def backward(
    grad: Tensor, output: Tensor, dim: int, scale: float | None, dtype: torch.dtype, log: bool
) -> Tensor:
    """Return the gradient of the input, of type `dtype`, from that of the output."""
    dim = positive(dim, output.dim())
    served = backward_served(grad, output, dim, scale, dtype, log)
    if served is not None:
        return served
    grad = grad.to(output.dtype)
    function = torch._log_softmax_backward_data if log else torch._softmax_backward_data
    result = function(grad, output, dim, output.dtype)
    return (result if scale is None else result * scale).to(dtype)


def backward_served(
    grad: Tensor, output: Tensor, dim: int, scale: float | None, dtype: torch.dtype, log: bool
) -> Tensor | None:
    """Return a gradient computed by our kernel; None if PyTorch must compute it."""
    reason = unserved(output, dtype)
    if grad.shape != output.shape or grad.device != output.device:
        reason = "a gradient of another shape or on another device than the output"
    if reason:
        log_once(reason)
        return None
    output, grad = output.contiguous(), grad.to(output.dtype).contiguous()
    plan = _backward_plan(log, output, dim, scale is not None, dtype)
    if plan is None:
        return None
    result = torch.empty(output.shape, dtype=dtype, device=output.device)
    others = {"grad": grad.data_ptr()}
    device, source = output.get_device(), output.data_ptr()
    done = launch(plan, device, source, result.data_ptr(), scale, others)
    return result if done else None


def _backward_plan(
    log: bool, output: Tensor, dim: int, scaled: bool, dtype: torch.dtype
) -> Plan | None:
    """Return the plan of a gradient's problem on dense tensors; None without a kernel."""
    device = output.get_device()
    key = ("backward", log, output.dtype, output.shape, device, dim, scaled, dtype)
    recipe = _threads.recipes.get(key)
    if recipe is not None:
        shapes.count_call(recipe.problem)
        return recipe.plan
    source = dense_matrix(tuple(output.shape), dim)
    try:
        problem = problem_of(
            BACKWARD[log], DTYPE_OF[output.dtype], source, out_dtype=DTYPE_OF[dtype], scaled=scaled
        )
    except InvalidInput as error:
        log_once(str(error))
        return None
    plan = plan_of(problem, device)
    if plan is not None:
        _threads.keep(key, Recipe(problem, plan, dtype))
    return plan
