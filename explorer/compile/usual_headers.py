"""What sources of a person's own name of the C and C++ library, which NVRTC does not have.

nvcc includes headers of the host's compiler before any source, and a file may include more. NVRTC
has none of them. A source that names something of theirs is compiled with the texts of this module
in their place: constants, types of whole numbers, `std::numeric_limits`, and what kernels use of
`std` beside these. What only host code uses is left out.
"""

import re

from explorer.codegen.variant import split_source

PRELUDE = "explorer_usual.h"
"""The name of the text that stands before a source, as nvcc's own headers do."""

_LIMITS = {
    "float": ("-FLT_MAX", "FLT_MIN", "FLT_MAX", "FLT_EPSILON", "INFINITY", "NAN"),
    "double": ("-DBL_MAX", "DBL_MIN", "DBL_MAX", "DBL_EPSILON", "double(INFINITY)", "double(NAN)"),
    "int": ("INT_MIN", "INT_MIN", "INT_MAX", "0", "0", "0"),
    "long long": ("LLONG_MIN", "LLONG_MIN", "LLONG_MAX", "0", "0", "0"),
}
_NUMBERS = ("lowest", "min", "max", "epsilon", "infinity", "quiet_NaN")

_CONSTANTS = {
    "INFINITY": "__builtin_bit_cast(float, 0x7f800000)",
    "HUGE_VALF": "INFINITY",
    "HUGE_VAL": "double(INFINITY)",
    "NAN": "__builtin_bit_cast(float, 0x7fffffff)",
    "FLT_MAX": "3.402823466e+38F",
    "FLT_MIN": "1.175494351e-38F",
    "FLT_EPSILON": "1.192092896e-07F",
    "DBL_MAX": "1.7976931348623158e+308",
    "DBL_MIN": "2.2250738585072014e-308",
    "DBL_EPSILON": "2.2204460492503131e-16",
    "INT_MAX": "2147483647",
    "INT_MIN": "(-INT_MAX - 1)",
    "UINT_MAX": "0xffffffffU",
    "LLONG_MAX": "9223372036854775807LL",
    "LLONG_MIN": "(-LLONG_MAX - 1LL)",
    "M_LOG2E": "1.4426950408889634074",
    "M_LN2": "0.69314718055994530942",
    "M_E": "2.7182818284590452354",
}

_TYPES = {
    "int8_t": "signed char",
    "uint8_t": "unsigned char",
    "int16_t": "short",
    "uint16_t": "unsigned short",
    "int32_t": "int",
    "uint32_t": "unsigned int",
    "int64_t": "long long",
    "uint64_t": "unsigned long long",
    "intptr_t": "long long",  # as CCCL declares it where NVRTC compiles
    "uintptr_t": "unsigned long long",
}

_MATH = (
    *("abs", "ceil", "cos", "exp", "exp2", "fabs", "floor", "fma", "fmax", "fmin", "fmod", "isinf"),
    *("isnan", "log", "log2", "pow", "round", "rsqrt", "sin", "sqrt", "tanh", "trunc"),
)
"""Functions of <cmath> that CUDA declares for float and double outside of `std`."""

_OF_STD = """
using size_t = decltype(sizeof(0));
using ptrdiff_t = decltype((char*)0 - (char*)0);
template <typename T>
__host__ __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <typename T>
__host__ __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <typename T>
__host__ __device__ constexpr void swap(T& a, T& b) { T c = a; a = b; b = c; }
template <bool V> struct bool_constant { static constexpr bool value = V; };
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
template <typename T, typename U> inline constexpr bool is_same_v = false;
template <typename T> inline constexpr bool is_same_v<T, T> = true;
template <typename T, typename U> struct is_same : bool_constant<is_same_v<T, U>> {};
template <bool, typename T, typename U> struct conditional { using type = T; };
template <typename T, typename U> struct conditional<false, T, U> { using type = U; };
template <bool B, typename T, typename U> using conditional_t = typename conditional<B, T, U>::type;
template <bool, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { using type = T; };
template <bool B, typename T = void> using enable_if_t = typename enable_if<B, T>::type;
template <typename T> struct remove_const { using type = T; };
template <typename T> struct remove_const<const T> { using type = T; };
template <typename T> struct remove_reference { using type = T; };
template <typename T> struct remove_reference<T&> { using type = T; };
template <typename T> struct remove_reference<T&&> { using type = T; };
template <typename T> using remove_const_t = typename remove_const<T>::type;
template <typename T> using remove_reference_t = typename remove_reference<T>::type;
template <typename T> using remove_cv_t = remove_const_t<T>;
template <typename T> using decay_t = remove_const_t<remove_reference_t<T>>;
template <typename T, size_t N> struct array {
  T elements[N];
  __host__ __device__ constexpr T& operator[](size_t i) { return elements[i]; }
  __host__ __device__ constexpr const T& operator[](size_t i) const { return elements[i]; }
  static __host__ __device__ constexpr size_t size() { return N; }
  __host__ __device__ constexpr T* data() { return elements; }
};
"""

_EMULATED = {
    "printf": ("explorer_printf", "(...) 0"),
    "assert": ("explorer_assert", "(is_so) ((is_so) ? (void)0 : __trap())"),
}
"""What calls become where a kernel is emulated, which prints nothing and stops at a trap."""


def _prelude() -> str:
    lines = [f"#define {name} {value}" for name, value in _CONSTANTS.items()]
    lines += [f"typedef {meant} {name};" for name, meant in _TYPES.items()]
    lines += [f"#define {name}{meant}" for name, meant in _EMULATED.values()]
    lines += ["namespace std {"]
    lines += [f"using ::{name};" for name in (*_TYPES, *_MATH)]
    lines += [_OF_STD, "template <typename T> struct numeric_limits;"]
    for name, values in _LIMITS.items():
        members = " ".join(
            f"static __host__ __device__ constexpr {name} {number}() {{ return {value}; }}"
            for number, value in zip(_NUMBERS, values, strict=True)
        )
        lines += [f"template <> struct numeric_limits<{name}> {{ {members} }};"]
    return "\n".join([*lines, "}", ""])


_OF_THE_HOST = (
    *("algorithm", "array", "assert.h", "cassert", "cfloat", "chrono", "climits", "cmath"),
    *("cstddef", "cstdint", "cstdio", "cstdlib", "cstring", "float.h", "fstream", "functional"),
    *("iomanip", "iostream", "limits", "limits.h", "map", "math.h", "memory", "numeric"),
    *("random", "sstream", "stddef.h", "stdexcept", "stdint.h", "stdio.h", "stdlib.h"),
    *("string", "string.h", "time.h", "tuple", "type_traits", "utility", "vector"),
    *("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h"),
    *("cublas_v2.h", "curand.h", "curand_kernel.h", "omp.h", "ctime", "cuda_profiler_api.h"),
)

_CUB = ("block/block_load", "block/block_reduce", "block/block_store", "warp/warp_reduce")

HEADERS: dict[str, str] = {
    **dict.fromkeys(_OF_THE_HOST, ""),
    PRELUDE: _prelude(),
    # CUB refuses its header of all of CUB where NVRTC compiles, and is included by parts there.
    "cub/cub.cuh": "".join(f"#include <cub/{part}.cuh>\n" for part in _CUB),
}
"""Text by the name by which sources include it; empty where `PRELUDE` has what is needed of it."""

_REPLACED = [name for name, _ in _EMULATED.values()]
_NAMED = re.compile(
    rf"\bstd::|\b(?:{'|'.join([*_CONSTANTS, *_TYPES, *_REPLACED])})\b"
    rf"|#[ \t]*include[ \t]*[<\"](?:{'|'.join(map(re.escape, HEADERS))})[>\"]"
)


_FOR_NVCC_ALONE = re.compile(r"^#ifndef __CUDACC_RTC__$.*?^#endif", re.DOTALL | re.MULTILINE)


def names_usual(source: str) -> bool:
    """Return whether what NVRTC reads of a source names anything that these headers stand for."""
    read = _FOR_NVCC_ALONE.sub("", split_source(source)[0])
    return _NAMED.search(read) is not None


def emulated_text(source: str) -> str:
    """Return a source whose calls of `printf` do nothing, and whose `assert` traps, in place."""
    for name, (instead, _) in _EMULATED.items():
        source = re.sub(rf"\b{name}\b(?=\s*\()", instead, source)
    return source
