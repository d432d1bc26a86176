"""A Chromium without a window that shows pages and clicks. Debian's package ``chromium`` provides it."""

import json
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from shutil import which
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

from tests.support.running_airflow import until

FAILURES = Path(__file__).parents[2] / "build/screenshots"
"""The screenshots of pages with which tests have failed. CI keeps this directory."""
_STOPS_MAX = 100
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0")

_MIDDLE = """(() => {
  const found = [...document.querySelectorAll(%s)].find(each => each.innerText.includes(%s));
  if (!found || document.readyState !== "complete") return null;
  found.scrollIntoView({ block: "nearest" });
  const { x, y, width, height } = found.getBoundingClientRect(), middle = [x + width / 2, y + height / 2];
  return found.contains(document.elementFromPoint(...middle)) ? middle : null;
})()"""
"""Returns the middle of an element, or null if there is no such element or something covers it."""


class Chromium:
    """One tab. It uses the DevTools protocol, so no driver is needed that fits the browser's version."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, count(1)
        self.complaints: list[str] = []
        """The log of the browser: requests that a page's policy has blocked, and failed scripts."""
        self.clicks = 0
        """The number of clicks."""
        for domain in ("Page", "Log", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60.0))
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(json.dumps(message["params"]))

    def sign_in(self, token: str) -> None:
        """Signs in as another user."""
        self.call("Network.clearBrowserCookies")
        self.call("Network.setCookie", name="_token", value=token, domain="127.0.0.1", path="/", httpOnly=True)

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def shows(self, script: str, what: str) -> None:
        """Waits until the page has run its own scripts, and a script returns true on it."""
        until(lambda: bool(self.evaluate(f"document.readyState === 'complete' && ({script})")), what)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.shows("true", f"{url} is there")

    def theme(self, name: str) -> None:
        """Shows pages as in a browser whose user has chosen the theme ``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def window(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path: Path, quality: int = 80) -> None:
        """Writes what the window shows as WebP.

        Args:
            path: The file.
            quality: From 0 to 100.
        """
        found = self.call("Page.captureScreenshot", format="webp", quality=quality)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b64decode(found["data"]))

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Makes pages that are opened in this context do every fifth of a second what they do every five seconds."""
        faster = "setInterval = (each => (call, ms) => each(call, ms / 25))(setInterval)"
        added = self.call("Page.addScriptToEvaluateOnNewDocument", source=faster)
        try:
            yield
        finally:
            self.call("Page.removeScriptToEvaluateOnNewDocument", **added)

    def click(self, selector: str, text: str = "") -> None:
        """Clicks with the mouse on the first element that a selector finds, as soon as the element is there and nothing covers it.

        Args:
            selector: The selector, in CSS.
            text: Only an element with this text counts.
        """
        script = _MIDDLE % (json.dumps(selector), json.dumps(text))
        x, y = until(lambda: self.evaluate(script), f"{selector} {text} is there")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.clicks += 1

    def press(self, key: str) -> None:
        """Presses a key, such as ``Tab`` or ``Enter``, where the focus is."""
        code = {"Tab": 9, "Enter": 13}[key]
        typed = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)

    def tab_to(self, selector: str) -> None:
        """Presses the tabulator key until the focus is on an element."""
        for _ in range(_STOPS_MAX):
            self.press("Tab")
            if self.evaluate(f"document.activeElement.matches({json.dumps(selector)})"):
                return
        raise AssertionError(f"no key press leads to {selector}")


def keep_screenshots(browser: Chromium, directory: Path) -> None:
    """Keeps screenshots of the page with which a test has failed, in both themes."""
    with suppress(Exception):  # the error of the test is what counts
        for name in ("light", "dark"):
            browser.theme(name)
            browser.screenshot(directory / f"{name}.webp")


@contextmanager
def chromium(profile: Path) -> Iterator[Chromium]:
    """Starts a browser, which ends when the context closes.

    Args:
        profile: An empty or new directory.
    """
    assert which("chromium"), "There is no command chromium. Install Debian's package chromium."
    browser = subprocess.Popen(
        ["chromium", *_FLAGS, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        port = profile / "DevToolsActivePort"
        until(lambda: port.exists() and len(port.read_text().splitlines()) == 2, "the browser listens")
        with urlopen(f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json", timeout=30.0) as answer:
            (tab,) = [each for each in json.load(answer) if each["type"] == "page"]
        with connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Chromium(socket)
    finally:
        browser.terminate()
        browser.wait(30.0)
