"""The programs for PyTorch, CuPy and JAX, run on the CPU up to the launch, which a stand-in does.

The stand-in gets what the kernel would, finds the arrays by their addresses, and writes the truth.
"""

import contextlib
import ctypes
import shutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from emulated_output import results_of
from wrapper_cases import CASES, EVERY_RESULT, MULTIPLY_ADDS

from explorer import choose
from explorer.codegen.units import emit
from explorer.codegen.variant import HostCall, namespace
from explorer.compile.compiler import Compiler
from explorer.devices.emulated.device import EmulatedKernel
from explorer.export.programs import program_for
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Layout, Mask, Problem, inputs, results, scalars
from explorer.ops import OPERATORS, Extent, Op
from explorer.reference.layout import as_rows
from explorer.reference.truth import truths_of

NUMBERS = range(len(CASES))
H200 = known_gpu("NVIDIA H200")


def elements(address, operand):
    """The elements of an array that begins at an address."""
    memory = (ctypes.c_char * operand.bytes).from_address(address)
    return np.frombuffer(memory, operand.dtype.numpy)


def truth(problem, arrays):
    """What the kernel computes."""
    truths = truths_of(problem, arrays)
    return [truths[result.name].values for result in results(problem)]


def write_truth(problem, addresses, computed=truth):
    """Do what the kernel does, or what `computed` does."""
    arrays = {}
    for operand in inputs(problem):
        flat = elements(addresses[operand.name], operand)
        if operand.name in ("key", "value") and problem.layout is Layout.NHD:
            keys = flat.reshape(-1, problem.cols, problem.key_heads, operand.cols)
            arrays[operand.name] = keys.swapaxes(1, 2).reshape(-1, operand.cols)
        elif operand.name in ("key", "value"):
            arrays[operand.name] = flat.reshape(-1, operand.cols)
        elif operand.name in problem.operator.operands:
            arrays[operand.name] = as_rows(problem, flat, operand.cols, operand.stride)
        else:
            arrays[operand.name] = (
                flat if operand.name == "lengths" else flat.reshape(-1, problem.cols)
            )
    step = problem.inner
    for result, found in zip(results(problem), computed(problem, arrays), strict=True):
        written = elements(addresses[result.name], result)
        values = found.astype(written.dtype)
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
    torch._dynamo.reset()  # which compiles a function a few times at most
    stream = SimpleNamespace(cuda_stream=77)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return torch


def loaded(problem, config, folder, launched=None, computed=truth):
    """The program for a problem as a module, whose kernel serves the CPU; `launched` gets streams.

    A kernel that is not to be launched is None. Otherwise `computed` stands for it.
    """
    call = HostCall.of(problem, config)

    def launch(*passed):
        told = dict(zip(call.names, passed[:-1], strict=True))
        launched.append(passed[-1])
        same = {"matrix": ("input", "output"), "array": ("input", "output")}
        addresses = {new: told[name] for name in told for new in same.get(name, (name,))}
        for name, scalar in scalars(problem).items():
            assert told.get(name, scalar.value) == scalar.value
        write_truth(problem, addresses, computed)
        return 0

    library = SimpleNamespace(
        **{call.function: launch, str(call.scratch_function): lambda *_: 4096}
    )
    module = ModuleType("k")
    module.__file__ = str(folder / "k_torch.py")
    text = program_for("torch", emit(problem, config), folder / "k.cu").text
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    if launched is not None:
        module.library_for = lambda capability: library
        operator = module._overwrite if problem.in_place else getattr(module, problem.op)
        operator.register_kernel("cpu")(operator._init_fn)
    return module


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", NUMBERS)
def test_pytorchs_program(number, torch, tmp_path, capsys):
    launched = []
    module = loaded(*CASES[number], tmp_path, launched)
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == 0, capsys.readouterr().out
    assert launched == [77]


@pytest.mark.parametrize(("language", "library"), [("torch", "PyTorch"), ("jax", "JAX")])
def test_a_program_says_that_there_is_no_gpu(language, library, tmp_path):
    pytest.importorskip(language, reason=f"needs {library}")
    (tmp_path / "k.cu").write_text((made := emit(*CASES[0])).source)
    program = tmp_path / f"k_{language}.py"
    program.write_text(program_for(language, made, tmp_path / "k.cu").text)
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        pytest.skip("there is a GPU")
    assert ran.returncode == 2
    assert ran.stderr == f"{library} finds no GPU here: it needs one of NVIDIA's\n"


def example(torch, problem, dtype):
    """What the function of a program takes for a problem; a loss ignores the first row."""
    torch.manual_seed(0)
    rows, cols, inner = problem.rows, problem.cols, problem.inner
    shape = (rows // inner, cols, inner) if inner > 1 else (rows, problem.input_stride)
    x = torch.randn(shape, dtype=dtype)
    arrays = [(x if inner > 1 else x[:, :cols]).requires_grad_()]
    if problem.mask is Mask.ADDITIVE:
        arrays.append(torch.randn(problem.mask_rows, cols, dtype=dtype).requires_grad_())
    if problem.mask is Mask.LENGTHS:
        arrays.append(torch.arange(rows, dtype=torch.int32) % cols + 1)
    if problem.ids_dtype:
        shape = shape[::2] if inner > 1 else (rows, problem.ids_per_row)
        ids = torch.randint(0, cols, shape)
        ids[0], ids[1] = problem.ignore_index if problem.has_target else 0, cols - 1
        ids[-1, 0] = ids[0, 0]
        arrays.append(ids if problem.ids_per_row > 1 or inner > 1 else ids[:, 0].contiguous())
    for name, extent in problem.operator.operands.items():
        if extent is Extent.ROW:
            wide = getattr(torch, problem.dtype.arithmetic.array_name)
            numbers = torch.rand((rows // inner, inner) if inner > 1 else (rows,), dtype=wide)
            arrays.append(numbers.requires_grad_(name == "loss_grad"))
    return arrays


def own(torch, problem, x, *arrays):
    """PyTorch's own results for a problem's arrays, but for whole numbers."""
    rows, limits = torch.arange(problem.rows)[:, None], problem.cols
    counted = x if problem.scale is None else x * problem.scale
    if problem.mask is Mask.ADDITIVE:
        counted = counted + arrays[0][rows[:, 0] % problem.mask_rows]
    elif problem.mask is Mask.CAUSAL:
        limits = rows % problem.mask_rows + 1 + problem.cols - problem.mask_rows
    elif problem.mask is Mask.LENGTHS:
        limits = arrays[0][:, None]
    if problem.softcap:
        counted = problem.softcap * torch.tanh(counted / problem.softcap)
    if problem.mask in (Mask.CAUSAL, Mask.LENGTHS):
        counted = counted.masked_fill(torch.arange(problem.cols) >= limits, -1e30)
    logs = torch.log_softmax(counted, 1)
    lse, maximum = torch.logsumexp(counted, 1), counted.amax(1)
    made = {"softmax": logs.exp(), "log_softmax": logs, "logsumexp": lse}
    made |= {"lse": lse, "entropy": -(logs.exp() * logs).sum(1)}
    made |= {"maximum": maximum, "log_sum": lse - maximum}
    if problem.is_product:
        made["multiply_rows"] = counted * arrays[0][:, None]
    made["mean_gap"] = maximum - counted.mean(1)
    if problem.has_target:
        kept = {"ignore_index": problem.ignore_index, "reduction": "none"}
        made["cross_entropy"] = torch.nn.functional.cross_entropy(counted, arrays[-1], **kept)
    elif problem.ids_dtype:
        ids = arrays[-1]
        taken = logs.gather(1, ids if ids.ndim > 1 else ids[:, None])
        made["log_prob"] = taken if ids.ndim > 1 else taken[:, 0]
    names = [str(problem.op), *(result.name for result in problem.results[1:])]
    return [made[name] for name in names if name in made]


def function_of(problem, folder):
    """The function of the program for a problem, whose kernel serves the CPU."""
    return getattr(loaded(problem, config_for(problem), folder, []), problem.op)


def config_for(problem):
    """A config that has a template for a problem."""
    if problem.operator.reduces:
        return Config(algorithm="online-block-max") if problem.ids_dtype else Config()
    return Config(cache="none", cache_holds="input", exp="expf" if problem.is_product else "exp2f")


def several(results):
    """The results, of a function that has one too."""
    return results if isinstance(results, tuple) else (results,)


def floating(results):
    """The results that have a gradient."""
    return [result for result in several(results) if result.is_floating_point()]


GRADIENTS = [
    {},
    {"op": Op.LOG_SOFTMAX, "scale": -0.5},
    {"scale": 0.5, "input_stride": 9, "output_stride": 8},
    {"inner": 2},
    {"op": Op.LOG_SOFTMAX, "inner": 2},
    {"mask": Mask.CAUSAL, "mask_rows": 3},
    {"mask": Mask.LENGTHS, "op": Op.LOG_SOFTMAX},
    {"mask": Mask.ADDITIVE, "mask_rows": 3, "scale": 2.0},
    {"op": Op.LOGSUMEXP, "scale": -2.0},
    {"op": Op.LOGSUMEXP, "mask": Mask.LENGTHS},
    {"op": Op.LOGSUMEXP, "mask": Mask.ADDITIVE, "mask_rows": 2},
    {"op": Op.LOGSUMEXP, "inner": 2, "also": "maximum,log_sum"},
    {"op": Op.LOG_PROB},
    {"op": Op.LOG_PROB, "ids_per_row": 3, "scale": 0.5, "also": EVERY_RESULT},
    {"op": Op.CROSS_ENTROPY, "scale": 0.5, "ignore_index": 2},
    {"op": Op.CROSS_ENTROPY, "inner": 2, "also": "lse"},
    {"op": Op.CROSS_ENTROPY, "softcap": 3.0, "scale": 0.5},
    {"op": Op.CROSS_ENTROPY, "also": "lse,maximum,log_sum,mean_gap"},
    {"op": Op.MULTIPLY_ROWS},
    {"op": Op.MULTIPLY_ROWS, "scale": -0.5, "input_stride": 9, "output_stride": 8},
]


def test_each_result_with_a_gradient_has_a_case():
    """Or a new result's gradient might be dropped."""
    cases = [Problem(6, 7, **told) for told in GRADIENTS]
    found = {(case.op, result.name) for case in cases for result in case.results}
    for op, operator in OPERATORS.items():
        derives = operator.is_gradient or op in (
            Op.CROSS_ENTROPY_BACKWARD,
            Op.CROSS_ENTROPY_WITH_GRADIENT,
        )
        if operator.over is Extent.MATRIX and not derives:
            assert {(op, result.name) for result in operator.results} <= found


@pytest.fixture(params=GRADIENTS, ids=lambda told: "-".join(map(str, told.values())))
def told(request):
    return request.param


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
def test_gradients_of_a_program_are_those_of_its_results(told, torch, tmp_path):
    """Of float64, against differences; the second ones, too."""
    problem = Problem(6, 7, DType.F64, **told)
    function = function_of(problem, tmp_path)
    arrays = example(torch, problem, torch.float64)

    def finite(*arrays):
        """Without the infinities, whose differences are no numbers."""
        return tuple(torch.where(one.isfinite(), one, 0) for one in floating(function(*arrays)))

    assert torch.autograd.gradcheck(finite, arrays)
    assert torch.autograd.gradgradcheck(finite, arrays)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_gradients_of_a_program_are_pytorchs(name, told, torch, tmp_path):
    kind = next(one for one in DType if one.array_name == name)
    problem, dtype = Problem(6, 7, kind, **told), getattr(torch, name)
    function = function_of(problem, tmp_path)
    arrays = example(torch, problem, dtype)
    if problem.mask is Mask.LENGTHS:
        arrays[1][0] = 0  # a row of NaN, or -inf, whose gradient is 0
    wide = [a.detach().double().requires_grad_() if a.requires_grad else a for a in arrays]
    found, beside = floating(function(*arrays)), own(torch, problem, *wide)
    grads = [torch.randn_like(one) for one in found]
    if problem.fills_rows:  # a hidden element has no gradient to give
        grads = [grad.where(one.isfinite(), 0) for grad, one in zip(grads, found, strict=True)]
    assert [one.shape for one in found] == [one.shape for one in beside]
    given = [grad.double() for grad in grads]
    made = torch.autograd.grad(found, [a for a in arrays if a.requires_grad], grads)
    expected = torch.autograd.grad(beside, [a for a in wide if a.requires_grad], given)
    needed = [array for array in arrays if array.requires_grad]
    for array, one, other in zip(needed, made, expected, strict=True):
        assert one.dtype is array.dtype
        error = (one - other).abs().max() / other.abs().max()
        assert error < 4 * torch.finfo(dtype).eps


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
def test_an_operator_is_what_pytorch_expects_of_one(told, torch, tmp_path):
    problem = Problem(6, 7, DType.F32, **told)
    function = function_of(problem, tmp_path)
    utilities = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if problem.is_dense:  # this one gives copies without gaps
        utilities.append("test_aot_dispatch_dynamic")
    arrays = tuple(example(torch, problem, torch.float32))
    torch.library.opcheck(function, arrays, test_utils=utilities)


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
def test_an_operator_breaks_no_graph(told, torch, tmp_path):
    problem = Problem(6, 7, DType.F32, **told)
    function = function_of(problem, tmp_path)

    def twice(*arrays):
        return 2 * floating(function(*arrays))[0]

    arrays = example(torch, problem, torch.float32)
    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*arrays), twice(*arrays)
    assert torch.equal(found, expected)
    needed = [array for array in arrays if array.requires_grad]
    grad = torch.randn_like(found)
    made = torch.autograd.grad(found, needed, grad)
    for one, other in zip(made, torch.autograd.grad(expected, needed, grad), strict=True):
        assert torch.allclose(one, other, equal_nan=True)
    with torch.no_grad():
        assert torch.equal(compiled(*arrays), found)


def test_no_gradient_is_kept_where_none_is_asked_for(torch, tmp_path):
    problem = Problem(6, 7)
    function = function_of(problem, tmp_path)
    (x,) = example(torch, problem, torch.float32)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not function(x).requires_grad
            assert torch.allclose(function(x), x.softmax(1))
    assert function(x).requires_grad and not function(x.detach()).requires_grad


def test_a_row_that_does_not_count_has_no_gradient_whatever_it_holds(torch, tmp_path):
    problem = Problem(6, 7, op=Op.CROSS_ENTROPY, also="lse")
    function = function_of(problem, tmp_path)
    x, ids = example(torch, problem, torch.float32)
    ids[2], ids[3] = 7, -1  # no columns, whose losses are NaN
    with torch.no_grad():
        x[0] = float("nan")
    loss, _ = function(x, ids)
    loss.sum().backward()
    expected = x.detach().softmax(1)
    expected[torch.arange(6), ids.clamp(0, 6)] -= 1
    expected[[0, 2, 3, 5]] = 0
    assert torch.allclose(x.grad, expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_capped_row_that_does_not_count_has_no_gradient_whatever_it_holds(torch, tmp_path):
    function = function_of(Problem(6, 7, op=Op.CROSS_ENTROPY, softcap=3.0), tmp_path)
    x, ids = example(torch, Problem(6, 7, op=Op.CROSS_ENTROPY), torch.float32)
    with torch.no_grad():
        x[0] = float("nan")
    function(x, ids).sum().backward()
    assert (x.grad[0] == 0).all() and x.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", [Op.CROSS_ENTROPY, Op.LOG_PROB])
@pytest.mark.parametrize("target", [12.0, 24.0, 40.0])
def test_gradients_near_a_probability_of_1_keep_their_digits(op, target, torch, tmp_path):
    function = function_of(Problem(6, 999, op=op), tmp_path)
    x = torch.zeros(6, 999)
    x[:, 7] = target
    function(x.requires_grad_(), torch.full((6,), 7)).sum().backward()
    rest = 998 * np.exp(-target)
    wanted = (1 if op is Op.LOG_PROB else -1) * rest / (1 + rest)
    assert x.grad[0, 7].item() == pytest.approx(wanted, rel=4e-6)
    assert x.grad[0, 8].item() == pytest.approx(-wanted / 998, rel=4e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scale", [None, -0.5])
def test_gradients_near_a_cap_keep_their_digits(scale, torch, tmp_path):
    told = {"op": Op.CROSS_ENTROPY, "softcap": 30.0, "scale": scale}
    gradients = {}
    for kind, dtype in ((DType.F32, torch.float32), (DType.F64, torch.float64)):
        problem = Problem(6, 7, kind, **told)
        x, ids = example(torch, problem, torch.float32)
        x = (x.detach() * 250).to(dtype).requires_grad_()
        function_of(problem, tmp_path)(x, ids).sum().backward()
        gradients[kind] = x.grad.double()
    torch.testing.assert_close(*gradients.values(), rtol=1e-4, atol=0)


def test_two_programs_of_one_name_are_two_operators(torch, tmp_path):
    kinds = [Problem(6, 7, op=Op.CROSS_ENTROPY, ignore_index=n) for n in (2, 3)]
    functions = [function_of(kind, tmp_path) for kind in kinds]
    ids = torch.full((6,), 2)
    losses = [function(torch.zeros(6, 7), ids) for function in functions]
    assert losses[0].eq(0).all() and losses[1].gt(1).all()


# What has no gradient says so.


def test_a_program_in_place_gives_no_gradient(torch, tmp_path):
    module = loaded(Problem(6, 7, in_place=True), Config(), tmp_path, [])
    x = torch.randn(6, 7)
    expected = x.softmax(1)
    torch.library.opcheck(module._overwrite, (x.clone(),))
    compiled = torch.compile(module.softmax, fullgraph=True, backend="aot_eager")
    assert compiled(x) is x and torch.allclose(x, expected)
    with pytest.raises(ValueError, match=r"x needs a gradient and is overwritten: give x.detach"):
        module.softmax(x.requires_grad_())
    with torch.no_grad():
        assert module.softmax(x) is x


@pytest.mark.parametrize(
    ("told", "remedy"),
    [
        ({"op": Op.SOFTMAX_BACKWARD}, "call torch.softmax where a second"),
        ({"op": Op.LOG_SOFTMAX_BACKWARD}, "call torch.log_softmax where a second"),
        ({"op": Op.CROSS_ENTROPY_BACKWARD}, "call torch.nn.functional.cross_entropy where"),
        ({"op": Op.CROSS_ENTROPY_BACKWARD, "inner": 2}, "call torch.nn.functional.cross_entropy"),
        ({"op": Op.CROSS_ENTROPY_WITH_GRADIENT}, "give x.detach.* and take x's gradient"),
        ({"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "also": "loss,lse"}, "give x.detach"),
    ],
)
def test_a_gradient_gives_no_gradient_of_its_own(told, remedy, torch, tmp_path):
    """Of none of its results and to none of its arrays; it is an operator nevertheless."""
    problem = Problem(6, 7, DType.F32, **told)
    function = function_of(problem, tmp_path)
    arrays = tuple(a.detach() for a in given_to(torch, problem))
    compiled = torch.compile(lambda *a: function(*a), fullgraph=True, backend="aot_eager")
    for one, other in zip(several(compiled(*arrays)), several(function(*arrays)), strict=True):
        assert not one.requires_grad and torch.equal(one, other)
    for number in (n for n, array in enumerate(arrays) if array.is_floating_point()):
        needing = [a.clone().requires_grad_(n == number) for n, a in enumerate(arrays)]
        for result in several(function(*needing)):
            with pytest.raises(RuntimeError, match=rf"no gradient of its own: {remedy}"):
                result.sum().backward()
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(function, arrays, test_utils=utilities)


def given_to(torch, problem):
    """The arrays that the function of a problem takes, those of a gradient included."""
    arrays = example(torch, problem, torch.float32)
    return [*arrays, torch.randn(6, 7)] if problem.operator.is_gradient else arrays


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ({"op": Op.CROSS_ENTROPY_BACKWARD}, "x ids maximum log_sum loss_grad"),
        ({"op": Op.CROSS_ENTROPY_WITH_GRADIENT}, "x ids loss_grad"),
        ({"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "also": "loss"}, "x ids loss_grad"),
        ({"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "also": "loss,lse"}, "x ids loss_grad"),
        ({"op": Op.MULTIPLY_ROWS}, "x loss_grad"),
        ({"mask": Mask.ADDITIVE}, "x mask"),
    ],
)
def test_a_program_in_place_drops_no_gradient(told, names, torch, tmp_path):
    problem = Problem(6, 7, DType.F32, in_place=True, **told)
    module = loaded(problem, config_for(problem), tmp_path, [])
    function, arrays = getattr(module, problem.op), given_to(torch, problem)
    for number, name in enumerate(names.split()):
        if arrays[number].is_floating_point():
            needing = [a.detach().requires_grad_(n == number) for n, a in enumerate(arrays)]
            with pytest.raises(ValueError, match=rf"^{name} needs a gradient"):
                function(*needing)
    x, *others = (array.detach() for array in arrays)
    first, *also = several(function(x, *others))
    assert first is x and len(also) == len(problem.results) - 1
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert several(compiled(x, *others))[0] is x
    torch.library.opcheck(module._overwrite, (x, *others))


def test_numbers_of_rows_may_be_one_number_that_is_expanded(torch, tmp_path):
    """As the gradient of a sum of losses is."""
    problem = Problem(6, 7, op=Op.CROSS_ENTROPY_WITH_GRADIENT, label_smoothing=0.1)
    function = function_of(problem, tmp_path)
    x, ids, _ = example(torch, problem, torch.float32)
    found = function(x.detach(), ids, torch.tensor(0.5).expand(6))
    kept = {"reduction": "sum", "label_smoothing": 0.1}
    (0.5 * torch.nn.functional.cross_entropy(x, ids, **kept)).backward()
    assert torch.allclose(found, x.grad, atol=1e-6)


@pytest.mark.parametrize(
    ("number", "other", "says"),
    [
        (2, lambda numbers: numbers.half(), "maximum must be of float32"),
        (3, lambda numbers: numbers[:5], "log_sum must have the shape"),
        (4, lambda numbers: numbers[:, None], "loss_grad must have the shape"),
    ],
)
def test_numbers_of_rows_that_the_kernel_cannot_read_are_refused(
    number, other, says, torch, tmp_path
):
    problem = Problem(6, 7, op=Op.CROSS_ENTROPY_BACKWARD)
    arrays = example(torch, problem, torch.float32)
    arrays[number] = other(arrays[number])
    with pytest.raises(ValueError, match=says):
        function_of(problem, tmp_path)(*arrays)


def test_a_program_drops_no_forward_mode_gradient(torch, tmp_path):
    function = function_of(Problem(6, 7), tmp_path)
    x = torch.randn(6, 7)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(ValueError, match="no forward-mode gradient"):
            function(dual)
    with pytest.raises((ValueError, RuntimeError)):
        torch.func.jvp(function, (x,), (x,))


def test_a_program_refuses_a_tensor_on_the_cpu(torch, tmp_path):
    with pytest.raises(ValueError, match=r"^x must be on a GPU$"):
        loaded(Problem(6, 7), Config(), tmp_path).softmax(torch.randn(6, 7))


# Attention: the numbers of sequences and keys, and the strides, are each call's.

ATTENTION = {
    layout: Problem(
        *(64, 1000, DType.F16, Op.DECODE_ATTENTION),
        **{"group": 4, "key_heads": 2, "mask": Mask.LENGTHS, "also": "lse", "layout": layout},
    )
    for layout in Layout
}


def attention(layout, folder):
    """The operator of a program, and what its kernel was told in the last call."""
    problem, told = ATTENTION[layout], {}
    module, call = loaded(problem, MULTIPLY_ADDS, folder, []), HostCall.of(problem, MULTIPLY_ADDS)

    def launch(*passed):
        told.update(zip(call.names, passed[:-1], strict=True))
        return 0

    module.library_for = lambda _: SimpleNamespace(**{call.function: launch})
    return module.decode_attention, told


def cache_of(torch, layout, room=512, keys=77, sequences=3):
    """Queries, and the first keys of a larger cache of them and values, with their lengths."""
    inner = (2, room) if layout is Layout.HND else (room, 2)
    both = torch.randn(2, sequences, *inner, 128, dtype=torch.float16)
    both = both[:, :, :, :keys] if layout is Layout.HND else both[:, :, :keys]
    query = torch.randn(sequences, 8, 128, dtype=torch.float16)
    return query, *both, torch.arange(sequences)


@pytest.mark.parametrize("layout", Layout)
def test_attention_takes_any_number_of_keys_of_a_larger_cache(layout, torch, tmp_path):
    operator, told = attention(layout, tmp_path)
    query, key, value, lengths = cache_of(torch, layout)
    out, lse = operator(query, key, value, lengths)
    assert out.shape == query.shape and out.dtype is torch.float16
    assert lse.shape == (3, 8) and lse.dtype is torch.float32
    within = {"key_stride": 128, "head_stride": 512 * 128}
    if layout is Layout.NHD:
        within = {"key_stride": 2 * 128, "head_stride": 128}
    expected = {"rows": 24, "cols": 77, "key_heads": 2, "sequence_stride": 2 * 512 * 128, **within}
    assert {name: told[name] for name in expected} == expected
    assert told["key"] == key.data_ptr() and told["value"] == value.data_ptr()


@pytest.mark.parametrize("layout", Layout)
def test_attention_is_what_pytorch_expects_of_an_operator(layout, torch, tmp_path):
    """Its fake kernel serves other numbers of keys without another graph."""
    operator, _ = attention(layout, tmp_path)
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, cache_of(torch, layout, room=77), test_utils=utilities)
    graphs = []

    def counted(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda *a: operator(*a), fullgraph=True, backend=counted, dynamic=True)
    for keys in (77, 78, 500):
        out, lse = compiled(*cache_of(torch, layout, keys=keys))
        assert out.shape == (3, 8, 128) and lse.shape == (3, 8)
    assert len(graphs) == 1
    eager = torch.compile(lambda *a: operator(*a), fullgraph=True, backend="aot_eager")
    assert eager(*cache_of(torch, layout))[0].shape == (3, 8, 128)


def test_attention_says_that_it_has_no_gradient(torch, tmp_path):
    operator, _ = attention(Layout.HND, tmp_path)
    *arrays, lengths = cache_of(torch, Layout.HND)
    for number in range(3):
        needing = [a.detach().requires_grad_(n == number) for n, a in enumerate(arrays)]
        for result in operator(*needing, lengths):
            with pytest.raises(RuntimeError, match=r"has no gradient: call torch\.nn\.func"):
                result.sum().backward()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({0: lambda q: q.float()}, "query must be of float16"),
        ({0: lambda q: q[:, :6].contiguous()}, "there must be 4 query heads for each key head"),
        ({0: lambda q: q[..., :64]}, r"query must have the shape \(sequences, heads, 128\)"),
        ({0: lambda q: q.mT.contiguous().mT}, "query must be contiguous"),
        ({1: lambda k: k[:2]}, r"key must have the shape \(sequences, key_heads, keys, 128\)"),
        ({2: lambda v: v[:, :, :5]}, "value must have the shape of key"),
        ({2: lambda v: v.contiguous()}, "value must have the strides of key"),
        ({1: lambda k: k[:, :, :0], 2: lambda v: v[:, :, :0]}, "there must be 1 key at least"),
        ({3: lambda n: n[:2]}, r"lengths must have the shape \(sequences,\)"),
        ({1: lambda k: k.mT.contiguous().mT}, "the elements of a key must be neighbours"),
    ],
)
def test_attention_refuses_what_its_kernel_does_not_take(changed, says, torch, tmp_path):
    operator, told = attention(Layout.HND, tmp_path)
    arrays = list(cache_of(torch, Layout.HND))
    for number, change in changed.items():
        arrays[number] = change(arrays[number])
    with pytest.raises(ValueError, match=says):
        operator(*arrays)
    assert not told


def test_attention_refuses_keys_that_begin_between_words(torch, tmp_path):
    operator, told = attention(Layout.HND, tmp_path)
    query, _, _, lengths = cache_of(torch, Layout.HND)
    key, value = torch.zeros(2, 3, 2, 77, 132, dtype=torch.float16)[..., :128]
    with pytest.raises(ValueError, match="key's strides must be multiples of 8 elements"):
        operator(query, key, value, lengths)
    assert not told


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
    largest = np.where(np.isfinite(largest), largest, 0.0)  # as SciPy's and CuPy's
    return np.log(np.exp(x - largest).sum(axis)) + largest.squeeze(axis)


def stand_in(variant, launched, computed=truth):
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
                addresses = {n: a.ctypes.data for n, a in arrays.items()}
                write_truth(problem, addresses, computed)

        kernel.max_dynamic_shared_size_bytes = 0
        return kernel

    cupy = ModuleType("cupy")
    functions = "where arange exp tanh amax stack ascontiguousarray"
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


# ------------------------------------------------------------------ self-checks of capped kernels

CAPPED = [
    {"op": Op.CROSS_ENTROPY},
    {"op": Op.CROSS_ENTROPY, "dtype": DType.BF16, "scale": -0.25, "also": "lse,log_sum,mean_gap"},
    {"op": Op.CROSS_ENTROPY_BACKWARD, "scale": -0.25},
    {"op": Op.CROSS_ENTROPY_BACKWARD, "dtype": DType.BF16, "scale": 4.0},
    {"op": Op.CROSS_ENTROPY_BACKWARD, "dtype": DType.F64, "label_smoothing": 0.1},
    {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "also": "loss,lse"},
    {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "dtype": DType.BF16, "z_loss": 1e-3},
    {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "dtype": DType.F16, "also": "loss"},
]
"""Problems that a program checks on an example."""

PARTS_OF_A_CAP = ("nothing", "cap", "number", "derivative")
CAPS = (0.5, 30.0, 100.0, 10_000.0)


def capped_problem(told, what):
    """A problem under a cap: each part that is left out, and each problem, meets all caps."""
    cap = CAPS[(CAPPED.index(told) + PARTS_OF_A_CAP.index(what)) % len(CAPS)]
    return Problem(**{"rows": 8, "cols": 264, "softcap": cap, **told})


def left_out(what, code):
    """The code of a kernel without a part of its cap."""
    double = "__device__ __forceinline__ Capped capped(double x) {" in code
    number, slope, one = ("kSoftcap * tanh(u)", "4.0 * e / ((1.0 + e) * (1.0 + e))", "1.0")
    if not double:
        number, slope, one = ("kSoftcap * tanh_u", "4.0f * e * inverse * inverse", "1.0f")
    kept = {
        "nothing": (number, slope),
        "cap": ("x", one),
        "number": ("x", slope),
        "derivative": (number, one),
    }
    assert code.count(f"return {{{number}, {slope}}};") == 1
    number, slope = f"return {{{number}, {slope}}};", "return {{{}, {}}};".format(*kept[what])
    return code.replace(number, slope)


def emulated(problem, what):
    """What the kernel of a problem computes, of which a part of the cap is left out."""
    variant = emit(problem, choose.config_for(problem, H200))
    ptx = Compiler("compute_90").compile(left_out(what, variant.code)).ptx
    kernel = EmulatedKernel.of(ptx, variant.launches, variant.scratch_bytes)
    return lambda problem, arrays: results_of(kernel, problem, arrays)


def status_of_main(module):
    """The exit status of a program."""
    with pytest.raises(SystemExit) as left:
        module.main()
    return left.value.code


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", PARTS_OF_A_CAP)
@pytest.mark.parametrize("told", CAPPED, ids=lambda told: "-".join(map(str, told.values())))
def test_a_program_notices_what_its_kernel_leaves_out_of_a_cap(told, what, torch, tmp_path):
    """Whatever the cap is; a right kernel passes."""
    problem = capped_problem(told, what)
    computed = emulated(problem, what)
    module = loaded(problem, choose.config_for(problem, H200), tmp_path, [], computed)
    is_gradient = problem.fills_rows
    assert status_of_main(module) == (what != "nothing" and (is_gradient or what != "derivative"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["nothing", "cap", "derivative"])
def test_cupys_program_notices_what_its_kernel_leaves_out_of_a_cap(what, monkeypatch, tmp_path):
    problem = Problem(8, 264, op=Op.CROSS_ENTROPY_WITH_GRADIENT, softcap=100.0)
    variant = emit(problem, choose.config_for(problem, H200))
    (tmp_path / "k.cu").write_text(variant.source)
    for name, module in stand_in(variant, [], emulated(problem, what)).items():
        monkeypatch.setitem(sys.modules, name, module)
    module = ModuleType("k")
    module.__file__ = str(tmp_path / "k_cupy.py")
    text = program_for("cupy", variant, tmp_path / "k.cu").text
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    assert status_of_main(module) == (what != "nothing")


HOST = """
#include <cstring>
#include <type_traits>
using cudaError_t = int;
using cudaEvent_t = int;
enum { cudaSuccess, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
inline int cudaMalloc(void** array, size_t bytes) {
  *array = std::malloc(bytes);
  return *array == nullptr;
}
inline void cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  std::memcpy(to, from, bytes);
}
inline int cudaDeviceSynchronize() { return 0; }
inline const char* cudaGetErrorString(int) { return ""; }
inline void cudaEventCreate(int*) {}
inline void cudaEventRecord(int) {}
inline void cudaEventSynchronize(int) {}
inline void cudaEventElapsedTime(float* milliseconds, int, int) { *milliseconds = 1.0f; }
extern "C" void (*launched)(const long long*);
void (*launched)(const long long*);
template <class T>
long long word(T x) {
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<long long>(x);
  else return static_cast<long long>(x);
}
namespace %s {
using Element = %s;
using Id = long long;
constexpr int kCols = %d, kIgnored = -100;
constexpr Element kSoftcap = %r, kSmoothing = %r, kZLoss = %r;
template <class... T>
int launch(T... told) {
  const long long words[] = {word(told)...};
  launched(words);
  return 0;
}
}
"""
"""What a program of C++ finds on a host where a GPU's memory is the host's."""


def status_of_cpp(problem, what, folder):
    """The exit status of the program of C++ for a problem, whose kernel is emulated."""
    variant = emit(problem, choose.config_for(problem, H200))
    call, computed = HostCall.of(problem, variant.config), emulated(problem, what)
    text = program_for("cpp", variant, folder / "k.cu").text
    numbers = (problem.softcap, problem.label_smoothing or 0.0, problem.z_loss or 0.0)
    element = "double" if problem.dtype is DType.F64 else "float"
    name = namespace(problem, variant.config)
    host = HOST % (name, element, problem.cols, *numbers)
    source = folder / "main.cpp"
    source.write_text(
        text.replace('#include "k.cu"\n', "").replace("int main(", host + "int main(")
    )
    library = folder / "main.so"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-o", library, source]
    subprocess.run(command, check=True)
    times = []

    def launch(words):
        times.append(1)
        if len(times) == 1:  # the others are timed
            write_truth(problem, {name: words[n] for n, name in enumerate(call.names)}, computed)

    program = ctypes.CDLL(str(library))
    kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_longlong))
    callback = kind(launch)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    ctypes.c_void_p.in_dll(program, "launched").value = address
    return program.main(1, None)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", PARTS_OF_A_CAP)
@pytest.mark.parametrize(
    "told",
    [told for told in CAPPED if told.get("dtype", DType.F32) in (DType.F32, DType.F64)],
    ids=lambda told: "-".join(map(str, told.values())),
)
def test_cpps_program_notices_what_its_kernel_leaves_out_of_a_cap(told, what, tmp_path):
    problem = capped_problem(told, what)
    noticed = what != "nothing" and (problem.fills_rows or what != "derivative")
    assert status_of_cpp(problem, what, tmp_path) == noticed


# ------------------------------------------------------------------ JAX


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", NUMBERS)
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
