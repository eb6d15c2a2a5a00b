"""A Chromium without a window, spoken to by its DevTools protocol over a WebSocket."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

__all__ = ["Tab", "chromium", "opened_tab"]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--hide-scrollbars",
)
_WAIT_S = 120.0


def chromium() -> str | None:
    """The program, None where there is none on the path."""
    return next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)


class Tab:
    """A page of the browser. `events` are all that it told of, such as requests and exceptions."""

    def __init__(self, link: Any) -> None:
        """Open an empty page."""
        self._link, self._count, self._session = link, 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command and its result."""
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        self._link.send(json.dumps({"id": self._count, "method": method, "params": parameters, **session}))
        while True:
            message = json.loads(self._link.recv(timeout=_WAIT_S))
            if message.get("id") == self._count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def value(self, expression: str) -> Any:
        """What an expression of the page comes to; promises are waited for."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression holds; a page that is being left holds nothing."""
        end = time.monotonic() + _WAIT_S
        while True:
            try:
                if self.value(expression):
                    return
            except RuntimeError:
                pass
            if time.monotonic() > end:
                raise TimeoutError(f"never: {expression}")
            time.sleep(0.02)

    def go(self, url: str) -> None:
        """Open an address and wait until it is there."""
        self.value("window.left = true")
        self.call("Page.navigate", url=url)
        self.until("!window.left && document.readyState === 'complete'")

    def press(self, key: str) -> None:
        """A key down and up, with its text where it has one."""
        codes = {"Enter": ("\r", 13), "Escape": ("", 27), "ArrowDown": ("", 40), "ArrowUp": ("", 38), "Tab": ("", 9)}
        text, code = codes.get(key, (key, ord(key.upper()[0])))
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """A click of the mouse into the middle of the first element of a selector."""
        script = (
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({ block: 'center' }); const box = one.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        box = self.value(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def shape(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window in pixels, and the colors that the system prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def requested(self) -> set[str]:
        """The addresses that were asked for."""
        return {e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"}

    def troubles(self) -> list[Any]:
        """Exceptions of scripts, and what the console calls errors."""
        thrown = [e["params"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        logged = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        return thrown + [entry for entry in logged if entry["level"] == "error"]


@contextmanager
def opened_tab(program: str) -> Iterator[Tab]:
    """A browser with one page, gone afterwards with all that it wrote."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={Path(profile)}", "about:blank"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        try:
            lines = process.stderr or ()
            address = next(found[0] for line in lines if (found := re.search(r"ws://\S+", line)))
            with connect(address, proxy=None, max_size=None) as link:
                yield Tab(link)
        finally:
            process.terminate()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
