"""Attention of one query a head on PyTorch's tensors: kernels are run by the emulator."""

import math

import pytest
from attention_plans import AttentionPlan
from torch_cases import serve_cpu, torch

import explorer
from explorer.model.errors import InvalidInput
from explorer.runtime import recipes, torch_override
from explorer.runtime.kernels import problem_of_kernel

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
own = torch.nn.functional.scaled_dot_product_attention
decode = explorer.decode_attention


def by_kernels(monkeypatch):
    """Our kernels serve tensors on the CPU; the problems and the numbers of all launches."""
    serve_cpu(monkeypatch)
    launches = []

    def plan_of(library, problem, device, asked=None):
        return AttentionPlan(problem, asked, launches) if problem.attends else None

    monkeypatch.setattr(recipes, "plan_of", plan_of)
    return launches


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


@pytest.fixture
def ours(monkeypatch):
    return by_kernels(monkeypatch)


@pytest.fixture(params=["kernels", "framework"])
def launches(request, monkeypatch):
    """The launches of kernels; None where PyTorch's own functions serve the calls."""
    return by_kernels(monkeypatch) if request.param == "kernels" else None


def arrays(batch=2, key_heads=2, group=2, keys=70, dim=64, dtype=F32):
    """A query, keys and values of the layout HND."""
    q = torch.randn(batch, key_heads * group, dim).to(dtype)
    k, v = (torch.randn(batch, key_heads, keys, dim).to(dtype) for _ in range(2))
    return q, k, v


def exact(q, k, v, lengths=None, scale=None):
    """The result in double precision, and the log-sum-exp, of arrays of the layout HND."""
    _, heads, dim = q.shape
    k, v = (one.double().repeat_interleave(heads // k.shape[1], 1) for one in (k, v))
    scores = torch.einsum("bhd,bhsd->bhs", q.double(), k) * (dim**-0.5 if scale is None else scale)
    if lengths is not None:
        hidden = torch.arange(k.shape[2]) >= lengths[:, None]
        scores = scores.masked_fill(hidden[:, None], -math.inf)
    weights = torch.softmax(scores, -1)
    return torch.einsum("bhs,bhsd->bhd", weights.nan_to_num(), v), torch.logsumexp(scores, -1)


def close(got, expected):
    step = {F32: 4e-6, F16: 2**-10, BF16: 2**-7}[got.dtype]
    torch.testing.assert_close(got.double(), expected, rtol=step, atol=step / 4)


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("group, dim", [(1, 64), (4, 128), (5, 64), (7, 256), (8, 64)])
def test_it_is_pytorchs_attention_of_one_query(launches, dtype, group, dim):
    q, k, v = arrays(group=group, dim=dim, keys=33, dtype=dtype)
    got, lse = decode(q, k, v, return_lse=True)
    wanted, of_sums = exact(q, k, v)
    close(got, wanted)
    assert got.dtype is dtype and lse.dtype is F32 and lse.shape == q.shape[:2]
    torch.testing.assert_close(lse.double(), of_sums, rtol=1e-6, atol=1e-5)
    theirs = own(q.double()[:, :, None], k.double(), v.double(), enable_gqa=True)
    torch.testing.assert_close(wanted, theirs[:, :, 0])
    assert launches is None or len(launches) == 1


@pytest.mark.parametrize("scale", [0, 0.2, -0.25, None])
def test_the_scale_multiplies_the_scores(launches, scale):
    q, k, v = arrays()
    close(decode(q, k, v, scale=scale), exact(q, k, v, scale=scale)[0])
    if launches is not None:
        ((problem, numbers),) = launches
        assert problem.scale == (None if scale is None else 1.0)
        assert scale is None or numbers["scale"] == scale


@pytest.mark.parametrize("layout", ["HND", "NHD", "nhd"])
def test_shapes_of_a_query_and_the_order_of_axes(launches, layout):
    q, k, v = arrays()
    wanted = exact(q, k, v)[0]
    shapes = [q, q[:, :, None]]
    if layout != "HND":
        k, v, shapes = k.transpose(1, 2), v.transpose(1, 2), [*shapes, q[:, None]]
    for query in shapes:
        got = decode(query, k, v, layout=layout)
        assert got.shape == query.shape and got.is_contiguous()
        close(got.reshape(q.shape), wanted)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.uint8, torch.int16], ids=str)
def test_keys_beyond_a_length_are_not_used(launches, kind):
    q, k, v = arrays(batch=4, keys=40)
    lengths = torch.tensor([40, 0, 1, 17], dtype=kind)
    wanted, of_sums = exact(q, k, v, lengths)
    for index, length in enumerate(lengths.tolist()):
        k[index, :, length:], v[index, :, length:] = math.nan, math.inf
    got, lse = decode(q, k, v, lengths=lengths, return_lse=True)
    close(got, wanted)
    torch.testing.assert_close(lse.double(), of_sums, rtol=1e-6, atol=1e-5)
    assert (got[1] == 0).all() and (lse[1] == -math.inf).all()


def test_lengths_are_clamped_without_a_look_at_them(launches):
    q, k, v = arrays(batch=3, keys=20)
    lengths = torch.tensor([2**40, -(2**40), 21])
    close(decode(q, k, v, lengths=lengths), exact(q, k, v, lengths.clip(0, 20))[0])
    with pytest.raises(InvalidInput, match=r"lengths is 1099511627776 at 0; it must be from 0 to"):
        decode(q, k, v, lengths=lengths, check=True)
    decode(q, k, v, lengths=lengths.clip(0, 20), check=True)


def test_lengths_are_looked_at_where_their_values_are_known(launches):
    """Code of one graph knows none, and says so; other code is compiled around the call."""
    torch._dynamo.reset()  # which remembers how it compiled this code before
    q, k, v = arrays(batch=2, keys=20)
    lengths = torch.tensor([3, 20])

    def checked(lengths):
        return decode(q, k, v, lengths=lengths, check=True)

    whole = torch.compile(checked, fullgraph=True, backend="aot_eager")
    says = "check is True in code that torch.compile compiles as one graph; it needs the values of"
    with pytest.raises(Exception, match=f"{says} lengths"):
        whole(lengths)
    parts = torch.compile(checked, backend="aot_eager")
    assert parts(lengths).equal(checked(lengths))
    with pytest.raises(InvalidInput, match="lengths is 21 at 0"):
        parts(torch.tensor([21, 3]))
    with pytest.raises(InvalidInput, match=r"check is True under torch.func.vmap; it needs"):
        torch.func.vmap(checked)(lengths[None])


@pytest.mark.parametrize("name", ["attn_mask", "mask"])
def test_a_mask_is_refused_in_one_sentence(name):
    q, k, v = arrays()
    with pytest.raises(InvalidInput, match=f"^{name} is given, and a mask is not served: give len"):
        decode(q, k, v, **{name: torch.zeros(2, 70)})
    with pytest.raises(TypeError, match="unexpected keyword argument 'dropout_p'"):
        decode(q, k, v, dropout_p=0.0)


def test_scores_that_are_no_numbers(launches):
    q, k, v = arrays(batch=1, key_heads=3, group=1, keys=5)
    k[0, 0, 2, 0], k[0, 1], q[0, 1] = math.nan, -math.inf, 1.0
    got, lse = decode(q, k, v, return_lse=True)
    assert got[0, :2].isnan().all() and not got[0, 2].isnan().any()
    assert lse[0, 0].isnan() and lse[0, 1] == -math.inf


def test_a_cache_without_keys_and_a_batch_without_sequences(launches):
    q, k, v = arrays()
    got, lse = decode(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert (got == 0).all() and (lse == -math.inf).all() and lse.shape == q.shape[:2]
    got, lse = decode(q[:0], k[:0], v[:0], return_lse=True)
    assert got.shape == (0, 4, 64) and lse.shape == (0, 4)
    assert not launches


def test_autocast_does_not_make_it_less_precise(launches):
    q, k, v = arrays()
    with torch.autocast("cpu", dtype=BF16):
        close(decode(q, k, v), exact(q, k, v)[0])


# ------------------------------------------------------------------ caches read as they are


def test_a_slice_of_a_larger_cache_is_not_copied(ours):
    cache = torch.full((2, 3, 2, 90, 64), math.nan)
    q = torch.randn(3, 4, 64)
    for keys in (33, 34):
        cache[:, :, :, :keys] = torch.randn(2, 3, 2, keys, 64)
        k, v = cache[:, :, :, :keys]
        close(decode(q, k, v), exact(q, k, v)[0])
        _, numbers = ours[-1]
        assert numbers["cols"] == keys
        assert numbers["head_stride"] == 90 * 64 and numbers["sequence_stride"] == 2 * 90 * 64
    wide = torch.randn(3, 90, 2, 2, 64)  # keys beside values, as one product makes them
    k, v = wide[:, :50, 0], wide[:, :50, 1]
    got = decode(q, k, v, layout="NHD")
    close(got, exact(q, k.transpose(1, 2), v.transpose(1, 2))[0])
    assert ours[-1][1]["key_stride"] == 256 and ours[-1][1]["head_stride"] == 64


COPIED = {
    "every second element": lambda k, v: (torch.cat([k, k], -1)[..., ::2], v),
    "rows of an odd stride": lambda k, v: (torch.nn.functional.pad(k, (0, 1))[..., :-1], v),
    "off a word": lambda k, v: (torch.cat([k.flatten()[:1], k.flatten()])[1:].view(k.shape), v),
    "keys and values that lie otherwise": lambda k, v: (
        k,
        torch.cat([v, v], 2)[:, :, : v.shape[2]],
    ),
}


@pytest.mark.parametrize("how", COPIED)
def test_what_no_kernel_reads_is_copied(ours, how):
    q, k, v = arrays(keys=30)
    k, v = COPIED[how](k, v)
    close(decode(q, k, v), exact(q, k, v)[0])
    ((_, numbers),) = ours
    assert (numbers["key_stride"], numbers["head_stride"]) == (64, 30 * 64)


def test_a_query_and_lengths_with_gaps(launches):
    q, k, v = arrays(batch=3, keys=30)
    q, lengths = (
        torch.stack([q, q], -1)[..., 0],
        torch.tensor([[4, 1], [30, 1], [9, 1]])[:, 0].int(),
    )
    close(decode(q, k, v, lengths=lengths), exact(q, k, v, lengths)[0])


def test_heads_that_share_memory(ours):
    q, k, v = arrays(keys=30)
    k, v = k[:1, :1].expand(2, 2, -1, -1), v[:1, :1].expand(2, 2, -1, -1)
    close(decode(q, k, v), exact(q, k, v)[0])
    assert ours[0][1]["head_stride"] == ours[0][1]["sequence_stride"] == 0


# ------------------------------------------------------------------ kernels


def test_a_growing_cache_has_few_kernels(ours):
    q, k, v = arrays(batch=1, key_heads=1, keys=300)
    for keys in (1, 2, 100, 255, 256, 257, 300):
        close(
            decode(q, k[:, :, :keys], v[:, :, :keys]), exact(q, k[:, :, :keys], v[:, :, :keys])[0]
        )
    assert [problem.cols for problem, _ in ours] == 5 * [256] + 2 * [512]
    assert [int(numbers["cols"]) for _, numbers in ours] == [1, 2, 100, 255, 256, 257, 300]
    assert len({problem for problem, _ in ours}) == 2


@pytest.mark.parametrize("splits", [1, 2, 3, 6])
def test_parts_of_the_keys_are_as_many_as_asked_for(ours, splits):
    q, k, v = arrays(batch=2, keys=200)
    lengths = torch.tensor([200, 5])
    got, lse = decode(q, k, v, lengths=lengths, splits=splits, return_lse=True)
    wanted, of_sums = exact(q, k, v, lengths)
    close(got, wanted)
    torch.testing.assert_close(lse.double(), of_sums, rtol=1e-6, atol=1e-5)
    assert ours[0][0].cols >= 64 * (splits - 1) + 1


def test_a_kernel_is_asked_for_as_the_call_says(monkeypatch):
    serve_cpu(monkeypatch)
    asked = []
    monkeypatch.setattr(recipes, "plan_of", lambda *told: asked.append(told[1:]))
    q, k, v = arrays()
    decode(q, k, v, splits=128, batch_invariant=True, layout="HND")
    decode(q, k.transpose(1, 2), v.transpose(1, 2), layout="NHD", return_lse=True)
    (first, _, how), (second, _, usual) = asked
    assert how == (True, 128) and first.cols == 8192
    assert usual == (False, None) and second.cols == 256
    assert (second.rows, second.group, second.key_heads, second.also) == (8, 2, 2, "lse")
    assert second.layout == first.layout == "HND"  # how a cache lies is told at the launch
    sizes = {"head_dim": 64, "group": 2, "key_heads": 2, "also": "lse", "layout": "NHD"}
    named = explorer.Problem(8, 70, "f32", "decode_attention", **sizes)
    assert problem_of_kernel(named) == second  # as `warm_up` loads it


# ------------------------------------------------------------------ outputs


def test_an_output_is_written_and_returned(launches):
    q, k, v = arrays()
    wanted = exact(q, k, v)[0]
    for out in (torch.empty(q.shape), torch.empty(2, 4, 128)[..., ::2], k.flatten()[: q.numel()]):
        out = out.view(q.shape) if out.dim() == 1 else out
        version = out._version
        got, lse = decode(q, k, v, out=out, return_lse=True)
        assert got is out and out._version > version and lse.shape == (2, 4)
        close(out, wanted)


# ------------------------------------------------------------------ gradients, code, transforms


def test_a_gradient_is_refused(launches):
    q, k, v = arrays()
    for one in (q, k, v):
        one.requires_grad_()
        with pytest.raises(
            InvalidInput, match="requires a gradient, and decode_attention has none"
        ):
            decode(q, k, v)
        with torch.no_grad():
            assert not decode(q, k, v).requires_grad
        one.requires_grad_(False)


def test_transforms_see_pytorchs_functions(launches):
    q, k, v = arrays(keys=9)
    lengths = torch.tensor([9, 4])
    for index, length in enumerate(lengths.tolist()):
        k[index, :, length:] = math.nan

    def loss(q):
        return decode(q, k, v, lengths=lengths).square().sum()

    def other(q):
        hidden = torch.arange(9) < lengths[:, None]
        known = k.nan_to_num()
        found = own(q[:, :, None], known, v, hidden[:, None, None], enable_gqa=True)
        return found.square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(q), torch.func.grad(other)(q))
    many = torch.func.vmap(decode)(*(torch.stack([one, 2 * one]) for one in (q, k, v)))
    assert many.shape == (2, *q.shape)
    assert not launches


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_has_one_graph(launches, backend):
    q, k, v = arrays()
    lengths = torch.tensor([70, 3], dtype=torch.int32)

    @torch.compile(backend=backend, fullgraph=True)
    def step(q, k, v, lengths):
        return decode(2 * q, k, v, lengths=lengths, return_lse=True, splits=2)

    for keys in (70, 33, 34):
        got, lse = step(q, k[:, :, :keys], v[:, :, :keys], lengths)
        wanted, of_sums = exact(2 * q, k[:, :, :keys], v[:, :, :keys], lengths.clip(0, keys))
        close(got, wanted)
        torch.testing.assert_close(lse.double(), of_sums, rtol=1e-6, atol=1e-5)
    assert launches is None or len(launches) == 3
    with pytest.raises(Exception, match="requires a gradient"):
        step(q.requires_grad_(), k, v, lengths)


def test_the_operator_is_as_pytorch_wants_it(launches):
    q, k, v = arrays(keys=9)
    operator = torch.ops.explorer.decode_attention.default
    lengths = torch.tensor([9, 4])
    for more in ((), (lengths,), (lengths, "HND", 0.5, True, 2, True)):
        torch.library.opcheck(operator, (q, k, v, *more))
    torch.library.opcheck(operator, (q, k.transpose(1, 2), v.transpose(1, 2), None, "NHD"))


# ------------------------------------------------------------------ arguments


Q, K = torch.zeros(2, 4, 64), torch.zeros(2, 2, 9, 64)
WRONG = [
    ((Q, K, K.half()), {}, "v is of float16; it must be of q's type, float32"),
    ((Q.double(), K.double(), K.double()), {}, "q is of float64; it must be of float32 or float16"),
    ((Q.int(), K.int(), K.int()), {}, "q is of int32; it must be of"),
    ((Q[0], K, K), {}, r"q is of shape \(4, 64\); it must be \(batch, query_heads, head_dim\)"),
    ((Q[:, :, None].expand(2, 4, 3, 64), K, K), {}, "more queries a head are not served"),
    ((Q, K[0], K[0]), {}, r"k is of shape \(2, 9, 64\); beside q .* \(2, key_heads, keys, 64\)"),
    ((Q, K[..., :32], K), {}, r"k is of shape \(2, 2, 9, 32\)"),
    ((Q, K[:1], K[:1]), {"layout": "NHD"}, r"it must be \(2, keys, key_heads, 64\)"),
    ((Q, K, K[:, :, :8]), {}, r"v is of shape \(2, 2, 8, 64\); it must be that of k"),
    ((Q[..., :32], K[..., :32], K[..., :32]), {}, "q has 32 elements a head; it must have 64"),
    ((Q[:, :3], K, K), {}, "q has 3 heads and k has 2; each key head"),
    ((Q, K, K), {"layout": "NHD"}, "q has 4 heads and k has 9; each key head"),
    ((Q.repeat(1, 5, 1), K, K), {}, "q has 20 heads and k has 2; at most 8 query heads"),
    ((Q, K, K), {"layout": "NDH"}, "NDH"),
    ((Q, K, K), {"layout": 3}, "layout is 3; it must be one of HND, NHD"),
    ((Q, K, K), {"lengths": torch.zeros(2)}, "lengths is of float32; it must be of"),
    ((Q, K, K), {"lengths": torch.zeros(2, 1).int()}, r"it must be of shape \(2,\)"),
    ((Q, K, K), {"splits": 5}, "splits is 5; it must be None or one of 1, 2, 3, 4, 6"),
    ((Q, K, K), {"splits": 129}, "splits is 129"),
    ((Q, K, K), {"splits": 2.5}, "splits is 2.5"),
    ((Q, K, K), {"out": torch.zeros(2, 4, 1, 64)}, r"out is .* it must be torch.float32 of shape"),
    ((Q, K.to("meta"), K), {}, "k is on meta; it must be on q's device, cpu"),
    ((Q.to_sparse(), K, K), {}, "q is of layout torch.sparse_coo; it must be dense"),
]


@pytest.mark.parametrize("given, more, says", WRONG, ids=[says for *_, says in WRONG])
def test_what_does_not_go_together_is_refused_in_a_sentence(given, more, says):
    with pytest.raises(InvalidInput, match=says) as raised:
        decode(*given, **more)
    assert "\n" not in str(raised.value)


WRONG_KINDS = [
    (([1.0], K, K), {}, "q is a list; it must be a tensor of PyTorch"),
    ((Q, 3, K), {}, "k is .*; it must be a tensor"),
    ((Q, K, K), {"lengths": [1, 2]}, "lengths is .*; it must be a tensor"),
    ((Q, K, K), {"scale": "1"}, "scale is '1'; it must be a number"),
    ((Q, K, K), {"return_lse": 1}, "return_lse is 1; it must be True or False"),
    ((Q, K, K), {"mask": None}, "mask"),
]


@pytest.mark.parametrize("given, more, says", WRONG_KINDS, ids=[s for *_, s in WRONG_KINDS])
def test_another_kind_of_argument_is_a_type_error(given, more, says):
    with pytest.raises(TypeError, match=says):
        decode(*given, **more)


# ------------------------------------------------------------------ parts that are merged


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_parts_are_merged_to_the_whole(launches, dtype):
    q, k, v = arrays(keys=60, dtype=dtype)
    parts = [decode(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 7), (7, 60))]
    made = [
        torch.stack(one, dim) for one, dim in zip(zip(*parts, strict=True), (-3, -2), strict=True)
    ]
    got, lse = explorer.merge_states(*made)
    wanted, of_sums = exact(q, k, v)
    assert got.dtype is dtype and lse.dtype is F32
    close(got, wanted)
    torch.testing.assert_close(lse.double(), of_sums, rtol=1e-6, atol=1e-5)


def test_parts_without_keys_count_for_nothing():
    o, lse = torch.randn(3, 2, 4, 8), torch.randn(3, 2, 4)
    lse[0, 1], o[0, 1], lse[1] = -math.inf, math.nan, -math.inf
    got, merged = explorer.merge_states(o, lse)
    torch.testing.assert_close(got[0], o[0, 0])
    torch.testing.assert_close(merged[0], lse[0, 0])
    assert (got[1] == 0).all() and (merged[1] == -math.inf).all()
    weights = torch.softmax(lse[2], 0)[..., None]
    torch.testing.assert_close(got[2], (weights * o[2]).sum(0))


def test_states_that_do_not_go_together_are_refused():
    o = torch.zeros(2, 4, 8)
    with pytest.raises(InvalidInput, match=r"lse is of shape \(4,\); it must be that of o"):
        explorer.merge_states(o, torch.zeros(4))
    with pytest.raises(InvalidInput, match=r"o is float32 of shape \(4, 8\); it must be of"):
        explorer.merge_states(o[0], torch.zeros(4))
    with pytest.raises(InvalidInput, match="o is int32"):
        explorer.merge_states(o.int(), torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"lse is .*; it must be a tensor"):
        explorer.merge_states(o, 3)
    for dtype in (torch.int64, torch.complex64, torch.bool):
        with pytest.raises(InvalidInput, match="lse is of"):
            explorer.merge_states(o, torch.zeros(2, 4, dtype=dtype))


def test_tensors_that_have_shapes_alone_give_such_results():
    q = torch.empty(2, 8, 128, device="meta", dtype=torch.bfloat16)
    k = torch.empty(2, 2, 64, 128, device="meta", dtype=torch.bfloat16)
    result, lse = explorer.decode_attention(q, k, k, return_lse=True)
    assert result.is_meta and (result.shape, result.dtype) == (q.shape, q.dtype)
    assert lse.is_meta and (lse.shape, lse.dtype) == ((2, 8), torch.float32)


# ------------------------------------------------------------------ behind PyTorch's own function


@pytest.fixture
def registered(monkeypatch):
    """PyTorch's attention on the CPU is ours; how many calls were served, and the launches."""
    if not hasattr(torch.library, "get_kernel"):
        pytest.skip("register_torch needs PyTorch 2.9")
    launches = by_kernels(monkeypatch)
    monkeypatch.setattr(torch_override, "DISPATCH_KEY", "CPU")
    with explorer.register_torch() as registration:
        yield registration.served, launches


NAME = "scaled_dot_product_attention"


@pytest.mark.parametrize("more", [{}, {"scale": 0.3}, {"enable_gqa": True}], ids=str)
def test_pytorchs_attention_of_one_query_is_ours(registered, more):
    served, launches = registered
    q, k, v = arrays(group=3 if more.get("enable_gqa") else 1)
    with torch.inference_mode():
        got = own(q[:, :, None], k, v, **more)
    close(got[:, :, 0], exact(q, k, v, scale=more.get("scale"))[0])
    assert own(q[:, :, None].requires_grad_(False), k, v, **more).shape == got.shape
    assert served[NAME] == len(launches) == 2


def test_the_rest_is_pytorchs(registered):
    served, launches = registered
    q, k, v = arrays(group=1)
    q, mask = q[:, :, None], torch.ones(1, 70, dtype=torch.bool)
    two = torch.cat([q, q], 2)
    calls = [
        ((q, k, v, mask), {}),
        ((q, k, v, None, 0.5), {}),
        ((q, k, v), {"is_causal": True}),
        ((two, k, v), {}),
        ((q.double(), k.double(), v.double()), {}),
        ((q[..., :32], k[..., :32], v[..., :32]), {}),
        ((q, k, v[..., :32]), {}),
        ((q[:, 0], k[:, 0], v[:, 0]), {}),
        ((q, k[:1], v[:1]), {}),
    ]
    for given, more in calls:
        assert own(*given, **more).shape == (*given[0].shape[:-1], given[2].shape[-1])
    grouped = arrays(group=9)
    own(grouped[0][:, :, None], *grouped[1:], enable_gqa=True)
    with pytest.raises(RuntimeError):  # heads that are not equal
        own(torch.cat([q, q], 1), k, v)
    assert NAME not in served and not launches


def test_pytorch_differentiates_its_own(registered):
    served, launches = registered
    q, k, v = arrays(group=1, keys=9)
    q = q[:, :, None].requires_grad_()
    wide = q.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(own(wide, k.double(), v.double()).square().sum(), wide)
    (got,) = torch.autograd.grad(own(q, k, v).square().sum(), q)
    of_function = torch.func.grad(lambda q: own(q, k, v).square().sum())(q.detach())
    for one in (got, of_function):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-5)
    many = torch.func.vmap(own)(*(torch.stack([one, one]) for one in (q.detach(), k, v)))
    close(many[0][:, :, 0], exact(q.detach()[:, :, 0], k, v)[0])
    assert NAME not in served and not launches


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_attention_is_ours_too(registered, backend):
    served, launches = registered
    q, k, v = arrays(group=1, keys=40)
    q = q[:, :, None]
    step = torch.compile(lambda q, k, v: own(q, k, v), backend=backend, fullgraph=True)
    wanted = exact(q[:, :, 0], k, v)[0]
    close(step(q, k, v)[:, :, 0], wanted)
    assert served[NAME] and len(launches) == 1
    q.requires_grad_()
    (got,) = torch.autograd.grad(step(q, k, v).square().sum(), q)
    (theirs,) = torch.autograd.grad(own(q, k, v).square().sum(), q)
    torch.testing.assert_close(got, theirs, rtol=1e-4, atol=1e-5)
    assert len(launches) == 1


def test_without_a_kernel_it_is_pytorchs(registered, monkeypatch):
    served, _ = registered
    monkeypatch.setattr(recipes, "plan_of", lambda *_: None)
    q, k, v = arrays(group=1)
    close(own(q[:, :, None], k, v)[:, :, 0], exact(q, k, v)[0])
    assert not served
