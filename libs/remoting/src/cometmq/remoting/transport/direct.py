# SPDX-License-Identifier: Apache-2.0
"""Direct I/O: the loop reads and writes many sockets with one call each.

With one request in flight per connection, each message would take a read, a write and more than
twenty Python calls around them. Direct input reads from all readable sockets, answers their plain
pulls and stages their plain sends with one call. Direct output sends all answers of a commit, or
all answers to these pulls, with one call.

Invariants
    - The transport owns the connection: it accepts it, closes it, and sends the output that the
      kernel does not take at once.
    - A connection joins when its first plain bytes arrive; its transport then stops reading. One
      with TLS joins only if native code serves its session, after the end of the handshake is sent.
    - A TLS record is written where it is encrypted, so records keep their order.
    - A connection leaves for good soon after its input ends or fails (`Turns.end`), so that its
      transport detects the end itself. It also leaves before the transport closes the socket,
      because the next connection may reuse the file descriptor.
    - Nothing is written directly while the transport has unsent output, so bytes keep their order.

Hot path: `_read` runs once per turn of the loop, its loops once per connection.
"""

import asyncio
import select
from collections.abc import Sequence
from typing import Any, Final, Protocol

from cometmq.remoting.transport.dispatch import InFlight
from cometmq.remoting.transport.flow.budget import LARGE_BYTES
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane import (
    AnsweredChunks,
    AnswerRow,
    Chunk,
    Lane,
    Pulling,
    Settled,
    Sockets,
    Staged,
)
from cometmq.remoting.transport.lane_peer import NO_FD, LanePeer
from cometmq.remoting.transport.peer.lane_intake import FRAMES_PER_CALL, SENDS

HAS_EPOLL: Final = hasattr(select, "epoll")

EVENTS_MAX: Final = 128
"""Number of connections that are read at once; the others wait for the next read."""

READ_ON_MAX: Final = 16
"""After this many requests, further reads wait for the next turn of the loop; native code has
the same limit.
"""

SKIPPED_REREADS: Final = 8
"""Number of loop turns with only one read, after a further read that found nothing."""

EXPECTED_READS: Final = 64
"""After this many reads without pulls, the next reads do not expect any, which saves 1 us for a
single sender; the same applies to sends.
"""


class Replies(Protocol):
    """Successful answers of a lane that are not encoded yet."""

    def send(self, sockets: Any) -> tuple[Settled, Any]:
        """Encode the answers and write them to the sockets; return the result of the writes, and
        the figures that the lane has to count.
        """


class DirectIO:
    """The connections of one server that are read and written directly."""

    def __init__(self, hub: Hub, lane: Lane, sockets: Sockets) -> None:
        self.sockets = sockets
        self._hub = hub
        self._lane = lane
        self._in_flight = InFlight(hub)
        self._write_bytes_max = hub.settings.write_high_water_bytes
        self._peers: dict[int, LanePeer] = {}
        self._epoll: select.epoll | None = None  # opened for the first connection
        self._secured_count = 0
        self._pull_reads = 0  # further reads in which pulls are expected
        self._send_reads = 0  # and sends
        self._skipped_rereads = 0
        self.rows: list[AnswerRow] = []
        """Encoded answers that are not sent yet; they are sent at the end of this turn of the loop
        or earlier.
        """
        self._is_in_turn = False  # while a read is served; a commit follows it
        hub.writes.direct = self

    def join(self, peer: LanePeer, transport: asyncio.Transport) -> None:
        """Read and write a connection directly from now on, if its transport has a socket."""
        fileno = getattr(transport.get_extra_info("socket"), "fileno", None)
        if fileno is None:
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._hub.loop.add_reader(self._epoll.fileno(), self._read, self._epoll.fileno())
        transport.pause_reading()
        peer.fd = peer.direct_fd = fileno()
        self._peers[peer.fd] = peer
        if peer.session is not None:
            self._secured_count += 1
            self.sockets.secure(peer.fd, peer.session)
        self.start_reading(peer)

    def leave(self, peer: LanePeer) -> None:
        """Let the transport of the connection read and write the socket again."""
        self.stop_reading(peer)
        if peer.session is not None:
            self._secured_count -= 1
            self.sockets.release(peer.fd)
        del self._peers[peer.fd]
        peer.fd = peer.direct_fd = NO_FD

    def start_reading(self, peer: LanePeer) -> None:
        """Read from the connection until `stop_reading`."""
        if self._epoll is not None and not peer.is_polled:
            peer.is_polled = True
            self._epoll.register(peer.fd, select.EPOLLIN | select.EPOLLRDHUP)

    def stop_reading(self, peer: LanePeer) -> None:
        """Stop reading; the end of the input is not detected either."""
        if self._epoll is not None and peer.is_polled:
            peer.is_polled = False
            self._epoll.unregister(peer.fd)

    def close(self) -> None:
        """Let the transports read and write all sockets again."""
        for peer in tuple(self._peers.values()):
            peer.leave_direct()
        if self._epoll is not None:
            self._hub.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _read(self, epoll: int) -> None:
        """Read from the readable sockets, and serve the bytes that have arrived.

        After a read of pulls only, read again: more pulls have often arrived meanwhile, and a
        further turn of the loop costs more than another read. If all connections are read directly,
        the sends of this read are committed and answered in the same turn.
        """
        hub, stats, sending = self._hub, self._hub.stats, None
        last, is_reread = stats.requests + READ_ON_MAX, False
        while self._epoll is not None and stats.requests <= last:
            if self._send_reads:
                self._send_reads -= 1
                sending = self._lane.sends(hub.turns.calls_max * FRAMES_PER_CALL)
            chunks, ended, answered, staged = self.sockets.receive(
                epoll,
                self._peers,
                EVENTS_MAX,
                self._pulling() if self._pull_reads else None,
                sending,
            )
            if self._secured_count:
                stats.bytes_received += self.sockets.take_overhead()
            reads_on = answered is not None and self._note_answered(answered)
            for peer in ended:
                self.stop_reading(peer)
                hub.turns.end(peer, peer.input_ended)
            if staged is not None or chunks:
                self._serve_turn(chunks, staged)
                return
            if not reads_on:
                if is_reread and answered is None:
                    self._skipped_rereads = SKIPPED_REREADS
                return
            if self._skipped_rereads:
                self._skipped_rereads -= 1
                return
            sending, is_reread = None, True

    def serve(self, chunks: list[Chunk]) -> None:
        """Serve chunks received on several connections, one each, without reading from their
        sockets.
        """
        first = 0
        while first < len(chunks):
            has_sends = any(peer.habit == SENDS for peer, _ in chunks[first:])
            frames_max = self._hub.turns.calls_max * FRAMES_PER_CALL
            sending = self._lane.sends(frames_max) if has_sends else None
            first, left, answered, staged = self.sockets.take_rows(
                chunks, first, self._pulling(), sending
            )
            if answered is not None:
                self._note_answered(answered)
            self._serve(left, staged)

    def expect_pulls(self) -> None:
        """Answer pulls while reading, until EXPECTED_READS reads have found none."""
        self._pull_reads = EXPECTED_READS

    def expect_sends(self) -> None:
        """Stage sends while reading, until EXPECTED_READS reads have found none."""
        self._send_reads = EXPECTED_READS

    def _pulling(self) -> Pulling | None:
        """Return the arguments with which `Sockets` answers pulls; None if the connections must
        serve them.
        """
        self._pull_reads -= 1
        hub, in_flight = self._hub, self._in_flight
        budget = hub.budget
        room, plenty = budget.turn_left, budget.left - budget.plenty
        if room <= 0 or plenty <= 0:
            return None
        room = min(room, plenty, self._write_bytes_max)
        frames_max = hub.turns.calls_max * FRAMES_PER_CALL
        pulls = self._lane.pulls(EVENTS_MAX * frames_max)
        if pulls is None:
            return None
        return (
            *pulls,
            max(0, min(frames_max, in_flight.total_max - hub.stats.in_flight)),
            in_flight.one_max - frames_max,
            room,
            not (self.rows or hub.writes.must_prepare),
        )

    def _note_answered(self, answered: AnsweredChunks) -> bool:
        """Send the answers that native code has kept, and count all answers; return whether more
        pulls may be read.

        The requests were never counted as in flight.
        """
        hub, stats = self._hub, self._hub.stats
        count, received_bytes, sent_bytes, unsent, is_kept, effects, fault = answered
        self._pull_reads = EXPECTED_READS
        stats.requests += count
        stats.bytes_received += received_bytes
        try:
            self._lane.pulled(effects, fault)
        except Exception as error:  # noqa: BLE001  # the answers must be sent
            hub.loop.call_exception_handler(
                {"message": "answered pulls cannot be counted", "exception": error}
            )
        if is_kept:
            if self.rows:
                self.flush()
            else:
                hub.writes.prepare()
            more_bytes, more = self.sockets.send_answers()
            sent_bytes += more_bytes
            unsent += more
        stats.bytes_sent += sent_bytes
        for peer, data, is_sealed in unsent:
            if is_sealed is None:
                peer.outlet.append(data)
            else:
                peer.outlet.write_rest(data, is_sealed=is_sealed)
        if sent_bytes > LARGE_BYTES:
            hub.note_large(sent_bytes)
        return is_kept

    def _serve_turn(self, chunks: list[Chunk], staged: Staged | None) -> None:
        """Serve the bytes read in this turn of the loop; the lane stores their sends."""
        self._is_in_turn = True
        try:
            # With one request, or if all connections are read here, nothing that this turn of the
            # loop reads later could share a commit with these sends.
            are_all = len(self._peers) == len(self._hub.peers)
            if staged is not None and not chunks and (staged[1] == 1 or are_all):
                for peer, data in self._accept(staged, at_once=True):
                    self._serve_one(peer, data)
                return
            self._lane.begin_turn()
            try:
                self._serve(chunks, staged)
            finally:
                self._lane.end_turn()
        finally:
            self._is_in_turn = False

    def _serve(self, chunks: list[Chunk], staged: Staged | None) -> None:
        if staged is not None:
            chunks = [*chunks, *self._accept(staged)]
        for peer, data in chunks:
            self._serve_one(peer, data)

    def _serve_one(self, peer: LanePeer, data: bytes) -> None:
        try:
            peer.receive_plain(data)
        except Exception as error:  # noqa: BLE001  # the other chunks must not be lost
            self._abort(peer, error)

    def _accept(self, staged: Staged, *, at_once: bool = False) -> Sequence[Chunk]:
        """Let the lane accept staged sends; return the chunks that handlers must serve."""
        rows, count, staged_bytes, answer_counts, fault = staged
        lane, in_flight, stats = self._lane, self._in_flight, self._hub.stats
        self._send_reads = EXPECTED_READS
        if fault is not None:
            lane.sends_failed(fault)
            return rows
        total, most = stats.in_flight + count, in_flight.one_max
        is_above = total > in_flight.total_max
        if total > most:  # otherwise no connection can exceed its limit
            pairs = zip(rows, answer_counts, strict=True)
            is_above = is_above or any(row[0].in_flight + more > most for row, more in pairs)
        if is_above:
            lane.drop()
            return rows
        for (peer, data), more in zip(rows, answer_counts, strict=True):
            peer.in_flight += more
            stats.in_flight += more
            peer.intake.uncharged_bytes += len(data)
            peer.has_received = True
            stats.bytes_received += len(data)
        try:
            if lane.put(count, staged_bytes, at_once=at_once) is not None:
                stats.requests += count
                return ()
        except Exception as error:  # noqa: BLE001  # the other chunks must not be lost
            for peer, _ in rows:
                self._abort(peer, error)
            return ()
        for (peer, data), more in zip(rows, answer_counts, strict=True):
            peer.in_flight -= more
            stats.in_flight -= more
            peer.intake.uncharged_bytes -= len(data)
            stats.bytes_received -= len(data)
        lane.drop()
        return rows

    def _abort(self, peer: LanePeer, error: Exception) -> None:
        """End a connection after a bug, as its transport would."""
        self._hub.loop.call_exception_handler(
            {"message": "received data cannot be served", "exception": error, "protocol": peer}
        )
        peer.abort()

    # The answers of a lane

    def reply_rows(self, rows: Sequence[AnswerRow]) -> None:
        """Send the encoded answers of a lane: during a read now, otherwise at the end of this turn
        of the loop.
        """
        stats, is_any = self._hub.stats, False
        for row in rows:
            peer, data, count = row
            if peer.direct_fd < 0 or peer.is_dirty:
                peer.reply_encoded(data, count)
            else:
                peer.in_flight -= count
                stats.in_flight -= count
                self.rows.append(row)
                is_any = True
        if self._is_in_turn:
            self.flush()
        elif is_any:
            self._hub.writes.schedule()

    def reply(self, replies: Replies) -> Any:
        """Send answers at once, and return the figures that the lane has to count.

        Return None, with nothing done, if they must wait for other answers or for the tables.
        """
        hub = self._hub
        if self.rows or hub.writes.must_prepare:
            return None
        (count, sent_bytes, rest), counts = replies.send(self.sockets)
        hub.stats.in_flight -= count
        hub.stats.bytes_sent += sent_bytes
        if rest:
            rest[0][0].settle((0, 0, rest))
        return counts

    def flush(self) -> None:
        """Send the answers in `rows` now."""
        if not self.rows:
            return
        rows, self.rows = self.rows, []
        if self._hub.writes.must_prepare:
            self._hub.writes.prepare()
        sent_bytes, unsent = self.sockets.send_rows(rows)
        self._hub.stats.bytes_sent += sent_bytes
        for index, rest in unsent:
            peer, data, _ = rows[index]
            peer.outlet.write_rest(data if rest is None else rest, is_sealed=rest is not None)
