"""Chromium without a window, driven over its DevTools protocol by a pipe."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 60.0

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)


def program():
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A browser with one tab; a context manager."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory()
        to_browser, self.sent = os.pipe()
        self.heard, from_browser = os.pipe()
        chromium = [program(), *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *chromium],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.events = b"", 0, []
        self.session = None
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.sent)
        os.close(self.heard)
        time.sleep(0.2)  # its children still write to the profile
        shutil.rmtree(self.profile.name, ignore_errors=True)

    def call(self, method, **parameters):
        """Call a method of the protocol; what the browser tells meanwhile goes to `events`."""
        self.number += 1
        said = {"id": self.number, "method": method, "params": parameters}
        said |= {"sessionId": self.session} if self.session else {}
        os.write(self.sent, json.dumps(said).encode() + b"\0")
        while True:
            heard = self._read()
            if heard.get("id") == self.number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                return heard["result"]
            self.events.append(heard)

    def _read(self):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.heard], [], [], LIMIT_S)
            assert ready, f"the browser says nothing for {LIMIT_S} s"
            read = os.read(self.heard, 1 << 16)
            assert read, "the browser has ended"
            self.buffer += read
        one, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(one)

    def run(self, script):
        """Return what an expression comes to, which may be a promise."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, path, *, width, scheme):
        """Open one of our pages in a window of so many pixels and wait for its charts."""
        self.visit(path.as_uri(), width=width, scheme=scheme)
        self.wait("document.documentElement?.dataset.drawn")

    def visit(self, address, *, width, scheme="light"):
        """Begin to open an address in a window of so many pixels."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=address)

    def wait(self, condition):
        """Wait until an expression is true."""
        end = time.monotonic() + LIMIT_S
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"not after {LIMIT_S} s: {condition}; {self.faults()}"
            time.sleep(0.05)

    def faults(self):
        """Return what the page's console said of errors and warnings, and what it threw."""
        self.run("0")  # what was told before has come then
        said = []
        for event in self.events:
            told = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                said.append(told["exceptionDetails"])
            elif event.get("method") == "Log.entryAdded":
                said.append(told["entry"])
            elif event.get("method") == "Runtime.consoleAPICalled" and told["type"] != "log":
                said.append(told)
        return said

    def asked_for(self):
        """Return the addresses that were asked for since the page was opened."""
        sent = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def drag(self, start, end):
        """Press the mouse at one place, move it to another, and let it go."""
        (x, y), (to_x, to_y) = start, end
        told = {"button": "left", "buttons": 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **told)
        for step in range(1, 6):
            place = {"x": x + (to_x - x) * step / 5, "y": y + (to_y - y) * step / 5}
            self.call("Input.dispatchMouseEvent", type="mouseMoved", **place, **told)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=to_x, y=to_y, **told)

    def screenshot(self, path):
        """Write all of the page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
