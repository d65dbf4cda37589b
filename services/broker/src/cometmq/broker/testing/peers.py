# SPDX-License-Identifier: Apache-2.0
"""A connection without a socket."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from cometmq.remoting.command import Call, Reply, Response
from cometmq.remoting.errors import CometError, ConnectionLost
from cometmq.remoting.raw import Body


class Sent(NamedTuple):
    code: int
    header: msgspec.Struct | None
    body: Body = b""


class FakePeer:
    """A peer that records requests and answers.

    `answers` maps a code to the peer's response, or to the error that the caller gets.
    """

    def __init__(self, address: str = "127.0.0.1:40001") -> None:
        self.address = address
        self.host = bytes([127, 0, 0, 1]) + int(address.rpartition(":")[2]).to_bytes(4, "big")
        self.is_open = True
        self.is_writable = True
        self.is_encrypted = False
        self.has_room = True
        self.waiting: list[Callable[[], None]] = []
        self.state: dict[str, object] = {}
        self.sent: list[Sent] = []
        self.asked: list[Sent] = []
        self.answers: dict[int, Response | CometError] = {}
        self.replies: list[Reply] = []

    @property
    def is_crowded(self) -> bool:
        """Whether a large answer would have to wait."""
        return not self.has_room

    def when_room(self, work: Callable[[], None]) -> None:
        """Record the work in ``waiting``."""
        self.waiting.append(work)

    def send(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        ext: Mapping[str, str] | None = None,
    ) -> bool:
        if self.is_open and self.is_writable:
            self.sent.append(Sent(int(code), header, body))
        return self.is_open and self.is_writable

    async def invoke(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        *,
        timeout_ms: int,
    ) -> Response:
        """Answer from `answers`; a code that is missing there fails with a lost connection."""
        self.asked.append(Sent(int(code), header, body))
        lost = ConnectionLost(f"{self.address} does not answer {int(code)}")
        answer = self.answers.get(int(code), lost)
        if isinstance(answer, CometError):
            raise answer
        return answer

    def reply(self, call: Call[Any], reply: Reply | msgspec.Struct) -> None:
        """Record an answer that a handler sends later."""
        self.replies.append(reply if isinstance(reply, Reply) else Reply(header=reply))

    def close(self) -> None:
        self.is_open = False
