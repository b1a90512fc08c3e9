"""What nvcc makes of emitted files: programs, libraries, and errors that say what is needed."""

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from space_sample import space_sample

from explorer.codegen.units import emit
from explorer.codegen.variant import needed_arch
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.space import Space

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")

PYTORCH_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)
"""With which torch.utils.cpp_extension compiles CUDA code (COMMON_NVCC_FLAGS)."""

CLUSTER = Config(cluster=4)
RUN_TIME = Config(static_cols=False, cache="none", cache_holds="input")
OVERLAPPED = Config(
    algorithm="online-block-max",
    launches="two-overlapped",
    cache="none",
    cache_holds="input",
    unroll=2,
)


def nvcc(source, folder, *options, arch="sm_90"):
    """Run nvcc on a source, to `softmax` in the folder; warnings are errors."""
    (folder / "softmax.cu").write_text(source)
    command = [NVCC, "-std=c++17", f"-arch={arch}", "-Werror=all-warnings", *options]
    command += ["-o", str(folder / "softmax"), str(folder / "softmax.cu")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@needs_nvcc
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "problem",
    [
        Problem(64, 1000, DType.F16),
        Problem(64, 1001, DType.BF16),
        Problem(64, 1000, DType.BF16, out_dtype=DType.F32),
        Problem(64, 1000, out_dtype=DType.F16),
        Problem(64, 1000, DType.F16, mask=Mask.ADDITIVE),
        Problem(64, 1000, DType.BF16, Op.LOG_SOFTMAX_BACKWARD),
        Problem(64, 37, DType.F16, inner=8),
    ],
    ids=str,
)
def test_the_flags_of_pytorchs_extensions_will_do(problem, tmp_path):
    built = nvcc(emit(problem, Config()).source, tmp_path, *PYTORCH_FLAGS, "-c")
    assert built.returncode == 0, built.stderr


@needs_nvcc
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("problem", "config", "numbers"),
    [
        (Problem(64, 1000), Config(), 1),
        (Problem(64, 1000, DType.F16, scale=0.5), RUN_TIME, 2),
        (Problem(64, 1000, DType.BF16, Op.SOFTMAX_BACKWARD), Config(), 1),
        (Problem(64, 1000, mask=Mask.LENGTHS, in_place=True), Config(), 1),
        (Problem(64, 100_000), OVERLAPPED, 1),
    ],
    ids=str,
)
def test_a_library_is_called_from_another_language(problem, config, numbers, tmp_path):
    """Nothing is launched for no rows, and a number of rows below 0 is refused: without a GPU."""
    variant = emit(problem, config)
    options = ("-shared", "-Xcompiler", "-fPIC", "-DSOFTMAX_LIBRARY")
    built = nvcc(variant.source, tmp_path, *options)
    assert built.returncode == 0, built.stderr
    library = ctypes.CDLL(str(tmp_path / "softmax"))
    name = variant.launches[0].entry.removesuffix("_kernel").removesuffix("_part")
    launch = getattr(library, f"{name}_launch")
    arrays = 1 if problem.in_place else 3 if problem.operator.is_gradient else 2
    arrays += (problem.mask is Mask.LENGTHS) + (config.launches != "one")
    scale = [] if problem.scale is None else [ctypes.c_float(problem.scale)]
    for rows, code in ((0, 0), (-1, 1)):
        told = [ctypes.c_longlong(rows), *[ctypes.c_int(problem.cols)] * (numbers - 1), *scale]
        assert launch(*[ctypes.c_void_p()] * arrays, *told, ctypes.c_void_p()) == code
    if config.launches != "one":
        bytes_of = getattr(library, f"{name}_scratch_bytes")
        bytes_of.restype = ctypes.c_size_t
        assert bytes_of(ctypes.c_longlong(64)) == variant.scratch_bytes


TWICE = """#define SOFTMAX_NO_MAIN
#include "a.cu"
#include "a.cu"
#include "b.cu"
int main() {
  const cudaError_t one = %s::launch(nullptr, nullptr, -1, 1000);
  const cudaError_t other = %s::launch(nullptr, nullptr, -1, 1000);
  return one == cudaErrorInvalidValue && other == cudaErrorInvalidValue ? 0 : 1;
}
"""

ONCE = """#define SOFTMAX_NO_MAIN
#include "a.cu"
cudaError_t called() { return softmax_f32::launch(nullptr, nullptr, 0, 1000); }
"""


@needs_nvcc
@pytest.mark.exhaustive
@pytest.mark.parametrize("rdc", ["false", "true"])
def test_a_program_includes_files_as_often_as_it_likes(rdc, tmp_path):
    """One file twice in a unit and in another unit, and one of another config of the problem."""
    problem, names = Problem(64, 1000), []
    for file, config in (("a.cu", RUN_TIME), ("b.cu", replace(RUN_TIME, threads=512))):
        source = emit(problem, config, main=True).source
        names.append(re.search(r"^namespace (\w+) \{$", source, re.MULTILINE)[1])
        (tmp_path / file).write_text(source)
    assert names[0] != names[1]
    (tmp_path / "once.cu").write_text(ONCE)
    built = nvcc(TWICE % tuple(names), tmp_path, f"-rdc={rdc}", "once.cu")
    assert built.returncode == 0, built.stderr
    assert subprocess.run([tmp_path / "softmax"], check=False).returncode == 0


@needs_nvcc
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("config", "arch", "what"),
    [(CLUSTER, "sm_80", "clusters"), (Config(reduction="shuffle-redux"), "sm_75", "redux")],
)
def test_an_older_architecture_is_told_what_it_lacks(config, arch, what, tmp_path):
    """In one error, before those that the compiler would find."""
    built = nvcc(emit(Problem(64, 65536), config).source, tmp_path, "-c", arch=arch)
    assert built.returncode != 0
    (error,) = [line for line in built.stderr.splitlines() if " error: " in line]
    assert "#error" in error and what in error and "explorer emit heuristic --gpu" in error


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_what_a_config_needs_is_what_rules_ask_of_a_gpu(arch):
    """Of the sample's kernels, those that are legal on a GPU need no more than its architecture."""
    gpu, number = known_gpu_for(arch), int(arch.removeprefix("sm_"))
    legal = [k for k in space_sample() if Space(k.problem, gpu).is_legal(k.config)]
    archs = [needed_arch(k.problem, k.config) for k in legal]
    needs = {needed.number for needed in archs if needed is not None}
    assert legal and needs == {least for least in (80, 90) if least <= number}


@needs_nvcc
@pytest.mark.exhaustive
def test_a_portable_kernel_compiles_for_older_architectures(tmp_path):
    source = emit(Problem(64, 1000), Config()).source
    assert "#error" not in source
    built = nvcc(source, tmp_path, "-c", arch="sm_80")
    assert built.returncode == 0, built.stderr


@needs_nvcc
@pytest.mark.exhaustive
def test_a_program_without_a_gpu_says_so(tmp_path):
    """It does not speak of memory alone, of which there would be enough."""
    built = nvcc(emit(Problem(64, 1000), Config(), main=True).source, tmp_path)
    assert built.returncode == 0, built.stderr
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        [tmp_path / "softmax"], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2 and ("driver" in ran.stderr or "device" in ran.stderr), ran.stderr


# ------------------------------------------------------------------ the check of attention


HOST_ALONE = """#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using cudaError_t = int;
using cudaEvent_t = int;
using cudaStream_t = void*;
constexpr int cudaSuccess = 0, cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2;
inline int cudaMalloc(void** array, size_t n) { return (*array = std::malloc(n)) == nullptr; }
inline void cudaMemcpy(void* to, const void* from, size_t n, int) { std::memcpy(to, from, n); }
inline int cudaDeviceSynchronize() { return 0; }
inline const char* cudaGetErrorString(int) { return "no memory"; }
inline void cudaEventCreate(int*) {}
inline void cudaEventRecord(int) {}
inline void cudaEventSynchronize(int) {}
inline void cudaEventElapsedTime(float* milliseconds, int, int) { *milliseconds = 1.0f; }

namespace NAME {
using Element = float;
constexpr int kHeadDim = 64, kGroup = 3;

SIGNATURE {
  static const std::string defect = std::getenv("DEFECT");
  const double factor = defect == "scale" ? 1.1 * scale : scale;
  for (long long row = 0; row < rows; ++row) {
    const long long heads = key_heads * kGroup, sequence = row / heads;
    const long long head = defect == "key heads" ? 0 : row % heads / kGroup;
    const long long first = sequence * sequence_stride + head * head_stride;
    const long long taken = defect == "query heads" ? row / kGroup * kGroup : row;
    int limit = defect == "lengths" ? cols : lengths[sequence];
    if (defect == "last key") limit -= limit > 0;
    double sum = 0.0;
    std::vector<double> sums(kHeadDim);
    for (int k = 0; k < limit; ++k) {
      const float* const one = key + first + k * key_stride;
      double score = 0.0;
      for (int i = 0; i < kHeadDim; ++i) score += query[taken * kHeadDim + i] * one[i];
      const double weight = defect == "scores" ? 1.0 : std::exp(factor * score);
      sum += weight;
      const float* const own = defect == "values" ? one : value + first + k * key_stride;
      for (int i = 0; i < kHeadDim; ++i) sums[i] += weight * own[i];
    }
    for (int i = 0; i < kHeadDim; ++i) {
      output[row * kHeadDim + i] = limit > 0 ? sums[i] / sum : defect == "empty" ? NAN : 0.0;
    }
    lse[row] = defect == "lse" ? std::log2(sum) : std::log(sum);
  }
  return 0;
}
}  // namespace NAME

"""
"""What stands in for CUDA, and for a kernel with a defect, before a main program of attention."""

DEFECTS = ["scale", "key heads", "query heads", "lengths", "last key", "scores", "values"]
DEFECTS += ["lse", "empty"]


@pytest.mark.exhaustive
def test_the_main_program_of_attention_knows_right_from_wrong(tmp_path):
    """Without a GPU: its truth is the host's."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    sizes = {"head_dim": 64, "group": 3, "key_heads": 2, "layout": "NHD", "scale": -0.25}
    problem = Problem(
        *(24, 50, DType.F32, Op.DECODE_ATTENTION), **sizes, mask=Mask.LENGTHS, also="lse"
    )
    config = Config(core="fma", threads=128, static_cols=False)
    source = emit(problem, config, main=True).source
    main = source[source.index("// Checks a few rows") :].split("#endif")[0]
    signature = re.search(r"inline cudaError_t launch\([^)]*\)", source)[0]
    (name,) = re.findall(r"using namespace (\w+);\n  const", main)
    host = HOST_ALONE.replace("NAME", name).replace("SIGNATURE", signature)
    (tmp_path / "main.cpp").write_text(host + main)
    command = [compiler, "-std=c++17", "-Wall", "-Werror", "-O1", "-o", "main", "main.cpp"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for defect in ("", *DEFECTS):
        for told in ([], ["7", "1"], ["5", "333"]):
            ran = subprocess.run(
                [tmp_path / "main", *told],
                env={"DEFECT": defect},
                capture_output=True,
                text=True,
                check=False,
            )
            assert "GB/s" in ran.stdout and "largest relative error" in ran.stdout
            if not defect or told != ["7", "1"]:
                assert ran.returncode == bool(defect), (defect, told, ran.stdout)
