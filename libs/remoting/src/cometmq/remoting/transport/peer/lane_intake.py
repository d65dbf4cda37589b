# SPDX-License-Identifier: Apache-2.0
"""The input of a connection whose plain requests a lane may take.

Invariants: a chunk's requests are served in order, by the lane or by handlers. Whenever a lane
cannot continue, the rest of the chunk is decoded and served as it would be without a lane. A chunk
that violates the protocol ends the connection before any of its requests is served.

In each loop iteration a lane takes a bounded number of a connection's frames, as handlers do. The
rest of a longer chunk waits as bytes for the next iteration, and nothing more is read until then,
so a flood delays other connections no more than it would without a lane. A protocol error beyond
that bound is detected in the iteration that reaches it, as if the chunk had been cut there.

Hot path: `_take` runs once per chunk (bench/micro/bench_lane.py).
"""

from typing import Any, Final

from cometmq.remoting.command import Call
from cometmq.remoting.transport.dispatch import Dispatcher
from cometmq.remoting.transport.flow.budget import LARGE_BYTES, TIGHT_WRITE_BYTES
from cometmq.remoting.transport.flow.connected import NO_ROOM, LaneConnected
from cometmq.remoting.transport.flow.room import WAITING_MAX
from cometmq.remoting.transport.flow.turns import SLOW
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane import CHUNK_BYTES_MAX, Lane, Part
from cometmq.remoting.transport.peer.intake import Intake

FRAMES_PER_CALL: Final = 2
"""Number of frames that a lane may take for each frame that handlers may serve. A lane needs an
eighth of the time per frame. Still, a larger number would hide a flood: turns with chunks of 256
KB, which have up to 600 sends, must count as long.
"""

MIXED: Final = 0
SENDS: Final = 1
"""Only sends that the lane took."""
PULLS: Final = 2
"""Only requests that the lane answered at once."""


class LaneIntake(Intake):
    """Offers received requests to a lane first, and to handlers if the lane does not take them."""

    _peer: LaneConnected

    def __init__(self, peer: LaneConnected, hub: Hub, dispatcher: Dispatcher[Any]) -> None:
        super().__init__(peer, hub, dispatcher)
        self._lane = peer.lane
        self._direct = peer.direct
        self._may_join = peer.direct is not None

    def _take(self, data: bytes, received_ms: int = 0) -> None:
        lane, peer = self._lane, self._peer
        if self._may_join:
            self._may_join = not peer.join_direct()
        peer.habit = MIXED
        if self._held or not self._may_serve:
            self._hold(data, received_ms or self._hub.clock_ms())
            return
        data = self._connection.join(data)
        if not data:
            return
        frames_max = self._hub.turns.calls_max * FRAMES_PER_CALL // self.pace.divisor or 1
        parts = lane.stage(peer, data, frames_max)
        if not parts or (len(parts) == 1 and not parts[0][0]):
            super()._take(data, received_ms)
        elif len(parts) == 1 and parts[0][0] > 0 and parts[0][3] == len(data):
            if self._has_room(parts[0][0]) and self._put(lane, parts[0]):
                self._note_habit(SENDS)
            else:
                lane.drop()
                super()._take(data, received_ms)
        elif len(parts) == 1 and parts[0][0] < 0 and parts[0][3] == len(data):
            self._receive_pulls(lane, data, parts[0], received_ms)
        else:
            self._receive_parts(lane, data, parts, frames_max, received_ms)

    def _receive_pulls(self, lane: Lane, data: bytes, part: Part, received_ms: int) -> None:
        """Serve a chunk of requests that a lane answers immediately."""
        if not self._has_room(-part[0]):
            super()._take(data, received_ms)
            return
        end, is_plain = self._answer(lane, data, part, 0)
        if is_plain:
            self._note_habit(PULLS)
        if end < part[3]:
            self._hold_rest(data[end:], received_ms)
        self._end_chunk()

    def _hold_rest(self, data: bytes, received_ms: int) -> None:
        """Let the rest of a chunk wait before the held bytes."""
        self._held_ms = received_ms or self._hub.clock_ms()
        self._held = data + self._held

    def _put(self, lane: Lane, part: Part) -> bool:
        count, staged_bytes, _, _ = part
        answer_count = lane.put(count, staged_bytes)
        if answer_count is None:
            return False
        self.dispatcher.in_flight.add(self._peer, answer_count)
        self._hub.stats.requests += count
        self._peer.is_served = True
        return True

    def _receive_parts(
        self, lane: Lane, data: bytes, parts: list[Part], frames_max: int, received_ms: int
    ) -> None:
        """Serve the lane's parts and the handlers' parts in the order of the chunk."""
        connection, now_ms = self._connection, received_ms or self._hub.clock_ms()
        calls: list[list[Call[Any]]] = []
        rest: list[Call[Any]] = []
        behind = data[parts[-1][3] :]
        try:
            # Everything is decoded first: a protocol error rejects the whole chunk.
            for count, _, start, end in parts:
                calls.append([] if count else connection.receive_whole(data[start:end], now_ms))
            call_count = sum(map(len, calls))
            count = call_count + sum(abs(part[0]) for part in parts)
            if count < frames_max and sum(part[1] for part in parts) <= CHUNK_BYTES_MAX:
                rest = connection.receive(self._first_of(behind, self._calls_max, now_ms), now_ms)
            else:
                self._hold_rest(behind, received_ms)
        except BaseException:
            lane.drop()
            raise
        fits = call_count <= self._hub.turns.calls_max and self._has_room(count)
        index = self._serve_parts(lane, data, parts, calls) if fits else 0
        lane.drop()
        left: list[Call[Any]] = []
        for (count, _, start, end), known in zip(parts[index:], calls[index:], strict=True):
            left += connection.receive_whole(data[start:end], now_ms) if count else known
        left += rest
        if left and self._may_serve:
            self._serve(left)
        elif left:
            self._hold_calls(left)
        self._end_chunk()
        self._wait_with_held()

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
                served = self.dispatcher.serve(self._peer, calls[index])
                if served < len(calls[index]) or not self._may_serve:  # stop after this call
                    del calls[index][:served]
                    return index
        return len(parts)

    def _answer(self, lane: Lane, data: bytes, part: Part, first: int) -> tuple[int, bool]:
        """Let the lane answer requests immediately; handlers get those that it does not take.

        Return the position of the first frame that is not served because the peer must catch up,
        and whether the lane has answered all requests.
        """
        connection, hub, peer = self._connection, self._hub, self._peer
        last, is_plain = first - part[0], True
        while first < last:
            if last - first > WAITING_MAX and not peer.has_room:
                self._wait_for_room()
                return lane.frame(first)[0], False
            bytes_max = hub.settings.write_high_water_bytes
            if hub.budget.is_tight:
                bytes_max = min(bytes_max, TIGHT_WRITE_BYTES)
            room = max(0, bytes_max - connection.out_bytes)
            frames, count, start, end, is_odd = (
                lane.answer(first, last - first, room)
                if peer.has_room
                else (b"", 0, *lane.frame(first), True)  # a handler lets the request wait
            )
            if count:
                first += count
                hub.stats.requests += count
                peer.is_served = True
                connection.out.append(frames)
                connection.out_bytes += len(frames)
                if connection.out_bytes > LARGE_BYTES:
                    self._outlet.note_large()
                    if not peer.is_writable:
                        return start or part[3], False
            if is_odd:
                calls = connection.receive_whole(data[start:end], hub.clock_ms())
                served = self.dispatcher.serve(peer, calls)
                first += 1
                is_plain = False
                if not self._may_serve:
                    return end if served else start, False
        return part[3], is_plain

    def _wait_for_room(self) -> None:
        """Serve nothing more before there is room; the caller keeps the requests as bytes."""
        self._reading.pause(NO_ROOM)
        self._peer.when_room(_nothing)

    def _has_room(self, count: int) -> bool:
        """Return whether this number of further requests may be in flight."""
        return not self.dispatcher.in_flight.exceeds(self._peer, count)

    def _note_habit(self, habit: int) -> None:
        peer, direct = self._peer, self._direct
        if not (peer.is_limited or self._reading.pauses) and self.pace.rank != SLOW:
            peer.habit = habit
            if direct is not None:
                if habit == PULLS:
                    direct.expect_pulls()
                else:
                    direct.expect_sends()

    def charge(self, spent_s: float) -> None:
        """Note time that the program has spent on requests after they were served."""
        super().charge(spent_s)
        if self.pace.rank == SLOW:
            self._peer.habit = MIXED  # its requests wait for their turn


def _nothing() -> None:
    """The work of a connection whose requests wait as bytes: `resume_from` serves them."""
