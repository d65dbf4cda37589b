# SPDX-License-Identifier: Apache-2.0
"""The part of a fake `BrokerConnection` that tests of reading and of writing share."""

from typing import Any

from cometmq.remoting.command import Request
from cometmq.remoting.errors import ConnectFailed


class FakeConnection:
    def __init__(self, address: str, *, is_up: bool) -> None:
        if not is_up:
            raise ConnectFailed(f"cannot connect to {address}")
        self.address = address
        self.waiting: list[tuple[Request, Any]] = []

    @property
    def pending_count(self) -> int:
        return len(self.waiting)

    def submit(self, request: Request, done: Any) -> None:
        self.waiting.append((request, done))

    def close(self) -> None:
        self.waiting.clear()
