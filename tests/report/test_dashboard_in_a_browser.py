"""What `explorer dashboard` shows of a replayed study, in Chromium: the verdict can be read.

`pytest --basetemp FOLDER` keeps the screenshots.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

import pytest
from browser import Browser, program
from replays import replay

from explorer.devices.recording import load_recording
from explorer.model.query import ProblemQuery
from explorer.report.studies import dashboard_program
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage
from explorer.tuning.study_reader import load_history

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
    pytest.mark.skipif(
        dashboard_program() is None,
        reason="optuna-dashboard is not installed: softmax-explorer[dashboard]",
    ),
]

LIMIT_S = 60
WIDE, NARROW = 1400, 900
"""Pixels of a window. What the dashboard itself puts side by side does not fit the narrow one."""

IN_A_NOTE = "\\ --cols 4096"
"""Of the command that writes a kernel: an attribute has it on one line."""

LEAST_BYTES = 15_000
"""Of a screenshot: an empty page has fewer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dashboard")


@pytest.fixture(scope="module")
def study(folder):
    """A study whose finals have another winner than the fastest trial, as in most searches."""
    storage = open_storage(str(folder / "studies.db"))
    run_search(replay(load_recording("h200-f32-4096")), storage, trials=80)
    view = load_history(storage, ProblemQuery(4096)).view
    assert view.finals is not None
    return view


@pytest.fixture(scope="module")
def address(folder, study):
    """Of the study's pages; `explorer dashboard` serves them in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("dashboard", "--storage", str(folder / "studies.db"), "--port", str(port))
    process = subprocess.Popen(
        [sys.executable, "-m", "explorer", *words],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(f"http://127.0.0.1:{port}/dashboard/", process)
        yield f"http://127.0.0.1:{port}/dashboard/studies/1"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(address, process):
    end = time.monotonic() + LIMIT_S
    while True:
        with suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        assert process.poll() is None, f"explorer dashboard ended with {process.returncode}"
        assert time.monotonic() < end, f"{address} does not answer"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


BOX_OF = """((text) => {
  const holding = [...document.querySelectorAll('body *')].filter(
    (e) => e.innerText?.replace(/\\s+/g, ' ').includes(text));
  if (!holding.length) return null;
  const range = document.createRange();
  range.selectNodeContents(holding.at(-1));
  const box = range.getBoundingClientRect();
  return {left: box.left, right: box.right, height: box.height};
})"""


def shown(browser, text):
    """The box of the innermost text on a page that has a text in it; None without one."""
    return browser.run(f"{BOX_OF}({text!r})")


def is_readable(browser, text, width):
    """Whether a text stands within the window's width, at a size that a person reads."""
    box = shown(browser, text)
    return box is not None and box["left"] >= 0 and box["right"] <= width and box["height"] > 12


def keep(browser, path):
    """Take a screenshot, which shows something."""
    browser.screenshot(path)
    png = path.read_bytes()
    assert png.startswith(b"\x89PNG") and len(png) > LEAST_BYTES, path
    return struct.unpack(">II", png[16:24])


def test_the_first_page_names_the_best_of_the_finals(browser, address, study, folder):
    """The dashboard's own best is the fastest single trial, which is not the verdict."""
    browser.visit(address, width=WIDE)
    winner = study.finals.winner
    verdict = f"trial {winner.trial.number}: {winner.time_us:.2f} µs a launch, "
    browser.wait(f"document.body?.innerText.includes({verdict!r})")
    assert is_readable(browser, verdict, WIDE)
    browser.wait("document.querySelectorAll('.scatterlayer .point').length > 50")
    assert "µs" in browser.run("document.body.innerText")
    assert keep(browser, folder / "study.png")[0] >= WIDE
    assert all("127.0.0.1" in one for one in browser.asked_for() if one.startswith("http"))


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_the_note_tells_the_verdict_in_sentences(browser, address, study, folder, width):
    browser.visit(f"{address}/note", width=width)
    winner, others = study.finals.winner, len(study.finals.ties) - 1
    sentence = f"{study.summary.problem}: the best is trial {winner.trial.number}, "
    browser.wait(f"document.body?.innerText.includes({sentence!r})")
    assert is_readable(browser, sentence, width)
    if others:
        assert "tie" in browser.run("document.body.innerText")
    assert is_readable(browser, IN_A_NOTE, width)
    if study.best.number != min(study.finals.finalists, key=_own_time).trial.number:
        assert is_readable(browser, "A single time may be luck.", width)
    keep(browser, folder / f"note-{width}.png")


def _own_time(finalist):
    return finalist.trial.outcome.time_us


def test_a_trial_says_what_it_is(browser, address, study, folder):
    record = study.best
    browser.visit(f"{address}/trials?numbers={record.number}", width=WIDE)
    resources = f"It takes {record.outcome.resources.registers} registers a thread"
    browser.wait(f"document.body?.innerText.includes({resources!r})")
    time_us = f"{record.outcome.time_us:.2f} µs a launch"
    for text in (resources, time_us, IN_A_NOTE, "This command writes its source"):
        assert is_readable(browser, text, WIDE), text
    assert "finals_rank" in browser.run("document.body.innerText")
    keep(browser, folder / "trial.png")
