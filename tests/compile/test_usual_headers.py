"""What sources of a person's own name of the C library, compiled without a host's headers."""

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.compile.usual_headers import emulated_text, names_usual
from explorer.model.config import Config
from explorer.model.problem import Problem

NAMED = """#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>
struct Identity { static constexpr float of_max = -INFINITY; };
extern "C" __global__ void kernel(float* y, uint32_t n) {
  assert(n < INT_MAX && sizeof(std::int64_t) == 8);
  y[n] = Identity::of_max + FLT_MAX + FLT_EPSILON + NAN + std::numeric_limits<float>::infinity();
  printf("%u\\n", n);
}
"""


def test_names_of_the_c_library_compile():
    compiler = Compiler("compute_90")
    assert "vprintf" in compiler.compile(NAMED).ptx
    emulated = compiler.compile(emulated_text(NAMED)).ptx
    assert "call" not in emulated and "trap" in emulated


def test_emitted_sources_are_compiled_as_before():
    for config in (Config(), Config(cache="shared", cache_holds="input", static_cols=False)):
        assert not names_usual(emit(Problem(8, 512), config).source)
    assert names_usual(NAMED)
