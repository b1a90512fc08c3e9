"""Peers of attention, as far as that goes without a GPU: PyTorch's own on the CPU."""

from types import SimpleNamespace

import pytest

from explorer.model.element import DType
from explorer.model.peer import PeerBuffers, PeerRefuses
from explorer.model.problem import Mask, Problem
from explorer.peers.registry import EVERY, check_scope

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch.nn.attention import SDPBackend  # noqa: E402

from explorer.peers import attention  # noqa: E402
from explorer.peers.torch_softmax import written_by  # noqa: E402
from tests.peers.attention_cases import assert_right, drawn, problem_of  # noqa: E402


@pytest.mark.parametrize("scale", [None, -0.3])
@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], ids=str)
def test_pytorchs_attention_reads_both_layouts(backend, dtype, layout, scale):
    problem = problem_of(dtype, layout=layout, scale=scale)
    arrays, tensors = drawn(problem)
    made = attention.attention_of(problem, backend)(*tensors)
    coarse = 500 if dtype is DType.BF16 else 1
    assert_right(problem, arrays, (made,), coarse)
    assert made.is_contiguous()


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_caches_are_viewed_and_not_copied(layout):
    problem = problem_of(layout=layout)
    _, (_, key, _) = drawn(problem)
    view = attention.by_head(problem, key)
    assert view.shape == (4, 3, 37, 64) and view.data_ptr() == key.data_ptr()


class FlashAttention:
    """The functions of FlashAttention's module, computed by PyTorch."""

    def __init__(self):
        self.planned = 0

    def get_scheduler_metadata(
        self, sequences, queries, keys, heads, key_heads, dim, lengths, *, qkv_dtype
    ):
        assert (sequences, queries, keys, heads, key_heads, dim) == (4, 1, 37, 6, 3, 64)
        assert qkv_dtype is torch.bfloat16 and lengths.dtype is torch.int32
        self.planned += 1
        return lengths.data_ptr()

    def flash_attn_with_kvcache(
        self,
        q,
        k_cache,
        v_cache,
        *,
        cache_seqlens=None,
        softmax_scale=None,
        scheduler_metadata=None,
        return_softmax_lse=False,
    ):
        assert q.shape == (4, 1, 6, 64) and k_cache.shape == v_cache.shape == (4, 37, 3, 64)
        scores = torch.einsum("bhd,bkhd->bhk", q[:, 0].double(), _for_each(k_cache))
        scores = scores * (softmax_scale or 64**-0.5)
        if cache_seqlens is not None:
            assert scheduler_metadata == cache_seqlens.data_ptr()
            hidden = torch.arange(37) >= cache_seqlens[:, None]
            scores = scores.masked_fill(hidden[:, None], -torch.inf)
        made = torch.einsum("bhk,bkhd->bhd", scores.softmax(-1), _for_each(v_cache))
        lse = scores.logsumexp(-1)[:, :, None].float()
        return made[:, None].to(q.dtype), lse, None


def _for_each(cache):
    """A key head's vectors for each query head."""
    return cache.double().repeat_interleave(2, dim=2)


@pytest.mark.parametrize("also", ["", "lse"])
@pytest.mark.parametrize("mask", [Mask.NONE, Mask.LENGTHS])
def test_flash_attention_3_is_called_with_what_it_takes(mask, also):
    problem = problem_of(DType.BF16, layout="NHD", mask=mask, also=also, scale=0.2)
    arrays, tensors = drawn(problem)
    library = FlashAttention()
    call = attention.fa3_of(problem, library)
    room = [torch.empty(array.shape) for array in written_by(problem)]
    made = [call(*tensors, *room) for _ in range(2)][-1]
    assert_right(problem, arrays, made if also else (made,), coarse=500)
    assert library.planned == (mask is Mask.LENGTHS)


NO_BUFFERS = PeerBuffers((), ())


@pytest.mark.parametrize(
    ("prepare", "problem", "says"),
    [
        ("fa3", problem_of(DType.BF16), "the layout NHD"),
        ("fa3", problem_of(DType.F16, layout="NHD"), "computes in bf16, not in f16"),
        ("flash", problem_of(mask=Mask.LENGTHS), "takes no lengths"),
        ("math", problem_of(also="lse"), "no lse beside the output"),
        ("cudnn", Problem(8, 8), "adapted for decode_attention, not for softmax"),
        ("fa3", Problem(8, 8), "adapted for decode_attention, not for softmax"),
    ],
)
def test_what_they_do_not_take_is_refused_in_a_sentence(prepare, problem, says):
    with pytest.raises(PeerRefuses, match=says):
        getattr(attention, f"prepare_{prepare}")(problem, NO_BUFFERS, 0)


def test_what_is_not_installed_is_missing():
    with pytest.raises(ImportError, match="fa3_fwd"):
        attention.prepare_fa3(problem_of(DType.BF16, layout="NHD"), NO_BUFFERS, 0)


def test_a_backend_that_takes_no_such_call_refuses_with_its_reasons():
    import warnings

    def launch(_):
        warnings.warn(
            "Flash attention kernel not used because: (Triggered internally)", stacklevel=2
        )
        raise RuntimeError("No available kernel. Aborting execution.")

    with pytest.raises(PeerRefuses, match=r"takes no such call Flash .* not used because:$"):
        attention.try_once(SimpleNamespace(launch=launch))


def test_others_refuse_attention_in_a_sentence():
    for ops in (EVERY, ("softmax",)):
        with pytest.raises(PeerRefuses, match="not for decode_attention"):
            check_scope("torch", problem_of(), ops=ops)
