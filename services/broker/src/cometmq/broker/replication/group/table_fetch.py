# SPDX-License-Identifier: Apache-2.0
"""Fetches the tables that the winner of an election needs before it opens (R11).

The record names the copy that has them, and how recent they are. The winner asks the broker of that
copy until it has received all tables, or until it stops preparing its epoch, because the next
election may name another winner or another source. Nothing is changed here: the received tables (at
most 256 MiB) wait for the member's step that adopts them and begins the epoch.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, cast

import msgspec

from cometmq.broker.replication.group import frames
from cometmq.broker.replication.group.frames import Frame, FrameReader, Kind
from cometmq.broker.replication.group.handshake import (
    Refused,
    TablesOffered,
    TablesWanted,
    check_tables,
    decode_handshake,
)
from cometmq.broker.replication.group.master_stream import WHOLE_BYTES_MAX
from cometmq.broker.replication.group.proving import Attempts, ProofDeclined, Proving
from cometmq.broker.replication.unfit import Unfit, UnfitLog
from cometmq.ha.group_key import Purpose
from cometmq.ha.record import TablesAt
from cometmq.remoting.errors import CometError, ConnectionLost, RemoteProtocolError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.tasks import TaskSet, describe

CONNECT_TIMEOUT_S: Final = 2.0
SILENT_S: Final = 5.0
"""A source that sends nothing for this long is abandoned."""
FETCH_TIMEOUT_S: Final = 120.0
"""Time for all tables: 256 MiB at 2 MiB a second."""
RETRY_FIRST_MS: Final = 50
RETRY_MAX_MS: Final = 2_000


class FetchedTables(NamedTuple):
    """All tables of a source, as of one position."""

    epoch: int
    changes: int
    pieces: Mapping[str, Sequence[msgspec.Raw]]
    byte_count: int


class TableFetcher:
    """Fetches for one epoch at a time; `begin_again` must be set before `start`."""

    begin_again: Callable[[int, TablesAt], Awaitable[None]]
    """Performs the member's step that begins the epoch; the step calls `take`."""

    def __init__(self, proving: Proving, addresses: Mapping[int, str], *, log: Log) -> None:
        """`addresses` are the HA addresses of the group's brokers by their ids."""
        self._identity = proving.identity
        self._attempts = Attempts(proving, Purpose.TABLES)
        self._addresses = addresses
        self._log = log
        self._tasks = TaskSet(log)
        self._arrived: FetchedTables | None = None
        self._last_reason = ""

    def take(self) -> FetchedTables | None:
        """Return the tables that have arrived for the epoch of `start`, if any, and forget them."""
        arrived, self._arrived = self._arrived, None
        return arrived

    def start(self, epoch: int, tables: TablesAt, is_wanted: Callable[[], bool]) -> None:
        """Fetch in the background while the tables are wanted, unless a fetch is running."""
        if not len(self._tasks):
            self._last_reason = ""
            self._tasks.spawn(self._run(epoch, tables, is_wanted), name="fetch-tables")

    async def stop(self) -> None:
        """Close the connection, and discard the tables that have arrived."""
        await self._tasks.close()
        self._arrived = None

    def report(self, epoch: int, tables: TablesAt, error: Exception) -> None:
        """Log why this broker cannot open yet, once for each reason."""
        reason = describe(error)
        if reason != self._last_reason:
            self._last_reason = reason
            self._log.error(
                "member.tables_behind", broker=tables.copy.ordinal, epoch=epoch, reason=reason,
                action="start the broker that has the newest tables, or wait for an election",
            )  # fmt: skip

    async def _run(self, epoch: int, tables: TablesAt, is_wanted: Callable[[], bool]) -> None:
        wait_ms = RETRY_FIRST_MS
        while is_wanted():
            try:
                self._arrived = await self._fetch(epoch, tables)
                await self.begin_again(epoch, tables)
            except (CometError, OSError) as error:
                self.report(epoch, tables, error)
            finally:
                self._arrived = None
            if is_wanted():
                await asyncio.sleep(wait_ms / 1000)
                wait_ms = min(2 * wait_ms, RETRY_MAX_MS)

    async def _fetch(self, epoch: int, tables: TablesAt) -> FetchedTables:
        """Return the tables; raise CometError or OSError."""
        source = tables.copy.ordinal
        address = self._addresses.get(source)
        if source == self._identity.copy.ordinal:
            raise UnfitLog(Unfit.TABLES, "this broker had the newest tables and has lost them")
        if address is None:
            text = f"groupMembers does not name broker {source}: add it on every member"
            raise UnfitLog(Unfit.TABLES, text)
        attempt = self._attempts.next(source)
        wanted = TablesWanted(self._identity, epoch, tables)
        connection = TableConnection(wanted, attempt.opening)
        host, port = parse_address(address)
        transport: asyncio.BaseTransport | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                loop = asyncio.get_running_loop()
                transport, _ = await loop.create_connection(
                    lambda: attempt.protocol(connection), host, port
                )
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                return await connection.fetched()
        except ProofDeclined as error:
            raise self._attempts.declined(error) from error
        except TimeoutError as error:
            raise ConnectionLost(f"broker {source} does not answer at {address}") from error
        finally:
            connection.close()
            if transport is not None and not transport.is_closing():
                transport.close()  # it was not proven


class TableConnection(asyncio.Protocol):
    """The connection to the source of the tables."""

    def __init__(self, wanted: TablesWanted, opening: bytes) -> None:
        """`opening` precedes FETCH; it is empty on a connection that has been proven."""
        self._wanted = wanted
        self._opening = opening
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader(Kind.OFFER, Kind.REFUSED, Kind.TABLES, Kind.TABLES_END)
        self._offered: TablesOffered | None = None
        self._pieces: dict[str, list[msgspec.Raw]] = {}
        self._byte_count = 0
        self._heard = asyncio.Event()
        self._result: asyncio.Future[FetchedTables] = asyncio.get_running_loop().create_future()

    async def fetched(self) -> FetchedTables:
        """Return the tables once they have arrived; raise TimeoutError if the source is silent."""
        while not self._result.done():
            self._heard.clear()
            async with asyncio.timeout(SILENT_S):
                await self._heard.wait()
        return self._result.result()

    def close(self) -> None:
        """Close the connection at once."""
        self.end(ConnectionLost("closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no common base
        body = msgspec.json.encode(self._wanted)
        self._transport.write(self._opening + frames.encode_body(Kind.FETCH, body))

    def data_received(self, data: bytes) -> None:
        if self._result.done():
            return
        self._heard.set()
        try:
            for frame in self._frames.feed(data):
                self._use(frame)
        except CometError as error:
            self.end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(ConnectionLost(str(exc) if exc else "the source closed the connection"))

    def _use(self, frame: Frame) -> None:
        kind, body = frame
        if self._result.done():
            raise RemoteProtocolError(f"a {kind.name} frame after the tables")
        if kind is Kind.REFUSED:
            refused = decode_handshake(body, Refused)
            raise UnfitLog(Unfit.TABLES, refused.text)
        if kind is Kind.OFFER:
            self._take_offer(decode_handshake(body, TablesOffered))
        elif self._offered is None:
            raise RemoteProtocolError(f"a {kind.name} frame before an OFFER")
        elif kind is Kind.TABLES:
            self._collect(frames.decode_tables(kind, body), len(body))
        else:
            self._finish(self._offered, frames.decode_tables_end(body))

    def _take_offer(self, offered: TablesOffered) -> None:
        if self._offered is not None:
            raise RemoteProtocolError("a second OFFER on one connection")
        check_tables(self._wanted, offered)
        self._offered = offered

    def _collect(self, piece: frames.Changes, size: int) -> None:
        self._byte_count += size
        if self._byte_count > WHOLE_BYTES_MAX:
            raise RemoteProtocolError(f"the tables have more than {WHOLE_BYTES_MAX} bytes")
        for name, content in piece.tables.items():
            self._pieces.setdefault(name, []).append(content)

    def _finish(self, offered: TablesOffered, number: int) -> None:
        if number != offered.changes:
            raise RemoteProtocolError(f"tables up to change {number}, not {offered.changes}")
        pieces, self._pieces = self._pieces, {}
        tables = FetchedTables(offered.epoch, offered.changes, pieces, self._byte_count)
        self._result.set_result(tables)
        self._heard.set()

    def end(self, error: Exception) -> None:
        """Close the connection; data that arrives later is ignored."""
        if not self._result.done():
            self._result.set_exception(error)
            self._result.exception()  # mark it as retrieved: a connect may have failed before
        self._pieces = {}
        self._heard.set()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
