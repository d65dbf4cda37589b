# SPDX-License-Identifier: Apache-2.0
"""Official clients as programs: all have the same subcommands and print the same JSON lines.

`send` prints an event `sent` for each message. `consume` prints `started`, then `received` or
`refused` for each delivery. A program exits with 0 when it has finished its task, or with 3 if a
deadline passed first. Lines that are not JSON objects are the client library's own logging.
"""

import itertools
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final, Self

from cometmq.peers.errors import PeerError
from cometmq.peers.processes import Child

RUN_TIMEOUT_S: Final = 300.0
OWN_TIMEOUT_S: Final = 240
"""Time after which a program that waits for messages gives up and exits with 3."""
_EVENT_START: Final = '{"event":'


class Running:
    def __init__(self, child: Child) -> None:
        self._child = child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def log_path(self) -> Path:
        return self._child.log_path

    @property
    def is_running(self) -> bool:
        return self._child.exit_status is None

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        lines = self._child.log().split("\n")[:-1]
        events = [json.loads(line) for line in lines if line.startswith(_EVENT_START)]
        return [event for event in events if name is None or event["event"] == name]

    def wait_for(self, name: str, count: int = 1, *, timeout_s: float = RUN_TIMEOUT_S) -> None:
        self._child.wait_until(
            lambda: len(self.events(name)) >= count, timeout_s, f"{count} events {name!r}"
        )

    def finish(self, *, timeout_s: float = RUN_TIMEOUT_S) -> list[dict[str, Any]]:
        """Wait until the program exits, and return all its events; raise an error if it failed."""
        self._child.wait_until(lambda: self._child.exit_status is not None, timeout_s, "exit")
        if self._child.exit_status != 0:
            log = self._child.log()
            raise PeerError(
                f"{self._child.name} exited with {self._child.exit_status}\n{log[-6000:]}"
            )
        return self.events()

    def stop(self, *, timeout_s: float = 20.0) -> None:
        """Stop with SIGTERM, so that the client can unregister."""
        self._child.stop(timeout_s)

    def kill(self) -> None:
        self._child.kill()

    def log(self) -> str:
        return self._child.log()


class ClientProgram(ABC):
    """Runs subcommands of one client; the logs are numbered files in a folder."""

    name: str

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._numbers = itertools.count(1)

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line without the subcommand."""

    def start(self, subcommand: str, **options: object) -> Running:
        """Start a subcommand; an option `tag_name=1` becomes `--tag-name 1`."""
        words = [subcommand]
        for key, value in ({"timeout_s": OWN_TIMEOUT_S} | options).items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        log_path = self._log_dir / f"{self.name}-{subcommand}-{next(self._numbers)}.log"
        return Running(
            Child(f"{self.name} {subcommand}", self.command() + words, log_path=log_path)
        )

    def run(
        self,
        subcommand: str,
        *,
        run_timeout_s: Any = RUN_TIMEOUT_S,  # a float; Any lets callers pass **dict[str, str]
        **options: object,
    ) -> list[dict[str, Any]]:
        with self.start(subcommand, **options) as running:
            return running.finish(timeout_s=run_timeout_s)
