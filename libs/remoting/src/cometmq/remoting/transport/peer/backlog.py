# SPDX-License-Identifier: Apache-2.0
"""The requests of a connection that wait for a later turn of the loop.

They wait as received, and are decoded in portions when their turn comes: a decoded request takes
five times as much memory. What many connections hold until then would also remain in the process,
because Python keeps an arena as long as one object in it is in use.
"""

from array import array
from collections.abc import Sequence
from typing import Any

from cometmq.remoting.command import Call
from cometmq.remoting.connection import Connection
from cometmq.remoting.frame import frame_prefix


class Backlog:
    """A queue of received requests, kept as frames."""

    __slots__ = ("_data", "_ends", "_taken", "_times_ms")

    def __init__(self) -> None:
        self._data = b""
        self._ends = array("Q")
        """Where the frame of each request ends."""
        self._times_ms = array("q")
        """When each request was received."""
        self._taken = 0

    def __len__(self) -> int:
        return len(self._ends) - self._taken

    @property
    def size_bytes(self) -> int:
        """The size of the frames that wait."""
        return len(self._data) - self._begin

    def put(self, calls: Sequence[Call[Any]]) -> None:
        """Append requests, as frames."""
        parts, end = [self._data], len(self._data)
        for call in calls:
            prefix = frame_prefix(call.serialization, len(call.head), len(call.body))
            parts += (prefix, call.head, call.body)
            end += len(prefix) + len(call.head) + len(call.body)
            self._ends.append(end)
            self._times_ms.append(call.received_ms)
        self._data = b"".join(parts)

    def take(self, connection: Connection, count_max: int) -> list[Call[Any]]:
        """Return and remove the first requests, at most `count_max`."""
        begin, first = self._begin, self._taken
        self._taken = min(first + count_max, len(self._ends))
        calls = connection.receive_whole(self._data[begin : self._begin], 0)
        for call, received_ms in zip(calls, self._times_ms[first : self._taken], strict=True):
            call.received_ms = received_ms
        return calls

    def put_back(self, count: int) -> None:
        """Undo the end of the last `take`: let its last `count` requests wait again, before all
        others.
        """
        if self._ends:  # the connection has not ended meanwhile
            self._taken -= count
            if not len(self):
                self.clear()

    def take_all(self) -> bytes:
        """Return the frames that wait, and forget them."""
        data = self._data[self._begin :]
        self.clear()
        return data

    def clear(self) -> None:
        """Forget all requests."""
        self._data, self._taken = b"", 0
        self._ends, self._times_ms = array("Q"), array("q")

    @property
    def _begin(self) -> int:
        """Where the first waiting request begins."""
        return self._ends[self._taken - 1] if self._taken else 0
