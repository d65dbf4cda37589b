# SPDX-License-Identifier: Apache-2.0
"""The tables of a broker group: a master numbers their changes, followers apply them in order.

A change is what the journal stores in one turn of the loop: new values, never differences
(`tables/journal.py`). The master of an epoch counts its changes from 0.

A follower first gets complete tables, as of some change, and then each later change. The complete
tables are sent in pieces, and may change meanwhile. So a piece may already contain a later change;
applying that change again alters nothing. A follower writes the changes to its own journal before
it acknowledges them.

The journal stores with each change the position of the tables after it, so a restarted copy knows
which acknowledged changes it has. The position is a lower bound: the tables contain every
acknowledged change up to it, and perhaps later ones.

A follower that reconnects continues with single changes only if the same process has adopted the
complete tables. After a restart it needs them again, because a broker adds missing topics when it
starts.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

import msgspec

from cometmq.broker.tables.journal import Journal, Journaled
from cometmq.remoting.errors import CometError, RemoteProtocolError, ServiceNotAvailable
from cometmq.remoting.transport.tasks import describe
from cometmq.store.journal import encode_changes

RECENT_BYTES_MAX: Final = 8 << 20
"""Maximum size of kept changes; a follower that lacks older ones gets the complete tables."""

WHOLE_BYTES_MAX: Final = 256 << 20


class Changes(NamedTuple):
    number: int
    tables: dict[str, msgspec.Raw]


class Replicated(Journaled, Protocol):
    """A table that a master copies to its followers."""

    def whole(self) -> Iterator[bytes]:
        """Yield the complete content as JSON, in pieces of the same form as `noted_changes`."""

    def become(self, pieces: Sequence[msgspec.Raw]) -> None:
        """Replace the content with the pieces of another broker's `whole`; note the differences.

        Raise ValueError or CometError for JSON of another shape; nothing has changed then.
        """


class TablesPosition(NamedTuple):
    """How recent the tables are: they contain every acknowledged change up to this number."""

    epoch: int
    """The epoch whose master sent the tables; 0 if it is unknown, or none did."""
    changes: int
    """The number of changes of that epoch that the tables contain."""


UNKNOWN: Final = TablesPosition(0, 0)


class TablesLost(CometError):
    """Changes cannot be applied or saved, so the follower needs the complete tables again."""


class WholeTables:
    def __init__(self) -> None:
        self._pieces: dict[str, list[msgspec.Raw]] = {}
        self._bytes = 0

    def collect(self, changes: Changes, size: int) -> None:
        self._bytes += size
        if self._bytes > WHOLE_BYTES_MAX:
            raise RemoteProtocolError(f"the tables have more than {WHOLE_BYTES_MAX} bytes")
        for name, piece in changes.tables.items():
            self._pieces.setdefault(name, []).append(piece)

    def take(self) -> dict[str, list[msgspec.Raw]]:
        """Return the collected pieces by table, and forget them."""
        pieces, self._pieces, self._bytes = self._pieces, {}, 0
        return pieces


class TableFeed:
    """The changes that a master sends (after `begin`) and a follower gets (`adopt`, `apply`)."""

    def __init__(self, journal: Journal, tables: Mapping[str, Replicated]) -> None:
        self._journal = journal
        self._tables = tables
        self._has_masters_tables = False
        self._recent: deque[tuple[int, bytes]] = deque()  # number, encoded changes
        self._recent_bytes = 0
        known = journal.position
        self.position = UNKNOWN if known is None else TablesPosition(*known)

    # Master

    def begin(self, epoch: int) -> None:
        """Count the changes of a new epoch from 0; this broker is becoming its master."""
        position = TablesPosition(epoch, 0)
        self._journal.write(position)  # earlier changes are part of the snapshot
        self._has_masters_tables = False
        self._journal.count(self)
        self._recent.clear()
        self._recent_bytes = 0
        self.position = position

    def stop(self) -> None:
        self._journal.count(None)

    def next_position(self) -> TablesPosition:
        epoch, number = self.position
        return TablesPosition(epoch, number + 1)

    def written(self, changes: Sequence[tuple[str, bytes]]) -> None:
        """Count a change, which the journal has written, and keep it for followers."""
        epoch, number = self.position
        self.position = TablesPosition(epoch, number + 1)
        encoded = encode_changes(number + 1, changes)
        self._recent.append((number + 1, encoded))
        self._recent_bytes += len(encoded)
        while self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= len(self._recent.popleft()[1])
        self._journal.turn.counted()

    def settle(self) -> int:
        """Journal pending changes; return their number, or raise ServiceNotAvailable."""
        self._journal.write()
        if self._journal.fault:
            raise ServiceNotAvailable(
                f"the change cannot be journaled, so other copies lack it: {self._journal.fault}"
            )
        return self.position.changes

    def since(self, number: int) -> Iterable[tuple[int, bytes]] | None:
        first = self._recent[0][0] if self._recent else self.position.changes + 1
        if number + 1 < first:
            return None
        return islice(self._recent, number + 1 - first, None)

    def whole(self) -> Iterator[tuple[str, bytes]]:
        for name, table in self._tables.items():
            for piece in table.whole():
                yield name, piece

    # Follower

    def received(self, epoch: int) -> int:
        """Return how many changes of an epoch were received; -1 if complete tables are needed."""
        is_current = self._has_masters_tables and self.position.epoch == epoch
        return self.position.changes if is_current else -1

    def adopt(self, epoch: int, number: int, pieces: Mapping[str, Sequence[msgspec.Raw]]) -> None:
        """Replace all tables with the master's, as of `number` or later; or raise TablesLost."""
        self.forget()
        try:
            for name, table in self._tables.items():
                if name in pieces:
                    table.become(pieces[name])
        except (ValueError, CometError) as error:
            raise TablesLost(f"the master's tables cannot be adopted: {describe(error)}") from error
        position = TablesPosition(epoch, number)
        self._journal.write(position)
        self._check_saved()
        self.position = position
        self._has_masters_tables = True

    def apply(self, epoch: int, changes: Changes) -> None:
        received = self.received(epoch)
        if received < 0 or received != changes.number - 1:
            raise TablesLost(f"change {changes.number} of epoch {epoch} follows {self.position}")
        position = TablesPosition(epoch, changes.number)
        self._check_saved()
        try:
            self._journal.apply(changes.tables, position)
            self._check_saved()
        except (ValueError, CometError) as error:
            self.forget()
            raise TablesLost(f"a change cannot be applied: {describe(error)}") from error
        self.position = position

    def forget(self) -> None:
        """Forget what was received, so that the next connection begins with complete tables."""
        self._has_masters_tables = False

    def _check_saved(self) -> None:
        if self._journal.fault:
            raise TablesLost(f"the journal cannot be written: {self._journal.fault}")
