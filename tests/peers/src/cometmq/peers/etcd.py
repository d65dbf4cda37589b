# SPDX-License-Identifier: Apache-2.0
"""Runs one member of etcd, from Debian's package."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import Child, run_to_end

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0


class Etcd:
    """An etcd that can be killed and restarted on the same data."""

    def __init__(self, directory: Path, *, host: str = HOST, prefix: Sequence[str] = ()) -> None:
        """`prefix` is a command that runs etcd, for example in a network namespace."""
        self._directory = directory
        self._host = host
        self._prefix = prefix
        self._client_port, self._peer_port = free_port(), free_port()
        self._child: Child | None = None

    @property
    def endpoint(self) -> str:
        """HOST:PORT for clients."""
        return f"{self._host}:{self._client_port}"

    def start(self) -> None:
        client, peer = f"http://{self.endpoint}", f"http://{self._host}:{self._peer_port}"
        command = [
            *self._prefix,
            "etcd",
            *("--data-dir", str(self._directory / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        ]
        self._child = Child("etcd", command, log_path=self._directory / "etcd.log")
        self._child.wait_for_log("ready to serve client requests", START_TIMEOUT_S)

    def kill(self) -> None:
        assert self._child
        self._child.kill()

    def stop(self) -> None:
        """Stop etcd; do nothing if it was never started."""
        if self._child:
            self._child.stop(STOP_TIMEOUT_S)

    def delete(self, key: str) -> None:
        """Delete a key with etcd's own tool."""
        command = ["etcdctl", f"--endpoints={self.endpoint}", "del", key]
        run_to_end(["env", "ETCDCTL_API=3", *command], timeout_s=START_TIMEOUT_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
