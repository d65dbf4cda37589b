# SPDX-License-Identifier: Apache-2.0
"""A connection whose plain requests a lane may take.

Invariants: requests of a chunk are served in their order, whoever serves them. A chunk that is no
protocol ends the connection before any of its requests is served. Whenever a lane cannot go on, the
rest of the chunk is decoded and served as it would be without a lane.

Hot path: `_receive` runs once per chunk; bench/micro/bench_lane.py.
"""

from typing import Any, Final

from cometmq.remoting.command import Call
from cometmq.remoting.transport.lane import Lane, Part
from cometmq.remoting.transport.protocol import PeerProtocol

_STAGED_PER_CALL: Final = 8
"""A lane serves so many requests in the time that a handler needs for one."""


class LanePeer(PeerProtocol):
    """A connection to a server that may have a lane."""

    def reply_encoded(self, data: bytes, count: int) -> None:
        """Send the encoded answers to so many requests that the lane has taken."""
        if not self._is_open:
            return
        self._dispatcher.note_answered(self, count)
        connection = self._connection
        connection.out.append(data)
        connection.out_bytes += len(data)
        if connection.out_bytes > self._flush_bytes:
            self.flush()
        elif not self._is_dirty:
            self._mark_dirty()

    def _receive(self, data: bytes) -> None:
        lane = self._hub.lane
        if lane is None or self._backlog or not self.is_writable:
            super()._receive(data)
            return
        data = self._connection.join(data)
        if not data:
            return
        parts = lane.stage(self, data, self._hub.calls_max * _STAGED_PER_CALL)
        if not parts:
            super()._receive(data)
        elif len(parts) == 1 and parts[0][0] and parts[0][3] == len(data):
            has_room = self._dispatcher.has_room(self, parts[0][0])
            if not (has_room and self._put(lane, parts[0])):
                lane.drop()
                super()._receive(data)
        else:
            self._receive_parts(lane, data, parts)

    def _put(self, lane: Lane, part: Part) -> bool:
        count, staged_bytes, _, _ = part
        if not lane.put(count, staged_bytes):
            return False
        self._dispatcher.note_staged(self, count)
        return True

    def _receive_parts(self, lane: Lane, data: bytes, parts: list[Part]) -> None:
        """Serve parts of a lane and parts of handlers in turn."""
        connection, now_ms = self._connection, self._hub.clock_ms()
        calls: list[list[Call[Any]]] = []
        try:
            # Everything is decoded first: a fault of the protocol refuses the whole chunk.
            for count, _, start, end in parts:
                calls.append([] if count else connection.receive_whole(data[start:end], now_ms))
            rest = connection.receive(data[parts[-1][3] :], now_ms)
        except BaseException:
            lane.drop()
            raise
        call_count = sum(map(len, calls))
        fits = call_count <= self._hub.calls_max and self._dispatcher.has_room(
            self, call_count + sum(part[0] for part in parts)
        )
        index = self._serve_parts(lane, parts, calls) if fits else 0
        lane.drop()
        left: list[Call[Any]] = []
        for (count, _, start, end), known in zip(parts[index:], calls[index:], strict=True):
            left += connection.receive_whole(data[start:end], now_ms) if count else known
        self._serve_left(left + rest, is_new=index < len(parts))
        self._end_chunk()

    def _serve_parts(self, lane: Lane, parts: list[Part], calls: list[list[Call[Any]]]) -> int:
        """Serve parts in their order; return the number of those that are done.

        Of the next one only the calls that are left remain in `calls`.
        """
        for index, part in enumerate(parts):
            if part[0]:
                if not self._put(lane, part):
                    return index
                continue
            served = self._dispatcher.serve(self, calls[index])
            if not self.is_writable:  # so the last call served was answered, and no more are
                del calls[index][:served]
                return index
        return len(parts)

    def _serve_left(self, calls: list[Call[Any]], *, is_new: bool) -> None:
        """Serve calls that no lane takes; calls behind a full turn wait for the next one."""
        if not calls:
            return
        if not self.is_writable:
            self._backlog = calls
        elif is_new:
            self._serve(calls)
        else:
            self._backlog = calls
            self._fall_behind()
