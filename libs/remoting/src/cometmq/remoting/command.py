# SPDX-License-Identifier: Apache-2.0
"""Commands in memory: received calls with typed headers, replies, requests and responses.

Invariant: a call is answered at most once: by the return value of its handler, or later by `answer`
or `fail`. A later answer is dropped, and so are answers to oneway calls and to peers whose
connection has ended.

Hot path: one `Call` is created per request. The garbage collector does not track it, and its fields
are those of the JSON header, so the decoder fills it in one step (see `header.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from cometmq.remoting.errors import CommandError, RemoteProtocolError, ServerError
from cometmq.remoting.header import decode_header
from cometmq.remoting.raw import FLAG_ONEWAY, Body
from cometmq.remoting.raw import RawCommand as RawCommand  # noqa: PLC0414  # re-exported
from cometmq.remoting.response_codes import ResponseCode
from cometmq.remoting.types import Language, language_of

HeaderT = TypeVar("HeaderT")


class ConstantExt(dict[str, str]):
    """Ext fields that many replies share, with a cache of their encoded forms."""

    __slots__ = ("encoded",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__(fields)
        self.encoded: dict[object, Any] = {}


class Reply(msgspec.Struct, gc=False):
    """An answer as returned by a handler; `ext` adds fields to those of the header."""

    code: int = int(ResponseCode.SUCCESS)
    header: msgspec.Struct | None = None
    body: Body = b""
    remark: str | None = None
    ext: Mapping[str, str] | None = None


OK: Final = Reply()
"""Success without a header, for commands whose reply has none."""


class Request(msgspec.Struct, gc=False):
    """A request as passed by its sender; `ext` adds fields to those of the header."""

    code: int
    header: msgspec.Struct | None = None
    body: Body = b""
    ext: Mapping[str, str] | None = None
    is_oneway: bool = False


class Response(msgspec.Struct, gc=False):
    """An answer as received by the sender of the request."""

    code: int
    header: Any
    ext: dict[str, str]
    body: bytes
    remark: str | None = None
    version: int = 0


@runtime_checkable
class Peer(Protocol):
    """One live connection to another program, hashable by identity."""

    @property
    def address(self) -> str:
        """The remote address as `ip:port`."""

    @property
    def host(self) -> bytes:
        """The remote address as records store it: 4 or 16 bytes for the IP, 4 for the port."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is still usable."""

    @property
    def is_writable(self) -> bool:
        """Whether unsent output is below its high-water mark."""

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""

    @property
    def has_room(self) -> bool:
        """Whether a large answer may be built now.

        False if this peer, or all peers together, have too much unread output.
        """

    @property
    def has_small_room(self) -> bool:
        """Whether an answer of at most LARGE_BYTES may be built now, although there is no room for
        a larger one.
        """

    @property
    def is_crowded(self) -> bool:
        """Estimate on any thread, without measuring, whether a large answer would have to wait
        now.
        """

    def charge(self, spent_s: float) -> None:
        """Charge this connection for processor time spent on its requests after they were
        served.
        """

    def when_room(self, work: Callable[[], None]) -> None:
        """Call `work` in a later turn of the loop, when a large answer may be built; never, if the
        connection ends first.
        """

    @property
    def state(self) -> dict[str, object]:
        """State that handlers keep per connection; cleared when the connection ends."""

    def send(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        ext: Mapping[str, str] | None = None,
    ) -> bool:
        """Send a oneway request; return False if the connection is closed or not writable."""

    async def invoke(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        *,
        timeout_ms: int,
    ) -> Response:
        """Send a request and wait for its answer."""

    def reply(self, call: "Call[Any]", reply: Reply | msgspec.Struct) -> None:
        """Answer a call that arrived on this connection; handlers use `Call.answer`."""

    def close(self) -> None:
        """Close the connection after sending the queued output."""


class Call(msgspec.Struct, Generic[HeaderT], gc=False, rename={"header": "extFields"}):
    """One received request with its typed header.

    The fields up to `remark` are members of the JSON header; the receiving connection sets the
    others. `body` holds the request's bytes, independent of the connection's buffers. `received_ms`
    is a time of the server's monotonic clock.
    """

    code: int
    header: HeaderT
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language_raw: str | int | None = msgspec.field(name="language", default=None)
    remark: str | None = None
    body: bytes = b""
    peer: Any = None
    serialization: int = 0
    received_ms: int = 0
    head: bytes = b""
    is_answered: bool = False

    @property
    def language(self) -> Language:
        """The sender's language."""
        return language_of(self.language_raw)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no reply."""
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def ext(self) -> dict[str, str]:
        """All ext fields as strings, for hooks and unusual clients; decoded on every access.

        Raise ServerError for a field that cannot be decoded: the typed header skips those that the
        command does not have.
        """
        try:
            return decode_header(self.serialization, self.head).ext
        except RemoteProtocolError as error:
            raise ServerError(str(error)) from error

    def answer(self, reply: Reply | msgspec.Struct) -> None:
        """Answer now; a plain header struct means success."""
        if not self.is_answered:
            self.is_answered = True
            self.peer.reply(self, reply)

    def fail(self, error: CommandError) -> None:
        """Answer with an error's code and remark."""
        self.answer(Reply(code=error.code, remark=error.remark))
