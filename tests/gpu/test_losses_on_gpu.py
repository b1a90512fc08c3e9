"""explorer.cross_entropy on a GPU: beside float64, in graphs, in place, and in models."""

import pytest

import explorer
from explorer.ops import Op

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'softmax-explorer[torch]'")

from explorer.runtime import service, torch_calls  # noqa: E402

own = torch.nn.functional.cross_entropy
CLOSE = {torch.float32: 4e-6, torch.float64: 1e-12, torch.float16: 2**-10, torch.bfloat16: 2**-7}
SHAPES = [(64, 1000), (33, 50257), (16, 151936), (4096, 257), (7, 5), (300, 1003)]


@pytest.fixture(autouse=True)
def waiting():
    """Calls wait for their kernel; what tests before loaded is forgotten."""
    explorer.set_options(wait=True)
    service.service.forget()
    torch_calls._threads = torch_calls._Threads()
    torch.manual_seed(0)
    yield
    explorer.set_options(wait=False)


def ops():
    return {problem.op for problem, *_ in service.service._loaded}


def drawn(shape, dtype, ids_dtype=torch.int64):
    x = (3 * torch.randn(shape, device="cuda", dtype=torch.float64)).to(dtype).requires_grad_()
    target = torch.randint(shape[-1], shape[:-1], device="cuda", dtype=ids_dtype)
    target[..., 2:3] = -100
    return x, target


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("shape", [(4, 19, 128, 96), (2, 150, 33, 7), (3, 1000, 49)], ids=str)
@pytest.mark.parametrize("gradient", ["later", "in_place"])
def test_classes_along_a_middle_axis_are_read_where_they_lie(shape, dtype, gradient):
    leaf = torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype).requires_grad_()
    target = torch.randint(shape[1], (shape[0], *shape[2:]), device="cuda")
    target[0, 2] = -100
    wide = leaf.detach().double().requires_grad_()
    own(4 * wide, target).backward()
    explorer.cross_entropy(4 * leaf, target, gradient=gradient).backward()
    step = 4 * CLOSE[dtype]  # the logits' gradient is rounded before it is multiplied by 4
    floor = 2.5e-7 if dtype is torch.float16 else 1e-7
    torch.testing.assert_close(leaf.grad.double(), wide.grad, rtol=step, atol=floor)
    inner = {problem.inner for problem, *_ in service.service._loaded}
    assert inner == {target[0].numel()} and not service.service._refused


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("more", [{}, {"label_smoothing": 0.1, "z_loss": 1e-3, "scale": 0.5}])
def test_losses_and_gradients_are_those_of_float64(shape, dtype, more):
    x, target = drawn(shape, dtype, torch.int32 if more else torch.int64)
    wide = x.detach().double().requires_grad_()
    scaled = wide * more.get("scale", 1)
    rows = own(
        scaled, target.long(), reduction="none", label_smoothing=more.get("label_smoothing", 0.0)
    )
    rows = rows + more.get("z_loss", 0) * torch.logsumexp(scaled, -1) ** 2 * (target != -100)
    got = explorer.cross_entropy(x, target, reduction="none", **more)
    assert got.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    torch.testing.assert_close(got.double(), rows, rtol=5e-6, atol=1e-12)
    grad = torch.randn_like(rows)
    rows.backward(grad)
    got.backward(grad.to(got.dtype))
    floor = 1e-7 if dtype is torch.float16 else 1e-9
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=CLOSE[dtype], atol=floor)
    assert (x.grad[2] == 0).all()
    assert ops() == {Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_BACKWARD}
    assert not service.service._refused


@pytest.mark.parametrize("gradient", ["later", "with_loss"])
def test_a_graph_repeats_the_bits_of_a_step(gradient):
    x, target = drawn((512, 50257), torch.bfloat16)
    explorer.cross_entropy(x, target, gradient=gradient).backward()
    expected, graph = x.grad.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.grad = None
        loss = explorer.cross_entropy(x, target, gradient=gradient)
        loss.backward()
    graph.replay()
    first = loss.clone()
    assert torch.equal(x.grad, expected)
    for _ in range(1000):
        graph.replay()
    assert torch.equal(x.grad, expected) and torch.equal(loss, first)


@pytest.mark.parametrize("gradient", ["later", "in_place"])
def test_memory_is_that_of_the_logits_and_some_numbers_a_row(gradient):
    rows, cols = 2048, 50257
    leaf = torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(cols, (rows,), device="cuda")
    explorer.cross_entropy(leaf[:2] * 1, target[:2], gradient=gradient).backward()
    x = leaf * 1
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = explorer.cross_entropy(x, target, gradient=gradient)
    (grad,) = torch.autograd.grad(loss, x)
    more = torch.cuda.max_memory_allocated() - before
    matrix = 0 if gradient == "in_place" else x.nbytes
    assert more <= matrix + 64 * rows + 2**20
    assert (grad.data_ptr() == x.data_ptr()) == (gradient == "in_place")


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_a_gradient_formed_with_the_loss_is_that_of_float64(shape, dtype, factor):
    x, target = drawn(shape, dtype)
    wide = x.detach().double().requires_grad_()
    (factor * own(wide, target)).backward()
    (factor * explorer.cross_entropy(x, target, gradient="with_loss")).backward()
    floor = 1e-7 if dtype is torch.float16 else 1e-9
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=2 * CLOSE[dtype], atol=floor)
    assert (x.grad[2] == 0).all()
    assert ops() == {Op.CROSS_ENTROPY_WITH_GRADIENT, Op.MULTIPLY_ROWS}
    assert not service.service._refused


def test_pytorchs_own_losses_are_served_and_counted():
    x, target = drawn((300, 1003), torch.float32)
    wanted = own(x.detach().double(), target)
    with explorer.register_torch() as registration:
        loss = torch.nn.CrossEntropyLoss()(x, target)
        loss.backward()
        compiled = torch.compile(own, fullgraph=True)
        other = x.detach().clone().requires_grad_()
        compiled(other, target).backward()
        assert registration.served["cross_entropy_loss"] >= 2
    torch.testing.assert_close(loss.double(), wanted, rtol=4e-6, atol=0)
    torch.testing.assert_close(other.grad, x.grad, rtol=1e-5, atol=1e-9)
    assert ops() == {Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_BACKWARD}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_pytorchs_own_samples_come_to_the_same(dtype):
    from torch_losses import assert_same, results

    theirs = results("cuda", dtype)
    with explorer.register_torch() as registration:
        ours = results("cuda", dtype)
        served = registration.served["cross_entropy_loss"]
    close = 2e-2 if dtype is torch.bfloat16 else 1e-5
    indices = assert_same(ours, theirs, close, close / 10)
    assert served == indices > 60


def test_a_model_needs_less_memory_with_our_loss():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=64, vocab_size=50257)
    model = transformers.AutoModelForCausalLM.from_config(config).cuda().to(torch.bfloat16).eval()
    tokens = torch.randint(50257, (2, 512), device="cuda")
    peaks, losses = [], []
    for loss_function in (model.loss_function, explorer.causal_lm_loss):
        model.loss_function = loss_function
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            peak = torch.cuda.max_memory_allocated() - before
        peaks.append(peak)
        losses.append(loss.detach())
    torch.testing.assert_close(losses[1].float(), losses[0].float(), rtol=1e-4, atol=0)
    assert peaks[1] < 0.7 * peaks[0], peaks
