# SPDX-License-Identifier: Apache-2.0
"""Direct input and output: the loop reads and writes many sockets with one call each.

With one request in flight per connection, each message would take a read, a write and more than
twenty Python calls around them. Direct input reads from all readable sockets with one call, stages
their plain sends with another, and answers their plain pulls with a third; direct output sends all
answers of a commit, or all answers to these pulls, with one call.

Invariants
    The transport owns the connection: it accepts it, closes it, and sends the output that the
    kernel does not take at once. A connection joins when its first plain bytes arrive, and its
    transport stops reading; one with TLS joins only if native code serves its session, and once
    the handshake has been sent. Every record is written where it is encrypted, so records keep
    their order. It leaves for good when its input ends or fails, so that its
    transport detects this itself. It also leaves before the transport closes the socket, because
    the next connection may reuse the file descriptor. Nothing is written directly while the
    transport has unsent output, so no byte overtakes another.

Hot path: `_read` and `flush` run once per turn of the loop, their loops once per connection.
"""

import asyncio
import select
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from cometmq.remoting.transport.budget import LARGE_BYTES
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane import Lane
from cometmq.remoting.transport.lane_peer import FRAMES_PER_CALL, NO_FD, PULLS, SENDS, LanePeer
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.settings import ServerSettings

HAS_EPOLL: Final = hasattr(select, "epoll")

EVENTS_MAX: Final = 128
"""Number of connections that are read at once; the others wait for the next read."""

READ_ON_MAX: Final = 16
"""After this many requests, further reads wait for the next turn of the loop."""

Chunk: TypeAlias = tuple[LanePeer, bytes]
Answers: TypeAlias = tuple[LanePeer, bytes, int]
"""A connection, the frames of its answers, and their number."""


class Sockets(Protocol):
    """System calls on nonblocking sockets."""

    def receive(
        self, epoll: int, peers: dict[int, LanePeer], count_max: int
    ) -> tuple[list[Chunk], list[LanePeer]]:
        """Read once from each socket that an epoll object reports as readable, at most `count_max`.

        `epoll` is its descriptor. Return what has arrived, and the connections whose sockets have
        ended or failed.
        """

    def send(self, fd: int, data: bytes) -> int:
        """Write to a socket; return the number of bytes that the kernel has taken, 0 after an
        error.
        """

    def send_rows(self, rows: Sequence[Answers]) -> tuple[int, list[tuple[int, bytes | None]]]:
        """Write the bytes of each row to the `direct_fd` of its connection.

        Return the total number of bytes that the kernel has taken and, for each row that is not
        sent completely, its index and the bytes that were not taken: encrypted ones, if the socket
        is secured; None, if the connection has no socket. After such a row, nothing more is written
        to the same socket.
        """

    def secure(self, fd: int, session: Any) -> None:
        """Decrypt what a socket receives, and encrypt what `send_rows` writes to it.

        A socket whose session has ended or failed is reported as ended.
        """

    def release(self, fd: int) -> None:
        """Leave encryption to the caller again."""

    def take_overhead(self) -> int:
        """Return how many more bytes were received than returned since the last call."""


class DirectIO:
    """The connections of one server that are read and written directly."""

    def __init__(
        self, hub: Hub[PeerProtocol], lane: Lane, sockets: Sockets, settings: ServerSettings
    ) -> None:
        self.sockets = sockets
        self._hub = hub
        self._lane = lane
        self._settings = settings
        self._peers: dict[int, LanePeer] = {}
        self._epoll: select.epoll | None = None  # opened for the first connection
        self._answers: list[Answers] = []
        self._is_in_turn = False  # while `_read` serves sends, and ends with a commit
        self._secured_count = 0

    # Connections

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
        """Leave the socket to its transport."""
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
        """Leave all sockets to their transports."""
        for peer in tuple(self._peers.values()):
            peer.leave_direct()
        if self._epoll is not None:
            self._hub.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    # Output

    def reply_rows(self, rows: Sequence[Answers]) -> None:
        """Send the encoded answers of a lane: during a read at once, otherwise at the end of this
        turn of the loop.
        """
        count = 0
        for row in rows:
            peer = row[0]
            if peer.direct_fd < 0 or peer.is_dirty:
                peer.reply_encoded(row[1], row[2])
            else:
                peer.in_flight -= row[2]
                count += row[2]
                self._answers.append(row)
        self._hub.stats.in_flight -= count
        if self._is_in_turn:
            self.flush()
        elif self._answers:
            self._hub.schedule_flush()

    def flush(self) -> None:
        """Send the answers."""
        if not self._answers:
            return
        rows, self._answers = self._answers, []
        self._hub.prepare_write()
        sent_bytes, unsent = self.sockets.send_rows(rows)
        self._hub.stats.bytes_sent += sent_bytes
        for index, rest in unsent:
            peer, data, _ = rows[index]
            peer.write_rest(data if rest is None else rest, is_sealed=rest is not None)

    # Input

    def _read(self, epoll: int) -> None:
        """Read from the readable sockets, and serve what has arrived.

        After a read of pulls only, more of them have often arrived, and a further turn of the loop
        would cost more than another read. A lone sender waits for the answer, so its commit and its
        answer need no further turn.
        """
        stats = self._hub.stats
        last = stats.requests + READ_ON_MAX
        while self._epoll is not None and stats.requests <= last:
            chunks, ended = self.sockets.receive(epoll, self._peers, EVENTS_MAX)
            if self._secured_count:
                stats.bytes_received += self.sockets.take_overhead()
            for peer in ended:
                peer.input_ended()
            if not chunks:
                return
            sends, others = self._answer_pulls(chunks)
            if not (sends or others):
                continue
            self._is_in_turn = True
            self._lane.begin_turn()
            try:
                self._serve(sends, others)
            finally:
                try:
                    self._lane.end_turn()
                finally:
                    self._is_in_turn = False
            return

    def serve(self, chunks: list[Chunk]) -> None:
        """Serve what has arrived on several connections, one chunk each."""
        self._serve(*self._answer_pulls(chunks))

    def _answer_pulls(self, chunks: list[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
        """Let the lane answer pulls; return the chunks of sends, and those it did not answer."""
        sends: list[Chunk] = []
        pulls: list[Chunk] = []
        others: list[Chunk] = []
        frames_max = self._hub.calls_max * FRAMES_PER_CALL
        in_flight_max = self._settings.in_flight_per_connection_max - frames_max
        for chunk in chunks:
            peer = chunk[0]
            if peer.habit == SENDS:
                sends.append(chunk)
            elif peer.habit == PULLS and peer.in_flight <= in_flight_max:
                pulls.append(chunk)
            else:
                others.append(chunk)
        if pulls:
            others += self._safely(self._answer, pulls)
        return sends, others

    def _serve(self, sends: list[Chunk], others: list[Chunk]) -> None:
        if sends:
            others += self._safely(self._stage, sends)
        for peer, data in others:
            self._serve_one(peer, data)

    def _serve_one(self, peer: LanePeer, data: bytes) -> None:
        try:
            peer.receive_plain(data)
        except Exception as error:  # noqa: BLE001  # the other chunks must not be lost
            self._abort(peer, error)

    def _safely(
        self, step: Callable[[list[Chunk]], list[Chunk]], chunks: list[Chunk]
    ) -> list[Chunk]:
        try:
            return step(chunks)
        except Exception as error:  # noqa: BLE001  # the chunks of other connections must not be lost
            for peer, _ in chunks:
                self._abort(peer, error)
            return []

    def _stage(self, chunks: list[Chunk]) -> list[Chunk]:
        """Let the lane take the chunks of plain sends; return the others."""
        hub, lane, settings = self._hub, self._lane, self._settings
        staged = lane.stage_rows(chunks, hub.calls_max * FRAMES_PER_CALL)
        if staged is None:
            return chunks
        count, staged_bytes, answer_counts = staged
        in_flight_max, stats = settings.in_flight_per_connection_max, hub.stats
        has_room = stats.in_flight + count <= settings.in_flight_max
        left = []
        for chunk, answer_count in zip(chunks, answer_counts, strict=True):
            if answer_count < 0:
                left.append(chunk)
            elif chunk[0].in_flight + answer_count > in_flight_max:
                has_room = False
        if not count:
            return left
        put_count = lane.put(count, staged_bytes) if has_room else None
        if put_count is None:
            lane.drop()
            return chunks
        stats.in_flight += put_count
        stats.requests += count
        for (peer, data), answer_count in zip(chunks, answer_counts, strict=True):
            if answer_count >= 0:
                peer.in_flight += answer_count
                peer.uncharged_bytes += len(data)
                peer.has_received = True
                stats.bytes_received += len(data)
        return left

    def _answer(self, chunks: list[Chunk]) -> list[Chunk]:
        """Let the lane answer the chunks, in order; return those that the connections must serve.

        A chunk that the lane leaves unfinished is served before the next one.
        """
        hub, stats, settings, first = self._hub, self._hub.stats, self._settings, 0
        budget = hub.budget
        while first < len(chunks) and budget.left > budget.plenty and budget.turn_left > 0:
            room = settings.in_flight_max - stats.in_flight
            answered = self._lane.answer_rows(
                chunks,
                first,
                max(0, min(hub.calls_max * FRAMES_PER_CALL, room)),
                min(settings.write_high_water_bytes, budget.left - budget.plenty, budget.turn_left),
            )
            if answered is None:
                break
            rows, received_bytes, first, start = answered
            stats.bytes_received += received_bytes
            before = stats.bytes_sent
            self._reply_now(rows)
            if stats.bytes_sent - before > LARGE_BYTES:
                hub.note_large(stats.bytes_sent - before)
            if start >= 0:
                peer, data = chunks[first]
                first += 1
                self._serve_one(peer, data[start:])
        return chunks[first:]

    def _reply_now(self, rows: Sequence[Answers]) -> None:
        """Send answers to requests that were never counted as in flight."""
        count = 0
        for row in rows:
            peer = row[0]
            peer.has_received = True
            peer.direct_bytes += len(row[1])
            count += row[2]
            if peer.direct_fd < 0 or peer.is_dirty:
                peer.append_output(row[1])
            else:
                self._answers.append(row)
        self._hub.stats.requests += count
        self.flush()

    def _abort(self, peer: LanePeer, error: Exception) -> None:
        """End a connection after a bug, as its transport would."""
        self._hub.loop.call_exception_handler(
            {"message": "received data cannot be served", "exception": error, "protocol": peer}
        )
        peer.abort()
