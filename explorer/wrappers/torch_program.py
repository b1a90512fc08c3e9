"""A program of PyTorch: nvcc makes a library of the emitted file, which ctypes calls."""

from explorer.codegen import Variant
from explorer.model.problem import Mask
from explorer.wrappers.example import Dialect, Example, program_text, refusal, source_lines

_TORCH = Dialect(module="torch", cast="to", softmax="torch.")

_C_TYPES = {
    "pointer": "c_void_p",
    "int32": "c_int",
    "int64": "c_longlong",
    "float32": "c_float",
    "float64": "c_double",
}
"""Of ctypes, by the kinds of arguments."""


def torch_program(variant: Variant, file: str) -> str:
    """Return a program that runs the kernel of a file on tensors of PyTorch."""
    example = Example(variant, _TORCH)
    head = [
        f'"""Run the kernel of {file} on tensors of PyTorch.',
        "",
        "The result is checked beside PyTorch's own. It needs a GPU, and nvcc, which makes a",
        "library of the kernel the first time.",
        '"""',
        "",
        "import ctypes",
        "import functools",
        "import subprocess",
        "import sys",
        "import tempfile",
        "from pathlib import Path",
        "",
        "import torch",
        "",
        *source_lines(file),
        *example.constants,
    ]
    return program_text(head, _load(example), _function(example), example.truth, _main(example))


def _load(example: Example) -> list[str]:
    call = example.call
    types = [f"        ctypes.{_C_TYPES[a.kind]},  # {a.name}" for a in call.arguments]
    lines = [
        "@functools.cache",
        "def library_for(capability):",
        '    """The kernel as a library for GPUs of a compute capability, such as (9, 0)."""',
        '    arch = "sm_{}{}".format(*capability)',
        '    made = SOURCE.with_name(f"{SOURCE.stem}_{arch}.so")',
        "    if not made.exists() or made.stat().st_mtime < SOURCE.stat().st_mtime:",
        "        # Another process sees the whole library or none.",
        "        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:",
        '            whole = Path(folder, "library.so")',
        '            command = ["nvcc", "-std=c++17", f"-arch={arch}", "-DSOFTMAX_LIBRARY"]',
        '            command += ["-shared", "-Xcompiler", "-fPIC", "-o", str(whole), str(SOURCE)]',
        "            subprocess.run(command, check=True)",
        "            whole.replace(made)",
        "    library = ctypes.CDLL(str(made))",
        f"    library.{call.function}.argtypes = [",
        *types,
        "        ctypes.c_void_p,  # stream",
        "    ]",
    ]
    if call.scratch_arguments is not None:
        lines.append(f"    library.{call.scratch_function}.argtypes = [")
        lines += [f"        ctypes.{_C_TYPES[a.kind]},  # {a.name}" for a in call.scratch_arguments]
        lines.append("    ]")
        lines.append(f"    library.{call.scratch_function}.restype = ctypes.c_size_t")
    return [*lines, "    return library"]


def _function(example: Example) -> list[str]:
    """The function that launches the kernel on tensors."""
    problem, call, x = example.problem, example.call, example.x
    passed = _passed(example)
    lines = [
        f"def {problem.op}({example.signature}):",
        f'    """{example.what}, on the current stream."""',
        *example.refusals,
        *_layout_refusals(example),
    ]
    if problem.mask is Mask.ADDITIVE:
        lines.append("    mask = mask.to(x.dtype).contiguous()")
    elif problem.mask is Mask.LENGTHS:
        lines.append("    lengths = lengths.to(torch.int32).contiguous()")
    lines.append(f"    library = library_for(torch.cuda.get_device_capability({x}.device))")
    out = x
    if not problem.in_place:
        out, dtype = "out", example.dtype(problem.output_dtype)
        shape, part = f"{x}.shape", ""
        if not problem.is_dense:
            lines.append(f"    shape = ({x}.shape[0], OUTPUT_STRIDE)")
            shape, part = "shape", example.part
        lines.append(f"    out = torch.empty({shape}, dtype={dtype}, device={x}.device){part}")
    if call.scratch_arguments is not None:
        lines.append(f"    size = library.{call.scratch_function}(")
        lines += [f"        {passed[argument.name]}," for argument in call.scratch_arguments]
        lines.append("    )")
        lines.append(f"    scratch = torch.empty(size, dtype=torch.uint8, device={x}.device)")
    return [
        *lines,
        f"    with torch.cuda.device({x}.device):",
        f"        status = library.{call.function}(",
        *(f"            {passed[name]}," for name in call.names),
        "            torch.cuda.current_stream().cuda_stream,",
        "        )",
        "    if status != 0:",
        '        raise RuntimeError(f"the launch failed with cudaError_t {status}")',
        f"    return {out}",
    ]


def _passed(example: Example) -> dict[str, str]:
    """What each argument of the C function is, in Python."""
    x, out = example.x, example.x if example.problem.in_place else "out"
    arrays = {"input": x, "matrix": x, "array": x, "output": out}
    arrays |= {name: name for name in ("grad", "mask", "lengths", "scratch")}
    additive = example.problem.mask is Mask.ADDITIVE
    return {
        **{name: f"{array}.data_ptr()" for name, array in arrays.items()},
        "rows": f"{x}.shape[0]",
        "outer": f"{x}.shape[0]",
        "cols": f"{x}.shape[1]",
        "inner": f"{x}.shape[2]",
        "mask_rows": "mask.shape[0]" if additive else "mask_rows",
        "input_stride": f"{x}.stride(0)",
        "stride": f"{x}.stride(0)",
        "output_stride": "out.stride(0)",
        "scale": "scale",
    }


def _layout_refusals(example: Example) -> list[str]:
    x = example.x
    lines = refusal(f"not {x}.is_contiguous()", f"{x} must be contiguous")
    if not example.problem.is_dense:
        lines = refusal(f"{x}.stride(1) != 1", f"a row of {x} must have no gaps")
    if example.problem.op.is_backward:
        unlike = f"grad.dtype != {x}.dtype or grad.stride() != {x}.stride()"
        lines += refusal(unlike, f"grad must be of {x}'s type and layout")
    for name in example.arrays:
        if name != x:
            lines += refusal(f"{name}.device != {x}.device", f"{name} must be on {x}'s GPU")
    return lines


def _main(example: Example) -> list[str]:
    problem, x = example.problem, example.x
    dtype = example.dtype(problem.dtype)
    part = "" if problem.is_dense else "[:, :COLS]"
    lines = [
        "def main():",
        '    """Run it on an example."""',
        '    torch.set_default_device("cuda")',
        "    torch.manual_seed(0)",
    ]
    if problem.op.is_backward:
        lines.append("    x = torch.randn(SHAPE)")
        lines.append(f"    y = torch.{problem.op.forward}(x, 1).to({dtype}){part}")
        lines.append(f"    grad = torch.randn(SHAPE).to({dtype}){part}")
    else:
        lines.append(f"    x = torch.randn(SHAPE).to({dtype}){part}")
    if problem.mask is Mask.ADDITIVE:
        lines.append(f"    mask = torch.randn((MASK_ROWS, COLS)).to({dtype})")
    elif problem.mask is Mask.LENGTHS:
        lines.append("    lengths = torch.randint(1, COLS + 1, (ROWS,), dtype=torch.int32)")
    call = f"{problem.op}({', '.join(example.arrays)})"
    if problem.in_place:
        call = call.replace(f"({x}", "(result", 1)
        lines.append(f"    result, {x} = {x}, {x}.clone()")
        return [*lines, f"    {call}", *example.report]
    return [*lines, f"    result = {call}", *example.report]
