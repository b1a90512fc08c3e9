"""What becomes of a peer in a worker and in its driving process; the GPU driver does nothing."""

from types import SimpleNamespace

import pytest

from explorer.devices.cuda import peer_entry
from explorer.devices.cuda.device import CudaDevice
from explorer.devices.cuda.messages import Enter, Failed
from explorer.devices.cuda.tools import DeviceCheck
from explorer.model.peer import Entered, NotEntered, PeerName, PeerRefuses, Renews
from explorer.model.problem import Mask, Problem, inputs, results
from explorer.ops import Op

PROBLEM = Problem(64, 8)
RIGHT = DeviceCheck(0, 0, 0, 1e-7, 0, 1.0, 0.5, 512)
COARSE = DeviceCheck(3, 0, 0, 1e-5, 0, 90.0, 5.0, 512)
NOT_A_NUMBER = DeviceCheck(512, 0, 0, 1e-7, 512, 1.0, 0.5, 0)


class Contender:
    """Launches nothing, and counts."""

    version, note = "fake 1.0", "plain"

    def __init__(self, problem, buffers, stream):
        assert (len(buffers.inputs), len(buffers.outputs), stream) == (2, 2, 7)
        self.launched, self.closed = 0, False
        made.append(self)

    def launch(self, index):
        self.launched += 1

    def output(self, index, name="output"):
        return 5000 + index if name == "output" else 6000 + index

    def capture(self, count):
        return None

    def close(self):
        self.closed = True


class OfGradients(Contender):
    """Is given the gradients of the forward's outputs, too."""

    def __init__(self, problem, buffers, stream):
        super().__init__(problem, buffers, stream)
        assert buffers.inputs == (1000, 1001) and buffers.grads == (3000, 3001)


class OfIds(Contender):
    """Is given ids, and where the result on request may be written."""

    def __init__(self, problem, buffers, stream):
        super().__init__(problem, buffers, stream)
        assert buffers.ids == (3000, 3001) and buffers.others == {"lse": (4000, 4001)}


class OfCaches(Contender):
    """Is given queries, keys, values and lengths."""

    def __init__(self, problem, buffers, stream):
        assert buffers.inputs == () and len(buffers.outputs) == 2
        assert buffers.others == {
            name: (BASES[name], BASES[name] + 1) for name in ("query", "key", "value", "lengths")
        }
        self.launched, self.closed = 0, False


class OfOwnOperands(Contender):
    """Makes its operands anew before each replay that is checked."""

    def __init__(self, problem, buffers, stream):
        super().__init__(problem, buffers, stream)
        self.renewed = 0

    def renew(self):
        self.renewed += 1


made = []


def refuses(problem, buffers, stream):
    raise PeerRefuses("it needs cols that 16 divides")


def raises(problem, buffers, stream):
    raise ValueError("\x1b[91m\x1b[1mno such\x1b[0m kernel\nand more")


BASES = {"input": 1000, "output": 2000, "grad": 3000, "ids": 3000, "lse": 4000}
BASES |= {"query": 1000, "key": 3000, "value": 4000, "lengths": 7000}


class Bench:
    """Two sets; a graph is captured by calling what it launches."""

    launches = 6

    def __init__(self, problem):
        self.problem = problem
        self.filled = 0
        self.sets = SimpleNamespace(
            count=2,
            input=lambda index: 1000 + index,
            output=lambda index: 2000 + index,
            at=lambda index: {
                operand.name: BASES[operand.name] + index
                for operand in (*inputs(problem), *results(problem))
            },
            fill=self._fill,
        )

    def _fill(self, tools, seed):
        self.filled += 1

    def graph(self, enqueue, launches):
        for index in range(launches):
            enqueue(index)
        closing = SimpleNamespace(replay=lambda: None)
        return Graph(closing)

    def laps_us(self, graph, count):
        return [30_000.0] * count


class Graph:
    def __init__(self, inner):
        self.replay = inner.replay

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Tools:
    """Finds `whole` on the whole problem and `row` on rows of patterns."""

    accuracy = "default"

    def __init__(self, whole=RIGHT, row=RIGHT):
        self.found = {PROBLEM.rows: whole, 1: row}

    def check_rows(self, problem, addresses):
        assert addresses["output"] >= 5000 and addresses.get("lse", 6000) >= 6000
        return tuple(self.found[problem.rows] for _ in problem.results)


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    """Every call succeeds and gives nothing; the context is whole."""
    quiet = SimpleNamespace(
        cuStreamSynchronize=lambda *_: (0,),
        cuMemsetD8Async=lambda *_: (0,),
        cuMemcpyHtoD=lambda *_: (0,),
        cuCtxSynchronize=lambda *_: (0,),
        cuStreamIsCapturing=lambda *_: (0, 0),
    )
    monkeypatch.setattr(peer_entry, "driver", quiet)
    monkeypatch.setattr(peer_entry, "checked", lambda result: None)
    monkeypatch.setattr(peer_entry, "sentence", lambda found, *_: f"{found.wrong} are wrong")
    made.clear()
    return quiet


def entered(name, tools=None, problem=PROBLEM):
    peer = PeerName(name, f"{__name__}:{name}")
    return peer_entry.enter(peer, Bench(problem), tools or Tools(), 7, 0)


def test_a_right_peer_enters_with_fewer_launches_where_it_is_slow():
    reply, entry = entered("Contender")
    assert reply == Entered("Contender", "fake 1.0", "plain", 1e-7, 1.0, "")
    assert entry.launches == 3  # of 30 ms each, within 100 ms
    assert made[0].launched == peer_entry.WARM_UPS + 1 + 3 and not made[0].closed
    entry.close()
    assert made[0].closed


def test_coarse_rounding_is_told_and_a_wrong_matrix_is_left_out():
    reply, _ = entered("Contender", Tools(COARSE))
    assert isinstance(reply, Entered) and reply.inexact == "3 are wrong"
    reply, entry = entered("Contender", Tools(NOT_A_NUMBER))
    assert (reply.stage, reply.reason, entry) == ("wrong", "512 are wrong", None)
    assert made[-1].closed


def test_rows_of_patterns_that_are_wrong_are_named():
    reply, entry = entered("Contender", Tools(row=NOT_A_NUMBER))
    assert "all masked" in reply.wrong_rows and "offset up" in reply.wrong_rows
    assert entry._bench.filled == 1
    assert entered("Contender", Tools(row=COARSE))[0].wrong_rows == ()


@pytest.mark.parametrize(
    ("name", "stage", "reason"),
    [
        ("refuses", "refused", "it needs cols that 16 divides"),
        ("raises", "failed", "ValueError: no such kernel"),
        ("not_there", "failed", "AttributeError: module"),
    ],
)
def test_failures_come_back_with_stage_and_reason(name, stage, reason):
    reply, entry = entered(name)
    assert reply.stage == stage and reply.reason.startswith(reason) and entry is None
    assert ("Traceback" in reply.trace) == (stage == "failed") and not reply.context_lost


def test_what_is_not_installed_is_missing():
    reply, _ = peer_entry.enter(PeerName("x", "no_such_package:f"), Bench(PROBLEM), Tools(), 7, 0)
    assert reply.stage == "missing" and "no_such_package" in reply.reason


def test_a_mask_is_refused():
    reply, _ = entered("Contender", problem=Problem(64, 8, mask=Mask.LENGTHS))
    assert reply.stage == "refused" and "no mask" in reply.reason


def test_a_gradients_peer_is_given_both_matrices():
    reply, _ = entered("OfGradients", problem=Problem(64, 8, op=Op.SOFTMAX_BACKWARD))
    assert isinstance(reply, Entered), reply


def test_a_peer_of_ids_is_given_them_and_every_result_is_checked():
    problem = Problem(64, 8, op=Op.LOG_PROB, also="lse")
    reply, _ = entered("OfIds", problem=problem)
    assert isinstance(reply, Entered) and reply.wrong_rows == (), reply
    reply, _ = entered("OfIds", Tools(NOT_A_NUMBER), problem)
    assert reply.stage == "wrong"


def test_a_peer_of_attention_is_given_all_arrays():
    problem = Problem(64, 8, op=Op.DECODE_ATTENTION, mask=Mask.LENGTHS)
    reply, _ = entered("OfCaches", problem=problem)
    assert isinstance(reply, Entered) and reply.wrong_rows == (), reply


def test_a_peers_own_operands_are_made_anew_for_what_is_checked_alone():
    reply, _ = entered("OfOwnOperands")
    assert isinstance(reply, Entered) and made[0].renewed == 2  # whole matrices; rows of patterns
    assert not isinstance(Contender, Renews) and isinstance(made[0], Renews)


def test_a_lost_context_is_told(monkeypatch):
    def lost(result):
        raise peer_entry.CudaError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(peer_entry, "checked", lost)
    reply, _ = entered("Contender")
    assert reply.context_lost and "CUDA_ERROR_ILLEGAL_ADDRESS" in reply.reason


class Supervised(CudaDevice):
    """Its worker answers as `replies` say, by the peer's name; None is no answer in time."""

    def __init__(self, replies):
        self.replies, self.asked, self.restarts = replies, [], 0
        self._opened, self._entered, self._ahead = None, [], None
        self._process = SimpleNamespace(kill=lambda: None, join=lambda: None)
        self._requests = SimpleNamespace(ask=self._answer, close=lambda: None)

    def _answer(self, request, limit_s):
        assert isinstance(request, Enter)
        self.asked.append(request.peer.name)
        return self.replies[request.peer.name]

    def _start(self):
        return None

    def _open_again(self):
        return None


def test_a_crash_and_a_hang_cost_no_peer_that_had_entered():
    fine = {name: Entered(name, "1", "", 0.0, 0.0, "") for name in "ab"}
    lost = NotEntered("lost", "it faulted", "failed", context_lost=True)
    refused = NotEntered("refused", "odd cols", "refused")
    crash = Failed("the worker ended unexpectedly (exit code 3)", context_lost=True)
    replies = {**fine, "lost": lost, "refused": refused, "dies": crash, "hangs": None}
    device = Supervised(replies)
    stages = {
        name: device.enter(PeerName(name, "m:f"), 9.0)
        for name in ("a", "refused", "dies", "b", "hangs", "lost")
    }
    assert [peer.name for peer, _ in device._entered] == ["a", "b"]
    assert device.restarts == 3 and device.asked.count("a") == 4
    assert stages["dies"].stage == "crash" and "exit code 3" in stages["dies"].reason
    assert stages["hangs"].stage == "timeout" and "within 9 s" in stages["hangs"].reason
    assert stages["lost"] is lost and stages["refused"] is refused


def test_a_peer_that_fails_the_second_time_is_dropped():
    device = Supervised({name: Entered(name, "1", "", 0.0, 0.0, "") for name in "ab"})
    for name in "ab":
        device.enter(PeerName(name, "m:f"), 9.0)
    device.replies["a"] = None
    device._restart()
    assert [peer.name for peer, _ in device._entered] == ["b"]
