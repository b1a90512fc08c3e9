"""Peers on a GPU: each that is installed is verified and timed, and one that fails costs itself."""

import subprocess
import sys
import textwrap
from importlib.util import find_spec
from statistics import median

import pytest

from explorer.evaluate.open_evaluator import PeerBenches
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.peer import NotEntered, PeerName
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.peers import chosen_peers
from explorer.peers.registry import AHEAD
from explorer.tuning.peer_comparison import compare_with_peers, unsearched

ROUNDS = 8
SHAPES = [
    Problem(2048, 4096),
    Problem(512, 1000, DType.BF16),
    Problem(512, 1000, op=Op.LOG_SOFTMAX),
    Problem(512, 1000, DType.BF16, Op.SOFTMAX_BACKWARD),
    Problem(64, 50257, op=Op.LOG_SOFTMAX_BACKWARD),
    Problem(512, 1000, op=Op.LOGSUMEXP),
    Problem(2048, 4096, DType.BF16, Op.LOGSUMEXP),
    Problem(2048, 4096, DType.BF16, Op.LOG_PROB),
    Problem(512, 1000, op=Op.LOG_PROB, ids_per_row=3, ids_dtype="int32"),
    Problem(2048, 4096, DType.BF16, Op.LOG_PROB, also="lse,entropy,rank,argmax"),
    Problem(2048, 4096, DType.BF16, Op.CROSS_ENTROPY),
    Problem(64, 50257, op=Op.CROSS_ENTROPY_BACKWARD, ids_dtype="int32"),
    Problem(2048, 4096, DType.BF16, Op.CROSS_ENTROPY_WITH_GRADIENT, also="loss"),
]


@pytest.fixture(scope="module")
def benches():
    """One worker for all problems, as the command has it."""
    with PeerBenches("cuda:0", "cold", 0, Accuracy.DEFAULT) as opened:
        yield opened


def compared(benches, problem, peers, **options):
    with benches.on(problem) as bench:
        ours = unsearched(bench)
        return compare_with_peers(bench, ours, peers, rounds=ROUNDS, **options)


@pytest.mark.alone
@pytest.mark.sampled(3)
@pytest.mark.parametrize("problem", SHAPES, ids=str)
def test_what_is_installed_is_verified_and_timed(benches, problem):
    replies = []
    one = compared(benches, problem, chosen_peers([]), tell=replies.append)
    traces = "\n".join(f"{r.reason}\n{r.trace}" for r in replies if isinstance(r, NotEntered))
    assert {entry.stage for entry in one.left_out} <= {"missing", "refused"}, traces
    assert "torch" in {peer.name for peer in one.peers}
    for peer in one.peers:
        assert peer.version and len(peer.samples_us) == ROUNDS
        assert 0.9 * one.limit_time_us < peer.time_us < 100 * one.limit_time_us, peer
    assert median(one.ours_us) > 0.95 * one.limit_time_us


ADAPTERS = """
    import ctypes, os, time
    from explorer.peers.cudnn import _CudnnContender

    class Zero(_CudnnContender):
        def launch(self, index):
            pass

    def wrong(problem, buffers, stream):
        return Zero(problem, buffers, stream)

    def raises(problem, buffers, stream):
        raise ValueError("no such kernel")

    def ends(problem, buffers, stream):
        os._exit(3)

    def hangs(problem, buffers, stream):
        time.sleep(600)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Adapters of a user's own, each of which fails in another way."""
    (tmp_path / "own_peers.py").write_text(textwrap.dedent(ADAPTERS))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name: PeerName(name, f"own_peers:{name}")
    sys.modules.pop("own_peers", None)


def test_peers_that_fail_cost_no_others(own):
    """A crash and a hang bring the worker down; what had entered enters again in the next."""
    (cudnn,) = chosen_peers(["cudnn"])
    peers = [cudnn, *map(own, ("wrong", "raises", "ends", "hangs"))]
    with PeerBenches("cuda:0", "cold", 0, Accuracy.DEFAULT) as benches:
        one = compared(benches, Problem(512, 1000), peers, limit_s=40.0)
    assert [peer.name for peer in one.peers] == ["cudnn"], one.left_out
    stages = {entry.name: entry.stage for entry in one.left_out}
    assert stages == {"wrong": "wrong", "raises": "failed", "ends": "crash", "hangs": "timeout"}


AHEAD_OF_A_GPU = """
import sys
from importlib import import_module
from explorer.model.gpu_spec import known_gpu
from explorer.peers.ahead import hide_gpus, sees_a_gpu
from explorer.model.problem import Problem
from explorer.ops import Op
gpu = known_gpu(sys.argv[1])
hide_gpus(gpu)
assert not sees_a_gpu()
module, _, name = sys.argv[2].partition(":")
getattr(import_module(module), name)(Problem(2048, 3000, op=Op(sys.argv[3])), gpu)
"""


@pytest.mark.parametrize(
    ("name", "package", "op"),
    [
        ("triton-tuned.constexpr", "triton", Op.SOFTMAX),
        ("triton-tuned.constexpr", "triton", Op.SOFTMAX_BACKWARD),
        ("triton-tuned.constexpr", "triton", Op.LOGSUMEXP),
        ("triton-tuned.runtime", "triton", Op.SOFTMAX),
        ("triton-tuned.runtime", "triton", Op.LOGSUMEXP),
        ("triton-tuned.runtime", "triton", Op.LOG_PROB),
        ("quack", "quack", Op.LOG_PROB),
        ("quack", "quack", Op.CROSS_ENTROPY_BACKWARD),
        ("quack", "quack", Op.CROSS_ENTROPY_WITH_GRADIENT),
        ("triton-tutorial", "triton", Op.SOFTMAX),
        ("liger", "liger_kernel", Op.SOFTMAX),
        ("liger", "liger_kernel", Op.CROSS_ENTROPY_WITH_GRADIENT),
        ("torch-compile", "torch", Op.SOFTMAX),
        ("torch-compile", "torch", Op.LOG_SOFTMAX_BACKWARD),
    ],
)
def test_what_is_compiled_ahead_is_asked_for(benches, name, package, op, tmp_path, monkeypatch):
    """The worker, with a cache of its own, asks for every kernel that is compiled without a GPU.

    torch.compile then tries variants of what was fast, and which those are depends on the times.
    """
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    (peer,) = chosen_peers([name])
    program = [sys.executable, "-c", AHEAD_OF_A_GPU, benches.gpu.name, AHEAD[peer.target], op]
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "ahead"))
    subprocess.run(program, check=True, timeout=300)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "worker"))
    # Its worker has the second folder.
    with PeerBenches("cuda:0", "cold", 0, Accuracy.DEFAULT) as anew:
        one = compared(anew, Problem(2048, 3000, op=op), [peer])
    assert one.peers, one.left_out
    ahead, asked = (kernels(tmp_path / folder) for folder in ("ahead", "worker"))
    assert ahead and ahead <= asked, ahead - asked
    assert asked == ahead or name == "torch-compile", asked - ahead


def kernels(cache):
    """The keys of a cache of Triton's and the kernels' names."""
    return {path.relative_to(cache) for path in cache.rglob("*.cubin")}
