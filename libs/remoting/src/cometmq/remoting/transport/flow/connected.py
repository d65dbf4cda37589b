# SPDX-License-Identifier: Apache-2.0
"""The interfaces of a connection (`Connected`) and of its parts: input, output, TLS.

The parts use each other, and the objects that all connections share use them, through these
protocols.

Once a connection has ended, its parts refer to `ENDED`. As long as a connection and its parts refer
to each other, only a full garbage collection would free them; such a collection visits all objects
of a program and holds the loop meanwhile. Without these references, a connection is freed as soon
as no other object uses it.

Some objects call a part after the end: a queue in which the connection waited, a thread that writes
its answers, or a handler that answers late. They then find a closed connection.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from cometmq.remoting.command import Call
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.transport.flow.reading import Reading


class Input(Protocol):
    """The input of a connection; see `Intake`."""

    uncharged_bytes: int

    @property
    def waiting_bytes(self) -> int:
        """The size of the requests that wait for room."""

    def catch_up(self) -> None:
        """Serve requests that have waited for their turn."""

    def resume_from(self, reason: int) -> None:
        """Remove a reason for waiting; if no other is left, serve the requests that wait as
        bytes.
        """

    def wait_for_work(self) -> None:
        """Serve no further request until `resume_from(WORKING)`."""

    def task_begun(self, share: int) -> bool:
        """Count a slow handler that starts; return whether the connection now has its share of them
        and must wait.
        """

    def task_ended(self) -> None:
        """Count a slow handler that has ended."""

    def charge(self, spent_s: float) -> None:
        """Note time that the program has spent on requests after they were served."""


class Output(Protocol):
    """The output of a connection; see `Outlet`."""

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the kernel has not accepted yet."""

    @property
    def held_bytes(self) -> int:
        """The memory used by output that the kernel has not taken yet."""

    @property
    def is_restrained(self) -> bool:
        """Whether the budget has paused the connection."""

    def append(self, data: bytes) -> None:
        """Send bytes after the pending output."""

    def flush(self) -> None:
        """Write the pending output."""

    def mark_dirty(self) -> None:
        """Write the pending output at the end of this turn of the loop."""

    def note_large(self) -> None:
        """Count the pending output against the budget, and write it if it is large enough."""

    def deliver(self, call: Call[Any], answer: Any) -> bool:
        """Encode an answer; return False if the peer must catch up before it is served further."""

    def restrain(self) -> None:
        """Pause until a quarter of the unsent output is left."""

    def stalled_ms(self, now_ms: int) -> int:
        """Return how long the peer has read nothing; measured from the first call, or from the
        moment when the connection is paused.
        """


class Secured(Protocol):
    """The TLS of a connection; see `TlsState`."""

    pipe: Any


class Connected(Protocol):
    """A connection; see `PeerProtocol`."""

    address: str
    connection: Connection
    host: bytes
    in_flight: int
    is_dirty: bool
    is_open: bool
    is_served: bool
    reading: Reading
    state: dict[str, object]

    @property
    def intake(self) -> Input:
        """The connection's input."""

    @property
    def outlet(self) -> Output:
        """The connection's output."""

    @property
    def tls(self) -> Secured | None:
        """The connection's TLS; None if the connection is plain."""

    @property
    def may_build(self) -> bool:
        """Whether a large answer may be built now, regardless of the requests that wait."""

    def when_room(self, work: Callable[[], None]) -> None:
        """Call `work` once a large answer may be built."""

    def data_received(self, data: bytes) -> None:
        """Serve received bytes."""

    def note_long_frame(self) -> None:
        """Update the account of unfinished frames, if the frame of this connection is or was
        long.
        """

    def refuse(self, error: RemoteProtocolError) -> None:
        """End the connection of a peer that breaks the protocol."""

    def close(self) -> None:
        """Close the connection after its pending output is sent."""

    def abort(self) -> None:
        """Close the connection immediately; unsent output is lost."""


class _Ended:
    """A closed connection that stands for all of them; see `Connected` and `LaneConnected`."""

    __slots__ = ()
    address = ""
    direct = None
    direct_bytes = 0
    direct_fd = -1
    fd = -1
    has_room = False
    is_encrypted = False
    is_limited = False
    is_open = False
    is_writable = False
    loan = None
    may_build = False
    has_small_room = False
    tls = None

    is_served = property(lambda _: True, lambda _, __: None)
    is_dirty = property(lambda _: True, lambda _, __: None)  # it has no output to be written
    habit = property(lambda _: 0, lambda _, __: None)

    def when_room(self, work: Callable[[], None]) -> None:
        """Do nothing: the connection has ended."""

    def note_long_frame(self) -> None:
        """Do nothing: the connection has ended."""

    def refuse(self, error: Exception) -> None:
        """Do nothing: the connection has ended."""

    def close(self) -> None:
        """Do nothing: the connection has ended."""

    def abort(self) -> None:
        """Do nothing: the connection has ended."""


ENDED: Final[Any] = _Ended()
