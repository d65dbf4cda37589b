# SPDX-License-Identifier: Apache-2.0
"""Runs a broker as an operator would start it; a test can kill the process at any moment."""

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import Child

START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 60
POLL_S: Final = 0.01

SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(256 * 1024),
    "mappedFileSizeConsumeQueue": "4000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "1500",
    "maxTransferCountOnMessageInMemory": "256",
    "maxTransferCountOnMessageInDisk": "256",
    "maxTransferBytesOnMessageInDisk": "262144",
}


class BrokerChild:
    """One broker on one folder; every start is a new process. As a context, it ends killed."""

    def __init__(
        self, folder: Path, *, module: str = "", prefix: Sequence[str] = (), **settings: str
    ) -> None:
        """`module` runs instead of the broker's program; `prefix` is a command that runs it;
        `settings` are entries of broker.conf.
        """
        self.folder = folder
        self.store = folder / "store"
        self.file = folder / "broker.conf"
        self.http_port = free_port()
        self.address = ""
        self.restarts = 0
        self._command = [
            *prefix,
            *([sys.executable, "-m", module] if module else [str(PROGRAM), "broker", "-c"]),
            str(self.file),
        ]
        self._settings = {
            "brokerName": "broker-a",
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": "0",
            "storePathRootDir": str(self.store),
            "adminHttpPort": str(self.http_port),
            **SMALL_FILES,
            **settings,
        }
        self._child: Child | None = None

    def begin(self) -> Child:
        """Write the settings to the file and start the process; do not wait until it is ready."""
        self.file.write_text("".join(f"{name}={self._settings[name]}\n" for name in self._settings))
        self.restarts += 1
        log = self.folder / f"broker-{self.restarts}.log"
        self._child = Child("broker", self._command, log_path=log)
        return self._child

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        child = self.begin()
        async with asyncio.timeout(timeout_s):
            while not (ready := self.events("broker.ready")):
                assert child.exit_status is None, f"the broker did not start:\n{child.log()}"
                await asyncio.sleep(POLL_S)
        self.address = ready[0]["addresses"][0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    async def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        assert self._child is not None
        status = await asyncio.to_thread(self._child.stop, STOP_TIMEOUT_S)
        self._child = None
        return status

    @property
    def is_alive(self) -> bool:
        return self._child is not None and self._child.exit_status is None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def log(self) -> str:
        assert self._child is not None
        return self._child.log()

    def events(self, name: str = "") -> list[dict[str, Any]]:
        return [event for event in parse_log(self.log()) if name in ("", event.get("event"))]

    async def readiness(self) -> dict[str, str]:
        """Return the checks of /readyz by name, each with `ok` or the reason for its failure."""
        return await asyncio.to_thread(_checks, f"http://{HOST}:{self.http_port}/readyz")


async def until(holds: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
    """Poll a condition; raise TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110  # another process decides
            await asyncio.sleep(POLL_S)


def parse_log(text: str) -> list[dict[str, Any]]:
    """Return the events of a log; other lines appear under the key `output`."""
    events = []
    for line in text.split("\n")[:-1]:  # names may hold other line separators
        try:
            event = json.loads(line)
        except ValueError:
            event = {"output": line}
        events.append(event if isinstance(event, dict) else {"output": line})
    return events


def _checks(url: str) -> dict[str, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            body = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            body = error.read()
    checks: dict[str, str] = json.loads(body)["checks"]
    return checks
