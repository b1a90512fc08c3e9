"""Preloaded by a worker of a test's cluster: it has a GPU that times kernels by a model.

Kernels are compiled, and not launched.
"""

from fake_evaluator import FLOOR_US, GPU, model_ulp, model_us

from explorer.devices import names
from explorer.devices.device import Compared, Device, Facts
from explorer.evaluate import station
from explorer.model.outcome import Measured
from explorer.model.peer import Entered


class FakeGpu(Device):
    gpu = GPU

    def open(self, setting):
        self.entered = []
        return Facts("580.1", FLOOR_US, "a limit", 8, 10)

    def evaluate(self, job):
        samples = (model_us(job.config),) * 9
        return Measured(samples, 1e-7, job.resources, job.digest, model_ulp(job.config))

    def enter(self, peer, limit_s):
        self.entered.append(peer.name)
        return Entered(peer.name, "1.0", "", 1e-7, 20.0, "")

    def compare(self, jobs, rounds, seed):
        rows = tuple((model_us(job.config),) * rounds for job in jobs)
        peers = dict.fromkeys(self.entered, (2 * FLOOR_US,) * rounds)
        return Compared(rows, (FLOOR_US,) * rounds, peers=peers, limit_name="a limit")


station.open_device = lambda name: FakeGpu()
names.driver_version = lambda: "580.1"
