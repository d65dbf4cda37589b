# SPDX-License-Identifier: Apache-2.0
"""Runs the `cometmq` command as a separate process, as users and scripts do."""

import json
import subprocess
from dataclasses import dataclass
from typing import Any, Final

from cometmq.peers.comet import PROGRAM

TIMEOUT_S: Final = 180.0


@dataclass(frozen=True)
class CliAnswer:
    status: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.errors
        return json.loads(self.output)

    def rows(self) -> list[list[str]]:
        assert self.status == 0, self.errors
        return words_of(self.output)


class CometCli:
    """Runs `cometmq` commands against one cluster."""

    def __init__(self, namesrv_addr: str) -> None:
        self._namesrv_addr = namesrv_addr

    def run(self, *arguments: str) -> CliAnswer:
        done = subprocess.run(
            self.command(*arguments), capture_output=True, timeout=TIMEOUT_S, check=False
        )
        # Decoded here, because text=True would turn a carriage return into a line feed.
        return CliAnswer(done.returncode, done.stdout.decode(), done.stderr.decode())

    def command(self, *arguments: str) -> list[str]:
        """Return the command line, for commands that run until they are stopped."""
        return [str(PROGRAM), *arguments, "-n", self._namesrv_addr]


def words_of(output: str) -> list[list[str]]:
    lines = (line.split() for line in output.splitlines())
    return [words for words in lines if words and not words[0].startswith("#")]


def heading_of(output: str) -> list[str]:
    return next(line for line in output.splitlines() if line.startswith("#")).split()
