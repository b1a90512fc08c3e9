"""Preloaded by a worker of a test's cluster: its recordings take a drawn time for each kernel."""

import os
import random
import time

from explorer.devices.recorded import RecordedDevice

MEAN_S = float(os.environ["MEAN_S"])
DRAWN = random.Random(os.getpid())

replayed = RecordedDevice.evaluate


def evaluate(self, job):
    time.sleep(DRAWN.uniform(0.5, 1.5) * MEAN_S)
    return replayed(self, job)


RecordedDevice.evaluate = evaluate
