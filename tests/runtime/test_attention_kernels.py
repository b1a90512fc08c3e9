"""Kernels of decode attention: which one serves a call, and what it is told at a launch."""

import ctypes
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from attention_plans import MULTIPLY_ADDS, AttentionPlan
from emulated_plans import H200
from test_arrays import NumpyArrays
from test_service import service, world  # noqa: F401  fixtures

from explorer.choose import config_for
from explorer.codegen.units import emit
from explorer.evaluate import without_search
from explorer.model.element import DType
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Layout, Problem
from explorer.ops import Op
from explorer.runtime import attention, attention_calls, launcher, recipes
from explorer.runtime.kernels import ReadyKernel, find, in_parts, make, problem_of_kernel
from explorer.runtime.service import Asked
from explorer.space import Space

BF16 = np.dtype(ml_dtypes.bfloat16)


def problem(cols=300, **more):
    usual = {"head_dim": 64, "group": 2, "key_heads": 4, "op": Op.DECODE_ATTENTION}
    return Problem(**{"rows": 24, "cols": cols, "dtype": DType.F32, **usual, **more})


# ------------------------------------------------------------------ which kernel serves a call


@pytest.mark.parametrize(
    "cols, of_kernel", [(1, 256), (256, 256), (257, 512), (4096, 4096), (4097, 8192)]
)
def test_a_kernel_serves_all_caches_up_to_a_power_of_two(cols, of_kernel):
    one = problem(cols, layout=Layout.NHD, scale=0.3, also="lse")
    assert problem_of_kernel(one) == problem(of_kernel, scale=1.0, also="lse")
    rows = Problem(3, cols)
    assert problem_of_kernel(rows) is rows


def test_the_longest_cache_has_a_kernel():
    longest = 2**31 - 1 - 2**16
    assert problem_of_kernel(problem(longest)).cols == longest


def test_what_is_asked_of_a_kernel_chooses_it(service, world):  # noqa: F811
    """A call that must not depend on its batch waits, and has a kernel of its own."""
    one = problem_of_kernel(problem())
    world.disk[one, "gpu 0", False] = "usual"
    assert service.get(one, 0).ready == "usual" and not world.made
    invariant = service.get(one, 0, Asked(batch_invariant=True))
    assert world.made == [one] and invariant is not service.get(one, 0)
    service.warm_up([problem(290), problem(300, layout="NHD")], 1)
    assert world.made == [one, one]


def test_a_batch_chooses_no_config_that_must_not_depend_on_it():
    few, many = problem(rows=8), problem(rows=8 * 500)
    assert config_for(few, H200, batch_invariant=True) == config_for(
        many, H200, batch_invariant=True
    )


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"])
@pytest.mark.parametrize("splits", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128])
def test_each_number_of_parts_has_a_kernel(name, splits):
    gpu, one = known_gpu(name), problem(8192)
    config = in_parts(MULTIPLY_ADDS, splits, one, gpu)
    assert config.splits == splits and Space(one, gpu).is_legal(config)
    assert (config.cluster > 1) == (gpu.cluster_blocks > 1 and splits in (2, 4, 8))


def test_more_parts_than_there_are_keys_for_are_refused():
    with pytest.raises(ExplorerError, match=r"splits is 16; .* has no such kernel: "):
        in_parts(MULTIPLY_ADDS, 16, problem(256), H200)


def test_a_kernel_of_parts_is_kept_for_these_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(without_search, "config_for", lambda *_, **__: MULTIPLY_ADDS)
    one = problem(512)
    made = make(one, H200, splits=3)
    assert len(made.launches) == 2 and made.scratch_bytes and made.alignment == 16
    assert find(one, H200, splits=3) == made
    assert find(one, H200) is None and find(one, H200, splits=4) is None


# ------------------------------------------------------------------ what a launch is told


def test_a_launch_is_told_the_numbers_of_the_call(monkeypatch):
    """Not those of the problem, whose kernel serves many."""
    one = problem(512, mask="lengths", also="lse", scale=1.0)
    variant, told = emit(one, MULTIPLY_ADDS), []

    def launched(config, function, parameters, extra):
        names = variant.launches[0].arguments
        told.append(
            dict(zip(names, (ctypes.c_void_p * len(names)).from_address(parameters), strict=True))
        )
        return 0

    run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(launched)
    monkeypatch.setattr(launcher, "_launch_function", lambda: run)
    ready = ReadyKernel(b"", variant.launches, variant.scratch_bytes, 16)
    on = SimpleNamespace(spec=H200, context=0, ensure_current=lambda: None)
    plan = launcher.Plan(launcher.LoadedKernel(one, ready, (1,), on))
    assert plan.aligned == ("query", "key", "value", "mask", "output") and plan.mask == 15
    assert plan.only_launch() is None
    numbers = {"cols": 300, "key_heads": 4, "key_stride": 64, "head_stride": 2**40}
    addresses = {"key": 32, "value": 48, "lengths": 64, "lse": 80}
    plan.scale(0.25)
    plan.launch(0, 16, 96, **addresses, **numbers, sequence_stride=2**41)

    def value(name, kind):
        return kind.from_address(told[0][name]).value

    for name, number in {"query": 16, "output": 96, **addresses}.items():
        assert value(name, ctypes.c_uint64) == number
    for name, number in {**numbers, "sequence_stride": 2**41}.items():
        assert value(name, ctypes.c_int32 if name == "cols" else ctypes.c_int64) == number
    assert value("scale", ctypes.c_float) == 0.25


# ------------------------------------------------------------------ arrays as CuPy's and JAX's


@pytest.fixture
def launches(monkeypatch):
    made = []
    monkeypatch.setattr(
        recipes, "plan_of", lambda library, one, device, asked: AttentionPlan(one, asked, made)
    )
    return made


def decode(monkeypatch, library, q, k, v, **more):
    monkeypatch.setattr(attention, "function_for", lambda x, name, _: getattr(library, name))
    return attention.decode_attention(q, k, v, **more)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), BF16], ids=str)
@pytest.mark.parametrize("has_strides", [True, False])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_other_libraries_arrays(launches, monkeypatch, dtype, has_strides, layout):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(3, 4, 64)).astype(dtype)
    shape = (3, 2, 50, 64) if layout == "HND" else (3, 50, 2, 64)
    k, v = (rng.normal(size=shape).astype(dtype) for _ in range(2))
    lengths = np.array([50, 0, 7])
    with np.errstate(all="ignore"):
        theirs, of_sums = decode(
            monkeypatch, NumpyArrays(-1), q, k, v, lengths=lengths, layout=layout, return_lse=True
        )
        assert not launches
        library = NumpyArrays(has_strides=has_strides)
        got, lse = decode(
            monkeypatch, library, q, k, v, lengths=lengths, layout=layout, return_lse=True
        )
    step = {4: 1e-5, 2: 2**-7}[dtype.itemsize]
    assert got.dtype == theirs.dtype == dtype and lse.dtype == of_sums.dtype == np.float32
    np.testing.assert_allclose(got.astype(float), theirs.astype(float), rtol=step, atol=step)
    np.testing.assert_allclose(lse, of_sums, rtol=1e-5)
    assert len(launches) == 1 and (got[1] == 0).all()


def test_an_array_of_another_gpu_is_refused(monkeypatch):
    q, k = np.zeros((1, 2, 64), np.float32), np.zeros((1, 2, 5, 64), np.float32)
    library = NumpyArrays()
    monkeypatch.setattr(library, "device", lambda x: x.ndim)
    with pytest.raises(InvalidInput, match="k lies on another GPU than q; both must lie on one"):
        decode(monkeypatch, library, q, k, k)


def test_arrays_that_go_backwards_are_read_as_they_are(launches, monkeypatch):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 2, 64)).astype(np.float32)
    k, v = rng.normal(size=(2, 2, 1, 40, 64)).astype(np.float32)
    told = []
    monkeypatch.setattr(
        NumpyArrays, "launch", lambda self, plan, device, source, output, more: told.append(more)
    )
    decode(monkeypatch, NumpyArrays(), q, k[:, :, ::-1], v[:, :, ::-1])
    assert told[0]["key_stride"] == -64 and told[0]["key"] == k[:, :, ::-1].ctypes.data


def test_the_shape_of_a_query_tells_its_heads():
    heads = attention_calls.heads_of
    assert heads((2, 5, 64), "HND") == heads((2, 5, 1, 64), "NHD") == 5
    assert heads((2, 1, 5, 64), "NHD") == 5
    with pytest.raises(InvalidInput, match="more queries a head are not served"):
        heads((2, 1, 5, 64), "HND")
