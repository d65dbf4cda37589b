# SPDX-License-Identifier: Apache-2.0
"""A peer without a connection: it records what handlers send, and answers from a script."""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cometmq.remoting.command import Call, Reply, Request, Response
from cometmq.remoting.errors import CometError, ConnectionLost
from cometmq.remoting.raw import Body
from cometmq.remoting.versions import CURRENT_VERSION


class FakePeer:
    """A `Peer` for tests of handlers.

    `answers` maps a code to the result of `invoke`: a Response, or an error to raise; a code
    without an entry fails with a lost connection. `sent` holds oneway requests, `asked` all
    other requests, and `replies` the answers to calls, in order.
    """

    def __init__(self, address: str = "127.0.0.1:40001") -> None:
        ip, _, port = address.rpartition(":")
        self.address = address
        self.host = bytes(map(int, ip.split("."))) + struct.pack(">i", int(port))
        self.is_open = True
        self.is_writable = True
        self.is_encrypted = False
        self.has_room = True
        self.has_small_room = False
        self.charged_s = 0.0
        self.waiting: list[Callable[[], None]] = []
        self.state: dict[str, object] = {}
        self.answers: dict[int, Response | CometError] = {}
        self.sent: list[Request] = []
        self.asked: list[Request] = []
        self.replies: list[Reply] = []

    def call(self, code: int, header: Any = None, body: bytes = b"", **more: Any) -> Call[Any]:
        """Return a request as if this peer had sent it."""
        more.setdefault("version", CURRENT_VERSION)
        return Call(code=code, header=header, body=body, peer=self, **more)

    @property
    def is_crowded(self) -> bool:
        """Whether a large answer would have to wait."""
        return not self.has_room

    def charge(self, spent_s: float) -> None:
        """Add to `charged_s`."""
        self.charged_s += spent_s

    def when_room(self, work: Callable[[], None]) -> None:
        """Record the work in `waiting`."""
        self.waiting.append(work)

    def send(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        ext: Mapping[str, str] | None = None,
    ) -> bool:
        """Record a oneway request; return False if the peer cannot take it."""
        if not (self.is_open and self.is_writable):
            return False
        self.sent.append(Request(code, header, body, ext, is_oneway=True))
        return True

    async def invoke(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        *,
        timeout_ms: int,
        ext: Mapping[str, str] | None = None,
    ) -> Response:
        """Record a request, and answer from `answers`."""
        self.asked.append(Request(code, header, body, ext))
        answer = self.answers.get(code, ConnectionLost(f"{self.address} does not answer {code}"))
        if isinstance(answer, CometError):
            raise answer
        return answer

    def reply(self, call: Call[Any], reply: Reply | msgspec.Struct) -> None:
        """Record an answer; a plain header is recorded as a success."""
        if self.is_open and not call.is_oneway:
            self.replies.append(reply if isinstance(reply, Reply) else Reply(header=reply))

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False
