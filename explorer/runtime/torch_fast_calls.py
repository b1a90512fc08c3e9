"""Set up the compiled function of `fast_call.c`, which serves calls on PyTorch's tensors.

It serves plain calls alone: exact tensors without gradient, mask and lengths, on the current GPU,
whose kernel is one launch without scratch memory. Python serves the first call of each kind, as it
serves all other calls, and then passes the launch to the function.
"""

import functools
import os
import threading
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from explorer.ops import FORWARD
from explorer.runtime import fast_call, launcher, shapes, torch_calls
from explorer.runtime.layout import Call
from explorer.runtime.service import log, on_compiled_calls, options, service
from explorer.runtime.torch_calls import MOST_RECIPES, TensorRecipe

Plain = tuple[bool, Tensor, int, float | None, None, None, torch.dtype | None, Tensor | None]
"""Arguments of a plain call: log, x, dim, scale, mask, lengths, dtype and out."""

_lock = threading.Lock()
_library: ModuleType | None = None
_reason = ""
"""Why there is no compiled function on this machine; empty until that is known."""


def enable() -> None:
    """Let calls use the compiled function as soon as it is built; if calls wait, build it now.

    The logger `explorer` reports at level DEBUG why there is none.
    """
    if options.wait and not _reason:
        prepare()
    elif _library is None and not _reason:
        _use(_first_call)
    else:
        _use(None if _library is None else _library.call)


def _follow() -> None:
    """Follow the option `compiled_calls` after it was set."""
    if options.compiled_calls:
        enable()
    else:
        _use(None)


def prepare() -> None:
    """Build and load the compiled function, unless that was tried before, and use it."""
    global _library, _reason
    with _lock:
        if _library is None and not _reason:
            try:
                driver = launcher.driver_functions()  # raises without a driver, before a build
                library = fast_call.load()
                configure(library, *driver)
                _library = library
                service.when_forgotten(library.forget)
            except Exception as error:  # a compiler and a driver may fail in any way
                _reason = str(error) or type(error).__name__
                log.debug("calls are served by Python: %s", error)
    _use(_library.call if _library is not None and options.compiled_calls else None)


@torch_calls.skips_dynamo
def _first_call(*arguments: Any) -> Any:
    """Serve a call by Python, and build the function meanwhile, if it may serve such calls.

    A program without a tensor on a GPU starts no thread and no compiler.
    """
    from explorer.runtime import functions

    _build_for(arguments[1])
    return functions.uncompiled(*arguments)


def _none_known(*_: Any) -> None:
    """Leave a call of PyTorch's own softmax to Python."""


def _first_known(*arguments: Any) -> None:
    """Leave a call to Python, and build the function meanwhile, if it may serve such calls."""
    _build_for(arguments[0])


if_known: Any = _none_known
"""Serves PyTorch's own softmax behind `register_torch`, or returns None: the compiled function of
this name, once it is built. Its arguments are x, dim, scale, mask, causal, lengths, dtype and
log."""


def can_learn(x: Tensor) -> bool:
    """Return whether `if_known` is in use and may serve tensors like this one."""
    return _library is not None and if_known is _library.if_known and x.is_contiguous()


def learn(log: bool, x: Tensor, dim: int, dtype: torch.dtype | None, recipe: Any) -> None:
    """Pass the launch of a call that Python served to the compiled function, if it can serve it."""
    if _library is not None and can_learn(x):
        _remember(_library, (log, x, dim, None, None, None, dtype, None), recipe, x)


def _build_for(x: Any) -> None:
    """Build the function in the background, if it may serve calls on such tensors."""
    if _may_serve(x):
        _use(None)
        service.do_later(prepare)


def _may_serve(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_cuda


def _use(function: Any) -> None:
    """Let all calls begin with a function, or with Python for None.

    These are calls of explorer's functions, of generated code, and of PyTorch's own softmax.
    """
    global if_known
    from explorer.runtime import functions, torch_inductor  # which import this module

    functions.compiled = function
    if _library is not None and function is _library.call:
        torch_inductor.softmax, if_known = _library.as_operator, _library.if_known
    else:
        torch_inductor.softmax = torch_inductor.softmax_in_python
        if_known = _none_known if function is None else _first_known


def _after_fork() -> None:
    """Begin anew in a forked process, which has no thread that builds the function."""
    global _lock
    _lock = threading.Lock()
    if options.compiled_calls and _library is None and not _reason:
        _use(_first_call)


# ------------------------------------------------------------------ configuration


def configure(library: ModuleType, launch: int, current_context: int) -> None:
    """Pass to the compiled function what it needs of PyTorch, and the driver's two functions.

    Raises AttributeError for a PyTorch without DLPack's C exchange API, which 2.11 and 2.13 have,
    ValueError for one with another version of it, and ValueError or TypeError if its tensors have
    `requires_grad` and `is_neg` of another kind.
    """
    from explorer.runtime import functions, torch_inductor

    c = torch._C
    answers = (
        (c._functorch.peek_interpreter_stack, None),
        (c._len_torch_dispatch_stack, 0),
        (c._len_torch_function_stack, 0),
        (c._is_tracing, False),
    )
    values = (
        (vars(forward_ad), "_current_level", -1),
        (vars(torch.compiler), "_is_compiling_flag", False),
        (vars(shapes), "logs", ()),
    )
    objects = (
        *(Tensor, torch.nn.Parameter, torch.dtype, "cuda", Tensor.requires_grad, Tensor.is_neg),
        *(torch.is_grad_enabled, torch.is_autocast_enabled, _version_counter()),
        *(answers, values, functions.uncompiled, functools.partial(_learn, library)),
        torch_inductor.softmax_in_python,
    )
    exchange = Tensor.__dlpack_c_exchange_api__
    library.configure(objects, exchange, launch, current_context, MOST_RECIPES)


def _version_counter() -> Any:
    """Return a function that marks a tuple of tensors as written for autograd."""
    with torch.inference_mode(False):  # whose tensors have no versions
        probe = torch.empty(0, device="cpu")
    torch._C._increment_version((probe,))
    if probe._version != 1:
        raise ValueError("this PyTorch counts the versions of tensors otherwise")
    return torch._C._increment_version


@torch_calls.skips_dynamo
def _learn(library: ModuleType, *arguments: Any) -> Tensor:
    """Serve a plain call by Python; if a kernel served it, the function serves the next ones."""
    log, x, dim, scale, _, _, dtype, out = arguments
    keep = functools.partial(_remember, library, arguments)
    if out is not None:
        torch_calls.check_out(x, dtype or x.dtype, out)
    return torch_calls.compute(Call(FORWARD[log], dim, scale, dtype), x, out, keep)[0]


def _remember(library: ModuleType, call: Plain, recipe: TensorRecipe, result: Tensor) -> None:
    """Pass the launch of such calls to the compiled function, if they take a single launch."""
    launch = recipe.plan.only_launch() if recipe.is_plain else None
    if launch is None:
        return
    x = call[1]
    strides = x.stride() if recipe.is_alike else result.stride()  # as torch.empty_like has them
    allocate, allocated = _allocation(x, tuple(x.shape), strides, recipe.target)
    kinds = {"input": 1, "output": 2, "scale": 4 if recipe.plan.scale_is_f64 else 3}  # enum Kind
    arguments = launch.arguments
    library.remember(
        call,
        launch.function,
        launch.context,
        launch.grid,
        launch.block,
        launch.shared_bytes,
        launch.overlaps,
        bytes(kinds[a] if isinstance(a, str) else 0 for a in arguments),
        b"".join((b"" if isinstance(a, str) else a).ljust(8, b"\0") for a in arguments),
        recipe.plan.mask,
        recipe.input_bytes,
        recipe.output_bytes,
        allocate,
        allocated,
        (recipe.plan, call[6]),
    )


def _allocation(
    x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> tuple[Any, tuple[Any, ...]]:
    """Return a function that makes an output, and its arguments.

    The function of Inductor's code takes 0.3 us less than torch.empty_like, which uses the
    dispatcher.
    """
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    direct = getattr(guards, f"_empty_strided_{x.device.type}", None)
    if direct is not None:
        return direct, (shape, strides, dtype)
    make = functools.partial(torch.empty_strided, dtype=dtype, device=x.device)
    return make, (shape, strides)


os.register_at_fork(after_in_child=_after_fork)
on_compiled_calls(_follow)
if options.compiled_calls:
    _use(_first_call)  # also where calls wait: an import must not
