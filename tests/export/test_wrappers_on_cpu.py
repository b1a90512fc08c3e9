"""The programs for PyTorch, CuPy and JAX, run on the CPU up to the launch, which a stand-in does.

The stand-in gets what the kernel would, finds the arrays by their addresses, and writes the truth.
"""

import contextlib
import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from wrapper_cases import CASES

from explorer.codegen.units import emit
from explorer.codegen.variant import HostCall
from explorer.export.programs import program_for
from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.problem import Mask, Problem, inputs, results, scalars
from explorer.ops import Extent
from explorer.reference.layout import as_rows
from explorer.reference.truth import truths_of

NUMBERS = range(len(CASES))
SERVED = [n for n in NUMBERS if Extent.ROW not in CASES[n][0].operator.operands.values()]
"""Cases that programs of Python serve: none has numbers of rows, which other tests say."""


def elements(address, operand):
    """The elements of an array that begins at an address."""
    memory = (ctypes.c_char * operand.bytes).from_address(address)
    return np.frombuffer(memory, operand.dtype.numpy)


def write_truth(problem, addresses):
    """Do what the kernel does."""
    arrays = {}
    for operand in inputs(problem):
        flat = elements(addresses[operand.name], operand)
        if operand.name in problem.operator.operands:
            arrays[operand.name] = as_rows(problem, flat, operand.cols, operand.stride)
        else:
            arrays[operand.name] = (
                flat if operand.name == "lengths" else flat.reshape(-1, problem.cols)
            )
    truths, step = truths_of(problem, arrays), problem.inner
    for result in results(problem):
        written = elements(addresses[result.name], result)
        values = truths[result.name].values.astype(written.dtype)
        for row in range(problem.rows):
            first = problem.place(result, row, 0)
            written[first : first + (result.cols - 1) * step + 1 : step] = values[row]


# ------------------------------------------------------------------ PyTorch


@pytest.fixture
def torch(monkeypatch):
    """PyTorch without a GPU."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    monkeypatch.setattr(torch, "set_default_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return torch


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", SERVED)
def test_pytorchs_program(number, torch, tmp_path, capsys):
    problem, config = CASES[number]
    call, launched = HostCall.of(problem, config), []

    def launch(*passed):
        told = dict(zip(call.names, passed[:-1], strict=True))
        launched.append(passed[-1])
        same = {"matrix": ("input", "output"), "array": ("input", "output")}
        addresses = {new: told[name] for name in told for new in same.get(name, (name,))}
        for name, scalar in scalars(problem).items():
            assert told.get(name, scalar.value) == scalar.value
        write_truth(problem, addresses)
        return 0

    library = SimpleNamespace(
        **{call.function: launch, str(call.scratch_function): lambda *_: 4096}
    )
    module = ModuleType("k")
    module.__file__ = str(tmp_path / "k_torch.py")
    text = program_for("torch", emit(problem, config), tmp_path / "k.cu").text
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    module.library_for = lambda capability: library
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == 0, capsys.readouterr().out
    assert launched == [77]


@pytest.mark.parametrize("mask", [Mask.NONE, Mask.ADDITIVE])
def test_pytorchs_program_drops_no_gradient(mask, torch, tmp_path):
    text = program_for("torch", emit(Problem(4, 96, mask=mask), Config()), tmp_path / "k.cu").text
    module = {"__file__": str(tmp_path / "k_torch.py"), "__name__": "k"}
    exec(compile(text, "k_torch.py", "exec"), module)
    x = [torch.randn(4, 96)] + [torch.zeros(1, 96)] * (mask is not Mask.NONE)
    x[-1].requires_grad_()
    with pytest.raises(ValueError, match=r"no gradient: call it under torch.no_grad\(\)"):
        module["softmax"](*x)


# ------------------------------------------------------------------ CuPy


class Array(np.ndarray):
    """An array of NumPy's that tells its address as one of CuPy's does."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def softmax(x, axis):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def log_softmax(x, axis):
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def logsumexp(x, axis):
    largest = x.max(axis, keepdims=True)
    return np.log(np.exp(x - largest).sum(axis)) + largest.squeeze(axis)


def stand_in(variant, launched):
    """Modules that look like CuPy's to a program, and launch kernels of a variant."""
    problem = variant.problem

    def kernel_of(entry):
        (launch,) = (one for one in variant.launches if one.entry == entry)

        def kernel(grid, block, arguments, shared_mem=0):
            sms = 132
            assert (*grid, *block) == (launch.grid_on(sms), launch.block)
            assert shared_mem == launch.shared_bytes == kernel.max_dynamic_shared_size_bytes
            told = dict(zip(launch.arguments, arguments, strict=True))
            for name, scalar in scalars(problem).items():
                if name in told:
                    assert type(told[name]).__name__ == scalar.dtype.array_name
                    assert told[name] == scalar.value
            if "scratch" in told:
                assert told["scratch"].nbytes == variant.scratch_bytes
            launched.append(entry)
            if launch is variant.launches[-1]:
                arrays = {n: a for n, a in told.items() if isinstance(a, np.ndarray)}
                write_truth(problem, {n: a.ctypes.data for n, a in arrays.items()})

        kernel.max_dynamic_shared_size_bytes = 0
        return kernel

    cupy = ModuleType("cupy")
    functions = "where arange exp amax stack ascontiguousarray"
    for name in f"{functions} float64 float32 float16 int64 int32 uint8".split():
        setattr(cupy, name, getattr(np, name))
    cupy.empty = lambda shape, dtype: np.empty(shape, dtype).view(Array)
    generator = np.random.RandomState(0)
    cupy.random = SimpleNamespace(
        seed=generator.seed,
        randint=lambda *of, **more: generator.randint(*of, **more).view(Array),
        standard_normal=lambda shape: generator.standard_normal(shape).view(Array),
    )
    cupy.RawModule = lambda **_: SimpleNamespace(get_function=kernel_of)
    device = SimpleNamespace(attributes={"MultiProcessorCount": 132})
    cupy.cuda = SimpleNamespace(Device=lambda: device)
    special = ModuleType("cupyx.scipy.special")
    for one in (softmax, log_softmax, logsumexp):
        setattr(special, one.__name__, one)
    scipy, cupyx = ModuleType("cupyx.scipy"), ModuleType("cupyx")
    scipy.special, cupyx.scipy = special, scipy
    return {one.__name__: one for one in (cupy, cupyx, scipy, special)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", NUMBERS)
def test_cupys_program(number, monkeypatch, tmp_path, capsys):
    variant, launched = emit(*CASES[number]), []
    try:
        text = program_for("cupy", variant, tmp_path / "k.cu").text
    except InvalidInput as refused:
        pytest.skip(str(refused))
    (tmp_path / "k.cu").write_text(variant.source)
    for name, module in stand_in(variant, launched).items():
        monkeypatch.setitem(sys.modules, name, module)
    module = ModuleType("k")
    module.__file__ = str(tmp_path / "k_cupy.py")
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == 0, capsys.readouterr().out
    assert launched == [launch.entry for launch in variant.launches]


def test_cupys_program_launches_nothing_for_no_rows(monkeypatch, tmp_path):
    """CuPy would launch a block at least, which reads a row that is not there."""
    variant, launched = emit(*CASES[0]), []
    (tmp_path / "k.cu").write_text(variant.source)
    stood_in = stand_in(variant, launched)
    for name, module in stood_in.items():
        monkeypatch.setitem(sys.modules, name, module)
    module = ModuleType("k")
    module.__file__ = str(tmp_path / "k_cupy.py")
    text = program_for("cupy", variant, tmp_path / "k.cu").text
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    none = np.empty((0, variant.problem.cols), np.float32).view(Array)
    assert module.softmax(none).shape == none.shape and not launched


@pytest.mark.parametrize(
    ("shape", "kind", "says"),
    [
        ((64,), np.int32, "ids must be of int64"),
        ((64, 1), np.int64, "ids must have the shape"),
        ((63,), np.int64, "ids must have the shape"),
    ],
)
def test_ids_that_the_kernel_cannot_read_are_refused(monkeypatch, tmp_path, shape, kind, says):
    variant = emit(*next(case for case in CASES if case[0].ids_dtype))
    (tmp_path / "k.cu").write_text(variant.source)
    for name, module in stand_in(variant, []).items():
        monkeypatch.setitem(sys.modules, name, module)
    module = ModuleType("k")
    module.__file__ = str(tmp_path / "k_cupy.py")
    text = program_for("cupy", variant, tmp_path / "k.cu").text
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    x = np.zeros((64, 1000), np.float32).view(Array)
    with pytest.raises(ValueError, match=says):
        module.log_prob(x, np.zeros(shape, kind).view(Array))


# ------------------------------------------------------------------ JAX


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", SERVED)
def test_jaxs_program(number, monkeypatch, tmp_path, capsys):
    jax = pytest.importorskip("jax")
    problem, config = CASES[number]
    names = [operand.name for operand in inputs(problem)]

    def ffi_call(name, kind, input_output_aliases=None):
        assert bool(input_output_aliases) == problem.in_place

        def call(*arrays, **numbers):
            for key, value in numbers.items():
                assert type(value).__name__ == scalars(problem)[key].dtype.array_name
                assert value == scalars(problem)[key].value
            arrays = [np.ascontiguousarray(array) for array in arrays]
            kinds = kind if isinstance(kind, list) else [kind]
            made = {}
            for one, result in zip(kinds, results(problem), strict=True):
                made[result.name] = np.zeros(one.shape, result.dtype.numpy)
                assert made[result.name].dtype == one.dtype
            told = {**dict(zip(names, arrays, strict=True)), **made}
            write_truth(problem, {name: array.ctypes.data for name, array in told.items()})
            written = [jax.numpy.asarray(array) for array in made.values()]
            return written if isinstance(kind, list) else written[0]

        return call

    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    module = ModuleType("k")
    module.__file__ = str(tmp_path / "k_jax.py")
    variant = emit(problem, config)
    (tmp_path / "k.cu").write_text(variant.source)
    text = program_for("jax", variant, tmp_path / "k.cu").text
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    module.register = lambda: None
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == 0, capsys.readouterr().out
