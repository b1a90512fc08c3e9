"""Databases that several searches share: one that searches beside a test, and what is stored."""

import os
import subprocess
import sys

from explorer.tuning.storage import open_storage

SEARCH = """
import sys
from fake_evaluator import FakeEvaluator, as_replay
from explorer.model.config import Config
from explorer.model.outcome import Stage
from explorer.model.problem import Problem
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage

class Slow(FakeEvaluator):
    def evaluate(self, config):
        import time
        time.sleep(0.01)
        return super().evaluate(config)

storage = open_storage(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
slow = Slow(Problem(64, 256), identity=Config.to_json)
if sys.argv[3] == "replay":
    as_replay(slow)
found = run_search(slow, storage, trials=int(sys.argv[2]), rounds=6)
print(found.measured + sum(n for stage, n in found.rejected.items() if stage is not Stage.INVALID))
"""


def started(url, trials, what="search"):
    """A process that has opened the storage, and searches once it is told to, or replays one."""
    path = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-c", SEARCH, url, str(trials), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def trials_of(url):
    storage = open_storage(url, read_only=True)
    (study,) = storage.get_all_studies()
    return storage.get_all_trials(study._study_id)


def digests(trials):
    return [t.user_attrs["digest"] for t in trials if t.user_attrs["digest"]]


def delete_study(storage):
    """Delete the only study of a storage."""
    (study,) = storage.get_all_studies()
    storage.delete_study(study._study_id)
