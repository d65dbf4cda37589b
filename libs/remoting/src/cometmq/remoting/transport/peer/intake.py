# SPDX-License-Identifier: Apache-2.0
"""The input of one connection: serves requests in their order, a limited number of them and for a
limited time in each turn of the loop.

Requests may have to wait for a later turn (`turns.py`), for room for their answers (`room.py`), or
for the end of an earlier request. Until then, nothing more is read from the connection, and they
wait as bytes.
"""

import asyncio
import functools
from collections.abc import Sequence
from time import monotonic, thread_time
from typing import Any, Final

from cometmq.remoting.command import Call
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.frame import end_of_frames, frame_prefix
from cometmq.remoting.transport.dispatch import Dispatcher
from cometmq.remoting.transport.flow.connected import (
    ASKS_MUCH,
    BACKLOG,
    CROWD,
    ENDED,
    NO_ROOM,
    UNSENT_OUTPUT,
    WAITS,
    WORKING,
    Connected,
)
from cometmq.remoting.transport.flow.room import WAITING_MAX
from cometmq.remoting.transport.flow.turns import SLOW, Pace
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.types import Buffer

CALL_BYTES: Final = 1_024  # memory of a small request with its decoded header
SMALL_BYTES: Final = 4_096  # no more than 140 frames, with the shortest headers


class Intake:
    """Serves the requests that a connection receives."""

    def __init__(self, peer: Connected, hub: Hub, dispatcher: Dispatcher[Any]) -> None:
        self._peer = peer
        self._hub = hub
        self.dispatcher = dispatcher
        self._connection = peer.connection
        self._outlet = peer.outlet
        self._reading = peer.reading
        self._defers = not hub.settings.reads_while_unsent  # a client takes its answers at once
        self._held = b""  # received bytes that wait; the connection then has none of them
        self._held_ms = 0  # when the first of them arrived
        self._tasks = 0
        self._share = 0  # of slow handlers, when the connection last had to wait
        self.pace = Pace()
        self.uncharged_bytes = 0
        """The size of the requests served since `Hub.charge` was called last."""

    def receive(self, data: bytes) -> None:
        """Serve the requests that these bytes complete; later, if this turn has been long."""
        is_slow = self.pace.rank == SLOW or self._hub.turns.is_long
        if is_slow and self._defers and not self._held and self._may_serve:
            self._hold(data, self._hub.clock_ms())
            self._fall_behind()
            return
        self.uncharged_bytes += len(data)
        self._take(data)

    def _take(self, data: bytes, received_ms: int = 0) -> None:
        """Serve bytes that have arrived now, or at `received_ms`, or hold them."""
        connection, pauses = self._connection, self._reading.pauses
        now_ms = received_ms or self._hub.clock_ms()
        if self._held or pauses & (WAITS | UNSENT_OUTPUT):
            if self._defers or pauses & (WAITS | BACKLOG):
                self._hold(data, now_ms)
                return
            # The answers of a peer that does not read must be taken; its requests wait.
            data, self._held = self._held + data, b""
            self._hold_calls(connection.receive(data, now_ms))
        else:
            data = self._first_of(data, self._calls_max, now_ms)
            calls = connection.receive(data, now_ms)
            if calls:
                self._serve(calls)
        if connection.out or connection.faults:
            self._end_chunk()
        self._wait_with_held()

    def _first_of(self, data: bytes, count_max: int, now_ms: int) -> bytes:
        """Return the first `count_max` frames, and hold the bytes after them.

        Decoding takes up to 0.1 ms for each frame, also for refused requests and for answers, and a
        chunk of 256 KiB may contain thousands.
        """
        if len(data) <= SMALL_BYTES:
            return data
        data = self._connection.join(data)
        end = end_of_frames(data, count_max)
        if end == len(data):
            return data
        self._hold(data[end:], now_ms)
        return data[:end]

    def _hold(self, data: bytes, now_ms: int) -> None:
        """Let bytes wait behind the held ones."""
        if not self._held:
            self._held_ms = now_ms
            data = self._connection.take_tail() + data
        self._held += data

    def _hold_calls(self, calls: Sequence[Call[Any]]) -> None:
        """Let requests wait before the held bytes, again as bytes: those take a fifth of the
        memory, and a lane may take them later.
        """
        parts: list[Buffer] = []
        for call in calls:
            prefix = frame_prefix(call.serialization, len(call.head), len(call.body))
            parts += (prefix, call.head, call.body)
        parts += (self._connection.take_tail(), self._held)
        if calls:
            self._held_ms = calls[0].received_ms
        self._held = b"".join(parts)

    def _wait_with_held(self) -> None:
        """Wait for a turn to serve the held bytes, unless the connection waits already."""
        if self._held and not self._reading.pauses & BACKLOG and self._may_serve:
            self._fall_behind()

    def _end_chunk(self) -> None:
        """Answer malformed requests with an error, and send all answers."""
        connection = self._connection
        if connection.faults:
            faults, connection.faults = connection.faults, []
            for fault in faults:
                self.dispatcher.fail(self._peer, fault)
        if connection.out:
            if self._hub.writes.is_gathering:
                self._outlet.mark_dirty()
            else:
                self._outlet.flush()

    @property
    def _calls_max(self) -> int:
        """How many requests may be served in a row."""
        return self._hub.turns.calls_max // self.pace.divisor or 1

    def _serve(self, calls: list[Call[Any]]) -> None:
        calls_max = self._calls_max
        chunk = calls if len(calls) <= calls_max else calls[:calls_max]
        served = self.dispatcher.serve(self._peer, chunk)
        if served < len(calls) and self._peer.is_open:
            self._hold_calls(calls[served:])

    def serve_waiting(self) -> None:
        """Serve the held bytes, unless they must wait longer."""
        if not self._held or self._reading.pauses & BACKLOG or not self._may_serve:
            return
        data, self._held = self._held, b""
        try:
            self._take(data, self._held_ms)
        except RemoteProtocolError as error:
            self._peer.refuse(error)
        self.uncharged_bytes += len(data) - len(self._held)
        self._peer.note_long_frame()

    def _fall_behind(self) -> None:
        """Postpone the remaining requests, so that other connections get their turn first."""
        self._hub.turns.fell_behind(1)
        self._reading.pause(BACKLOG)
        self._hub.turns.add(self.pace.rank, self._peer, self.catch_up)

    def catch_up(self) -> None:
        """Serve requests that have waited for their turn."""
        reading = self._reading
        reading.pauses &= ~BACKLOG
        self._hub.turns.fell_behind(-1)
        waiting_bytes, began_s = self.buffered_bytes, thread_time()
        self.serve_waiting()
        # Unlike the number of requests, this also shows frames that contain none.
        self.note_time(thread_time() - began_s, waiting_bytes - self.buffered_bytes)
        reading.resume()

    @property
    def _may_serve(self) -> bool:
        """Whether neither unread output, nor room, nor an earlier request keeps the connection from
        serving its next request.
        """
        return self._peer.is_open and not self._reading.pauses & (WAITS | UNSENT_OUTPUT)

    # Waiting for room, or for the work of an earlier request

    def postpone(self, call: Call[Any]) -> bool:
        """Serve a call once there is room for its answer; return False if the connection has too
        many of them.
        """
        if self._hub.room.count_of(self._peer) >= WAITING_MAX:
            self._reading.pause(NO_ROOM)
            return False
        work = functools.partial(self.dispatcher.serve_postponed, self._peer, call)
        self._peer.when_room(work)
        return True

    def wait_for_work(self) -> None:
        """Serve nothing more until `resume_from(WORKING)`; later requests wait as bytes."""
        self._reading.pause(WORKING)

    def task_begun(self, share: int) -> bool:
        """Count a slow handler that starts; return whether the connection now has its share of them
        and must wait.

        A client never waits: its handlers may need answers from the same connection.
        """
        self._tasks += 1
        if self._tasks < share or not self._defers:
            return False
        self._share = share
        self._reading.pause(CROWD)
        return True

    def task_ended(self) -> None:
        """Count a slow handler that has ended; serve on when half of the share has ended."""
        self._tasks -= 1
        if self._tasks <= self._share // 2:
            self.resume_from(CROWD)

    def resume_from(self, reason: int) -> None:
        """Remove a reason for waiting; if no other is left, serve the requests that wait as
        bytes.
        """
        reading = self._reading
        if reading.pauses & reason and self._peer.is_open:
            reading.pauses &= ~reason
            self.serve_waiting()
            reading.resume()

    def drop(self) -> None:
        """Forget the requests of a connection that has ended."""
        self._held = b""
        self._hub.room.drop(self._peer)
        self._peer = ENDED

    # Account

    @property
    def waiting_bytes(self) -> int:
        """The approximate memory used by the requests that wait for room."""
        return len(self._held) + self._hub.room.count_of(self._peer) * CALL_BYTES

    @property
    def buffered_bytes(self) -> int:
        """The approximate memory used by received bytes that are not served yet."""
        return self._connection.buffered_bytes + len(self._held)

    def charge(self, spent_s: float) -> None:
        """Note time that the program has spent on requests after they were served."""
        self.pace.note(spent_s, 0)

    def note_time(self, spent_s: float, count: int) -> None:
        """Note how long serving `count` requests, or frames of this size, took."""
        if self.pace.note(spent_s, count):
            self._hub.turns.note(spent_s)


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
    """Serves what a client's connection receives, and bounds the time for what its server asks.

    A server answers the client's requests, and sends a few of its own. If it sends so many, or so
    heavy ones, that they take more than a share of the processor, its connection is not read for a
    while; the connections to other servers are. Answers are never charged, so a server that only
    answers is always read.
    """

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
