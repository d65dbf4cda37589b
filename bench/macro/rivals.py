# SPDX-License-Identifier: Apache-2.0
"""Runs Redis streams and NATS JetStream under the same send workloads.

Both acknowledge a message before it is on disk and sync once per second; README.md lists the other
differences. The programs are installed on first use: Redis from Debian's package, NATS with Go.
"""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from macro.native import BenchError, Report, append
from macro.servers import STOP_TIMEOUT_S, Contestant

from cometmq.peers.java.maven import cache_entry
from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import Child, run_to_end

NATS_MODULE: Final = "github.com/nats-io/nats-server/v2"
NATS_VERSION: Final = "v2.12.3"
INSTALL_TIMEOUT_S: Final = 1_800.0
START_TIMEOUT_S: Final = 30.0
CALL_TIMEOUT_S: Final = 60.0
STREAM: Final = "BENCH"

NATS_CONF: Final = """
listen: "{host}:{port}"
jetstream {{
  store_dir: "{folder}"
  sync_interval: "1s"
}}
"""


def redis_command(port: int, folder: Path) -> list[str]:
    """Return the command of a Redis server that appends to its AOF and syncs it once per second."""
    return [
        redis_program(), "--port", str(port), "--bind", HOST, "--dir", str(folder), "--save", "",
        "--appendonly", "yes", "--appendfsync", "everysec",
        "--auto-aof-rewrite-percentage", "0",  # no rewriting process in the middle of a sample
    ]  # fmt: skip


def nats_command(port: int, folder: Path) -> list[str]:
    """Return the command of a NATS server whose streams are in files, synced once per second."""
    path = folder / "nats.conf"
    path.write_text(NATS_CONF.format(host=HOST, port=port, folder=folder), encoding="utf-8")
    return [nats_program(), "--config", str(path)]


def redis_program() -> str:
    """Return the path of redis-server; install Debian's package if it is missing."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BenchError(
            "no redis-server: install it (Debian: apt-get install redis-server), run once as root,"
            " or choose --server both"
        )
    install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "redis-server"]
    run_to_end(["apt-get", "update", "-qq"], timeout_s=INSTALL_TIMEOUT_S)
    # At this run level, the package does not start its own server.
    environment = ["env", "RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive"]
    run_to_end([*environment, *install], timeout_s=INSTALL_TIMEOUT_S)
    return shutil.which("redis-server") or "redis-server"


def nats_program() -> str:
    """Return the path of nats-server; build the pinned version on first use."""
    with cache_entry(f"nats-{NATS_VERSION}") as (folder, complete):
        if not complete:
            go = shutil.which("go")
            if go is None:
                raise BenchError("no go: install Go to build nats-server, or choose --server both")
            build = [go, "install", "-trimpath", f"{NATS_MODULE}@{NATS_VERSION}"]
            environment = ["env", f"GOBIN={folder}", "CGO_ENABLED=0"]
            run_to_end([*environment, *build], timeout_s=INSTALL_TIMEOUT_S)
    return str(folder / "nats-server")


def clear_redis(port: int, _topic: str) -> None:
    with socket.create_connection((HOST, port), CALL_TIMEOUT_S) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        answer = connection.makefile("rb").readline()
    if answer != b"+OK\r\n":
        raise BenchError(f"redis: FLUSHALL refused: {answer.decode(errors='replace').strip()}")


def clear_nats(port: int, topic: str) -> None:
    """Delete the stream, and create one that covers the queues of a topic."""
    call_nats(port, f"$JS.API.STREAM.DELETE.{STREAM}", {})
    config = {"name": STREAM, "subjects": [f"{topic}.>"], "storage": "file", "num_replicas": 1}
    answer = call_nats(port, f"$JS.API.STREAM.CREATE.{STREAM}", config)
    if "error" in answer:
        raise BenchError(f"nats: the stream was refused: {answer['error']}")


def call_nats(port: int, subject: str, body: object) -> dict[str, Any]:
    """Send a request to the server and return its answer."""
    payload = json.dumps(body).encode()
    with socket.create_connection((HOST, port), CALL_TIMEOUT_S) as connection:
        head = b"CONNECT {}\r\nSUB answer 1\r\nPUB %b answer %d\r\n"
        connection.sendall(head % (subject.encode(), len(payload)) + payload + b"\r\n")
        lines = connection.makefile("rb")
        while line := lines.readline():
            if line.startswith(b"MSG "):
                answer: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
                return answer
            if line.startswith(b"-ERR"):
                raise BenchError(f"nats: {subject} refused: {line.decode().strip()}")
    raise BenchError(f"nats: no answer to {subject}")


class Kind(NamedTuple):
    """How to start a rival, and how to empty it before each load."""

    command: Callable[[int, Path], list[str]]
    ready: str  # printed once the server accepts connections
    clear: Callable[[int, str], None]


RIVALS: Final = {
    "redis": Kind(redis_command, "Ready to accept connections", clear_redis),
    "nats": Kind(nats_command, "Server is ready", clear_nats),
}


class Rival(Contestant):
    """A running Redis or NATS."""

    def __init__(self, name: str, child: Child, port: int) -> None:
        super().__init__(name)
        self._child = child
        self._port = port

    @property
    def broker_pid(self) -> int:
        return self._child.pid

    def load(self, mode: str, **options: object) -> Report:
        """Empty the server, so that earlier messages use no memory or disk, then run the load."""
        RIVALS[self.name].clear(self._port, str(options["topic"]))
        return super().load(mode, **options)

    def generate(self, mode: str, options: dict[str, object]) -> Report:
        assert mode == "send"
        return append(self.name, self._port, **options)


@contextmanager
def running_rival(name: str, directory: Path) -> Iterator[Rival]:
    """Start a rival; stop it on leaving the context."""
    kind, port = RIVALS[name], free_port()
    folder = directory / "store"
    folder.mkdir(parents=True)
    child = Child(name, kind.command(port, folder), log_path=directory / f"{name}.log")
    try:
        child.wait_for_log(kind.ready, START_TIMEOUT_S)
        yield Rival(name, child, port)
    finally:
        child.stop(STOP_TIMEOUT_S)
