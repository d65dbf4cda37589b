# SPDX-License-Identifier: Apache-2.0
"""TLS connections that native code reads, decrypts, encrypts and writes."""

import asyncio
import contextlib
import os
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.remoting import Call, RawCommand, Reply, RequestCode
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.remoting.transport import ServerSettings, TlsSettings
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.testing.remoting.frames import encode_frame

from .plain_lane import PLAIN, PlainLane, plain

accel = pytest.importorskip("cometmq.accel", reason="cometmq-accel is built only with cargo")

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
EXT = {"consumerGroup": "g", "topic": "t", "queueId": "3"}
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


class LoneLane(PlainLane):
    """Takes each chunk alone, because native sockets stage sends only for the native lane."""

    chunk_count = 0

    def sends(self, count_max: int) -> None:
        return

    def stage(self, peer: Any, data: bytes, count_max: int) -> Any:
        parts = super().stage(peer, data, count_max)
        self.chunk_count += parts is not None
        return parts


def echo(_: None, call: Call[Any]) -> Reply:
    return Reply(body=bytes(call.body))


def query(opaque: int, body: bytes = b"") -> bytes:
    return encode_frame(RawCommand(code=QUERY, opaque=opaque, ext=EXT, body=body))


@pytest.fixture
def start(start_plain_server: Any) -> Callable[..., Any]:
    async def start(settings: ServerSettings | None = None, **more: Any) -> Any:
        return await start_plain_server(
            {QUERY: echo, PLAIN: echo},
            settings,
            lane=LoneLane(),
            sockets=accel.Sockets(),
            engine=accel.TlsContext,
            **more,
        )

    return start


def context_of(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    return context


@pytest.fixture
def connect(resources: contextlib.AsyncExitStack) -> Callable[..., Any]:
    async def connect(
        port: int, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ) -> "Conversation":
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context_of(version)
            )

        async def end() -> None:
            writer.transport.abort()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

        resources.push_async_callback(end)
        return Conversation(reader, writer)

    return connect


class Conversation:
    """Requests and their answers on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._frames = FrameReader()
        self.writer = writer

    async def answers(self, count: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 60)
            assert data, "the server has closed the connection"
            for serialization, head, body in self._frames.feed(data):
                found.append((decode_header(serialization, head).opaque, body))
        return found


def direct_peers(server: Any) -> list[LanePeer]:
    return [peer for peer in server.peers if peer.fd >= 0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(3))
async def test_each_request_gets_its_answer_wherever_chunks_end(
    start: Any, connect: Any, version: ssl.TLSVersion, seed: int
) -> None:
    server, port = await start()
    conversations = [await connect(port, version) for _ in range(8)]

    async def converse(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        both = conversations[number]
        for first in range(0, 24, 3):
            bodies = [rng.randbytes(rng.choice([0, 100, 5_000, 200_000])) for _ in range(3)]
            make = rng.choices([plain, query], weights=[4, 1], k=3)
            data = b"".join(
                one(first + i, body) for i, (one, body) in enumerate(zip(make, bodies, strict=True))
            )
            cut = rng.choice([len(data), rng.randrange(len(data))])
            for piece in (data[:cut], data[cut:]):
                both.writer.write(piece)
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            assert sorted(await both.answers(3)) == [
                (first + i, body) for i, body in enumerate(bodies)
            ]

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(converse(number))
    assert len(direct_peers(server)) == 8
    assert server._lane.chunk_count
    stats = server.stats()
    assert stats.requests == 8 * 24
    assert (stats.in_flight, stats.unsent_bytes, stats.protocol_errors) == (0, 0, 0)


async def test_all_received_bytes_are_counted(start: Any, eventually: Any) -> None:
    server, port = await start()
    inner, outer = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context_of(ssl.TLSVersion.TLSv1_3).wrap_bio(inner, outer)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = 0

    async def send() -> None:
        nonlocal sent
        data = outer.read()
        sent += len(data)
        for piece in (data[:20], data[20:]):
            writer.write(piece)
            await asyncio.sleep(0)

    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            await send()
            inner.write(await asyncio.wait_for(reader.read(1 << 16), 60))
    await send()
    for number in range(20):
        before = server.stats().requests
        tls.write(plain(number, b"body" * 100))
        await send()
        await eventually(lambda before=before: server.stats().requests > before)
    assert direct_peers(server)
    assert server.stats().bytes_received == sent
    writer.close()


async def test_unread_answers_stay_in_order_and_count(
    start: Any, connect: Any, eventually: Any
) -> None:
    settings = ServerSettings(write_high_water_bytes=64 << 10, write_low_water_bytes=16 << 10)
    server, port = await start(settings)
    both = await connect(port)
    for opaque in range(2):
        both.writer.write(plain(opaque))
        await both.answers(1)
    await eventually(lambda: direct_peers(server))
    both.writer.transport.pause_reading()
    bodies = [random.Random(number).randbytes(300_000) for number in range(40)]
    for number, body in enumerate(bodies):
        both.writer.write((plain if number % 3 else query)(number, body))
    await eventually(lambda: server.stats().unsent_bytes > 64 << 10)
    both.writer.transport.resume_reading()

    assert sorted(await both.answers(40)) == list(enumerate(bodies))
    await eventually(lambda: server.stats().unsent_bytes == 0)
    both.writer.write(plain(7, b"again"))
    assert await both.answers(1) == [(7, b"again")]


async def test_a_peer_that_announces_the_end_is_closed(
    start: Any, connect: Any, eventually: Any
) -> None:
    server, port = await start()
    both = await connect(port)
    for opaque in range(2):
        both.writer.write(plain(opaque))
        await both.answers(1)
    await eventually(lambda: direct_peers(server))
    both.writer.close()  # close_notify, then waits for the server's
    await eventually(lambda: not server.peers)
    assert server.stats().protocol_errors == 0


@pytest.mark.parametrize("data", [b"\x17\x03\x03\x00\x20" + bytes(32), b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_fault_ends_the_connection_with_an_alert(
    start: Any, connect: Any, eventually: Any, data: bytes
) -> None:
    server, port = await start()
    both = await connect(port)
    reader, writer = both.reader, both.writer
    for opaque in range(2):
        writer.write(plain(opaque))
        await both.answers(1)
    await eventually(lambda: direct_peers(server))
    (peer,) = server.peers
    raw = writer.get_extra_info("socket")
    raw = getattr(raw, "_sock", raw)
    os.write(raw.fileno(), data)
    await eventually(lambda: not server.peers)
    assert server.stats().protocol_errors == 1
    assert not peer.is_open
    with contextlib.suppress(ssl.SSLError, ConnectionError):  # the alert may be lost
        assert await asyncio.wait_for(reader.read(), 60) == b""


async def test_no_send_fails_while_certificates_change(
    start: Any, connect: Any, tmp_path: Path
) -> None:
    path = tmp_path / "served.pem"
    path.write_text(self_signed_pem("one"))
    reloaded: list[str] = []

    class Log:
        def info(self, event: str, /, **_: object) -> None:
            reloaded.append(event)

        debug = warning = error = info

    tls = TlsSettings(test_mode=False, cert_path=path, key_path=path)
    server, port = await start(ServerSettings(tls=tls, check_interval_ms=10), log=Log())
    standing = await connect(port)
    number = 0
    async with asyncio.timeout(60):
        for round_ in range(3):
            path.write_text(self_signed_pem(f"next-{round_}") if round_ != 1 else "broken")
            while len(reloaded) <= round_:
                number += 1
                fresh = await connect(port)
                for both in (standing, fresh):
                    both.writer.write(plain(number, b"x" * 500))
                    assert await both.answers(1) == [(number, b"x" * 500)]
                fresh.writer.close()
    assert reloaded == ["certificate.reloaded", "certificate.unreadable", "certificate.reloaded"]
    assert server.stats().protocol_errors == 0
    standing.writer.close()
