"""Calls on PyTorch's tensors: computed by our kernel if there is one, else by PyTorch."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from explorer.model.errors import InvalidInput
from explorer.ops import BACKWARD, Op
from explorer.runtime import shapes
from explorer.runtime.launcher import Plan
from explorer.runtime.layout import (
    Call,
    Shape,
    check_floating,
    plain_scale,
    positive,
)
from explorer.runtime.library import Library
from explorer.runtime.recipes import Apart, Recipe, make_recipe

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


# ------------------------------------------------------------------ checks


def check_kind(target: torch.dtype, *, is_argument: bool) -> None:
    """Raise InvalidInput for a result of whole numbers (`check_floating`)."""
    check_floating(str(target), Tensors.type_named, is_argument=is_argument)


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


def check_out(x: Tensor, dtype: torch.dtype, out: Tensor, shape: Shape | None = None) -> None:
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


# ------------------------------------------------------------------ recipes


_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
"""The functions of PyTorch's own compiled code; `torch.cuda.current_stream` takes 1 us."""


_CONTIGUOUS = torch.contiguous_format


class TensorRecipe(Recipe):
    """How calls of one kind on tensors are served; plain ones with the least work."""

    def __post_init__(self) -> None:
        super().__post_init__()
        problem = self.problem
        _, self.shape, self.target = self.results[0]
        self.is_plain = (
            self.converted is None and len(self.results) == 1 and not self.plan.kernel.scratch_bytes
        )
        """Whether a call without other arrays only has to launch."""
        self.fills_rows = problem.fills_rows
        self.is_alike = (
            self.fills_rows
            and self.converted is None
            and problem.input_stride == problem.cols
            and problem.output_dtype is problem.dtype
        )
        """Whether the input is dense and of the output's shape and type."""

    def serve(
        self, x: Tensor, out: Tensor | None, scale: float | None, arrays: Mapping[str, Tensor]
    ) -> list[Tensor] | None:
        """Launch, and return the results (`Recipe.serve`)."""
        if arrays or not self.is_plain:
            return super().serve(x, out, scale, arrays)
        plan, is_given = self.plan, out is not None
        if out is None:
            if self.is_alike:  # 0.4 us less than with arguments
                out = torch.empty_like(x)
            elif self.fills_rows:
                out = torch.empty_like(x, dtype=self.target, memory_format=_CONTIGUOUS)
            else:
                out = torch.empty(self.shape, dtype=self.target, device=x.device)
        source, output = x.data_ptr(), out.data_ptr()
        device = x.get_device()
        if (
            (source | output) & plan.mask
            or _current_device() != device
            or (is_given and not self.in_place and self.covers(output, source, self.input_bytes))
        ):
            return super().serve(x, out if is_given else None, scale, arrays)
        if scale is not None:
            plan.scale(scale)
        plan.launch_pair(_raw_stream(device), source, output)
        if is_given:
            increment_version(out)
        return [out]


MOST_PARTS = 32
"""Most parts of a tensor that PyTorch's functions compute one after the other. The matrices that
they make of one part are small beside the tensor."""

LEAST_PART = 2**20
"""Elements of the smallest part: their launches should not take longer than their work."""


def part_of(x: Tensor, dim: int) -> tuple[int, int]:
    """Return the axis along which rows are taken in parts, and how many indices of it are a part.

    The rows lie along the axis `dim`. A part may be all of them.
    """
    dim = positive(dim, x.dim())
    axis = max((one for one in range(x.dim()) if one != dim), key=x.size, default=dim)
    parts = max(1, min(MOST_PARTS, x.numel() // LEAST_PART))
    return axis, x.shape[axis] if axis == dim else -(-x.shape[axis] // parts)


MOST_RECIPES = 4096
"""Most recipes of a thread, of 2 KB each: a program may use an unlimited number of shapes."""


class _Threads(threading.local):
    """Each thread's recipes, because a plan belongs to one thread."""

    def __init__(self) -> None:
        self.recipes: dict[Any, Recipe | Apart] = {}

    def keep(self, key: Any, recipe: Recipe | Apart) -> None:
        """Store a recipe. If there are too many, all are dropped, and made again when needed."""
        if len(self.recipes) >= MOST_RECIPES:
            self.recipes.clear()
        self.recipes[key] = recipe


_threads = _Threads()

# ------------------------------------------------------------------ tensors


transforms = torch._C._functorch.peek_interpreter_stack
"""Returns the innermost transform of `torch.func` that is active; None without one."""

Told = Call | tuple[Any, ...]
"""A call, or its fields in their order: what serves most calls need not make a record of them."""


class Tensors(Library):
    """Calls on tensors without gradients, which need not be plain memory."""

    numpy = torch
    functions = {  # noqa: RUF012
        Op.SOFTMAX: torch.softmax,
        Op.LOG_SOFTMAX: torch.log_softmax,
        Op.LOGSUMEXP: lambda x, dim: torch.logsumexp(x, dim, keepdim=True),
    }
    rounds_once = True
    type_named = "torch.float32"
    recipes_are = TensorRecipe

    def name_of(self, dtype: torch.dtype) -> str:
        """Return the name of a type, such as int32."""
        return str(dtype).removeprefix("torch.")

    def type_of(self, name: str) -> torch.dtype:
        """Return the type of a name."""
        dtype: torch.dtype = getattr(torch, name)
        return dtype

    def is_on_gpu(self, x: Tensor) -> bool:
        """Return whether kernels can read a tensor."""
        return bool(x.is_cuda)

    # Methods in C, because each call asks for these.
    device = staticmethod(Tensor.get_device)
    address = staticmethod(Tensor.data_ptr)
    strides = staticmethod(Tensor.stride)
    is_dense = staticmethod(Tensor.is_contiguous)
    strided = staticmethod(Tensor.as_strided)
    copied = staticmethod(lambda result, out: out.copy_(result))

    def cast(self, x: Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
        """Return a tensor of a type, on the device of `like`."""
        return x.to(like.device, dtype)

    def product(self, subscripts: str, *arrays: Tensor) -> Tensor:
        """Return a sum of products of f32, which autocast would compute in 16 bits.

        There is no autocast of tensors that have shapes alone.
        """
        if arrays[0].is_meta:
            return torch.einsum(subscripts, *arrays)
        with torch.autocast(arrays[0].device.type, enabled=False):
            return torch.einsum(subscripts, *arrays)

    def converted(self, x: Tensor, dtype: torch.dtype, like: Tensor) -> Tensor:
        """Return a dense tensor of a type on the GPU of `like`; x itself if it is one."""
        return x.to(like.device, dtype).contiguous()

    def broadcast(self, x: Tensor, shape: Shape) -> Tensor:
        """Return a dense tensor of a shape."""
        return x.expand(shape).contiguous()

    def empty(self, shape: Shape, dtype: torch.dtype, like: Tensor) -> Tensor:
        """Return a new dense tensor on the GPU of `like`."""
        return torch.empty(shape, dtype=dtype, device=like.device)

    def counted(self, count: int, like: Tensor) -> Tensor:
        """Return the numbers from 0 to `count`, exclusive, on the device of `like`."""
        return torch.arange(count, device=like.device)

    def without(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Return a tensor with -inf at the elements that are hidden."""
        return x.masked_fill(hidden, float("-inf"))

    def tanh(self, x: Tensor) -> Tensor:
        """Return tanh, also by the logistic function s where it is differentiated.

        Its derivative 1 - tanh^2 cancels near the cap of logits. That of s(-2 |x|), which is small
        there, is s (1 - s), where nothing does.
        """
        plain = torch.tanh(x)
        is_transformed = transforms() is not None or forward_ad._current_level >= 0
        if not (is_transformed or (x.requires_grad and torch.is_grad_enabled())):
            return plain
        size = x.abs()
        apart = torch.copysign(1 - 2 * torch.sigmoid(-2 * size), x.detach())
        return torch.where(size < 1, plain, apart)

    def is_capturing(self, device: int) -> bool:
        """Return whether a graph is being captured, into which no kernel can be loaded."""
        return bool(torch.cuda.is_current_stream_capturing())

    def launch(
        self, plan: Plan, device: int, source: int, output: int, others: dict[str, int]
    ) -> None:
        """Launch a plan on arrays at these addresses."""
        if _current_device() == device:
            plan.launch(_raw_stream(device), source, output, **others)
        else:
            with torch.cuda.device(device):
                plan.launch(_raw_stream(device), source, output, **others)

    def written(self, out: Tensor) -> None:
        """Tell autograd of it, as PyTorch does, so that a backward that saved it raises."""
        increment_version(out)

    def in_parts(self, call: Call, x: Tensor) -> list[Tensor]:
        """Compute losses or their gradient by PyTorch's functions, some rows after the others.

        For all rows at once they would make several matrices of x's size.
        """
        call = call._replace(dim=positive(call.dim, x.dim()))
        axis, step = part_of(x, call.dim)
        if step == x.shape[axis]:
            return self.framework(call, x)
        arrays = {name: array.split(step, axis) for name, array in call.arrays.items()}
        results: list[Tensor] = []
        for number, rows in enumerate(x.split(step, axis)):
            own = {name: parts[number] for name, parts in arrays.items()}
            made = self.framework(call._replace(arrays=own), rows)
            if not results:
                extents = (call.result_shape(tuple(x.shape), one.extent) for one in call.results)
                results = [
                    self.empty(shape, one.dtype, x)
                    for shape, one in zip(extents, made, strict=True)
                ]
            for whole, part in zip(results, made, strict=True):
                whole.narrow(axis, number * step, part.shape[axis]).copy_(part)
        return results

    def recipe(self, call: Told, x: Tensor, out: Tensor | None = None) -> Recipe | Apart | None:
        """Return how a call is served; None if PyTorch must compute it.

        Only the first call of a kind is checked. Later ones find its recipe by a key.
        """
        op, dim, scale, dtype, causal, also, arrays, options = call
        layout = True if x.is_contiguous() else x.stride()
        place = x.get_device()
        key: tuple[Any, ...] = (op, dim, x.dtype, x.shape, layout, place, scale is None, dtype)
        if out is not None:
            out_layout = True if out.is_contiguous() else out.stride()
            key += (out_layout, out.data_ptr() == x.data_ptr())
        if causal or also:
            key += (causal, also)
        if arrays:
            for name, one in arrays.items():
                key += (name, one.dtype, one.shape, one.stride(), one.get_device())
        if options:
            key += options
        recipe = _threads.recipes.get(key)
        if recipe is None:
            recipe = make_recipe(self, Call(*call), x, out)
            if recipe is not None:
                _threads.keep(key, recipe)
        elif shapes.logs and recipe.problem is not None:
            shapes.count_call(recipe.problem)
        return recipe

    def compute(
        self,
        call: Told,
        x: Tensor,
        out: Tensor | None = None,
        keep: Callable[[Any, Tensor], None] | None = None,
    ) -> list[Tensor]:
        """Compute without gradients, by our kernel or else by PyTorch's functions.

        If a kernel has served the call, `keep` is called with its recipe and the result.
        """
        _, _, scale, _, _, _, arrays, options = call
        if scale is not None:
            plain_scale(scale)
        try:
            recipe = self.recipe(call, x, out)
            if recipe is not None:
                results = recipe.serve(x, out, scale, arrays)
                if results is not None:
                    if keep is not None:
                        keep(recipe, results[0])
                    return results
            results = (self.in_parts if options else self.framework)(Call(*call), x)
            return results if out is None else [out.copy_(results[0])]
        except RuntimeError as error:  # checks for the reason; other calls pay nothing
            check_dense(x=x, out=out, **arrays)
            _check_computed(x, call[3], out, error)
            raise


def _check_computed(
    x: Tensor, dtype: torch.dtype | None, out: Tensor | None, error: RuntimeError
) -> None:
    """Raise InvalidInput for what PyTorch's functions do not take, if that is the reason."""
    if isinstance(error, NotImplementedError):  # of 8-bit and complex numbers
        named = f"x is of {x.dtype}" if dtype is None else f"dtype is {dtype}"
        remedy = "give x.float(), say" if dtype is None else "give torch.float32, say"
        raise InvalidInput(
            f"{named}, which PyTorch does not compute on {x.device.type}; {remedy}"
        ) from None
    if out is not None and any(
        n > 1 and not s for n, s in zip(out.shape, out.stride(), strict=True)
    ):
        raise InvalidInput(
            "out is expanded, so that some of its elements share their memory; give a tensor such "
            "as torch.empty_like(x)"
        ) from None


TENSORS = Tensors()
compute = TENSORS.compute
skips_dynamo(Tensors.compute)
skips_dynamo(Tensors.serve)

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
    if grad.shape != output.shape or grad.device != output.device:
        return None
    call = Call(BACKWARD[log], dim, scale, dtype, arrays={"grad": grad})
    results = TENSORS.serve(call, output)
    return None if results is None else results[0]
