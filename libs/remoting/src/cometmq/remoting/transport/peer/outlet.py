# SPDX-License-Identifier: Apache-2.0
"""The output of one connection: encodes answers, writes them together, and bounds the output that
its peer has not read.
"""

import asyncio
from collections import deque
from typing import Any, Final, cast

from cometmq.remoting.command import Call
from cometmq.remoting.transport.dispatch import Answer, Dispatcher
from cometmq.remoting.transport.flow.budget import LARGE_BYTES, TIGHT_WRITE_BYTES
from cometmq.remoting.transport.flow.connected import ENDED, UNSENT_OUTPUT, Connected
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.types import Buffer

_NONE: Final = (-1, 0)


class Outbox:
    """Measures the memory that a transport uses for writes that are not sent completely.

    `unsent_bytes` is the number of bytes that the transport has not sent yet.
    """

    __slots__ = ("_progress", "_writes", "sent_bytes")

    def __init__(self) -> None:
        self.sent_bytes = 0
        """All bytes written so far, sent or not."""
        self._writes: deque[tuple[int, int]] = deque()  # large ones: where they end, and their size
        self._progress = _NONE

    def note(self, whole_bytes: int) -> None:
        """Note a write that `sent_bytes` already includes. Until it is sent completely, it keeps
        `whole_bytes` of memory.
        """
        if whole_bytes > LARGE_BYTES:
            self._writes.append((self.sent_bytes, whole_bytes))

    def held_bytes(self, unsent_bytes: int) -> int:
        """Return the memory that the unsent output keeps."""
        if not unsent_bytes:
            self._writes.clear()
            self._progress = _NONE
            return 0
        writes, gone = self._writes, self.sent_bytes - unsent_bytes
        while writes and writes[0][0] <= gone:
            writes.popleft()
        if not writes:
            return unsent_bytes
        end, size = writes[0]
        return unsent_bytes + max(0, gone - end + size)

    def stalled_ms(self, unsent_bytes: int, now_ms: int) -> int:
        """Return how long the peer has read nothing, measured from the first call with unsent
        output.
        """
        gone = self.sent_bytes - unsent_bytes
        if gone != self._progress[0]:
            self._progress = (gone, now_ms)
        return now_ms - self._progress[1]


class Outlet:
    """Encodes, gathers and writes the answers of a connection."""

    def __init__(self, peer: Connected, hub: Hub, dispatcher: Dispatcher[Any]) -> None:
        self._peer = peer
        self._hub = hub
        self._dispatcher = dispatcher
        self._connection = peer.connection
        self._reading = peer.reading
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._encode_reply = hub.codec.encoder.encode_reply
        self._answer_bytes_max = hub.codec.frame_bytes_max
        self._flush_bytes = hub.settings.write_high_water_bytes
        self._noted_bytes = 0  # pending output that the budget has counted
        self._box = Outbox()
        self.is_restrained = False
        """Whether the budget has paused the connection."""

    def begin(self, transport: asyncio.Transport) -> None:
        """Write to a transport from now on."""
        self._transport = transport
        self._set_water_marks()

    def deliver(self, call: Call[Any], answer: Answer) -> bool:
        """Encode an answer; return False if the peer must catch up before it is served further.

        If the answer cannot be encoded, which is a bug in its handler, or exceeds the frame size
        limit, an error answer is sent instead.
        """
        dispatcher, connection = self._dispatcher, self._connection
        if dispatcher.after:
            dispatcher.run_after(call, answer)
        out, serialization, opaque = connection.out, call.serialization, call.opaque
        sent_count = len(out)
        try:
            size = self._encode_reply(out, serialization, opaque, answer)
        except Exception as error:  # noqa: BLE001  # as in dispatch.py
            size = self._encode_reply(out, serialization, opaque, dispatcher.failure(call, error))
        if size > self._answer_bytes_max:
            del out[sent_count:]
            size = self._encode_reply(out, serialization, opaque, dispatcher.too_large(call, size))
        connection.out_bytes += size
        if connection.out_bytes > LARGE_BYTES:
            self.note_large()
        return self._peer.is_open and not self._reading.pauses & UNSENT_OUTPUT

    def note_large(self) -> None:
        """Count the pending output against the budget, and write it if it is large enough."""
        budget, out_bytes = self._hub.budget, self._connection.out_bytes
        more_bytes = out_bytes - self._noted_bytes
        budget.left -= more_bytes
        self._noted_bytes = out_bytes
        self._hub.note_large(more_bytes)
        budget.holders.add(self._peer)
        if out_bytes > self._flush_bytes or (out_bytes > TIGHT_WRITE_BYTES and budget.is_tight):
            self.flush()

    def append(self, data: bytes) -> None:
        """Send whole frames after the pending output."""
        if not self._peer.is_open:
            return
        connection = self._connection
        connection.out.append(data)
        connection.out_bytes += len(data)
        if connection.out_bytes > LARGE_BYTES:
            self.note_large()
        if connection.out:
            self.mark_dirty()

    def mark_dirty(self) -> None:
        """Write the pending output at the end of this turn of the loop."""
        if not self._peer.is_dirty:
            self._peer.is_dirty = True
            self._hub.writes.add(self)

    def flush(self) -> None:
        """Write the pending output."""
        peer, hub = self._peer, self._hub
        peer.is_dirty = False
        if not self._connection.out or not peer.is_open:
            return
        data = self._connection.take()
        if self._noted_bytes:
            hub.budget.left += self._noted_bytes
            self._noted_bytes = 0
        if hub.writes.must_prepare:
            hub.writes.prepare()
        if peer.tls is not None and peer.tls.pipe is not None:
            data = peer.tls.pipe.encrypt(data)  # in the order in which the records are written
        self._count(len(data))
        self._write(data, len(data))

    def _count(self, size: int) -> None:
        self._hub.stats.bytes_sent += size
        self._box.sent_bytes += size

    def _write(self, data: Buffer, whole_bytes: int) -> None:
        """Write output; the buffer of `whole_bytes` to which it belongs is kept until the kernel
        has taken it.
        """
        hub = self._hub
        self._transport.write(data)
        hub.budget.left -= whole_bytes
        hub.budget.holders.add(self._peer)
        self._box.note(whole_bytes)
        if hub.budget.left < hub.budget.floor:
            hub.budget.measure(hub.now_ms())
        is_blocked = self._reading.pauses & UNSENT_OUTPUT
        if is_blocked and self.unsent_bytes > hub.settings.unsent_bytes_max:
            hub.stats.overflow_closed += 1
            hub.log.warning(
                "connection.overflowed", peer=self._peer.address, bytes=self.unsent_bytes
            )
            self._peer.abort()

    def drop(self) -> None:
        """Forget the pending output of a connection that has ended."""
        self._connection.take()
        self._hub.budget.holders.discard(self._peer)
        self._peer = ENDED

    def block(self) -> None:
        """Stop serving a peer that does not read; a server also stops reading from it."""
        self.stalled_ms(self._hub.now_ms())
        self._reading.pause(UNSENT_OUTPUT)

    def unblock(self) -> None:
        """Note that the peer has read enough."""
        self._reading.pauses &= ~UNSENT_OUTPUT
        if self.is_restrained:
            self.is_restrained = False
            self._set_water_marks()

    def restrain(self) -> None:
        """Pause until only a quarter of the unsent output is left, ignoring the high-water mark."""
        size = self.unsent_bytes
        if not size:
            return  # what the connection holds are requests, or output of this turn
        self.is_restrained = True
        if self._transport.is_closing():
            self.block()
        else:
            self._transport.set_write_buffer_limits(high=size // 2, low=size // 4)

    def end_stall(self, now_ms: int) -> None:
        """Close the connection if its peer has read nothing for a while."""
        if self.stalled_ms(now_ms) >= self._hub.settings.stall_timeout_ms:
            self._hub.stats.stalled_closed += 1
            self._hub.log.warning("connection.stalled", peer=self._peer.address)
            self._peer.abort()

    def stalled_ms(self, now_ms: int) -> int:
        """Return how long the peer of a paused connection has read nothing."""
        return self._box.stalled_ms(self.unsent_bytes, now_ms)

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the kernel has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._peer.is_open else 0

    @property
    def held_bytes(self) -> int:
        """The memory used by output that the kernel has not taken yet."""
        return self._box.held_bytes(self.unsent_bytes) + self._connection.out_bytes

    @property
    def written_bytes(self) -> int:
        """All output so far, sent or not."""
        return self._box.sent_bytes

    def _set_water_marks(self) -> None:
        settings = self._hub.settings
        self._transport.set_write_buffer_limits(
            high=settings.write_high_water_bytes, low=settings.write_low_water_bytes
        )
