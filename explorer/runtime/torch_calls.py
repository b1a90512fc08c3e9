"""Calls on PyTorch's tensors: by a kernel of ours where there is one, else by PyTorch."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from explorer.model.errors import InvalidInput
from explorer.model.problem import Op, Problem
from explorer.runtime import launcher, shapes
from explorer.runtime.launcher import Plan
from explorer.runtime.layout import (
    DTYPES,
    Described,
    Masking,
    Matrix,
    dense_matrix,
    is_converted,
    matrix_of,
    plain_scale,
    positive,
    problem_of,
)
from explorer.runtime.service import say_once, service

Function = TypeVar("Function", bound=Callable[..., Any])


def runs_as_it_is(function: Function) -> Function:
    """Keep `torch.compile` from compiling a function that is called, and all that it calls.

    What is compiled traces `traced`, which inlines what it needs. But where PyTorch gives that up,
    as under the transforms of `torch.func`, it runs the caller as it is and compiles the functions
    below, ours included: 2 to 4 s for each shape. `torch.compiler.disable` would do, but its
    wrapper takes 1 us a call. A PyTorch without this private interface compiles them.
    """
    inner: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    skip = getattr(getattr(inner, "_FrameAction", None), "SKIP", None)
    if skip is not None and hasattr(inner, "set_code_exec_strategy"):
        strategy = inner._FrameExecStrategy(skip, skip)  # of its frame, and of those below
        inner.set_code_exec_strategy(function.__code__, strategy)
    return function


DTYPE_OF = {getattr(torch, name): dtype for name, dtype in DTYPES.items()}

# ------------------------------------------------------------------ what a call asks for


class Asked:
    """What a call asks for beside its tensor, checked. Raises InvalidInput and IndexError."""

    __slots__ = ("dim", "dtype", "lengths", "log", "mask", "masking", "scale")

    def __init__(
        self,
        log: bool,
        shape: torch.Size,
        dim: int,
        scale: float | None,
        mask: Tensor | None,
        causal: bool,
        lengths: Tensor | None,
        dtype: torch.dtype | None,
    ) -> None:
        self.log = log
        self.dim = positive(dim, len(shape))
        self.scale = scale
        self.mask = mask
        self.lengths = lengths
        self.dtype = dtype
        self.masking = Masking(causal, _described(mask), _described(lengths))
        self.masking.check(tuple(shape), self.dim)


def _described(tensor: Tensor | None) -> Described | None:
    if tensor is None:
        return None
    return Described(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def check_kind(target: torch.dtype, *, is_told: bool) -> None:
    """Raise InvalidInput for a result of whole numbers; `is_told` says that the call has `dtype`.

    Without that, the type is x's own.
    """
    if target.is_floating_point or target.is_complex:
        return
    if is_told:
        raise InvalidInput(
            f"dtype is {target}; it must be a type of floating-point numbers, such as torch.float32"
        )
    raise InvalidInput(f"x is of {target}; give dtype=torch.float32, say, to convert it")


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


def framework(asked: Asked, x: Tensor) -> Tensor:
    """What PyTorch's own functions make of a call: what no kernel of ours does is done so."""
    if asked.dtype is not None:
        x = x.to(asked.dtype)
    target = x.dtype
    check_kind(target, is_told=asked.dtype is not None)
    if target.itemsize == 2 and (asked.scale is not None or asked.mask is not None):
        x = x.float()  # as kernels do, which round the result alone
    if asked.scale is not None:
        x = x * asked.scale
    if asked.mask is not None:
        x = x + asked.mask.to(x.device, target).to(x.dtype)
    hidden = hidden_elements(x, asked.masking.causal, asked.lengths)
    if hidden is not None:
        x = x.masked_fill(hidden, float("-inf"))
    return (torch.log_softmax if asked.log else torch.softmax)(x, asked.dim).to(target)


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
"""Recipes that a thread keeps, of 2 KB each: a program may meet shapes without end."""


class _Threads(threading.local):
    """Each thread's recipes, since plans are of one thread."""

    def __init__(self) -> None:
        self.recipes: dict[Any, Recipe] = {}

    def keep(self, key: Any, recipe: "Recipe") -> None:
        """Keep a recipe. Where there are too many all go, and are made again as they are needed."""
        if len(self.recipes) >= MOST_RECIPES:
            self.recipes.clear()
        self.recipes[key] = recipe


_threads = _Threads()
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
"""What PyTorch's own compiled code calls; `torch.cuda.current_stream` takes 1 us."""


def plan_of(problem: Problem, device: int) -> Plan | None:
    """Return this thread's plan for a problem; None where its kernel is not there."""
    shapes.met(problem)
    loaded = service.get(problem, device, may_load=not torch.cuda.is_current_stream_capturing())
    return None if loaded is None else launcher.plan_of(loaded)


def launch(
    plan: Plan, device: int, source: int, output: int, scale: float | None, others: dict[str, int]
) -> bool:
    """Launch a plan on the current stream; False where an array does not lie as it must."""
    misplaced = source | output
    for name, address in others.items():
        misplaced |= 0 if name == "lengths" else address
    if misplaced & plan.mask:
        say_once(f"an array does not begin at a multiple of {plan.mask + 1} bytes")
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
    """Return a tensor as rows that an op runs over; None where no kernel reads it as it lies."""
    return matrix_of(tuple(x.shape), x.stride(), dim)


def unserved(x: Tensor, target: torch.dtype) -> str:
    """Say why no kernel does a call; nothing where one may."""
    if not x.is_cuda:
        return f"a tensor on {x.device.type}"
    other = next((dtype for dtype in (x.dtype, target) if dtype not in DTYPE_OF), None)
    if other is not None:
        return f"elements of {other}"
    return "an empty tensor" if x.numel() == 0 else ""


# ------------------------------------------------------------------ calls that kernels serve


class Recipe:
    """How calls of one kind are served: what becomes of the input, and the launches."""

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
        """Whether a call without masks has nothing to do but to launch."""
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
    ) -> Tensor | None:
        """Launch on tensors; None where one of them does not lie as it must."""
        if self.is_plain and mask is None and lengths is None:
            return self._run_plain(x, out, scale)
        return self._run(x, out, scale, mask, lengths)

    def _run_plain(self, x: Tensor, out: Tensor | None, scale: float | None) -> Tensor | None:
        """Serve a call for which there is nothing to do but to launch."""
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
            return self._run(x, out, scale, None, None)
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
    ) -> Tensor | None:
        """Serve any call: convert, make dense, give scratch memory, as far as it is needed."""
        if self.cast:  # what is converted becomes dense
            x = x.to(self.target, memory_format=torch.contiguous_format)
        elif self.copies:
            x = x.contiguous()
        given = out is not None
        if out is None:
            out = torch.empty(x.shape, dtype=self.target, device=x.device)
        elif not self.in_place and self._covers(out.data_ptr(), x.data_ptr(), self.input_bytes):
            say_once("an output that lies over a part of the input")
            return None
        others: dict[str, int] = {}
        held = None  # until the launch: what is made here must not be freed before it
        if mask is not None:
            held = mask.to(x).contiguous().resolve_neg()
            others["mask"] = held.data_ptr()
        elif lengths is not None:
            held = _whole(lengths, x.shape[-1]).to(device=x.device, dtype=torch.int32)
            held = held.expand(x.shape[:-1]).contiguous()
            others["lengths"] = held.data_ptr()
        if (
            given
            and held is not None
            and self._covers(out.data_ptr(), held.data_ptr(), held.nbytes)
        ):
            say_once("an output that lies over a mask or lengths")
            return None
        device = x.get_device()
        if not launch(self.plan, device, x.data_ptr(), out.data_ptr(), scale, others):
            return None
        if given:
            increment_version(out)  # who has kept it for a gradient is told, as PyTorch does
        return out

    def _covers(self, output: int, other: int, size: int) -> bool:
        """Return whether an output lies over a part of another array of `size` bytes."""
        return other < output + self.output_bytes and output < other + size


def _whole(lengths: Tensor, cols: int) -> Tensor:
    """Return lengths that 32 bits hold: more than a row has elements are all of it."""
    return lengths.clamp(0, cols) if lengths.dtype is torch.int64 else lengths


def _recipe(asked: Asked, x: Tensor, out: Tensor | None) -> Recipe | None:
    """Return how a call is served; None where it must be the framework's, for now or for ever."""
    target = asked.dtype or x.dtype
    reason = unserved(x, target)
    if reason:
        say_once(reason)
        return None
    mask_dtype = x.dtype if asked.mask is None else asked.mask.dtype
    cast = is_converted(DTYPE_OF[x.dtype], DTYPE_OF[target], DTYPE_OF.get(mask_dtype))
    source = None if cast else matrix(x, asked.dim)
    copies = source is None
    output = None if out is None else matrix(out, asked.dim)
    if out is not None and output is None:
        say_once("an output whose rows do not lie one stride apart")
        return None
    mask = asked.masking.of_problem(tuple(x.shape))
    if mask is None:
        say_once("a mask that repeats within the array")
        return None
    kind, mask_rows = mask
    try:
        problem = problem_of(
            Op.LOG_SOFTMAX if asked.log else Op.SOFTMAX,
            DTYPE_OF[target if cast else x.dtype],
            source or dense_matrix(tuple(x.shape), asked.dim),
            out_dtype=DTYPE_OF[target],
            output=output,
            scaled=asked.scale is not None,
            mask=kind,
            mask_rows=mask_rows,
            in_place=out is not None and not copies and out.data_ptr() == x.data_ptr(),
        )
    except InvalidInput as error:
        say_once(str(error))
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
    """Return how a call is served; None where it must be the framework's. Checks a call's sense.

    Calls of one kind are looked at once, and from then on found by what they have in common.
    """
    device = x.get_device()
    lies = True if x.is_contiguous() else x.stride()
    key: tuple[Any, ...] = (log, dim, x.dtype, x.shape, lies, device, scale is None, dtype)
    if out is not None:
        check_out(x, dtype or x.dtype, out)
        out_lies = True if out.is_contiguous() else out.stride()
        key += (out_lies, out.data_ptr() == x.data_ptr())
    if causal or mask is not None or lengths is not None:
        key += (
            causal,
            None if mask is None else (mask.shape, mask.dtype),
            None if lengths is None else (lengths.shape, lengths.dtype),
        )
    recipe = _threads.recipes.get(key)
    if recipe is None:
        asked = Asked(log, x.shape, dim, scale, mask, causal, lengths, dtype)
        recipe = _recipe(asked, x, out)
        if recipe is not None:
            _threads.keep(key, recipe)
    else:
        shapes.met(recipe.problem)
    return recipe


@runs_as_it_is
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

    Where a kernel has served the call, `keep` is called with its recipe and the result.
    """
    try:
        recipe = recipe_of(log, x, dim, dtype, scale, mask, causal, lengths, out)
        if recipe is not None:
            result = recipe.serve(x, out, scale, mask, lengths)
            if result is not None:
                if keep is not None:
                    keep(recipe, result)
                return result
        asked = Asked(log, x.shape, dim, scale, mask, causal, lengths, dtype)
        result = framework(asked, x)
        return result if out is None else out.copy_(result)
    except (RuntimeError, OverflowError):  # why is asked now, where it costs no other call
        check_dense(x=x, mask=mask, lengths=lengths, out=out)
        if scale is not None:
            plain_scale(scale)
        raise


def check_out(x: Tensor, dtype: torch.dtype, out: Tensor) -> None:
    """Raise InvalidInput for an output that cannot be a call's."""
    fits = out.dtype is dtype and out.get_device() == x.get_device() and out.shape == x.shape
    if not fits:
        check_kind(dtype, is_told=dtype is not x.dtype)
        raise InvalidInput(
            f"out is {out.dtype} of shape {tuple(out.shape)} on {out.device}; it must be {dtype} "
            f"of shape {tuple(x.shape)} on {x.device}"
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise InvalidInput("out wants a gradient; it must be a tensor that wants none")


# ------------------------------------------------------------------ backward


@runs_as_it_is
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
    """Return what our kernel makes of a gradient; None where it must be PyTorch's."""
    reason = unserved(output, dtype)
    if grad.shape != output.shape or grad.device != output.device:
        reason = "a gradient of another shape or on another device than the output"
    if reason:
        say_once(reason)
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
    """Return the plan of a gradient's problem, of dense tensors; None where there is no kernel."""
    device = output.get_device()
    key = ("backward", log, output.dtype, output.shape, device, dim, scaled, dtype)
    recipe = _threads.recipes.get(key)
    if recipe is not None:
        shapes.met(recipe.problem)
        return recipe.plan
    op = Op.LOG_SOFTMAX_BACKWARD if log else Op.SOFTMAX_BACKWARD
    source = dense_matrix(tuple(output.shape), dim)
    try:
        problem = problem_of(
            op, DTYPE_OF[output.dtype], source, out_dtype=DTYPE_OF[dtype], scaled=scaled
        )
    except InvalidInput as error:
        say_once(str(error))
        return None
    plan = plan_of(problem, device)
    if plan is not None:
        _threads.keep(key, Recipe(problem, plan, dtype))
    return plan
