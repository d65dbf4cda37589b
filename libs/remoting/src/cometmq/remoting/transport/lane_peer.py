# SPDX-License-Identifier: Apache-2.0
"""A connection whose plain requests a lane may take.

Invariants: a chunk's requests are served in order, by the lane or by handlers. Whenever a lane
cannot continue, the rest of the chunk is decoded and served as it would be without a lane. A chunk
that violates the protocol ends the connection before any of its requests is served.

In each loop iteration a lane takes a bounded number of a connection's frames, as handlers do. The
rest of a longer chunk waits as bytes for the next iteration, and nothing more is read until then,
so a flood delays other connections no more than it would without a lane. A protocol error beyond
that bound is detected in the iteration that reaches it, as if the chunk had been cut there.

Hot path: `_take_in` runs once per chunk (bench/micro/bench_lane.py).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from cometmq.remoting.command import Call
from cometmq.remoting.transport.dispatch import Dispatcher
from cometmq.remoting.transport.flow.budget import LARGE_BYTES, TIGHT_WRITE_BYTES
from cometmq.remoting.transport.flow.room import WAITING_MAX
from cometmq.remoting.transport.flow.turns import SLOW
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane import Lane, Part
from cometmq.remoting.transport.loans import Loan
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.room_peer import WAITS, RoomPeer
from cometmq.remoting.transport.tls_contexts import NativeSession
from cometmq.remoting.types import Buffer

FRAMES_PER_CALL: Final = 2
"""Number of frames that a lane may take for each frame that handlers may serve. A lane needs an
eighth of the time per frame, but a larger number would hide a flood: chunks of 256 KB, with up to
600 sends, must count as long turns.
"""

NO_FD: Final = -1

MIXED: Final = 0
SENDS: Final = 1
"""Only sends that the lane took."""
PULLS: Final = 2
"""Only requests that the lane answered at once."""


class LanePeer(RoomPeer):
    """A connection to a server that has a lane."""

    def __init__(self, hub: "Hub[PeerProtocol]", dispatcher: Dispatcher[Any]) -> None:
        super().__init__(hub, dispatcher)
        self.is_limited = dispatcher.is_limited
        self._may_join = hub.direct is not None
        self.fd = NO_FD
        """The socket, while it is read and written directly; see `DirectIO`."""
        self.direct_fd = NO_FD
        """The same socket, but only while its transport has no unsent output."""
        self.is_polled = False
        self._loan: Loan | None = None
        self.habit = MIXED
        """What the last chunk contained; the next one probably contains the same."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection and fail its pending requests."""
        self.leave_direct()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection after its pending output is sent."""
        if self._hub.direct is not None:
            self._hub.direct.flush()
        super().close()
        self.leave_direct()

    def abort(self) -> None:
        """Close the connection immediately; unsent output is lost."""
        super().abort()
        self.leave_direct()

    @property
    def session(self) -> NativeSession | None:
        """The native TLS session, if there is one."""
        return None if self._pipe is None else self._pipe.session

    def leave_direct(self) -> None:
        """Let the transport read and write from now on."""
        if self.fd >= 0 and self._hub.direct is not None:
            self.end_loan()
            self._hub.direct.leave(self)
            self._is_sealed = self._pipe is not None
            self._read_on()

    def input_ended(self) -> None:
        """Let the transport find the end of the input, or end the connection if its TLS session has
        ended or failed.
        """
        self.leave_direct()
        if self._is_sealed and self._is_open:
            self.data_received(b"")

    def receive_plain(self, data: bytes) -> None:
        """Serve bytes that were read directly, even if the connection has left since."""
        self._is_sealed = False
        try:
            self.data_received(data)
        finally:
            self._is_sealed = self._pipe is not None and self.fd < 0

    def reply_rows(self, rows: Sequence[tuple["LanePeer", bytes, int]]) -> None:
        """Send the encoded answers to requests of several connections of this hub."""
        if self._hub.direct is not None:
            self._hub.direct.reply_rows(rows)
            return
        for peer, data, count in rows:
            peer.reply_encoded(data, count)

    def write_rest(self, data: bytes, *, is_sealed: bool) -> None:
        """Write the output that the kernel has not accepted."""
        if self._is_open:
            if self._pipe is not None and not is_sealed:
                data = self._pipe.encrypt(data)
            self.direct_fd = NO_FD
            self._hub.stats.bytes_sent += len(data)
            self._outbox.sent_bytes += len(data)
            self._write(data, len(data))

    def reply_encoded(self, data: bytes, count: int) -> None:
        """Send the encoded answers to `count` requests that the lane has taken."""
        if self._is_open:
            self._dispatcher.note_answered(self, count)
            self.append_output(data)

    def lend(self, data: bytes, withdraw: Callable[[], int]) -> Loan | None:
        """Let another thread write frames to the socket; return None if it may not.

        All other output ends the loan first. With `before_write`, the program must decide at the
        time of the write whether answers may leave.
        """
        is_idle = self.direct_fd >= 0 and not self.is_dirty
        if not is_idle or self._pipe is not None or self._hub.before_write is not None:
            return None
        self._hub.prepare_write()
        self._loan = Loan(self, self.direct_fd, data, withdraw)
        self.direct_fd = NO_FD
        return self._loan

    def end_loan(self) -> None:
        """Write to the socket again, first what the other thread has left."""
        loan, self._loan = self._loan, None
        if loan is None:
            return
        sent = loan.withdraw()
        self.direct_fd = self.fd
        self._hub.stats.bytes_sent += sent
        if 0 < sent < len(loan.data):
            self.write_rest(loan.data[sent:], is_sealed=False)

    def note_answered(self, count: int) -> None:
        """Note that requests were answered by another thread."""
        if self._is_open:
            self._dispatcher.note_answered(self, count)

    def append_output(self, data: bytes) -> None:
        """Send whole frames after the pending output."""
        if not self._is_open:
            return
        connection = self._connection
        connection.out.append(data)
        connection.out_bytes += len(data)
        if connection.out_bytes > LARGE_BYTES:
            self._note_output()
        if connection.out and not self.is_dirty:
            self._mark_dirty()

    def _take_in(self, data: bytes) -> None:  # noqa: C901  # one call less per chunk
        lane = self._hub.lane
        if lane is None:  # rigs compare such a connection with one that has a lane
            self._receive(data)
            return
        if self._may_join:
            self._join_direct()
        self.habit = MIXED
        if self._held:
            self._held += data
            return
        if self._backlog or not self._may_serve:
            if self._must_save_memory:
                self._held = data
            else:
                self._receive(data)
            return
        data = self._connection.join(data)
        if not data:
            return
        frames_max = self._hub.calls_max * FRAMES_PER_CALL // self.pace.divisor or 1
        parts = lane.stage(self, data, frames_max)
        if not parts or (len(parts) == 1 and not parts[0][0]):
            self._receive(data)
        elif len(parts) == 1 and parts[0][0] > 0 and parts[0][3] == len(data):
            has_room = self._dispatcher.has_room(self, parts[0][0])
            if has_room and self._put(lane, parts[0]):
                self._note_habit(SENDS)
            else:
                lane.drop()
                self._receive(data)
        elif len(parts) == 1 and parts[0][0] < 0 and parts[0][3] == len(data):
            self._receive_pulls(lane, data, parts[0])
        else:
            self._receive_parts(lane, data, parts, frames_max)

    def _receive_pulls(self, lane: Lane, data: bytes, part: Part) -> None:
        """Serve a chunk of requests that a lane answers immediately."""
        if not self._dispatcher.has_room(self, -part[0]):
            self._receive(data)
            return
        end, is_plain = self._answer(lane, data, part, 0)
        if is_plain:
            self._note_habit(PULLS)
        if end < part[3] and self._must_save_memory:
            self._held = data[end:] + self._held
        elif end < part[3]:
            self._backlog = self._connection.receive_whole(data[end:], self._hub.clock_ms())
        self._end_chunk()

    @property
    def _must_save_memory(self) -> bool:
        """Whether requests that wait are kept as bytes."""
        return bool(self._pauses & WAITS) or self._hub.budget.is_tight

    def _put(self, lane: Lane, part: Part) -> bool:
        count, staged_bytes, _, _ = part
        answer_count = lane.put(count, staged_bytes)
        if answer_count is None:
            return False
        self._dispatcher.note_staged(self, count, answer_count)
        return True

    def _receive_parts(self, lane: Lane, data: bytes, parts: list[Part], frames_max: int) -> None:
        """Serve the lane's parts and the handlers' parts in the order of the chunk."""
        connection, now_ms = self._connection, self._hub.clock_ms()
        calls: list[list[Call[Any]]] = []
        rest: list[Call[Any]] = []
        behind = data[parts[-1][3] :]
        try:
            # Everything is decoded first: a protocol error rejects the whole chunk.
            for count, _, start, end in parts:
                calls.append([] if count else connection.receive_whole(data[start:end], now_ms))
            call_count = sum(map(len, calls))
            count = call_count + sum(abs(part[0]) for part in parts)
            if count < frames_max:
                rest = connection.receive(behind, now_ms)
            else:
                self._held = behind
        except BaseException:
            lane.drop()
            raise
        fits = call_count <= self._hub.calls_max and self._dispatcher.has_room(self, count)
        index = self._serve_parts(lane, data, parts, calls) if fits else 0
        lane.drop()
        left: list[Call[Any]] = []
        for (count, _, start, end), known in zip(parts[index:], calls[index:], strict=True):
            left += connection.receive_whole(data[start:end], now_ms) if count else known
        left += rest
        if left and self._may_serve:
            self._serve(left)
        else:
            self._backlog = left
            self._stopped_serving()
        self._end_chunk()
        if self._held and not self._backlog and self._may_serve:
            self._fall_behind()

    def _serve_parts(
        self, lane: Lane, data: bytes, parts: list[Part], calls: list[list[Call[Any]]]
    ) -> int:
        """Serve parts in order; return the number of finished parts.

        The part after them keeps only its unserved calls and frames.
        """
        pulled_count = 0
        for index, part in enumerate(parts):
            if part[0] > 0:
                if not self._put(lane, part):
                    return index
            elif part[0] < 0:
                end, _ = self._answer(lane, data, part, pulled_count)
                if end < part[3]:
                    parts[index] = (part[0], 0, end, part[3])
                    return index
                pulled_count -= part[0]
            else:
                served = self._dispatcher.serve(self, calls[index])
                if served < len(calls[index]) or not self._may_serve:  # stop after this call
                    del calls[index][:served]
                    return index
        return len(parts)

    def _answer(self, lane: Lane, data: bytes, part: Part, first: int) -> tuple[int, bool]:
        """Let the lane answer requests immediately; handlers get those that it does not take.

        Return the position of the first frame that is not served because the peer must catch up,
        and whether the lane has answered all requests.
        """
        connection, hub, dispatcher = self._connection, self._hub, self._dispatcher
        last, is_plain = first - part[0], True
        while first < last:
            if last - first > WAITING_MAX and not self.has_room:
                self._wait_for_room()
                return lane.frame(first)[0], False
            bytes_max = self._flush_bytes
            if hub.budget.is_tight:
                bytes_max = min(bytes_max, TIGHT_WRITE_BYTES)
            room = max(0, bytes_max - connection.out_bytes)
            frames, count, start, end, is_odd = (
                lane.answer(first, last - first, room)
                if self.has_room
                else (b"", 0, *lane.frame(first), True)  # a handler lets the request wait
            )
            if count:
                first += count
                dispatcher.note_served(count)
                connection.out.append(frames)
                connection.out_bytes += len(frames)
                if connection.out_bytes > LARGE_BYTES:
                    self._note_output()
                    if not self.is_writable:
                        return start or part[3], False
            if is_odd:
                calls = connection.receive_whole(data[start:end], hub.clock_ms())
                served = dispatcher.serve(self, calls)
                first += 1
                is_plain = False
                if not self._may_serve:
                    return end if served else start, False
        return part[3], is_plain

    def _join_direct(self) -> None:
        if self._pipe is not None and self._pipe.session is not None and self.unsent_bytes:
            return  # the end of the handshake is sent first
        self._may_join = False
        direct, can_join = self._hub.direct, self._pipe is None or self.session is not None
        if direct is not None and can_join and not self._pauses:
            direct.join(self, self._transport)
            self._is_sealed = self._pipe is not None and self.fd < 0

    def _note_habit(self, habit: int) -> None:
        if not (self.is_limited or self._pauses) and self.pace.rank != SLOW:
            self.habit = habit
            if self._hub.direct is not None:
                if habit == PULLS:
                    self._hub.direct.expect_pulls()
                else:
                    self._hub.direct.expect_sends()

    def charge(self, spent_s: float) -> None:
        """Note time that the program has spent on requests after they were served."""
        super().charge(spent_s)
        if self.pace.rank == SLOW:
            self.habit = MIXED  # its requests wait for their turn

    def _pause(self, reason: int) -> None:
        self.habit = MIXED
        super()._pause(reason)

    def _stop_reading(self) -> None:
        if self.fd >= 0 and self._hub.direct is not None:
            self._hub.direct.stop_reading(self)
        else:
            super()._stop_reading()

    def _start_reading(self) -> None:
        if self.fd >= 0 and self._hub.direct is not None:
            self._hub.direct.start_reading(self)
        else:
            super()._start_reading()

    def _write(self, data: Buffer, whole_bytes: int) -> None:
        """Write directly as much as the kernel accepts, and let the transport send the rest."""
        direct = self._hub.direct
        if self._loan is not None:
            self.end_loan()
        if (
            direct is not None
            and isinstance(data, bytes)
            and (self.direct_fd >= 0 or (self.fd >= 0 and not self.unsent_bytes))
        ):
            sent = direct.sockets.send(self.fd, data)
            if sent == len(data):
                self.direct_fd = self.fd
                return
            data = memoryview(data)[sent:]
        self.direct_fd = NO_FD
        super()._write(data, whole_bytes)
