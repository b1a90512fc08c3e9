"""A program of C++: it includes the emitted file, and calls its launch()."""

from explorer.codegen import Variant
from explorer.codegen.element_types import ELEMENT_TYPES
from explorer.codegen.host_call import HostCall
from explorer.model.dtype import DType
from explorer.model.problem import Mask, Problem
from explorer.wrappers.example import TOLERANCES

ROWS_CHECKED = 16
"""Rows that the program computes again on the host."""


def cpp_program(variant: Variant, file: str) -> str:
    """Return a program that runs the kernel of a file on memory of CUDA's."""
    stem = file.removesuffix(".cu")
    lines = [
        f"// Runs the kernel of {file} on an example, and checks it against double precision.",
        "//",
        f"// Build and run:  nvcc -std=c++17 -arch=native -o {stem}_main {stem}_main.cu",
        f"//                 ./{stem}_main",
        "",
        "#define SOFTMAX_NO_MAIN",
        f'#include "{file}"',
        "",
        "#include <cmath>",
        "#include <cstdio>",
        "#include <cstdlib>",
        "#include <random>",
        "#include <vector>",
        "",
        *_HELPERS,
        "",
        "int main() {",
        f"  using namespace {HostCall.of(variant.problem, variant.config).namespace};",
        *_example(variant),
        "",
        *_launch(variant),
        "",
        *_comparison(variant.problem),
        "}",
        "",
    ]
    return "\n".join(lines)


_HELPERS = """\
// Ends the program where a call of CUDA's failed.
static void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s failed: %s\\n", what, cudaGetErrorString(status));
  std::exit(2);
}

static void* allocated(size_t bytes) {
  void* array = nullptr;
  check(cudaMalloc(&array, bytes), "cudaMalloc");
  return array;
}

// The numbers of the host in device memory.
template <typename T>
static T* on_device(const std::vector<T>& host) {
  const size_t bytes = host.size() * sizeof(T);
  void* const array = allocated(bytes);
  check(cudaMemcpy(array, host.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return static_cast<T*>(array);
}
""".splitlines()


def _example(variant: Variant) -> list[str]:
    """Declarations of the numbers and arrays that launch() takes, by the names that it has."""
    problem, config = variant.problem, variant.config
    call = HostCall.of(problem, config)
    numbers = {
        "outer": problem.rows // problem.inner,
        "inner": problem.inner,
        "input_stride": problem.input_stride,
        "output_stride": problem.output_stride,
        "stride": problem.input_stride,
        "mask_rows": problem.mask_rows,
    }
    real = "double" if problem.dtype is DType.F64 else "float"
    lines = [f"  const long long rows = {problem.rows};", f"  const int cols = {problem.cols};"]
    needed = [name for name in call.names if name in numbers]
    lines += [f"  const long long {name} = {numbers[name]};" for name in needed]
    if problem.scale is not None:
        suffix = "" if real == "double" else "f"
        lines.append(f"  const {real} scale = {float(problem.scale)!r}{suffix};")
    lines += ["", "  std::mt19937 random(1);", *_filled(problem)]
    lines += _arrays(variant, call, real)
    return lines


def _filled(problem: Problem) -> list[str]:
    """Lines that fill the arrays of the host."""
    element = ELEMENT_TYPES[problem.dtype].as_element("normal(random)")
    x = element
    lines = ["  std::normal_distribution<float> normal;"]
    if problem.op.is_backward:
        least, most = ("-1.0f", "0.0f") if problem.op.is_log else ("0.0f", "1.0f")
        lines.append(f"  std::uniform_real_distribution<float> uniform({least}, {most});")
        x = element.replace("normal", "uniform")
    lines.append(f"  std::vector<Element> host({problem.input_elements});")
    lines.append(f"  for (Element& x : host) x = {x};")
    if problem.op.is_backward:
        lines.append("  std::vector<Element> host_grad(host.size());")
        lines.append(f"  for (Element& x : host_grad) x = {element};")
    if problem.mask is Mask.ADDITIVE:
        lines.append(f"  std::vector<Element> host_mask({problem.mask_rows * problem.cols});")
        lines.append(f"  for (Element& x : host_mask) x = {element};")
    elif problem.mask is Mask.LENGTHS:
        lines.append("  std::uniform_int_distribution<int> length(1, cols);")
        lines.append("  std::vector<int> host_lengths(rows);")
        lines.append("  for (int& x : host_lengths) x = length(random);")
    return lines


def _arrays(variant: Variant, call: HostCall, real: str) -> list[str]:
    """Lines that put the arrays of the host into device memory."""
    problem = variant.problem
    hosts = {name: "host" for name in ("input", "matrix", "array")}
    hosts |= {name: f"host_{name}" for name in ("grad", "mask", "lengths")}
    lines = []
    for name in call.names:
        if name in hosts:
            lines.append(f"  auto* const {name} = on_device({hosts[name]});")
    result = "Element" if problem.output_dtype is problem.dtype else "OutputElement"
    lines.append(f"  std::vector<{result}> result({problem.output_elements});")
    if "output" in call.names:
        lines.append("  auto* const output = on_device(result);")
    if call.scratch_arguments is not None:
        told = ", ".join(argument.name for argument in call.scratch_arguments)
        state = "State" if variant.config.splits_launches else real
        size = f"allocated(scratch_bytes({told}))"
        lines.append(f"  auto* const scratch = static_cast<{state}*>({size});")
    return lines


def _launch(variant: Variant) -> list[str]:
    names = HostCall.of(variant.problem, variant.config).names
    output = "output" if "output" in names else names[0]
    return [
        f'  check(launch({", ".join(names)}), "the launch");',
        '  check(cudaDeviceSynchronize(), "the kernel");',
        "  const size_t bytes = result.size() * sizeof(result[0]);",
        f"  check(cudaMemcpy(result.data(), {output}, bytes, cudaMemcpyDeviceToHost), "
        '"cudaMemcpy");',
    ]


def _comparison(problem: Problem) -> list[str]:
    """Lines that compute some rows again, and compare."""
    result = ELEMENT_TYPES[problem.output_dtype].as_number("result[to + i * step]")
    step = "inner" if problem.inner > 1 else "1"
    at, to = f"row * {problem.input_stride}LL", f"row * {problem.output_stride}LL"
    if problem.inner > 1:
        at = to = "row / inner * cols * inner + row % inner"
    body = _gradient(problem) if problem.op.is_backward else _forward(problem)
    return [
        "  double worst = 0.0;",
        f"  const long long apart = rows > {ROWS_CHECKED} ? rows / {ROWS_CHECKED} : 1;",
        "  for (long long row = 0; row < rows; row += apart) {",
        f"    const long long at = {at}, to = {to}, step = {step};",
        *(f"    {line}" for line in body),
        f"      const double found = {result};",
        "      if (found == expected || (std::isnan(found) && std::isnan(expected))) continue;",
        "      const double off = std::fabs(found - expected) / size;",
        "      if (!(off <= worst) && !std::isnan(worst)) worst = off;",
        "    }",
        "  }",
        '  std::printf("largest relative error %.1e\\n", worst);',
        f"  return worst <= {TOLERANCES[problem.output_dtype]!r} ? 0 : 1;",
    ]


def _forward(problem: Problem) -> list[str]:
    x = ELEMENT_TYPES[problem.dtype].as_number("host[at + i * step]")
    if problem.scale is not None:
        x = f"static_cast<double>(scale) * {x}"
    if problem.mask is Mask.ADDITIVE:
        added = "host_mask[row % mask_rows * cols + i]"
        x = f"{x} + static_cast<double>({ELEMENT_TYPES[problem.dtype].as_number(added)})"
    changed = problem.scale is not None or problem.mask is Mask.ADDITIVE
    if changed and problem.dtype is not DType.F64:
        x = f"static_cast<float>({x})"
    limits = {
        Mask.CAUSAL: "row % mask_rows + 1 + cols - mask_rows",
        Mask.LENGTHS: "host_lengths[row]",
    }
    shown = problem.mask in limits
    lines = [f"const long long limit = {limits[problem.mask]};"] if shown else []
    lines += [
        "std::vector<double> counted(cols, -INFINITY);",
        f"for (int i = 0; i < {'cols && i < limit' if shown else 'cols'}; ++i) counted[i] = {x};",
        "double maximum = -INFINITY, sum = 0.0;",
        "for (const double x : counted) maximum = std::fmax(maximum, x);",
        "for (const double x : counted) sum += std::exp(x - maximum);",
        "for (int i = 0; i < cols; ++i) {",
    ]
    if problem.op.is_log:
        lines.append("  const double expected = counted[i] - maximum - std::log(sum);")
        return [*lines, "  const double size = 1.0 + std::fabs(expected);"]
    smallest = repr(problem.output_dtype.smallest_normal)
    lines.append("  const double expected = std::exp(counted[i] - maximum) / sum;")
    return [*lines, f"  const double size = std::fmax(expected, {smallest});"]


def _gradient(problem: Problem) -> list[str]:
    number = ELEMENT_TYPES[problem.dtype].as_number
    y, dy = number("host[at + i * step]"), number("host_grad[at + i * step]")
    factor = "" if problem.scale is None else "scale * "
    size = "" if problem.scale is None else "std::fabs(scale) * "
    term = "dy" if problem.op.is_log else "y * dy"
    lines = [
        "double sum = 0.0, terms = 0.0;",
        "for (int i = 0; i < cols; ++i) {",
        *([] if problem.op.is_log else [f"  const double y = {y};"]),
        f"  const double dy = {dy};",
        f"  sum += {term};",
        f"  terms += std::fabs({term});",
        "}",
        "for (int i = 0; i < cols; ++i) {",
        f"  const double y = {y};",
        f"  const double dy = {dy};",
    ]
    if problem.op.is_log:
        lines.append(f"  const double expected = {factor}(dy - std::exp(y) * sum);")
        magnitude = "(std::fabs(dy) + std::exp(y) * terms)"
    else:
        lines.append(f"  const double expected = {factor}y * (dy - sum);")
        magnitude = "std::fabs(y) * (std::fabs(dy) + terms)"
    smallest = repr(problem.output_dtype.smallest_normal)
    return [*lines, f"  const double size = std::fmax({size}{magnitude}, {smallest});"]
