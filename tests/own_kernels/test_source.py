"""What is read of a person's file: its kernels, its launches, and what a kernel needs of it."""

import pytest

from explorer.codegen.own_launches import HostLaunches, split
from explorer.codegen.own_source import OwnSource

TEXT = """#include <vector>
#define WARPS 4
namespace tools {
template <typename T, int N = WARPS * 32>
__device__ T first(T x) { return x; }
int on_the_host(std::vector<int> x) { return x[0]; }
}
struct Unused { std::vector<float> held; };
const int kThreads = WARPS * 32;
template <typename T>
__global__ void __launch_bounds__(kThreads) mine(const T* __restrict__ x, T y[], int n = 3) {
  // on_the_host, Unused
  y[n] = tools::first(x[n]);
}
__global__ void other(float* x) { Unused y; }
void run(float* x, float* y, int rows) {
  int blocks = (rows + WARPS - 1) / WARPS;
  mine<float><<<blocks, kThreads, 2 * sizeof(float), 0>>>(x, y, rows);
  dim3 grid(rows);
  other<<<grid, dim3(32, 8)>>>(x);
}
"""


@pytest.fixture
def source():
    return OwnSource.read(TEXT, "mine.cu")


def test_a_kernel_is_read_with_its_parameters_and_the_template_of_its_launch(source):
    assert [kernel.name for kernel in source.kernels] == ["mine", "other"]
    kernel, arguments = source.kernel("mine")
    assert (kernel.template, arguments, kernel.bounds) == (("T",), ("float",), "kThreads")
    x, y, n = kernel.parameters
    assert (x.pointee, x.is_constant, x.is_restricted, x.is_pointer) == ("T", True, True, True)
    assert (y.pointee, y.is_constant, y.is_pointer) == ("T", False, True)
    assert (n.type, n.name, n.is_pointer) == ("int", "n", False)


def test_only_what_the_kernel_names_is_compiled_on_its_own_lines(source):
    kernel, _ = source.kernel("mine")
    text = source.device_text(kernel)
    assert len(text) >= len(TEXT) and "std::vector" not in text and "other" not in text
    lines, own = text.splitlines(), TEXT.splitlines()
    assert lines[4] == own[4] and lines[8] == own[8] and lines[1] == own[1]
    assert lines[10].split() == [
        *("__device__", "__forceinline__", "void", "mine(const", "T*", "__restrict__", "x,"),
        *("T", "y[],", "int", "n", "=", "3)", "{"),
    ]
    assert not lines[7].strip() and not lines[14].strip()


def test_launches_are_read_with_what_their_names_are():
    launches = HostLaunches.of(TEXT, "mine").with_template(("float",))
    blocks, threads, shared = (launches.configured(place)[0] for place in range(3))
    assert launches.resolved(blocks) == "((rows + 4 - 1) / 4)"
    assert launches.resolved(threads) == "(4 * 32)" or launches.resolved(threads) == "4 * 32"
    assert launches.resolved(shared) == "2 * sizeof(float)"
    assert launches.resolved("unknown + 1") is None
    assert HostLaunches.of(TEXT, "other").configured(1) == ["dim3(32, 8)"]


HOST = """
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
inline int blocks_of(int64_t n, int each) { return CEIL_DIV(n, each); }
__global__ void mine(float* x, int n);
void run(float* x, const int64_t M) {
  unsigned threads = 4 * 32, warps = threads / 32;
  dim3 grid(blocks_of(M, warps)), block{threads};
  mine<<<grid, block>>>(x, M);
  void* list[] = {&x, (void*)&M};
  cudaLaunchKernel((const void*)mine, dim3(CEIL_DIV(M, 2)), 64, list, 256, nullptr);
}
"""


def test_macros_functions_and_lists_of_declarations_are_followed():
    from explorer.devices.program_under_test import LaunchPlan

    launches = HostLaunches.of(HOST, "mine").named({"M": "rows"})
    values = [
        [LaunchPlan((), {}).value(launches.resolved(text), {"rows": 99}) for text in texts]
        for texts in (launches.configured(0), launches.configured(1), launches.configured(2))
    ]
    assert values == [[25, 50], [128, 64], [0, 256]]
    assert [split(one[2]) for one in launches.found] == [["x", "M"], ["x", "M"]]


def test_a_template_needs_what_neither_a_default_nor_a_call_tells():
    text = "template <typename T, int N, int M = 2 * 32> __global__ void mine(const T* x) {}"
    (kernel,) = OwnSource.read(text, "mine.cu").kernels
    assert kernel.template == ("T", "N", "M") and kernel.defaults == {"T": "", "M": "2 * 32"}
