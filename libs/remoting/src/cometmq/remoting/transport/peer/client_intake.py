# SPDX-License-Identifier: Apache-2.0
"""The input of a client's connection: bounds the processor time for what its server asks.

A server answers the client's requests, and sends a few of its own. If it sends so many, or so heavy
ones, that they take more than a share of the processor, its connection is not read for a while;
the connections to other servers are. Answers are never charged, so a server that only answers is
always read.
"""

import asyncio
from time import monotonic
from typing import Any, Final

from cometmq.remoting.command import Call
from cometmq.remoting.transport.dispatch import Dispatcher
from cometmq.remoting.transport.flow.connected import ASKS_MUCH, Connected
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.peer.intake import Intake

SHARE: Final = 0.3
"""The share of the processor for the requests of all servers that ask too much together. A busy
requester of request and reply spends 0.24 of its time on replies, which are requests of brokers.
"""
ALLOWANCE_S: Final = 0.1
"""How much processor time a burst of requests may take before reading pauses, as after a
failover.
"""
PAUSE_S_MAX: Final = 1.0
"""The longest pause: the answer to a heartbeat may come behind the requests."""
ANSWERED_S: Final = 20e-6
"""The time in which the answer to a request is written, at the end of the turn."""
FRAMES_PER_TURN: Final = 256
"""How many frames are decoded in a row; a chunk may have thousands."""
WATCHED_FRAMES_PER_TURN: Final = 16
"""FRAMES_PER_TURN for a server that has asked too much shortly before, because malformed requests
take long.
"""
WATCH_S: Final = 60.0


class ClientIntake(Intake):
    """Serves what a client's connection receives."""

    def __init__(self, peer: Connected, hub: Hub, dispatcher: Dispatcher[Any]) -> None:
        super().__init__(peer, hub, dispatcher)
        self._asked_count = 0
        """The number of requests in the chunk that is being served."""
        self._owed_s = 0.0
        self._owed_at_s = monotonic()
        self._watched_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def _first_of(self, data: bytes, count_max: int, now_ms: int) -> bytes:
        is_watched = self._owed_at_s < self._watched_until_s
        count_max = WATCHED_FRAMES_PER_TURN if is_watched else FRAMES_PER_TURN
        return super()._first_of(data, count_max, now_ms)

    def _take(self, data: bytes, received_ms: int = 0) -> None:
        """Take a chunk, and charge the server for its requests, but not for its answers."""
        connection, begun = self._connection, monotonic()
        pending_count, self._asked_count = connection.pending_count, 0
        super()._take(data, received_ms)
        if (asked := self._asked_count) > 0:
            answers, taken_s = max(0, pending_count - connection.pending_count), monotonic() - begun
            self._owe((taken_s + asked * ANSWERED_S) * asked / (asked + answers))

    def _serve(self, calls: list[Call[Any]]) -> None:
        self._asked_count += len(calls)
        super()._serve(calls)

    def _end_chunk(self) -> None:
        self._asked_count += len(self._connection.faults)
        super()._end_chunk()

    def charge(self, spent_s: float) -> None:
        """Note time that the program has spent on requests after they were served."""
        super().charge(spent_s)
        self._owe(spent_s)

    def _owe(self, spent_s: float) -> None:
        now_s = monotonic()
        passed_s, self._owed_at_s = now_s - self._owed_at_s, now_s
        self._owed_s = max(0.0, self._owed_s - passed_s * SHARE) + spent_s
        if self._owed_s > ALLOWANCE_S and self._timer is None and self._peer.is_open:
            self._pause(now_s)

    def _pause(self, now_s: float) -> None:
        hub = self._hub
        hub.turns.asking_much += 1
        self._reading.pause(ASKS_MUCH)
        # All servers that ask too much share what one of them would have.
        pause_s = min(PAUSE_S_MAX, self._owed_s / SHARE * hub.turns.asking_much)
        self._timer = hub.loop.call_later(pause_s, self._read_on)
        if now_s > self._watched_until_s:
            hub.log.warning(
                "connection.slowed",
                peer=self._peer.address,
                advice="this server sends more requests than a client serves beside other work, so"
                " its connection is read slowly: check which program it is",
            )
        self._watched_until_s = now_s + WATCH_S

    def _read_on(self) -> None:
        self._end_pause()
        self.resume_from(ASKS_MUCH)

    def _end_pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._hub.turns.asking_much -= 1

    def drop(self) -> None:
        """Forget the requests of a connection that has ended."""
        self._end_pause()
        super().drop()
