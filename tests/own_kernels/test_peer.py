"""A kernel of a person's own beside others: as a peer of a comparison, and in a journey."""

import ctypes
import json
import sys
from pathlib import Path

import pytest

from explorer.devices.cuda import own_peer as in_worker
from explorer.devices.own_kernel import TARGET, OwnLaunch, own_peer
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.peer import PeerBuffers, PeerName, PeerRefuses
from explorer.model.problem import Problem
from explorer.report.journey import journey_data, steps
from explorer.tuning.journey import Journey, run_journey

sys.path.append(str(Path(__file__).resolve().parents[1] / "tuning"))
from fake_peers import FakePeerBench

FILE = Path(__file__).resolve().parent / "right.cu"
PROBLEM = Problem(9, 64)
ONLINE = OwnLaunch(kernel="online")


class Loaded:
    """A module that keeps what it is to launch."""

    def __init__(self, cubin):
        assert cubin
        self.launched, self.is_loaded = [], True

    def launch(self, launch, values, stream):
        passed = {name: values[name] for name in launch.arguments}
        self.launched.append((launch.entry, launch.grid, launch.block, passed, stream))

    def __exit__(self, *_):
        self.is_loaded = False


@pytest.fixture
def prepared(monkeypatch):
    """Return the peer of a kernel, ready on buffers that are numbers."""
    monkeypatch.setattr(in_worker, "Program", Loaded)
    monkeypatch.setattr(in_worker, "current_gpu", lambda: known_gpu("NVIDIA H200"))

    def prepare(launch, problem=PROBLEM):
        peer = own_peer(str(FILE), launch, problem)
        assert peer.name == f"right:{launch.kernel}" and json.loads(peer.given)
        buffers = PeerBuffers(inputs=(100, 200, 300), outputs=(1000, 2000))
        return in_worker.prepare_of(peer.given)(problem, buffers, 7)

    return prepare


def test_launches_rotate_over_the_buffers(prepared):
    peer = prepared(ONLINE)
    assert (peer.version, peer.note) == (
        "right.cu",
        "online<<<rows, 256>>>(input, output, rows, cols)",
    )
    for index in range(3):
        peer.launch(index)
    entry, grid, block, passed, stream = peer.loaded.launched[1]
    assert (entry, grid, block, stream) == ("explorer_own_kernel", 9, 256, 7)
    assert passed == {
        "input": (ctypes.c_void_p, 200),
        "output": (ctypes.c_void_p, 2000),
        "rows": (ctypes.c_longlong, 9),
        "cols": (ctypes.c_int, 64),
    }
    outputs = [launch[3]["output"][1] for launch in peer.loaded.launched]
    assert outputs == [peer.output(index) for index in range(3)] == [1000, 2000, 1000]
    assert peer.capture(3) is None
    peer.close()
    assert not peer.loaded.is_loaded


def test_a_kernel_of_another_type_is_refused_in_a_sentence():
    given = own_peer(str(FILE), ONLINE, Problem(9, 64)).given
    with pytest.raises(PeerRefuses, match="points to float, and input has elements of __half"):
        in_worker.prepare_of(given)(Problem(9, 64, DType.F16), PeerBuffers((), ()), 0)


def test_a_journey_has_it_among_its_steps():
    bench = FakePeerBench(relative={"right:online": 1.25}, noise=1e-4)
    peer = own_peer(str(FILE), ONLINE, Problem(9, 64))
    absent = PeerName("absent:kernel", TARGET, "{}")
    journey = run_journey(bench, lambda: None, own=[peer, absent], rounds=12)
    (mine,) = (step for step in steps(journey) if step.kernel.name == "right:online")
    assert mine.source == "your own, right:online 1.0" and mine.changes == {}
    assert mine.change == "num_warps 8"
    times = [step.time_us for step in journey.steps]
    assert times == sorted(times, reverse=True)
    assert {entry.name for entry in journey.left_out} >= {"absent:kernel"}
    data = journey.as_dict()
    assert Journey.from_dict(json.loads(json.dumps(data))).as_dict() == data
    assert journey_data(journey)
