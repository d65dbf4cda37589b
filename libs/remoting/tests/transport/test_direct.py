# SPDX-License-Identifier: Apache-2.0
"""A peer cannot detect that its connection is read and written without its transport."""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cometmq.remoting import Call, RawCommand, Reply, RequestCode
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.remoting.transport import Server, ServerSettings
from cometmq.remoting.transport.direct import EVENTS_MAX, READ_ON_MAX, SKIPPED_REREADS
from cometmq.remoting.transport.lane import Answered, Part
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.testing.remoting.endless_turns import endless_turns
from cometmq.testing.remoting.frames import encode_frame

from .plain_lane import PLAIN, PlainLane, PythonSockets, plain

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
EXT = {"consumerGroup": "g", "topic": "t", "queueId": "3"}


@pytest.fixture(autouse=True, scope="module")
def _endless_turns() -> Iterator[None]:
    """Let the lane get each request that it may take: late ones wait for a handler instead."""
    with endless_turns():
        yield


def echo(_: None, call: Call[Any]) -> Reply:
    return Reply(body=bytes(call.body))


def query(opaque: int, body: bytes = b"") -> bytes:
    return encode_frame(RawCommand(code=QUERY, opaque=opaque, ext=EXT, body=body))


class Direct:
    """A server whose connections are read and written directly."""

    def __init__(self, lane: PlainLane, sockets: PythonSockets) -> None:
        self.lane = lane
        self.sockets = sockets
        self.server: Server[None]
        self.port = 0

    @property
    def peers(self) -> list[LanePeer]:
        return [peer for peer in self.server.peers if isinstance(peer, LanePeer)]

    @property
    def peer(self) -> LanePeer:
        (peer,) = self.peers
        return peer

    @property
    def is_direct(self) -> bool:
        return bool(self.peers) and all(peer.fd >= 0 for peer in self.peers)


@pytest.fixture
def start(start_plain_server: Any) -> Callable[..., Any]:
    async def start(
        settings: ServerSettings | None = None,
        *,
        lane: PlainLane | None = None,
        sockets: PythonSockets | None = None,
    ) -> Direct:
        direct = Direct(lane or PlainLane(), sockets or PythonSockets())
        direct.server, direct.port = await start_plain_server(
            {QUERY: echo, PLAIN: echo}, settings, lane=direct.lane, sockets=direct.sockets
        )
        return direct

    return start


async def answers(reader: asyncio.StreamReader, count: int) -> list[tuple[int, bytes]]:
    """Return the opaque and body of the next answers."""
    frames = FrameReader()
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        data = await asyncio.wait_for(reader.read(1 << 16), 60)
        assert data, "the server has closed the connection"
        for serialization, head, body in frames.feed(data):
            found.append((decode_header(serialization, head).opaque, body))
    assert not frames.buffered_bytes
    return found


async def end_of(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the server closes the connection."""
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""


@pytest.mark.parametrize("seed", range(4))
async def test_each_request_gets_its_answer_wherever_chunks_end(
    start: Any, connect_raw: Any, eventually: Any, seed: int
) -> None:
    rng = random.Random(seed)
    bytes_max = rng.choice([1 << 30, 700])  # some writes are incomplete
    direct = await start(sockets=PythonSockets(bytes_max))
    sent_bytes = 0

    async def converse() -> None:
        nonlocal sent_bytes
        reader, writer = await connect_raw(direct.port)
        make = rng.choices([plain, query], weights=[4, 1], k=30)
        bodies = [rng.randbytes(rng.choice([0, 10, 100, 100, 5_000])) for _ in make]
        frames = [one(i, body) for i, (one, body) in enumerate(zip(make, bodies, strict=True))]
        start = 0
        while start < len(frames):  # several at once, then cut anywhere
            end = start + rng.choice([1, 1, 1, 8])
            data = b"".join(frames[start:end])
            cut = rng.choice([len(data), rng.randrange(len(data))])
            for piece in (data[:cut], data[cut:]):
                writer.write(piece)
                sent_bytes += len(piece)
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            found = await answers(reader, len(frames[start:end]))
            assert sorted(found) == [(i, bodies[i]) for i in range(start, min(end, len(frames)))]
            start = end

    async with asyncio.TaskGroup() as group:
        for _ in range(12):
            group.create_task(converse())
    assert direct.is_direct
    assert direct.lane.row_count
    stats = direct.server.stats()
    assert stats.requests == 12 * 30
    assert stats.in_flight == 0
    assert stats.bytes_received == sent_bytes
    assert stats.unsent_bytes == 0


class _WatchedLane(PlainLane):
    """Looks, in the turn of the loop after a read, whether the client has its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.client: socket.socket
        self.seen: list[bytes] = []

    def end_turn(self) -> None:
        asyncio.get_running_loop().call_soon(self._look)
        super().end_turn()

    def _look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.seen.append(self.client.recv(1 << 16, socket.MSG_PEEK))


async def test_a_read_sends_the_answers_that_it_causes(start: Any) -> None:
    """A lone sender waits for no further turn of the loop."""
    lane = _WatchedLane()
    direct = await start(lane=lane)
    loop = asyncio.get_running_loop()
    with socket.socket() as lane.client:
        lane.client.setblocking(False)
        await loop.sock_connect(lane.client, ("127.0.0.1", direct.port))
        for opaque in range(3):
            lane.seen.clear()
            await loop.sock_sendall(lane.client, plain(opaque, b"one"))
            answer = await asyncio.wait_for(loop.sock_recv(lane.client, 1 << 16), 60)
            await asyncio.sleep(0.01)
            if opaque:  # the transport still reads the first request
                assert lane.seen == [answer]


class _PullLane(PlainLane):
    """Answers PLAIN at once."""

    def stage(self, peer: Any, data: bytes, count_max: int) -> list[Part] | None:  # type: ignore[override]
        count = self._stage(peer, data, count_max)
        return None if count < 0 else [(-count, 0, 0, len(data))]

    def answer(self, _first: int, count: int, _room: int) -> Answered:
        staged, self._staged = self._staged, []
        assert len(staged) == count
        out: list[Any] = []
        for _, opaque, body in staged:
            self._encode(out, 0, opaque, Reply(body=body))
        return b"".join(out), count, 0, 0, False

    def pulls(self, _count_max: int) -> tuple[Any, Any, int]:
        return self, None, 0

    def answer_chunk(
        self, peer: Any, data: bytes, count_max: int, room: int
    ) -> tuple[bytes, int, int]:
        count = self._stage(peer, data, count_max)
        self.row_count += count
        return self.answer(0, count, room)[0], count, len(data)


class _BusySockets(PythonSockets):
    """While one request is served, the client sends the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.client: socket.socket
        self.counts = [0]  # requests read in each turn of the loop
        self.left = 0

    def receive(self, epoll: int, peers: Any, count_max: int, pulling: Any, sending: Any) -> Any:
        if not self.counts[-1]:
            asyncio.get_running_loop().call_soon(self.counts.append, 0)
        chunks, ended, answered, _ = super().receive(epoll, peers, count_max, pulling, sending)
        assert not chunks
        if answered is not None:
            self.counts[-1] += answered[0]
            if self.left:
                self.left -= 1
                self.client.send(plain(self.left, b"next"))
        return chunks, ended, answered, None


async def test_pulls_that_arrive_meanwhile_are_served_in_the_same_turn(
    start: Any, eventually: Any
) -> None:
    """But only so many that other work of the loop is not delayed."""
    sockets = _BusySockets()
    direct = await start(lane=_PullLane(), sockets=sockets)
    loop = asyncio.get_running_loop()
    with socket.socket() as sockets.client:
        sockets.client.setblocking(False)
        await loop.sock_connect(sockets.client, ("127.0.0.1", direct.port))
        await loop.sock_sendall(sockets.client, plain(99))  # read by the transport
        await eventually(lambda: direct.is_direct)
        sockets.left = 3 * READ_ON_MAX - 1
        await loop.sock_sendall(sockets.client, plain(98))
        await eventually(lambda: direct.server.stats().requests == 1 + 3 * READ_ON_MAX)
        assert sockets.left == 0
    counts = [count for count in sockets.counts if count]
    assert sum(counts) == direct.lane.row_count == 3 * READ_ON_MAX
    assert counts[0] == READ_ON_MAX + 1
    assert max(counts) == READ_ON_MAX + 1


async def test_turns_in_which_reading_again_finds_nothing_take_one_read(
    start: Any, connect_raw: Any
) -> None:
    sockets: Any = PythonSockets()
    reads = 0
    receive = sockets.receive

    def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return receive(*arguments)

    sockets.receive = counted
    direct = await start(lane=_PullLane(), sockets=sockets)
    reader, writer = await connect_raw(direct.port)
    writer.write(plain(0))
    await answers(reader, 1)
    found = []
    for opaque in range(1, 3 * (SKIPPED_REREADS + 1)):
        before = reads
        writer.write(plain(opaque))
        assert await answers(reader, 1) == [(opaque, b"")]
        found.append(reads - before)
    assert found.count(2) in {2, 3}
    assert found.count(1) == len(found) - found.count(2)


async def test_more_connections_than_one_turn_reads_are_all_served(
    start: Any, connect_raw: Any
) -> None:
    direct = await start()
    streams = [await connect_raw(direct.port) for _ in range(EVENTS_MAX + 9)]
    for opaque in range(3):
        for _, writer in streams:
            writer.write(plain(opaque, b"x"))
        for reader, _ in streams:
            assert await answers(reader, 1) == [(opaque, b"x")]
    assert direct.lane.row_count >= 2 * len(streams)


async def test_a_peer_that_does_not_read_is_read_no_more_and_later_gets_every_answer(
    start: Any, connect_raw: Any, eventually: Any
) -> None:
    direct = await start(
        ServerSettings(write_high_water_bytes=128 * 1024, write_low_water_bytes=32 * 1024)
    )
    reader, writer = await connect_raw(direct.port, reads=False)
    count, body = 400, bytes(64 * 1024)
    data = b"".join(plain(number, body) for number in range(count))
    writer.write(data)
    await eventually(lambda: direct.peers and not direct.peer.is_writable)
    await asyncio.sleep(0.05)
    received = direct.server.stats().bytes_received
    assert received < len(data)
    assert not direct.peer.is_polled
    writer.transport.resume_reading()
    assert await answers(reader, count) == [(number, body) for number in range(count)]
    assert direct.peer.is_polled
    assert direct.server.stats().in_flight == 0


async def test_a_peer_that_stalls_is_closed(start: Any, connect_raw: Any, eventually: Any) -> None:
    settings = ServerSettings(
        write_high_water_bytes=128 * 1024, write_low_water_bytes=32 * 1024,
        stall_timeout_ms=200, check_interval_ms=20,
    )  # fmt: skip
    direct = await start(settings)
    _, writer = await connect_raw(direct.port, reads=False)
    writer.write(b"".join(plain(number, bytes(64 * 1024)) for number in range(400)))
    await eventually(lambda: direct.server.stats().stalled_closed)
    await eventually(lambda: not direct.peers)


async def test_the_end_of_the_input_closes_the_connection_after_the_answers(
    start: Any, connect_raw: Any, eventually: Any
) -> None:
    direct = await start()
    reader, writer = await connect_raw(direct.port)
    writer.write(plain(1))
    await answers(reader, 1)
    writer.write(query(2))
    writer.write_eof()
    data = await end_of(reader)
    assert [decode_header(s, head).opaque for s, head, _ in FrameReader().feed(data)] == [2]
    await eventually(lambda: not direct.peers)


async def test_a_reset_connection_is_removed(start: Any, connect_raw: Any, eventually: Any) -> None:
    direct = await start()
    reader, writer = await connect_raw(direct.port)
    writer.write(plain(1))
    await answers(reader, 1)
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
    await eventually(lambda: not direct.peers)
    assert direct.server.stats().connections == 0


async def test_answers_to_a_lost_connection_never_reach_the_next_one(
    start: Any, connect_raw: Any, eventually: Any
) -> None:
    direct = await start(lane=PlainLane(commits=False))
    reader, writer = await connect_raw(direct.port)
    for opaque in (1, 2):  # the second one is staged with the rows
        writer.write(plain(opaque, b"for the first"))
        await eventually(lambda: direct.peers and direct.peer.in_flight)
        if opaque == 1:
            direct.lane.commit()
            await answers(reader, 1)
    first_fd = direct.peer.fd
    direct.peer.abort()
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    await eventually(lambda: not direct.peers)

    reader, writer = await connect_raw(direct.port)
    writer.write(query(7, b"second"))
    assert await answers(reader, 1) == [(7, b"second")]
    assert direct.peer.fd == first_fd, "the system gives the lowest free number"
    direct.lane.commit()
    await asyncio.sleep(0.01)
    writer.write(query(8, b"second"))
    assert await answers(reader, 1) == [(8, b"second")]


async def test_answers_that_wait_for_a_lost_connection_are_dropped(
    start: Any, connect_raw: Any, eventually: Any
) -> None:
    direct = await start(lane=PlainLane(commits=False))
    reader, writer = await connect_raw(direct.port)
    writer.write(plain(1, b"too late"))
    await eventually(lambda: direct.peers and direct.peer.in_flight)
    direct.lane.commit()
    sent = direct.server.stats().bytes_sent
    direct.peer.abort()
    assert await end_of(reader) == b""
    await eventually(lambda: not direct.peers)
    assert direct.server.stats().bytes_sent == sent
    assert direct.server.stats().in_flight == 0


async def test_answers_of_a_commit_are_sent_before_the_connection_closes(
    start: Any, connect_raw: Any, eventually: Any
) -> None:
    direct = await start(lane=PlainLane(commits=False))
    reader, writer = await connect_raw(direct.port)
    writer.write(plain(1, b"last words"))
    await eventually(lambda: direct.peers and direct.peer.in_flight)
    direct.lane.commit()
    direct.peer.close()
    data = await end_of(reader)
    assert [body for *_, body in FrameReader().feed(data)] == [b"last words"]


async def test_limits_of_requests_in_flight_hold(
    start: Any, connect_raw: Any, eventually: Any
) -> None:
    direct = await start(
        ServerSettings(in_flight_per_connection_max=3), lane=PlainLane(commits=False)
    )
    reader, writer = await connect_raw(direct.port)
    for opaque in range(3):
        writer.write(plain(opaque))
        await eventually(lambda count=opaque + 1: direct.peers and direct.peer.in_flight == count)
    writer.write(plain(3, b"refused"))
    ((opaque, body),) = await answers(reader, 1)
    assert (opaque, body) == (3, b"")
    assert direct.server.stats().requests_refused == 1
    direct.lane.commit()
    assert sorted(await answers(reader, 3)) == [(0, b""), (1, b""), (2, b"")]


async def test_a_bug_ends_only_the_connections_that_it_concerns(
    start: Any, connect_raw: Any, eventually: Any
) -> None:
    direct = await start()
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    reader, writer = await connect_raw(direct.port)
    writer.write(plain(1))
    await answers(reader, 1)
    direct.lane.fault = ValueError("a bug")
    other_reader, other_writer = await connect_raw(direct.port)
    writer.write(plain(2))
    other_writer.write(query(3, b"unharmed"))
    assert await end_of(reader) == b""
    assert await answers(other_reader, 1) == [(3, b"unharmed")]
    assert [context["exception"] for context in seen] == [direct.lane.fault]
    await eventually(lambda: len(direct.peers) == 1)


async def test_a_server_that_stops_reading_still_answers(
    start: Any, connect_raw: Any, eventually: Any
) -> None:
    direct = await start(lane=PlainLane(commits=False))
    reader, writer = await connect_raw(direct.port)
    writer.write(plain(1))
    await eventually(lambda: direct.peers and direct.peer.in_flight)
    direct.server.stop_reading()
    writer.write(plain(2))
    await asyncio.sleep(0.05)
    assert direct.peer.in_flight == 1
    direct.lane.commit()
    assert await answers(reader, 1) == [(1, b"")]
    await direct.server.close(200)
    assert await end_of(reader) == b""
    assert not direct.peers
