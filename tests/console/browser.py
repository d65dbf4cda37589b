# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through the DevTools protocol over a pipe: no further packages."""

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-pipe", "--force-color-profile=srgb",
)  # fmt: skip
TIMEOUT_MS = 60_000


class Browser:
    """One browser with one tab."""

    def __init__(self, folder: Path) -> None:
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', "chromium", *FLAGS,
             f"--user-data-dir={folder / 'profile'}"],
            pass_fds=(commands, answers), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._reader = os.fdopen(self._in, "rb")
        self._count = 0
        self._session = ""
        self.complaints: list[str] = []
        """What the console of the browser has shown, such as violations of the policy."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(30)
        os.close(self._out)
        self._reader.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result

    def _next(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium has ended")
            data += byte
        found: dict[str, Any] = json.loads(data)
        self._note(found)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", params)))

    def open(self, url: str) -> None:
        """Load a page, and wait until its scripts have run."""
        self.call("Page.navigate", url=url)
        self.settle()

    def settle(self) -> None:
        """Wait until the page has loaded."""
        self.run(
            "new Promise((done) => document.readyState === 'complete' ? done(1)"
            " : addEventListener('load', () => done(1)))"
        )

    def run(self, script: str) -> Any:
        """Return the value of an expression; promises are awaited."""
        for _ in range(5):  # a navigation destroys the context in which an expression runs
            try:
                found = self.call(
                    "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True,
                    timeout=TIMEOUT_MS,
                )  # fmt: skip
            except RuntimeError as error:
                if "context" in str(error) or "navigated" in str(error):
                    continue
                raise
            if "exceptionDetails" in found:
                raise RuntimeError(str(found["exceptionDetails"]))
            return found["result"].get("value")
        raise RuntimeError(f"the page does not come to rest: {script[:100]}")

    def click(self, selector: str) -> None:
        """Click an element that leads to another page, and wait for that."""
        self.leave(f"document.querySelector({json.dumps(selector)}).click()")

    def submit(self, selector: str, values: dict[str, str]) -> None:
        """Fill in inputs, and submit the form of one of them."""
        for name, value in values.items():
            self.run(f"document.querySelector({json.dumps(name)}).value = {json.dumps(value)}; 1")
        self.leave(f"document.querySelector({json.dumps(selector)}).form.requestSubmit()")

    def enter(self, selector: str, value: str) -> None:
        """Type a value, then the Enter key, which leads to another page."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus(); 1")
        self.call("Input.insertText", text=value)
        self.run("window.isLeft = false; 1")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                windowsVirtualKeyCode=13,
            )  # fmt: skip
        self._arrive(f"Enter in {selector}")

    def leave(self, script: str) -> None:
        """Run a script that leads to another page, and wait until that has loaded."""
        self.run(f"window.isLeft = false; {script}; 1")
        self._arrive(script)

    def _arrive(self, act: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_MS / 1_000
        while self.run("window.isLeft !== undefined"):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the page stays: {act}")
            time.sleep(0.02)
        self.settle()

    def size(self, width: int, height: int) -> None:
        """Set the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip

    def theme(self, scheme: str) -> None:
        """Prefer `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media="", features=[feature])

    def screenshot(self, path: Path, *, is_whole: bool = True) -> None:
        """Save the page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(shot["data"]))
