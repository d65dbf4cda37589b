# SPDX-License-Identifier: Apache-2.0
"""CometMQ with a console, and ten pages that refresh themselves.

The console is stopped while the other server is measured. Each sample begins with the page of one
tab and a new snapshot, so short samples contain more of both than in normal use.
"""

import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from macro.native import Report
from macro.process import cpu_seconds
from macro.servers import Server, running
from macro.setups import PLAIN, Setup

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import Child

WATCHED: Final = "watched"
RENEWAL_S: Final = 10.0
"""The interval at which a page in a browser refreshes itself (`Live`)."""
TABS: Final = (
    "", "brokers", "topics", "groups", "connections", "push-back", "dead-letters", "transactions",
    "delayed", "messages",
)  # fmt: skip
START_TIMEOUT_S: Final = 60.0
ANSWER_TIMEOUT_S: Final = 30.0


class WatchedServer(Server):
    """A server under load with an open console; its processor time includes the console's."""

    console: Child
    url: str

    def _cpu_seconds(self) -> float:
        return super()._cpu_seconds() + cpu_seconds(self.console.pid)

    def generate(self, mode: str, options: dict[str, object]) -> Report:
        with self._looking():
            return super().generate(mode, options)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Refresh all tabs inside the context, evenly spread over time."""
        done = threading.Event()
        os.killpg(self.console.pid, signal.SIGCONT)
        tabs = [
            threading.Thread(target=self._renew, args=(done, number, path))
            for number, path in enumerate(TABS)
        ]
        for tab in tabs:
            tab.start()
        try:
            yield
        finally:
            done.set()
            for tab in tabs:
                tab.join()
            os.killpg(self.console.pid, signal.SIGSTOP)

    def _renew(self, done: threading.Event, number: int, path: str) -> None:
        pause_s = number * RENEWAL_S / len(TABS)
        while not done.wait(pause_s):
            with urllib.request.urlopen(self.url + path, timeout=ANSWER_TIMEOUT_S) as answer:
                answer.read()
            pause_s = RENEWAL_S


@contextmanager
def running_watched(
    directory: Path, serialization: str, setup: Setup = PLAIN
) -> Iterator[WatchedServer]:
    """Start a server and its console; stop their processes on leaving the context."""
    with running("comet", directory, serialization, None, setup) as server:
        found = WatchedServer(WATCHED, server.cluster, serialization, setup)
        port = free_port()
        words = [
            *("console", "-n", server.cluster.namesrv_addr, "--listen-port", str(port)),
            *("--store-path-root-dir", str(directory / "console"), "--admin-http-port", "-1"),
        ]
        found.console = Child(
            "console", [str(PROGRAM), *words], log_path=directory / "console.log", cwd=directory
        )
        found.console.wait_for_log("console.ready", START_TIMEOUT_S)
        found.url = f"http://{HOST}:{port}/"
        os.killpg(found.console.pid, signal.SIGSTOP)
        try:
            yield found
        finally:
            found.console.kill()
