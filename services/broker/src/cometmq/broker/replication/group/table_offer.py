# SPDX-License-Identifier: Apache-2.0
"""Sends this broker's tables to the winner of an election, while this broker is not the master.

Under the majority policy the longest log and the most complete tables may be in different stores.
The record names the store whose tables the winner needs; its broker is the source. A winner opens
one connection, gets all tables as one snapshot, and closes it. Each piece is sent in a separate
turn of the loop, as fast as the winner accepts them. If a later master changes the tables in the
meantime, the source refuses instead of ending the snapshot.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.replication.group import frames
from cometmq.broker.replication.group.frames import Kind
from cometmq.broker.replication.group.handshake import (
    Identity,
    Refused,
    TablesOffered,
    TablesWanted,
    check_tables,
)
from cometmq.broker.replication.group.table_feed import TableFeed
from cometmq.broker.replication.pump import UNSENT_BYTES_MAX, close_soon
from cometmq.broker.replication.unfit import Unfit, UnfitLog
from cometmq.remoting.log import Log

STUCK_MS: Final = 5_000
"""A winner that accepts nothing, or does not close its connection, for this long is dropped."""


class TableOffers:
    """The connections of winners, at most one for each broker of the group."""

    def __init__(
        self, identity: Identity, tables: TableFeed, *, now_ms: Callable[[], int], log: Log
    ) -> None:
        self._identity = identity
        self._tables = tables
        self._now_ms = now_ms
        self._log = log
        self._offers: dict[int, TableOffer] = {}

    def __len__(self) -> int:
        return len(self._offers)

    def begin(
        self, transport: asyncio.Transport, address: str, wanted: TablesWanted, promised: int
    ) -> None:
        """Take over a connection and send the tables; raise UnfitLog if they do not fit.

        An earlier connection of the same broker is closed, because a winner has only one.
        """
        offered = TablesOffered(self._identity, promised, *self._tables.position)
        ordinal = wanted.identity.copy.ordinal
        if ordinal == self._identity.copy.ordinal:
            raise UnfitLog(
                Unfit.DUPLICATE, f"a broker with the id {ordinal} asks broker {ordinal} for tables"
            )
        check_tables(wanted, offered)
        earlier = self._offers.get(ordinal)
        if earlier is not None:
            earlier.close()
        offer = TableOffer(self._tables, transport, offered, self._now_ms, self._ended)
        self._offers[ordinal] = offer
        transport.set_protocol(offer)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._log.info(
            "tables.offered", broker=ordinal, address=address, epoch=wanted.epoch,
            tables_epoch=offered.epoch, changes=offered.changes,
        )  # fmt: skip
        offer.begin()

    def tick(self) -> None:
        """Close connections without progress."""
        now_ms = self._now_ms()
        for offer in tuple(self._offers.values()):
            if now_ms - offer.progress_ms(now_ms) > STUCK_MS:
                offer.close()

    def close(self) -> None:
        """Close all connections."""
        for offer in tuple(self._offers.values()):
            offer.close()

    def _ended(self, offer: "TableOffer") -> None:
        self._offers = {key: one for key, one in self._offers.items() if one is not offer}


class TableOffer(asyncio.Protocol):
    """The connection of one winner."""

    def __init__(
        self,
        tables: TableFeed,
        transport: asyncio.Transport,
        offered: TablesOffered,
        now_ms: Callable[[], int],
        ended: Callable[["TableOffer"], None],
    ) -> None:
        self._tables = tables
        self._transport = transport
        self._offered = offered
        self._now_ms = now_ms
        self._ended = ended
        self._pieces = tables.whole()
        self._is_paused = False
        self._is_scheduled = False
        self._has_sent_all = False
        self._unsent_bytes = 0
        self._progressed_ms = now_ms()

    def begin(self) -> None:
        """Send the position of the tables, then the tables."""
        body = msgspec.json.encode(self._offered)
        self._transport.write(frames.encode_body(Kind.OFFER, body))
        self._schedule()

    def progress_ms(self, now_ms: int) -> int:
        """Return the time at which the winner was last seen accepting data; call this regularly."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._progressed_ms = now_ms
        self._unsent_bytes = unsent_bytes
        return self._progressed_ms

    def data_received(self, data: bytes) -> None:
        self.close()  # a winner sends only one frame

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._schedule()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(self)

    def close(self) -> None:
        """Close the connection at once, discarding pending output."""
        self._ended(self)
        self._transport.abort()

    def _schedule(self) -> None:
        """Send the next piece in the next turn, because each takes up to 5 ms to encode."""
        if not self._is_scheduled and not self._has_sent_all:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        if self._is_paused or self._transport.is_closing():
            return
        self._progressed_ms = self._now_ms()
        position = self._offered.epoch, self._offered.changes
        if self._tables.position != position:
            self._refuse(f"the tables have moved on from {position} to {self._tables.position}")
            return
        piece = next(self._pieces, None)
        if piece is None:
            self._has_sent_all = True
            self._transport.write(frames.encode_tables_end(position[1]))
        else:
            self._transport.write(frames.encode_tables(Kind.TABLES, position[1], [piece]))
            self._schedule()

    def _refuse(self, text: str) -> None:
        refused = Refused(Unfit.TABLES.value, text)
        self._transport.write(frames.encode_body(Kind.REFUSED, msgspec.json.encode(refused)))
        self._ended(self)
        close_soon(self._transport)
