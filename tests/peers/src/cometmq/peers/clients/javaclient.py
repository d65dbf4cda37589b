# SPDX-License-Identifier: Apache-2.0
"""The official Java client, built from `tests/peers/javaclient` for several releases."""

import json
import os
import re
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.errors import PeerError
from cometmq.peers.java import home_options, java_home
from cometmq.peers.java.maven import (
    JVM_OPTIONS,
    ROCKETMQ_5_VERSION,
    ROCKETMQ_VERSION,
    program,
    project_class_path,
)
from cometmq.peers.paths import CACHE, ROOT

VERSION_5: Final = ROCKETMQ_5_VERSION
VERSIONS: Final = (ROCKETMQ_VERSION, VERSION_5)
PROJECT: Final = ROOT / "tests" / "peers" / "javaclient"
MAIN_CLASS: Final = "io.cometmq.peers.Main"
COMMAND_TIMEOUT_S: Final = 180.0
IPV6: Final = {"java.net.preferIPv4Stack": "false", "java.net.preferIPv6Addresses": "true"}
"""Properties of a JVM that uses IPv6 addresses."""
IPV6_ID_CHARS: Final = 56  # of a message id: 16 bytes of address, 4 of port, 8 of offset


def client_class_path(version: str) -> str:
    """Return the class path of our program and the client; built on first use and after changes."""
    return project_class_path(PROJECT, version)


def _java_command(version: str, properties: Mapping[str, str]) -> list[str]:
    """Return the command that runs our program in a fast-starting JVM with these properties."""
    home = java_home(CACHE)
    return [
        program("java"),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *JVM_OPTIONS,
        *home_options(home),
        "-Dfile.encoding=UTF-8",
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-cp",
        client_class_path(version),
        MAIN_CLASS,
    ]


class JavaClient(ClientProgram):
    """The official client.

    Subcommands: send, consume, load, lite-pull, pull, sql-pull, view, query, queues, members,
    request, reply, transact.
    """

    def __init__(
        self,
        log_dir: Path,
        version: str = ROCKETMQ_VERSION,
        *,
        properties: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`options` are further options of the JVM."""
        super().__init__(log_dir)
        self.name = f"java-{version}"
        self._command = _java_command(version, properties or {})
        self._command[1:1] = options

    def command(self) -> list[str]:
        return self._command


_LOGGED: Final = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")


@dataclass(frozen=True)
class AdminAnswer:
    """The output of one `mqadmin` command."""

    output: str
    errors: str

    def rows(self) -> list[list[str]]:
        """Return the lines but for headings and those that 5.5's library logs between them."""
        lines = (it.split() for it in self.output.splitlines() if not _LOGGED.match(it))
        return [words for words in lines if words and not words[0].startswith("#")]


class MqAdmin:
    """RocketMQ's `mqadmin`: runs many commands in one JVM (30 to 100 ms each)."""

    def __init__(
        self,
        namesrv_addr: str,
        version: str = ROCKETMQ_VERSION,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [*_java_command(version, properties or {}), "mqadmin", "--namesrv", namesrv_addr],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=CACHE,  # some commands write files to the current folder
        )
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        self._next_event()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, *arguments: str) -> AdminAnswer:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(arguments).encode() + b"\n")
        self._process.stdin.flush()
        event = self._next_event()
        return AdminAnswer(event["output"], event["errors"])

    def _next_event(self) -> dict[str, str]:
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while b"\n" not in self._buffer:
            self._buffer += self._read_some(deadline - time.monotonic())
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        event: dict[str, str] = json.loads(line)
        return event

    def _read_some(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], max(timeout_s, 0))[0]:
            raise PeerError("mqadmin does not answer")
        data = os.read(descriptor, 1 << 16)
        if not data:
            raise PeerError("mqadmin ended the JVM: a usage error?")
        return data
