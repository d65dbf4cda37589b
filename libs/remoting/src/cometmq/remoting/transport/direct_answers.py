# SPDX-License-Identifier: Apache-2.0
"""Direct output: all answers of a commit are written to their sockets with one call."""

from collections.abc import Sequence
from typing import Any, Protocol

from cometmq.remoting.transport.flow.in_flight import InFlight
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.loans import Settled
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.sockets import AnswerRow, Sockets


class Replies(Protocol):
    """Successful answers of a lane that are not encoded yet."""

    def send(self, sockets: Any) -> tuple[Settled, Any]:
        """Encode the answers and write them to the sockets; return the result of the writes, and
        the figures that the lane has to count.
        """


class DirectAnswers:
    """The answers of a lane to the connections that are read and written directly."""

    def __init__(self, hub: Hub[PeerProtocol], sockets: Sockets, in_flight: InFlight) -> None:
        self.sockets = sockets
        self._hub = hub
        self._in_flight = in_flight
        self.rows: list[AnswerRow] = []
        """Encoded answers that are not sent yet; they are sent at the end of this turn of the loop
        or earlier.
        """
        self.is_in_turn = False
        """Whether `DirectIO` serves a read now; a commit follows it."""

    def reply_rows(self, rows: Sequence[AnswerRow]) -> None:
        """Send the encoded answers of a lane: during a read now, otherwise at the end of this turn
        of the loop.
        """
        direct: list[AnswerRow] = []
        for row in rows:
            peer, data, answer_count = row
            if peer.direct_fd < 0 or peer.is_dirty:
                peer.reply_encoded(data, answer_count)
            else:
                direct.append(row)
        self._in_flight.answered_rows(direct)
        self.rows += direct
        if self.is_in_turn:
            self.flush()
        elif direct:
            self._hub.writes.schedule()

    def reply(self, replies: Replies) -> Any:
        """Send answers at once, and return the figures that the lane has to count.

        Return None, with nothing done, if they must wait for other answers or for the tables.
        """
        if self.rows or self._hub.writes.before.is_needed:
            return None
        (count, sent_bytes, rest), counts = replies.send(self.sockets)
        stats = self._hub.stats
        stats.in_flight -= count
        stats.bytes_sent += sent_bytes
        if rest:
            rest[0][0].settle((0, 0, rest))
        return counts

    def flush(self) -> None:
        """Send the answers in `rows` now."""
        if not self.rows:
            return
        rows, self.rows = self.rows, []
        before_write = self._hub.writes.before
        if before_write.is_needed:
            before_write.run()
        sent_bytes, unsent = self.sockets.send_rows(rows)
        self._hub.stats.bytes_sent += sent_bytes
        for index, rest in unsent:
            peer, data, _ = rows[index]
            peer.outlet.write_rest(data if rest is None else rest, is_sealed=rest is not None)
