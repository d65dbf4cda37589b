# SPDX-License-Identifier: Apache-2.0
"""Direct input and output: the loop reads and writes many sockets with one call each.

With one request in flight per connection, each message would take a read, a write and more than
twenty Python calls around them. Direct input reads from all readable sockets, answers their plain
pulls and stages their plain sends with one call; direct output sends all answers of a commit, or
all answers to these pulls, with one call.

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
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

from cometmq.remoting.transport.flow.budget import LARGE_BYTES
from cometmq.remoting.transport.flow.in_flight import InFlight
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane import Lane
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.remoting.transport.loans import Settled
from cometmq.remoting.transport.peer.direct_outlet import NO_FD
from cometmq.remoting.transport.peer.lane_intake import FRAMES_PER_CALL, SENDS
from cometmq.remoting.transport.protocol import PeerProtocol

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
"""After this many reads without pulls, the next ones do not expect any, which saves a lone sender
1 us; the same applies to sends.
"""

Chunk: TypeAlias = tuple[LanePeer, bytes]
Answers: TypeAlias = tuple[LanePeer, bytes, int]
"""A connection, the frames of its answers, and their number."""

Pulling: TypeAlias = tuple[Any, Any, int, int, int, int, bool]
"""The lane's part, the maximum number of requests in a chunk, the maximum number of requests in
flight on a connection, the size above which the answers end, and whether answers may be
sent if their requests have changed nothing."""

Sending: TypeAlias = tuple[Any, int | None, int]
"""The lane's part, its time, and the maximum number of requests in a chunk."""

Staged: TypeAlias = tuple[list[Chunk], int, int, Sequence[int], BaseException | None]
"""The staged chunks, the number of their requests and of the staged bytes, the number of answers to
each chunk, and what went wrong in native code."""

Rest: TypeAlias = tuple[LanePeer, bytes, bool | None]
"""A connection, the bytes that the kernel has not taken, and whether they are encrypted already;
None, if they have to be sent after its other output."""

AnsweredChunks: TypeAlias = tuple[int, int, int, list[Rest], bool, Any, BaseException | None]
"""The number of answered requests, the size of the chunks, or of their beginnings, that contain
them, the number of bytes sent, the bytes not sent, whether more answers are kept, what the lane has
to count and to store, and what went wrong in native code."""


class Sockets(Protocol):
    """System calls on nonblocking sockets."""

    def receive(
        self,
        epoll: int,
        peers: dict[int, LanePeer],
        count_max: int,
        pulling: Pulling | None,
        sending: Sending | None,
    ) -> tuple[list[Chunk], list[LanePeer], AnsweredChunks | None, Staged | None]:
        """Read once from each socket that an epoll object reports as readable, at most `count_max`.

        `epoll` is its descriptor. Return what has arrived, and the connections whose sockets have
        ended or failed. With `pulling`, answer the chunks of connections with the habit PULLS, and
        read again while nothing else arrives, but answer only so many that other work of the loop
        is not delayed. Unanswered chunks are returned like the others. After an unfinished chunk,
        the remaining sockets are not read. With `sending`, stage the chunks of connections with the
        habit SENDS if they contain only plain sends; the others have arrived.
        """

    def take_rows(
        self, rows: list[Chunk], first: int, pulling: Pulling | None, sending: Sending | None
    ) -> tuple[int, list[Chunk], AnsweredChunks | None, Staged | None]:
        """Answer and stage the chunks of `rows` from the index `first` on as `receive` does, but
        read nothing. Return the index of the next row, and the chunks that were neither answered
        nor staged.
        """

    def send_answers(self) -> tuple[int, list[Rest]]:
        """Write the answers that were kept; return the number of bytes that the kernel has taken,
        and the bytes not sent.
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
        """Stop encrypting and decrypting on this socket; the caller does it again."""

    def take_overhead(self) -> int:
        """Return how many bytes TLS has added to the data received since the last call."""


class Replies(Protocol):
    """Successful answers of a lane that are not encoded yet."""

    def send(self, sockets: Any) -> tuple[Settled, Any]:
        """Encode the answers and write them to the sockets; return the account of the writes, and
        the figures that the lane has to count.
        """


class DirectIO:
    """The connections of one server that are read and written directly."""

    def __init__(
        self, hub: Hub[PeerProtocol], lane: Lane, sockets: Sockets, in_flight: InFlight
    ) -> None:
        self.sockets = sockets
        self._hub = hub
        self._lane = lane
        self._in_flight = in_flight
        self._write_bytes_max = hub.settings.write_high_water_bytes
        self._peers: dict[int, LanePeer] = {}
        self._epoll: select.epoll | None = None  # opened for the first connection
        self.answers: list[Answers] = []
        """Answers to be sent at the end of this turn of the loop, or before."""
        self._is_in_turn = False  # while `_read` serves sends, and ends with a commit
        self._secured_count = 0
        self._pull_reads = 0  # further reads in which pulls are expected
        self._send_reads = 0  # and sends
        self._skipped_rereads = 0
        hub.writes.direct = self

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

    # Output

    def reply_rows(self, rows: Sequence[Answers]) -> None:
        """Send the encoded answers of a lane: during a read at once, otherwise at the end of this
        turn of the loop.
        """
        direct: list[Answers] = []
        for row in rows:
            peer, data, answer_count = row
            if peer.direct_fd < 0 or peer.is_dirty:
                peer.reply_encoded(data, answer_count)
            else:
                direct.append(row)
        self._in_flight.answered_rows(direct)
        self.answers += direct
        if self._is_in_turn:
            self.flush()
        elif direct:
            self._hub.writes.schedule()

    def reply(self, replies: Replies) -> Any:
        """Send answers at once, and return the figures that the lane has to count.

        Return None, with nothing done, if they must wait for other answers or for the tables.
        """
        writes = self._hub.writes
        if self.answers or writes.is_gathering or writes.before_write is not None:
            return None
        (count, sent_bytes, rest), counts = replies.send(self.sockets)
        stats = self._hub.stats
        stats.in_flight -= count
        stats.bytes_sent += sent_bytes
        if rest:
            rest[0][0].settle((0, 0, rest))
        return counts

    def flush(self) -> None:
        """Send the answers."""
        if not self.answers:
            return
        rows, self.answers = self.answers, []
        writes = self._hub.writes
        if writes.is_gathering or writes.before_write is not None:
            writes.prepare()
        sent_bytes, unsent = self.sockets.send_rows(rows)
        self._hub.stats.bytes_sent += sent_bytes
        for index, rest in unsent:
            peer, data, _ = rows[index]
            peer.outlet.write_rest(data if rest is None else rest, is_sealed=rest is not None)

    # Input

    def _read(self, epoll: int) -> None:
        """Read from the readable sockets, and serve what has arrived.

        After a read of pulls only, more of them have often arrived, and a further turn of the loop
        would cost more than another read. A lone sender waits for the answer, so its commit and its
        answer need no further turn.
        """
        stats = self._hub.stats
        last, is_reread = stats.requests + READ_ON_MAX, False
        while self._epoll is not None and stats.requests <= last:
            chunks, ended, answered, staged = self.sockets.receive(
                epoll,
                self._peers,
                EVENTS_MAX,
                self._pulling() if self._pull_reads else None,
                self._sending() if self._send_reads else None,
            )
            if self._secured_count:
                stats.bytes_received += self.sockets.take_overhead()
            reads_on = answered is not None and self._note_answered(answered)
            for peer in ended:
                peer.input_ended()
            if staged is not None or chunks:
                self._is_in_turn = True
                try:
                    self._serve_turn(chunks, staged)
                finally:
                    self._is_in_turn = False
                return
            if not reads_on:
                if is_reread and answered is None:
                    self._skipped_rereads = SKIPPED_REREADS
                return
            if self._skipped_rereads:
                self._skipped_rereads -= 1
                return
            is_reread = True

    def _has_all(self) -> bool:
        """Return whether all connections of the server are read directly."""
        return len(self._peers) == len(self._hub.peers)

    def serve(self, chunks: list[Chunk]) -> None:
        """Serve chunks received on several connections, one each, without reading from their
        sockets.
        """
        first = 0
        while first < len(chunks):
            has_sends = any(peer.habit == SENDS for peer, _ in chunks[first:])
            first, left, answered, staged = self.sockets.take_rows(
                chunks, first, self._pulling(), self._sending() if has_sends else None
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
        """Return what is needed to answer pulls; None if the connections must serve them."""
        self._pull_reads -= 1
        hub, in_flight = self._hub, self._in_flight
        budget, writes = hub.budget, hub.writes
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
            not (writes.is_gathering or self.answers or writes.before_write is not None),
        )

    def _sending(self) -> Sending | None:
        """Return what is needed to stage sends; None if handlers must serve them."""
        self._send_reads -= 1
        sends = self._lane.sends()
        return None if sends is None else (*sends, self._hub.turns.calls_max * FRAMES_PER_CALL)

    def _note_answered(self, answered: AnsweredChunks) -> bool:
        """Send answers that were kept, and count; return whether more pulls may be read.

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
            if self.answers:
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
        # Nothing that this turn of the loop reads later could share a commit with these sends.
        if staged is not None and not chunks and (staged[1] == 1 or self._has_all()):
            self._serve(chunks, staged, at_once=True)
            return
        self._lane.begin_turn()
        try:
            self._serve(chunks, staged)
        finally:
            self._lane.end_turn()

    def _serve(self, chunks: list[Chunk], staged: Staged | None, *, at_once: bool = False) -> None:
        if staged is not None:
            try:
                is_accepted = self._accept(staged, at_once=at_once)
            except Exception as error:  # noqa: BLE001  # the other chunks must not be lost
                for peer, _ in staged[0]:
                    self._abort(peer, error)
            else:
                if not is_accepted:
                    chunks = [*chunks, *staged[0]]
        for peer, data in chunks:
            self._serve_one(peer, data)

    def _serve_one(self, peer: LanePeer, data: bytes) -> None:
        try:
            peer.receive_plain(data)
        except Exception as error:  # noqa: BLE001  # the other chunks must not be lost
            self._abort(peer, error)

    def _accept(self, staged: Staged, *, at_once: bool) -> bool:
        """Let the lane accept staged sends; return False if handlers must serve them."""
        rows, count, staged_bytes, answer_counts, fault = staged
        lane, in_flight, stats = self._lane, self._in_flight, self._hub.stats
        self._send_reads = EXPECTED_READS
        if fault is not None:
            lane.sends_failed(fault)
            return False
        if not in_flight.add_rows(rows, answer_counts, count):
            lane.drop()
            return False
        for peer, data in rows:
            peer.intake.uncharged_bytes += len(data)
            peer.has_received = True
            stats.bytes_received += len(data)
        if lane.put(count, staged_bytes, at_once=at_once) is None:
            in_flight.add_rows(rows, [-one for one in answer_counts], -count)
            for peer, data in rows:
                peer.intake.uncharged_bytes -= len(data)
                stats.bytes_received -= len(data)
            lane.drop()
            return False
        stats.requests += count
        return True

    def _abort(self, peer: LanePeer, error: Exception) -> None:
        """End a connection after a bug, as its transport would."""
        self._hub.loop.call_exception_handler(
            {"message": "received data cannot be served", "exception": error, "protocol": peer}
        )
        peer.abort()
