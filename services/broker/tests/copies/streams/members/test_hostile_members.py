# SPDX-License-Identifier: Apache-2.0
"""Members that break the rules of the stream: each is refused with a reason and disconnected."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams import frames, replica
from cometmq.broker.copies.streams.frames import Confirm, FrameReader, Kind, Report, WantedBlock
from cometmq.broker.copies.streams.handshake import (
    Digest,
    Hello,
    Identity,
    LogExtent,
    Refused,
    Welcome,
    decode_handshake,
)
from cometmq.broker.copies.tables import feed
from cometmq.broker.copies.unfit import PASSING, Unfit
from cometmq.ha.epochs import Entry
from cometmq.ha.record import Copy
from cometmq.testing.broker.member_nodes import CLUSTER, MemberNode
from cometmq.testing.broker.replicas import HOST, RawSlave, until

MASTER = Identity(CLUSTER, "broker-a", Copy(0, "i0"))
SLAVE = Identity(CLUSTER, "broker-a", Copy(1, "x"))
EMPTY = LogExtent(0, 0, 4096, ())
HELLO = Hello(SLAVE, 1, 1, 0, EMPTY)


def hello_bytes(hello: Hello = HELLO, version: int = frames.VERSION) -> bytes:
    body = frames.encode_body(Kind.HELLO, msgspec.json.encode(hello))
    return frames.encode_opening(version) + body


class Peer:
    """One end of a connection, played by the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.found: list[tuple[Kind, bytes]] = []
        self._frames = FrameReader(*Kind)
        self._is_opened = False

    async def until(self, kind: Kind, *, opening: bool = False) -> bytes:
        """Return the body of the next frame of this kind."""
        async with asyncio.timeout(60):
            while True:
                while self.found:
                    one, body = self.found.pop(0)
                    if one is kind:
                        return body
                data = await self.reader.read(1 << 16)
                assert data, f"closed before a {kind.name}"
                if opening and not self._is_opened:
                    self._is_opened, data = True, data[frames.OPENING_BYTES :]
                self.found += [(one, bytes(body)) for one, body in self._frames.feed(data)]


async def refusal(peer: Peer) -> Refused:
    found = decode_handshake(memoryview(await peer.until(Kind.REFUSED)), Refused)
    assert await RawSlave(peer.reader, peer.writer).is_closed()
    return found


# Followers


@asynccontextmanager
async def master_and_peer(folder: Path) -> AsyncIterator[tuple[MemberNode, Peer]]:
    async with MemberNode(folder, 0, keys=()) as master:
        await master.lead(1)
        await master.fill(4)
        host, _, port = master.address.rpartition(":")
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        try:
            yield master, peer
        finally:
            peer.writer.close()


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (hello_bytes(version=3), Unfit.VERSION, "version 3"),
        (hello_bytes(replace(HELLO, identity=replace(SLAVE, group="b"))), Unfit.FOREIGN, "'b'"),
        (hello_bytes(replace(HELLO, promised=9)), Unfit.STALE_EPOCH, "promised epoch 9"),
        (hello_bytes(replace(HELLO, epoch=2)), Unfit.NOT_MASTER, "wants broker 0 in epoch 2"),
        (hello_bytes(replace(HELLO, log=replace(EMPTY, first=-1))), Unfit.PROTOCOL, "Hello"),
        (hello_bytes() + hello_bytes()[8:], Unfit.PROTOCOL, "a second HELLO"),
        (
            frames.encode_opening() + frames.encode(Report(1, 0, 0, 0)),
            Unfit.PROTOCOL,
            "before the handshake",
        ),
        (frames.encode_opening() + bytes(5), Unfit.PROTOCOL, "no frame of kind 0"),
        (frames.encode_opening() + b"\x04\0\0\0\1", Unfit.PROTOCOL, "RECORDS frame is not allowed"),
        (frames.encode_opening() + b"\x01\xff\0\0\0", Unfit.PROTOCOL, "HELLO frame of 4278190080"),
    ],
)
async def test_a_master_refuses_the_opening(
    tmp_path: Path, data: bytes, reason: Unfit, words: str
) -> None:
    async with master_and_peer(tmp_path) as (master, peer):
        peer.writer.write(data)
        refused = await refusal(peer)
        known_epoch = 0 if reason is Unfit.VERSION else 1
        assert (refused.reason, refused.epoch) == (reason.value, known_epoch)
        assert words in refused.text
        assert master.state.slaves.refused_counts[reason] == 1
        assert master.sender.connection_count == 0
        if reason in PASSING:
            assert master.log.named("slave.deferred")
            assert master.log.alarms == []
        else:
            (event,) = master.log.named("slave.refused")
            assert event["action"]


@pytest.mark.parametrize(
    "change",
    [
        lambda end, start: Report(1, end + 1, -1, 0),
        lambda end, start: Report(1, start + (1 << 50), -1, 0),
        lambda end, start: Report(2, end, -1, 0),
        lambda end, start: Report(0, end, -1, 0),
        lambda end, start: Report(1, end, 77, 0),
        lambda end, start: Report(1, end, -1, 1 << 60),
        lambda end, start: Report(1, start - 1 if start else 1 << 60, -1, 0),
    ],
)
async def test_a_master_refuses_reports_above_what_it_sent(
    tmp_path: Path, change: Callable[[int, int], Report]
) -> None:
    async with master_and_peer(tmp_path) as (master, peer):
        peer.writer.write(hello_bytes())
        await peer.until(Kind.WELCOME)
        peer.writer.write(frames.encode(Report(1, 0, -1, 0)))
        await peer.until(Kind.RECORDS)
        peer.writer.write(frames.encode(change(master.end, 0)))
        assert (await refusal(peer)).reason == Unfit.ACK.value
        assert all(heard.ack.offset == 0 for heard in master.reports)


async def test_a_master_refuses_reports_that_go_back(tmp_path: Path) -> None:
    async with master_and_peer(tmp_path) as (master, peer):
        peer.writer.write(hello_bytes())
        await peer.until(Kind.WELCOME)
        peer.writer.write(frames.encode(Report(1, 0, -1, 0)))
        await peer.until(Kind.RECORDS)
        peer.writer.write(frames.encode(Report(1, master.end, -1, 0)))
        peer.writer.write(frames.encode(Report(1, 0, -1, 0)))
        assert (await refusal(peer)).reason == Unfit.ACK.value


async def test_a_follower_that_begins_elsewhere_is_refused(tmp_path: Path) -> None:
    async with master_and_peer(tmp_path) as (master, peer):
        peer.writer.write(hello_bytes())
        await peer.until(Kind.WELCOME)
        peer.writer.write(frames.encode(Report(1, master.end, -1, 0)))
        refused = await refusal(peer)
        assert "the logs agree up to 0" in refused.text
        assert not master.reports


async def test_a_masters_last_epoch_is_heard_from_a_follower_that_refuses(tmp_path: Path) -> None:
    async with master_and_peer(tmp_path) as (master, peer):
        peer.writer.write(hello_bytes())
        await peer.until(Kind.WELCOME)
        body = msgspec.json.encode(Refused("of a later version", "no", 12))
        peer.writer.write(frames.encode_body(Kind.REFUSED, body))
        await until(lambda: master.epochs_seen == [12])


def want(offset: int, size: int) -> bytes:
    return frames.encode(WantedBlock(offset, size))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (want(0, 100) * 2, "before the last one was answered"),
        (want(0, 0), "empty or too large"),
        (want(0, (64 << 10) + 1), "empty or too large"),
        (frames.encode_block(0, bytes(100)), "100 bytes of offset 0; None was asked for"),
        (frames.encode_body(Kind.BLOCK, b"short"), "BLOCK frame of 5 bytes"),
    ],
)
async def test_a_master_refuses_wrong_requests_for_blocks(
    tmp_path: Path, data: bytes, words: str
) -> None:
    async with master_and_peer(tmp_path) as (master, peer):
        peer.writer.write(hello_bytes())
        await peer.until(Kind.WELCOME)
        peer.writer.write(frames.encode(Report(1, 0, -1, 0)) + data)
        refused = await refusal(peer)
        assert refused.reason == Unfit.PROTOCOL.value
        assert words in refused.text
        assert master.sender.connection_count == 0


@pytest.mark.parametrize("data", [want(0, 100), frames.encode_block(0, b"")])
async def test_blocks_are_not_exchanged_before_the_first_report(
    tmp_path: Path, data: bytes
) -> None:
    async with master_and_peer(tmp_path) as (_, peer):
        peer.writer.write(hello_bytes() + data)
        assert "before the first report" in (await refusal(peer)).text


async def test_a_master_gives_only_what_is_confirmed_and_in_one_file(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0, keys=()) as master, MemberNode(tmp_path, 2, keys=()) as late:
        await master.lead(1)
        await master.fill(60)
        confirmed = master.end
        await master.lead(2, [late])
        await master.fill(2)
        host, _, port = master.address.rpartition(":")
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        peer.writer.write(hello_bytes(replace(HELLO, epoch=2)))
        await peer.until(Kind.WELCOME)
        peer.writer.write(frames.encode(Report(2, 0, -1, 0)))
        given = {}
        for offset, size in [
            (0, 100), (confirmed - 50, 50), (confirmed - 50, 51), (confirmed, 8),
            (4090, 12), (1 << 60, 10), ((1 << 64) - 1, 10),
        ]:  # fmt: skip
            peer.writer.write(want(offset, size))
            found = frames.decode_block(memoryview(await peer.until(Kind.BLOCK)))
            assert found.offset == offset
            assert found.data in {b"", master.log_bytes()[offset : offset + size]}
            given[offset, size] = len(found.data)
        assert [place for place, size in given.items() if size] == [(0, 100), (confirmed - 50, 50)]
        peer.writer.close()


async def test_without_a_group_members_are_refused(tmp_path: Path) -> None:
    async with master_and_peer(tmp_path) as (master, peer):
        master.server._members = None
        peer.writer.write(hello_bytes())
        assert await RawSlave(peer.reader, peer.writer).is_closed()
        assert master.state.slaves.refused_counts[Unfit.PROTOCOL] == 1


async def test_members_count_as_connections(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0, keys=(), ha_connections_max=1) as master:
        await master.lead(1)
        async with MemberNode(tmp_path, 1, keys=()) as slave:
            await slave.follow_member(master, 1)
            await until(master.sender.followers)
            raw = await RawSlave.connect(master.address)
            raw.report(0)
            assert await raw.is_closed()
            await raw.close()


def record_bytes() -> bytes:
    """Return the first bytes of a log."""
    return b"\0\0\0\x70\xda\xa3\x20\xa7" + bytes(100)


# Masters


@asynccontextmanager
async def follower_of_peer(folder: Path) -> AsyncIterator[tuple[MemberNode, Peer, Hello]]:
    peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peers.put(Peer(reader, writer))

    server = await asyncio.start_server(accept, HOST, 0)
    address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    async with MemberNode(folder, 1, keys=()) as slave:
        slave.store.write_state.role_writable = False
        slave.member_follower.follow(3, 0, lambda: address)
        peer = await peers.get()
        hello = decode_handshake(memoryview(await peer.until(Kind.HELLO, opening=True)), Hello)
        try:
            yield slave, peer, hello
        finally:
            peer.writer.close()
            server.close()


LOG = LogExtent(0, 500, 4096, (Entry(3, 0),))
WELCOME = Welcome(MASTER, 3, LOG, 0, Digest(0), 0)


async def welcomed(peer: Peer, welcome: Welcome = WELCOME) -> None:
    peer.writer.write(frames.encode_body(Kind.WELCOME, msgspec.json.encode(welcome)))
    await peer.until(Kind.ACK)


async def test_the_handshake_of_a_follower(tmp_path: Path) -> None:
    async with follower_of_peer(tmp_path) as (slave, peer, hello):
        assert hello == Hello(slave.proving.identity, 3, 3, 0, EMPTY)
        await welcomed(peer)
        await until(lambda: slave.state.following.state is FollowState.FOLLOWING)
        assert slave.history == [(3, 0)]
        assert not slave.replica.may_read()
        peer.writer.write(frames.encode(Confirm(3, 0, 500, 44)))
        await until(slave.replica.may_read)
        assert slave.state.following.master_max_offset == 500


@pytest.mark.parametrize(
    ("welcome", "reason"),
    [
        (replace(WELCOME, epoch=2), Unfit.STALE_EPOCH),
        (replace(WELCOME, epoch=4), Unfit.STALE_EPOCH),
        (replace(WELCOME, identity=replace(MASTER, copy=Copy(2, "y"))), Unfit.NOT_MASTER),
        (replace(WELCOME, identity=replace(MASTER, cluster="z")), Unfit.FOREIGN),
        (replace(WELCOME, log=replace(LOG, file_size=8192)), Unfit.FILE_SIZE),
        (replace(WELCOME, start=100), Unfit.DIVERGED),
        (replace(WELCOME, digest=Digest(5)), Unfit.PROTOCOL),
    ],
)
async def test_a_follower_refuses_the_answer(
    tmp_path: Path, welcome: Welcome, reason: Unfit
) -> None:
    async with follower_of_peer(tmp_path) as (slave, peer, _):
        peer.writer.write(frames.encode_body(Kind.WELCOME, msgspec.json.encode(welcome)))
        assert (await refusal(peer)).reason == reason.value
        assert slave.history == []
        assert slave.end == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frames.encode_records_header(2, 0, 8) + bytes(8), "offset 0 of epoch 2"),
        (frames.encode_records_header(3, 4, 8) + bytes(8), "offset 4 of epoch 3"),
        (frames.encode_records_header(3, 0, 108) + bytes(108), "no record begins at offset 0"),
        (frames.encode_records_header(3, 0, 108) + b"\x7f" + record_bytes()[1:], "offset 0"),
        (frames.encode(Confirm(2, 0, 1, 0)), "sends (2, 0, 1, 0)"),
        (
            frames.encode(Confirm(3, 9, 9, 0)) + frames.encode(Confirm(3, 8, 9, 0)),
            "(3, 8, 9, 0) after",
        ),
        (frames.encode_tables(Kind.CHANGES, 1, []), "change 1 of epoch 3 follows"),
        (frames.encode_tables(Kind.TABLES, 1, [("topics.json", b"[]")])
         + frames.encode_tables_end(1), "cannot be adopted"),
        (b"\x08\0\0\0\7" + bytes(7), "TABLES_END frame of 7 bytes"),
        (frames.encode_body(Kind.WELCOME, b"{}"), "WELCOME frame at the wrong time"),
        (frames.encode(Report(3, 0, 0, 0)), "ACK frame is not allowed"),
        (frames.encode_block(0, b"x"), "1 bytes of offset 0; None was asked for"),
        (want(0, 10) * 3, "before the last one was answered"),
    ],
)  # fmt: skip
async def test_a_follower_leaves_a_master_that_breaks_the_rules(
    tmp_path: Path, data: bytes, words: str
) -> None:
    async with follower_of_peer(tmp_path) as (slave, peer, _):
        await welcomed(peer)
        connect_count = slave.state.following.connect_count
        peer.writer.write(data)
        await until(lambda: slave.log.named("replica.lost") or slave.log.named("replica.unfit"))
        facts = [*slave.log.named("replica.lost"), *slave.log.named("replica.unfit")]
        assert words in str(facts[0]["error"])
        assert await RawSlave(peer.reader, peer.writer).is_closed()
        assert slave.end == 0
        assert slave.state.following.connect_count == connect_count


async def test_records_that_span_an_epoch_are_refused(tmp_path: Path) -> None:
    log = replace(LOG, history=(Entry(1, 0), Entry(3, 50)))
    async with follower_of_peer(tmp_path) as (slave, peer, _):
        await welcomed(peer, replace(WELCOME, log=log))
        peer.writer.write(frames.encode_records_header(1, 0, 108) + record_bytes())
        await until(lambda: slave.log.named("replica.lost"))
        assert "span 50" in str(slave.log.named("replica.lost")[0]["error"])
        assert slave.history == [(1, 0)]


async def test_an_epoch_cannot_begin_inside_a_record(tmp_path: Path) -> None:
    log = replace(LOG, history=(Entry(1, 0), Entry(3, 50)))
    async with follower_of_peer(tmp_path) as (slave, peer, _):
        await welcomed(peer, replace(WELCOME, log=log))
        peer.writer.write(frames.encode_records_header(1, 0, 50) + record_bytes()[:50])
        await until(lambda: slave.log.named("replica.unfit"))
        assert slave.history == [(1, 0)]


async def test_too_large_tables_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "WHOLE_BYTES_MAX", 1_000)
    async with follower_of_peer(tmp_path) as (slave, peer, _):
        await welcomed(peer)
        piece: Any = ("offsets.json", b'{"T@G":{"0":1}}')
        for _ in range(100):
            peer.writer.write(frames.encode_tables(Kind.TABLES, 0, [piece]))
        await until(lambda: slave.log.named("replica.lost"))
        assert "more than 1000 bytes" in str(slave.log.named("replica.lost")[0]["error"])


async def test_a_refusal_of_an_unknown_reason_is_told(tmp_path: Path) -> None:
    async with follower_of_peer(tmp_path) as (slave, peer, _):
        body = msgspec.json.encode(Refused("of a later version", "because", 9))
        peer.writer.write(frames.encode_body(Kind.REFUSED, body))
        await until(lambda: slave.state.following.unfit is Unfit.REFUSED)
        assert slave.state.following.unfit_detail == "because"
        assert slave.epochs_seen == [9]


async def test_long_tails_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "TAIL_BYTES_MAX", 5_000)
    async with MemberNode(tmp_path, 0, keys=()) as node:
        await node.fill(120)
        assert node.end > 9_000
        path = replica.keep_tail(tmp_path / "cut", node.store.commit_log.view_to_end(), 1_000, 7)
        assert path.name == "00000000000000001000-7.tail"
        assert path.read_bytes() == node.log_bytes()[1_000:6_000]
