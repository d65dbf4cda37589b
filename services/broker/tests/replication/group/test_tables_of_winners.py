# SPDX-License-Identifier: Apache-2.0
"""The winner of an election gets the newest tables from the copy that has them, or no tables."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from cometmq.broker.replication.group import frames, table_fetch, table_offer
from cometmq.broker.replication.group.frames import FrameReader, Kind
from cometmq.broker.replication.group.handshake import (
    Identity,
    Refused,
    TablesOffered,
    TablesWanted,
    decode_handshake,
)
from cometmq.broker.replication.group.proving import Proving
from cometmq.broker.replication.group.table_fetch import FetchedTables, TableFetcher
from cometmq.broker.testing.group_members import CLUSTER, GroupNode
from cometmq.broker.testing.logs import RecordingLog
from cometmq.broker.testing.replicas import HOST, RawSlave, until
from cometmq.ha.record import Copy, TablesAt

SOURCE = Copy(0, "i0")
WINNER = Identity(CLUSTER, "broker-a", Copy(1, "i1"))
EPOCH = 5
AT = TablesAt(SOURCE, 1, 1)
WANTED = TablesWanted(WINNER, EPOCH, AT)
OFFERED = TablesOffered(Identity(CLUSTER, "broker-a", SOURCE), EPOCH, 1, 1)


class Winner:
    """A broker that has promised an epoch and lacks tables."""

    def __init__(self, address: str, at: TablesAt = AT, identity: Identity = WINNER) -> None:
        self.log = RecordingLog()
        proving = Proving(identity=identity, keys=lambda: ())
        self.fetcher = TableFetcher(proving, {0: address}, log=self.log)
        self.fetcher.begin_again = self._begin_again
        self.fetched: list[FetchedTables] = []
        self.fetcher.start(EPOCH, at, lambda: not self.fetched)

    async def _begin_again(self, epoch: int, tables: TablesAt) -> None:
        arrived = self.fetcher.take()
        assert arrived is not None
        self.fetched.append(arrived)

    @property
    def reasons(self) -> list[str]:
        return [str(facts["reason"]) for facts in self.log.named("member.tables_behind")]


@asynccontextmanager
async def winning(address: str, at: TablesAt = AT) -> AsyncIterator[Winner]:
    winner = Winner(address, at)
    try:
        yield winner
    finally:
        await winner.fetcher.stop()


@asynccontextmanager
async def source(folder: Path) -> AsyncIterator[GroupNode]:
    """Yield a slave with one change of epoch 1 in its tables, which has promised a later epoch."""
    async with GroupNode(folder, 0, keys=()) as node:
        node.topics.create("whole", queue_nums=2)
        await node.lead(1)
        node.topics.create("changed", queue_nums=3)
        node.journal.write()
        await node.depose()
        node.promised_epoch = EPOCH
        yield node


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def request(wanted: TablesWanted = WANTED) -> bytes:
    body = frames.encode_body(Kind.FETCH, msgspec.json.encode(wanted))
    return frames.encode_opening() + body


async def next_frame(reader: asyncio.StreamReader) -> tuple[Kind, bytes]:
    async with asyncio.timeout(60):
        header = await reader.readexactly(frames.HEADER_BYTES)
        size = int.from_bytes(header[1:], "big")
        return Kind(header[0]), await reader.readexactly(size)


async def test_a_winner_gets_the_tables_as_a_whole_with_their_position(tmp_path: Path) -> None:
    async with (
        source(tmp_path) as node,
        GroupNode(tmp_path, 1, keys=()) as winner,
        winning(node.address) as fetch,
    ):
        winner.topics.create("stale", queue_nums=1)
        await until(lambda: fetch.fetched)
        (found,) = fetch.fetched
        assert (found.epoch, found.changes) == (1, 1)
        winner.tables.adopt(found.epoch, found.changes, found.pieces)
        assert winner.topics.table == node.topics.table
        assert winner.journal.position == (1, 1)  # durable together with the tables
        assert not fetch.reasons
        await until(lambda: not node.sender.connection_count)


async def test_a_winner_asks_until_the_source_can_be_reached(tmp_path: Path) -> None:
    async with GroupNode(tmp_path, 2, keys=()) as other:
        host, _, port = other.address.rpartition(":")
    async with winning(f"{host}:{port}") as fetch:
        await until(lambda: fetch.reasons)
        assert not fetch.fetched
        async with source(tmp_path) as node:
            fetch.fetcher._addresses = {0: node.address}
            await until(lambda: fetch.fetched)
        assert len(fetch.reasons) == len(set(fetch.reasons))  # each reason is reported once


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (TablesAt(Copy(1, "i1"), 1, 1), "has lost them"),
        (TablesAt(Copy(7, "i7"), 1, 1), "groupMembers does not name broker 7"),
    ],
)
async def test_a_winner_without_an_address_of_the_source_says_so(at: TablesAt, words: str) -> None:
    async with winning(f"{HOST}:1", at) as fetch:
        await until(lambda: fetch.reasons)
        assert words in fetch.reasons[0]
        assert not fetch.fetched


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            replace(WANTED, tables=TablesAt(Copy(0, "gone"), 1, 1)),
            "not the store of broker 0 that the record names",
        ),
        (replace(WANTED, tables=TablesAt(SOURCE, 1, 2)), "(1, 2) is needed"),
        (replace(WANTED, tables=TablesAt(SOURCE, 2, 0)), "(2, 0) is needed"),
        (replace(WANTED, epoch=1), "they do not precede epoch 1"),
        (replace(WANTED, identity=replace(WINNER, group="b")), "'b'"),
        (replace(WANTED, identity=replace(WINNER, copy=Copy(0, "x"))), "broker with the id 0"),
    ],
)
async def test_a_source_refuses_what_it_does_not_have(
    tmp_path: Path, wanted: TablesWanted, words: str
) -> None:
    async with source(tmp_path) as node:
        reader, writer = await connect(node.address)
        writer.write(request(wanted))
        kind, body = await next_frame(reader)
        assert kind is Kind.REFUSED
        assert words in decode_handshake(memoryview(body), Refused).text
        assert await RawSlave(reader, writer).is_closed()
        assert not node.sender.connection_count
        writer.close()


async def test_a_source_that_may_still_follow_the_old_master_refuses(tmp_path: Path) -> None:
    async with source(tmp_path) as node:
        node.promised_epoch = 1
        async with winning(node.address) as fetch:
            await until(lambda: any("or may still change" in one for one in fetch.reasons))
            assert not fetch.fetched
            assert EPOCH in node.epochs_seen  # so that it reads the record
            node.promised_epoch = EPOCH
            await until(lambda: fetch.fetched)


async def test_a_master_sends_no_winner_its_tables(tmp_path: Path) -> None:
    async with source(tmp_path) as node:
        await node.lead(2)
        async with winning(node.address) as fetch:
            await until(lambda: any("is the master of epoch 2" in one for one in fetch.reasons))
            assert not fetch.fetched
            await node.depose()
            await until(lambda: fetch.fetched)
        assert (fetch.fetched[0].epoch, fetch.fetched[0].changes) == (2, 0)


async def test_a_new_connection_of_a_winner_replaces_its_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_offer.TableOffer, "_send", lambda _: None)
    other = replace(WANTED, identity=replace(WINNER, copy=Copy(2, "i2")))
    async with source(tmp_path) as node:
        readers = []
        for wanted in (WANTED, other, WANTED):
            reader, writer = await connect(node.address)
            writer.write(request(wanted))
            assert (await next_frame(reader))[0] is Kind.OFFER
            readers.append((reader, writer))
        assert await RawSlave(*readers[0]).is_closed()
        assert node.sender.connection_count == 2
        for _, writer in readers:
            writer.close()


async def test_a_winner_that_accepts_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_offer.TableOffer, "_send", lambda _: None)
    async with source(tmp_path) as node:
        reader, writer = await connect(node.address)
        writer.write(request())
        assert (await next_frame(reader))[0] is Kind.OFFER
        while node.sender.connection_count:
            node.clock.advance(table_offer.STUCK_MS)
            node.sender.tick()
            await asyncio.sleep(0)
        assert await RawSlave(reader, writer).is_closed()
        writer.close()


async def test_a_source_whose_tables_move_on_ends_no_snapshot(tmp_path: Path) -> None:
    async with source(tmp_path) as node:
        position = node.tables.position
        whole = node.tables.whole

        def moves_on() -> Iterator[tuple[str, bytes]]:
            yield from whole()
            node.tables.position = position._replace(epoch=9)
            yield "topics.json", b"{}"

        node.tables.whole = moves_on  # type: ignore[method-assign]
        reader, writer = await connect(node.address)
        writer.write(request())
        kinds = []
        while (frame := await next_frame(reader))[0] is not Kind.REFUSED:
            kinds.append(frame[0])
        assert Kind.TABLES_END not in kinds
        assert "moved on" in decode_handshake(memoryview(frame[1]), Refused).text
        writer.close()


async def test_what_a_winner_says_after_its_request_ends_the_connection(tmp_path: Path) -> None:
    async with source(tmp_path) as node:
        reader, writer = await connect(node.address)
        writer.write(request())
        await next_frame(reader)
        writer.write(b"more")
        assert await RawSlave(reader, writer).is_closed()
        await until(lambda: not node.sender.connection_count)
        writer.close()


# Hostile sources

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def played(play: Play) -> AsyncIterator[str]:
    """Yield the address of a source that reads the request, and is then played by the test."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = FrameReader(Kind.FETCH)
        await reader.readexactly(frames.OPENING_BYTES)
        while not found.feed(await reader.read(1 << 16)):
            pass
        await play(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def offer(offered: TablesOffered = OFFERED) -> bytes:
    return frames.encode_body(Kind.OFFER, msgspec.json.encode(offered))


def piece(number: int = 1) -> bytes:
    return frames.encode_tables(Kind.TABLES, number, [("topics.json", b'{"a":1}')])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "closed"),
        (offer() + piece(), "closed"),
        (piece(), "before an OFFER"),
        (offer() + offer(), "a second OFFER"),
        (offer() + piece() + frames.encode_tables_end(0), "up to change 0, not 1"),
        (offer(replace(OFFERED, changes=0)), "(1, 1) is needed"),
        (offer(replace(OFFERED, epoch=EPOCH)), "do not precede epoch 5"),
        (offer(replace(OFFERED, promised=1)), "may still change"),
        (
            offer(replace(OFFERED, identity=Identity(CLUSTER, "broker-a", Copy(0, "other")))),
            "is not the store",
        ),
        (b"\x04\0\0\0\1", "RECORDS frame is not allowed"),
        (offer() + piece() * 100, "more than 100 bytes"),
    ],
)
async def test_a_winner_adopts_nothing_from_a_source_that_breaks_the_rules(
    data: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_fetch, "WHOLE_BYTES_MAX", 100)

    async def play(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    async with played(play) as address, winning(address) as fetch:
        await until(lambda: any(words in one for one in fetch.reasons))
        assert not fetch.fetched


async def test_a_silent_source_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_fetch, "SILENT_S", 0.05)

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(offer())
        await reader.read()  # until the winner closes the connection

    async with played(play) as address, winning(address) as fetch:
        await until(lambda: any("does not answer" in one for one in fetch.reasons))
        assert not fetch.fetched


async def test_a_stop_forgets_what_has_arrived(tmp_path: Path) -> None:
    async with source(tmp_path) as node, winning(node.address) as fetch:
        arrived = asyncio.Event()

        async def begin_again(_epoch: int, _tables: TablesAt) -> None:
            arrived.set()
            await asyncio.Event().wait()  # the step of another event comes first, and stops it

        fetch.fetcher.begin_again = begin_again
        async with asyncio.timeout(60):
            await arrived.wait()
            await fetch.fetcher.stop()
        assert fetch.fetcher.take() is None
        await until(lambda: not node.sender.connection_count)


async def test_a_winner_on_a_slow_link_is_not_dropped(tmp_path: Path) -> None:
    class Slow(asyncio.Transport):
        """Accepts only one byte per tick, like a very slow connection."""

        unsent_bytes = 1_000
        is_aborted = False

        def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...
        def set_write_buffer_limits(
            self, high: int | None = None, low: int | None = None
        ) -> None: ...
        def write(self, data: object) -> None: ...
        def is_closing(self) -> bool:
            return self.is_aborted

        def get_write_buffer_size(self) -> int:
            self.unsent_bytes -= 1
            return self.unsent_bytes

        def abort(self) -> None:
            self.is_aborted = True

    async with source(tmp_path) as node:
        slow, offers = Slow(), node.sender.offers
        offers.begin(slow, "", WANTED, EPOCH)
        await asyncio.sleep(0)
        offers.tick()
        for _ in range(20):
            node.clock.advance(table_offer.STUCK_MS)
            offers.tick()
        assert len(offers) == 1
        offers.close()
        assert slow.is_aborted
