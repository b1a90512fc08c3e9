"""Accuracy and objectives as a user asks for them: the front of a replay, its study, bad values."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import RECORDING, SEARCH, SHAPE
from command_line import keep_search

from explorer.devices.recording import read_recording, write_recording
from explorer.model.outcome import Measured

pytestmark = pytest.mark.exhaustive

BOTH = ("--objectives", "time,error")


def with_ulps(kernel):
    """Errors that differ by the exponential: expf is exact enough for strict, and slower."""
    if not isinstance(kernel.outcome, Measured):
        return kernel
    is_exact = kernel.config.exp == "expf"
    ulp = (12.0 if is_exact else 30.0) + kernel.config.threads_per_row / 1000
    times = tuple(us * (2.0 if is_exact else 1.0) for us in kernel.outcome.samples_us)
    outcome = replace(kernel.outcome, samples_us=times, max_ulp=ulp, mean_ulp=ulp / 12)
    return replace(kernel, outcome=outcome)


@pytest.fixture(scope="session")
def exact_once(once, recorded):
    """Return a folder with the recording and an error of each of its kernels."""

    def fill(folder):
        old = read_recording(recorded / RECORDING)
        kernels = tuple(map(with_ulps, old.kernels))
        (folder / RECORDING).parent.mkdir(parents=True)
        write_recording(replace(old, kernels=kernels), folder / RECORDING)

    return once("cli-exact", fill)


@pytest.fixture(scope="session")
def searched_once(once, exact_once):
    """Make the same with a study of time and error, of all there is."""

    def fill(folder):
        shutil.copytree(exact_once, folder, dirs_exist_ok=True)
        keep_search(folder, (*SEARCH, *BOTH))

    return once("cli-searched-for-both", fill)


@pytest.fixture
def exact(explorer, exact_once, tmp_path):
    """Return the path of the recording with an error of each kernel, where commands look for it."""
    shutil.copytree(exact_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / RECORDING


def front(recording):
    """(µs, ulp) of what none is better than, found the slow way."""
    outcomes = [k.outcome for k in read_recording(recording).kernels]
    points = [(o.time_us, o.max_ulp) for o in outcomes if isinstance(o, Measured)]
    better = {p: [q for q in points if q != p and q[0] <= p[0] and q[1] <= p[1]] for p in points}
    return sorted(p for p in points if not better[p])


def test_the_front_is_printed_with_a_command_for_each_member(explorer, searched, exact):
    ran = searched
    assert "the recording was made under --accuracy default" in ran.err
    title, *_ = ran.out.splitlines()
    assert title == "softmax f32 256x512 recorded on NVIDIA H200: time against error"
    commands = [line for line in ran.out.splitlines() if line.startswith("explorer emit ")]
    assert len(commands) == len(front(exact)) >= 2
    assert all(line.endswith("--objectives time,error") for line in commands)
    assert "finalists (the front) by emulation" in ran.out
    written = explorer(*shlex.split(commands[-1])[1:])
    assert written.code == 0, written.err
    assert '"exp":"expf"' in Path(written.out.split(":")[0]).read_text()


@pytest.mark.parametrize(
    "study", ["searched", pytest.param("explorer", marks=pytest.mark.exhaustive)]
)
def test_the_front_is_that_of_the_recording_and_is_shown_again(explorer, exact, study, request):
    """Of a search that goes on where all was tried, and of one that begins."""
    request.getfixturevalue(study)
    found = json.loads(explorer(*SEARCH, *BOTH, "--json").out)
    values = [(m["time_us"], m["max_ulp"]) for m in found["front"]]
    assert values == [pytest.approx(point) for point in front(exact)]
    again = json.loads(explorer(*SEARCH, *BOTH, "--json").out)
    assert again["study"] == found["study"] and again["front"] == found["front"]
    shown = explorer("show", *SHAPE, *BOTH)
    assert shown.code == 0 and "time against error" in shown.out
    assert shown.out.count("explorer emit ") == len(values)
    assert json.loads(explorer("show", *SHAPE, *BOTH, "--json").out)["front"] == found["front"]
    assert "time against error, replayed" in explorer("studies").out


@pytest.mark.exhaustive
def test_a_front_that_was_not_searched(explorer, exact):
    assert explorer("search", *SHAPE, "--trials", "10").code == 0
    ran = explorer("show", *SHAPE, *BOTH)
    assert ran.code == 2
    assert "no study of softmax f32 256x512 for time and error yet" in ran.err
    assert (
        "run explorer search --cols 512 --rows 256 --dtype f32 --objectives time,error" in ran.err
    )


STRICT = ("--accuracy", "strict")


@pytest.mark.exhaustive
def test_studies_of_other_objectives_and_accuracies_are_kept_apart(explorer, exact):
    ways = [(), BOTH, STRICT, (*BOTH, *STRICT)]
    for more in ways:
        assert explorer("search", *SHAPE, "--trials", "200", *more).code == 0
    names = {s["study"] for s in json.loads(explorer("studies", "--json").out)["studies"]}
    assert len(names) == len(ways)
    strict = json.loads(explorer("show", *SHAPE, "--accuracy", "strict", "--json").out)
    assert strict["best"]["max_ulp"] <= 20 and strict["rejected"]["verify"] > 0
    assert json.loads(explorer("show", *SHAPE, "--json").out)["best"]["max_ulp"] > 20
    exact_source = explorer("emit", "best", *SHAPE, "--accuracy", "strict", "--output", "-").out
    assert '"exp":"expf"' in exact_source
    assert exact_source != explorer("emit", "best", *SHAPE, "--output", "-").out


def test_what_is_emitted_is_judged_by_the_accuracy_asked_for(explorer):
    inexact = ('{"exp":"exp2f"}', "--cols", "4096", "--output", "-")
    assert "warning" not in explorer("emit", *inexact).err
    strict = explorer("emit", *inexact, "--accuracy", "strict")
    assert "warning: inaccurate" in strict.err and "under strict is 20 ulp" in strict.err


@pytest.mark.parametrize(
    ("more", "says"),
    [(BOTH, "search for time alone"), (("--accuracy", "strict"), "leave --accuracy out")],
)
def test_a_recording_without_errors_is_refused(explorer, recording, more, says):
    ran = explorer(*SEARCH, *more)
    assert ran.code == 2 and ran.out == ""
    last = ran.err.splitlines()[-1]
    assert last.startswith("error: the recording of softmax f32 256x512 has no errors in ulps")
    assert says in last
