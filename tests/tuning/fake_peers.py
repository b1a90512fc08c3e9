"""Peers on the fake evaluator: times of one's choice, and failures of each stage."""

from dataclasses import replace

from fake_evaluator import FLOOR_US, FakeEvaluator, model_us

from explorer.model.peer import Entered, NotEntered, PeerName

FAILURES = {
    "absent": ("missing", "not installed: No module named 'absent'"),
    "narrow": ("refused", "narrow needs cols that 4 divides; 4097 is not"),
    "broken": ("failed", "RuntimeError: no kernel image"),
    "zero": ("wrong", "4096 of 8192 elements are wrong"),
    "slow": ("timeout", "not ready and verified within 180 s"),
}


def peers(*names):
    return [PeerName(name, f"somewhere:{name}") for name in names]


class FakePeerBench(FakeEvaluator):
    """`relative` are times of peers relative to the config 0 of a comparison; others fail."""

    def __init__(self, problem=None, relative=None, lost=(), **options):
        super().__init__(problem, **options)
        self.relative = {"torch": 1.5, "triton-tuned": 1.02} if relative is None else relative
        self.entered = []
        self.lost = set(lost)

    def enter(self, peer, limit_s):
        assert limit_s > 0
        if peer.name not in self.relative:
            stage, reason = FAILURES.get(peer.name, FAILURES["absent"])
            return NotEntered(peer.name, reason, stage, f"Traceback of {peer.name}")
        self.entered.append(peer.name)
        inexact = "too inexact: 90 ulp" if peer.name == "rough" else ""
        rows = ("all masked",) if inexact else ()
        return Entered(peer.name, f"{peer.name} 1.0", "num_warps 8", 2e-7, 3.0, inexact, rows)

    def compare(self, configs, rounds):
        ours_us = model_us(configs[0])
        drift = [1.0 + 0.02 * i / rounds for i in range(rounds)]
        rows = {
            name: tuple(
                ours_us * self.relative[name] * d * (1 + self._rng.gauss(0.0, self._noise))
                for d in drift
            )
            for name in self.entered
            if name not in self.lost
        }
        return replace(super().compare(configs, rounds), peers=rows)


__all__ = ["FAILURES", "FLOOR_US", "FakePeerBench", "peers"]
