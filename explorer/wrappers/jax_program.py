"""A program of JAX: a handler of XLA's calls the emitted file, also inside of jax.jit."""

from explorer.codegen import Variant
from explorer.model.dtype import DType
from explorer.model.problem import Mask
from explorer.wrappers.example import Dialect, Example, program_text, refusal, source_lines

_JAX = Dialect(module="jnp", cast="astype", softmax="jax.nn.")


def jax_program(variant: Variant, file: str) -> str:
    """Return a program that runs the kernel of a file on arrays of JAX."""
    example = Example(variant, _JAX)
    head = [
        *_head(example, file),
        *source_lines(file),
        f'NAME = f"{example.call.namespace}_{{zlib.crc32(SOURCE.read_bytes()):08x}}"',
        *example.constants,
        "",
        'HANDLER = r"""',
        *handler(example, file),
        '"""',
    ]
    return program_text(head, _REGISTER, _function(example), example.truth, _main(example))


def _head(example: Example, file: str) -> list[str]:
    """What the program is, and what it imports."""
    return [
        f'"""Run the kernel of {file} on arrays of JAX.',
        "",
        "The result is checked beside JAX's own. It needs a GPU, and nvcc, which makes a",
        "library of the kernel and of a handler that XLA calls.",
        '"""',
        "",
        "import ctypes",
        "import functools",
        "import subprocess",
        "import sys",
        "import tempfile",
        "import zlib",
        "from pathlib import Path",
        "",
        "import jax",
        "import jax.numpy as jnp",
        *(["import numpy"] if _attributes(example) else []),
        "",
    ]


_REGISTER = [
    "@functools.cache",
    "def register():",
    '    """Make the handler for the GPU that is here, and tell JAX of it."""',
    '    capability = jax.devices()[0].compute_capability.replace(".", "")',
    '    command = ["nvcc", "-std=c++17", f"-arch=sm_{capability}", "-shared"]',
    '    command += ["-Xcompiler", "-fPIC", f"-I{jax.ffi.include_dir()}", "-w"]',
    "    with tempfile.TemporaryDirectory() as folder:",
    '        path, library = Path(folder, "handler.cu"), Path(folder, "handler.so")',
    "        path.write_text(HANDLER)",
    '        command += [f"-I{SOURCE.parent}", "-o", str(library), str(path)]',
    "        subprocess.run(command, check=True)",
    "        handler = ctypes.CDLL(str(library)).Handler",
    '    jax.ffi.register_ffi_target(NAME, jax.ffi.pycapsule(handler), platform="CUDA")',
]


def _attributes(example: Example) -> list[tuple[str, str, str, str]]:
    """Numbers that no array tells: C++'s type and name, NumPy's type, and Python's value."""
    problem = example.problem
    told = []
    if problem.mask is Mask.CAUSAL:
        told.append(("int64_t", "mask_rows", "int64", "mask_rows"))
    if problem.scale is not None:
        wide = problem.dtype is DType.F64
        kinds = ("double", "float64") if wide else ("float", "float32")
        told.append((kinds[0], "scale", kinds[1], "scale"))
    return told


def handler(example: Example, file: str) -> list[str]:
    """Return the lines of C++ by which XLA calls `launch`."""
    call = example.call
    bound = _bound(example)
    parameters = [f"{kind} {name}" for kind, name, _ in bound]
    binding = [text for _, _, text in bound]
    return [
        "#define SOFTMAX_NO_MAIN",
        f'#include "{file}"',
        '#include "xla/ffi/api/ffi.h"',
        "",
        "namespace ffi = xla::ffi;",
        "",
        "static ffi::Error run(",
        *(f"    {text}," for text in parameters[:-1]),
        f"    {parameters[-1]}) {{",
        f"  namespace kernel = {call.namespace};",
        *_scratch(example),
        "  const cudaError_t status = kernel::launch(",
        *(f"      {_passed(example)[name]}," for name in call.names),
        "      stream);",
        "  if (status == cudaSuccess) return ffi::Error::Success();",
        "  return ffi::Error::Internal(cudaGetErrorString(status));",
        "}",
        "",
        "XLA_FFI_DEFINE_HANDLER_SYMBOL(",
        "    Handler, run,",
        "    ffi::Ffi::Bind()",
        *(f"        {text}" for text in binding[:-1]),
        f"        {binding[-1]});",
    ]


def _bound(example: Example) -> list[tuple[str, str, str]]:
    """What XLA passes to the handler: C++'s type and name, and how it is asked for."""
    problem = example.problem
    # XLA's names of types are ours in capital letters.
    element, out = problem.dtype.upper(), problem.output_dtype.upper()
    arrays = ["input", *(name for name in example.arrays if name != example.x)]
    kinds = {name: "S32" if name == "lengths" else element for name in arrays}
    stream = "ffi::PlatformStream<cudaStream_t>"
    bound = [("cudaStream_t", "stream", f".Ctx<{stream}>()")]
    if example.call.scratch_arguments is not None:
        kind = "ffi::ScratchAllocator"
        bound.append((kind, "allocator", f".Ctx<{kind}>()"))
    for name, of in kinds.items():
        kind = f"ffi::Buffer<ffi::{of}>"
        bound.append((kind, name, f".Arg<{kind}>()"))
    kind = f"ffi::Buffer<ffi::{out}>"
    bound.append((f"ffi::Result<{kind}>", "output", f".Ret<{kind}>()"))
    for kind, name, _, _ in _attributes(example):
        bound.append((kind, name, f'.Attr<{kind}>("{name}")'))
    return bound


def _scratch(example: Example) -> list[str]:
    """Lines that ask XLA for memory that lasts until the kernels have ended."""
    arguments = example.call.scratch_arguments
    if arguments is None:
        return []
    told = ", ".join(_passed(example)[argument.name] for argument in arguments)
    return [
        f"  const auto scratch = allocator.Allocate(kernel::scratch_bytes({told}));",
        '  if (!scratch) return ffi::Error::Internal("no memory for scratch");',
    ]


def _passed(example: Example) -> dict[str, str]:
    """What each argument of `launch` is, in C++. In place the output has the input's memory."""
    problem = example.problem
    target = "static_cast<kernel::{}*>(output->untyped_data())"
    same = problem.output_dtype is problem.dtype
    out = target.format("Element" if same else "OutputElement")
    source = "static_cast<const kernel::Element*>({}.untyped_data())"
    state = "double" if problem.dtype is DType.F64 else "float"
    state = "kernel::State" if example.config.splits_launches else state
    additive = problem.mask is Mask.ADDITIVE
    strides = {"input_stride": problem.input_stride, "output_stride": problem.output_stride}
    return {
        **{name: source.format(name) for name in ("input", "grad", "mask")},
        **{name: out for name in ("output", "matrix", "array")},
        "lengths": "static_cast<const int*>(lengths.untyped_data())",
        "scratch": f"static_cast<{state}*>(*scratch)",
        "rows": "input.dimensions()[0]",
        "outer": "input.dimensions()[0]",
        "cols": _cols(example),
        "inner": "input.dimensions()[2]",
        "mask_rows": "mask.dimensions()[0]" if additive else "mask_rows",
        "scale": "scale",
        **{name: str(value) for name, value in strides.items()},
        "stride": str(problem.input_stride),
    }


def _cols(example: Example) -> str:
    """Arrays of JAX have no gaps: of rows that lie further apart the columns are the example's."""
    if not example.problem.is_dense:
        return str(example.problem.cols)
    return "static_cast<int>(input.dimensions()[1])"


def _function(example: Example) -> list[str]:
    """The function that calls the handler."""
    problem, x = example.problem, example.x
    lines = [
        f"def {problem.op}({example.signature}):",
        f'    """{_what(example)}."""',
        *_refusals(example),
    ]
    if problem.mask is Mask.ADDITIVE:
        lines.append("    mask = mask.astype(x.dtype)")
    elif problem.mask is Mask.LENGTHS:
        lines.append("    lengths = lengths.astype(jnp.int32)")
    dtype = example.dtype(problem.output_dtype)
    shape = f"{x}.shape" if problem.is_dense else f"({x}.shape[0], {problem.output_stride})"
    lines += ["    register()", f"    kind = jax.ShapeDtypeStruct({shape}, {dtype})"]
    alias = ", input_output_aliases={0: 0}" if problem.in_place else ""
    lines.append(f"    call = jax.ffi.ffi_call(NAME, kind{alias})")
    numbers = [f"{name}=numpy.{kind}({value})" for _, name, kind, value in _attributes(example)]
    part = "" if problem.is_dense else "[:, :COLS]"
    return [*lines, f"    return call({', '.join([*example.arrays, *numbers])}){part}"]


def _what(example: Example) -> str:
    if example.problem.in_place:
        return example.what.replace(
            ", over it", f", in {example.x}'s memory where jax.jit is given that"
        )
    return example.what


def _refusals(example: Example) -> list[str]:
    """Lines that refuse another matrix; rows that lie further apart come with their gaps."""
    x, stride = example.x, example.problem.input_stride
    if example.problem.is_dense:
        return example.refusals
    unlike = f"{x}.ndim != 2 or {x}.shape[1] != INPUT_STRIDE"
    sentence = f"{x} must have the shape (rows, {stride}), gaps included"
    companions = example.companion_refusals("COLS")
    return [*example.type_refusal, *refusal(unlike, sentence), *companions]


def _main(example: Example) -> list[str]:
    problem, x = example.problem, example.x
    dtype = example.dtype(problem.dtype)
    lines = [
        "def main():",
        '    """Run it on an example."""',
        '    jax.config.update("jax_enable_x64", True)  # the truth is in float64',
        "    first, second = jax.random.split(jax.random.key(0))",
    ]
    if problem.op.is_backward:
        lines.append("    x = jax.random.normal(first, SHAPE)")
        lines.append(f"    y = jax.nn.{problem.op.forward}(x, 1).astype({dtype})")
        lines.append(f"    grad = jax.random.normal(second, SHAPE).astype({dtype})")
    else:
        lines.append(f"    x = jax.random.normal(first, SHAPE).astype({dtype})")
    if problem.mask is Mask.ADDITIVE:
        lines.append(f"    mask = jax.random.normal(second, (MASK_ROWS, COLS)).astype({dtype})")
    elif problem.mask is Mask.LENGTHS:
        lines.append("    lengths = jax.random.randint(second, (ROWS,), 1, COLS + 1, jnp.int32)")
    lines.append(f"    result = {problem.op}({', '.join(example.arrays)})")
    if not problem.is_dense:
        cut = [name for name in example.arrays if name in (x, "grad")]
        lines += [f"    {name} = {name}[:, :COLS]" for name in cut]
    return [*lines, *example.report]
