"""A Chromium without a window that shows pages and clicks. Debian's package ``chromium`` provides it."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

from tests.support.running_airflow import until

_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0")


class Chromium:
    """One tab. It uses the DevTools protocol, so no driver is needed that fits the browser's version."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, count(1)
        self.complaints: list[str] = []
        """The log of the browser: requests that a page's policy has blocked, and failed scripts."""
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
        """Waits until a script returns true on the page."""
        until(lambda: bool(self.evaluate(script)), what)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.shows("document.readyState === 'complete'", f"{url} is there")

    def click(self, selector: str) -> None:
        """Clicks on an element as soon as it exists."""
        self.shows(f"document.querySelector({json.dumps(selector)}) !== null", f"{selector} is there")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


@contextmanager
def chromium(profile: Path) -> Iterator[Chromium]:
    """Starts a browser, which ends when the context closes.

    Args:
        profile: An empty or new directory.
    """
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
