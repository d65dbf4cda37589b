# SPDX-License-Identifier: Apache-2.0
"""The tables in one stream to a follower: all of them in pieces, then each change."""

from collections.abc import Callable, Iterator

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.frames import Kind
from cometmq.broker.copies.tables.feed import TableFeed


class TableStream:
    def __init__(
        self, feed: TableFeed, write: Callable[[bytes], None], *, is_paused: Callable[[], bool]
    ) -> None:
        """`is_paused` returns whether the connection accepts no more output for now."""
        self._feed = feed
        self._write = write
        self._is_paused = is_paused
        self.sent = -1
        """The last change sent to the follower, alone or within the tables; -1 if none was sent."""
        self._pieces: Iterator[tuple[str, bytes]] | None = None  # being sent, as of `_number`
        self._number = 0

    def send(self) -> bool:
        """Write what the follower lacks; return whether to call again in a later turn.

        A piece takes up to 5 ms to encode, so each call writes at most one.
        """
        while not self._is_paused():
            if self._pieces is None:
                changes = self._feed.since(self.sent) if self.sent >= 0 else None
                if changes is not None:
                    for number, encoded in changes:
                        self.sent = number
                        self._write(frames.encode_body(Kind.CHANGES, encoded))
                    return False
                self._pieces, self._number = self._feed.whole(), self._feed.position.changes
            piece = next(self._pieces, None)
            if piece is not None:
                self._write(frames.encode_tables(Kind.TABLES, self._number, [piece]))
                return True
            self._pieces, self.sent = None, self._number
            self._write(frames.encode_tables_end(self._number))
        return False
