"""Drive a headless Chromium with its DevTools protocol over a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LIMIT_S = 60.0
# The protocol's pipes: Chromium reads commands from 3 and writes answers to 4.
_COMMANDS, _ANSWERS = 3, 4


class Browser:
    """A browser with one page. `events` has the protocol's events in order."""

    def __init__(self, command: str, profile: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def wire() -> None:
            # Copy both above 100 first: one of them may have the number that the other one gets.
            sources = [os.dup(theirs_in), os.dup(theirs_out)]
            high = [os.dup2(source, 100 + index) for index, source in enumerate(sources)]
            os.dup2(high[0], _COMMANDS, inheritable=True)
            os.dup2(high[1], _ANSWERS, inheritable=True)

        arguments = [command, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        arguments += ["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [*arguments, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=wire,  # noqa: PLW1509 - no thread of this process exists yet
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.events: list[dict[str, Any]] = []
        self._number, self._rest, self._session = 0, b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        # Without this, a test that tabs past a page's last element takes the focus from all later pages.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def close(self) -> None:
        """Close the browser."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, page: Path, *, width: int, height: int = 900, theme: str = "light", motion: bool = True) -> None:
        """Load a file with this viewport and these preferences, and wait until it is loaded. `events` is cleared."""
        features = [
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": "no-preference" if motion else "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.events = []
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: str, *, code: int, modifiers: int = 0, text: str = "") -> None:
        """Press and release a key."""
        common: Mapping[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def complaints(self) -> list[str]:
        """Return the console's errors, warnings, exceptions and refused resources."""
        messages = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                messages.append(params["entry"]["text"])
            if event.get("method") == "Runtime.exceptionThrown":
                messages.append(params["exceptionDetails"]["text"])
            if event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                messages.append(str(params["args"]))
        return messages

    def requests(self) -> list[str]:
        """Return the URLs that the page requested, except files and data in the page itself."""
        sent = [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in sent if not address.startswith(("file:", "data:", "blob:"))]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write the whole page or the viewport as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
            answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _read(self) -> dict[str, Any]:
        until = time.monotonic() + _LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"Chromium sent nothing for {_LIMIT_S:.0f} s"
            data = os.read(self._in, 1 << 20)
            assert data, f"Chromium ended with code {self._process.wait(10)}"
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message
