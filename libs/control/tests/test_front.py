# SPDX-License-Identifier: Apache-2.0
"""The control port limits its connections, and strangers cannot exclude electors."""

import asyncio
import contextlib
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cometmq.control.client import MemberClient
from cometmq.control.controlled import MemberUnreachable
from cometmq.control.front import _STRANGER_CHUNK_BYTES, STRANGER_BYTES_MAX, Front
from cometmq.control.pace import Pace
from cometmq.control.server import HTTP2_STREAMS_MAX, ControlServer
from cometmq.remoting.errors import SettingsError
from cometmq.testing.control.scripted import TARGET

DEADLINE_S = 60
PATIENCE_MS = 2_500
"""Five times an elector's deadline, because other tests run on the same processors. Without turns,
a new connection is never admitted.
"""
KEY = b"k" * 32
LISTENS = "00010000"
"""The flags of a listening socket in /proc/net/unix."""


class Log:
    def __init__(self):
        self.events = []

    def info(self, event, /, **_facts):
        self.events.append(event)

    warning = error = debug = info


@pytest.fixture
async def server(member):
    log = Log()
    server = ControlServer(member, keys=lambda: (KEY,), log=log)
    server._front._connections_max = 4
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop()
    assert "task.failed" not in log.events


@pytest.fixture
async def connect(server):
    """Open silent connections; return how many are still open."""
    writers = set()

    async def wait(reader, writer):
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                pass
        writer.transport.abort()
        writers.discard(writer)

    async def open_more(count):
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writers.add(writer)
            group.create_task(wait(reader, writer))
        return lambda: len(writers)

    async with asyncio.TaskGroup() as group:
        yield open_more
        for writer in tuple(writers):
            writer.transport.abort()


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # the server has no event for it
            await asyncio.sleep(0.01)


def fd_count():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_strangers_make_room_for_each_other_and_for_members(server, connect):
    member = MemberClient(f"127.0.0.1:{server.port}", TARGET, keys=lambda: (KEY,))
    reports = member.watch(silence_ms=DEADLINE_S * 1000)
    await anext(reports)
    before = fd_count()

    open_count = await connect(40)

    await until(lambda: open_count() == 3)
    await until(lambda: fd_count() <= before + 3 * 4)  # both ends of both connections
    assert len(server._front) == 4
    await anext(reports)  # the watch has lasted
    other = MemberClient(f"127.0.0.1:{server.port}", TARGET, keys=lambda: (KEY,))
    await other.status(timeout_ms=60_000)
    await until(lambda: open_count() == 2)
    await member.close()
    await other.close()


async def test_connections_that_end_at_once_leave_nothing_behind(server, connect):
    linger = struct.pack("ii", 1, 0)
    for _ in range(200):  # fewer than wait for `accept`, because connecting blocks the loop
        with socket.create_connection(("127.0.0.1", server.port)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # closed by a reset
        await asyncio.sleep(0)
    await until(lambda: not len(server._front))


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "closed"])
async def test_connections_that_end_before_their_turn_leave_at_once(member, monkeypatch, is_reset):
    """They kept their places and took turns: those of a flood for up to 14 s."""
    turns = []

    async def no_turn(_pace, guest, _cost_s):
        turns.append(guest)
        await asyncio.get_running_loop().create_future()

    server = ControlServer(member, keys=lambda: (KEY,))
    await server.start("127.0.0.1", 0)
    monkeypatch.setattr(Pace, "turn", no_turn)
    socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for one in socks:
        one.sendall(H2_START)
    await until(lambda: len(turns) == len(socks) == len(server._front))
    before = fd_count()
    for one in socks:
        if is_reset:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    await until(lambda: not len(server._front))
    await until(lambda: fd_count() <= before - 2 * len(socks))
    await server.stop()


async def test_a_caller_that_ends_after_its_call_has_been_heard(server, member):
    client = MemberClient(f"127.0.0.1:{server.port}", TARGET, keys=lambda: (KEY,))
    await client.status(timeout_ms=60_000)
    (link,) = server._front._links.values()
    server._front._leave(link)
    assert link.name in server._front._links
    await client.close()
    await until(lambda: not len(server._front))


async def test_a_stranger_sends_little_and_a_member_as_much_as_it_likes(server):
    settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">IBI", 4, 0, 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(settings)
    ping, sent = struct.pack(">IBI8s", 8 << 8 | 6, 1, 0, bytes(8)), 0
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(DEADLINE_S):
            while not reader.at_eof() and sent < 100 * STRANGER_BYTES_MAX:
                writer.write(ping * 100)
                sent += 100 * len(ping)
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(4096), 0.01)
    writer.transport.abort()
    assert sent < 2 * STRANGER_BYTES_MAX
    await until(lambda: not len(server._front))

    member = MemberClient(f"127.0.0.1:{server.port}", TARGET, keys=lambda: (KEY,))
    await member.status(timeout_ms=60_000)
    (name,) = server._front._links
    for _ in range(5):
        await member.update_config({"a": "b" * 50_000})
    assert list(server._front._links) == [name]
    await member.close()


def h2_frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


CALL = b"\x83\x86\x44\x02/a\x41\x01a\x5f\x10application/grpc\x40\x02te\x08trailers"
H2_START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2_frame(4, 0, 0)


async def test_one_turn_of_a_stranger_brings_few_calls(member, monkeypatch):
    """With 64 streams on a connection, calls of many hosts delayed electors by three seconds."""
    noted = []
    monkeypatch.setattr(Front, "note_call", lambda _: noted.append(1))
    server = ControlServer(member, keys=lambda: (KEY,))
    await server.start("127.0.0.1", 0)
    again = b"\x83\x86\xc1\xc0\xbf\xbe"  # the entries that the first call has added
    # gRPC answers that it does not know the method, or refuses the call, and ends the stream.
    calls = [h2_frame(1, 4, 2 * number + 1, again if number else CALL) for number in range(30)]
    assert len(H2_START + b"".join(calls)) < _STRANGER_CHUNK_BYTES
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(H2_START + b"".join(calls))
    ended = 0
    async with asyncio.timeout(DEADLINE_S):
        while ended < len(calls):
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            ended += head[3] == 3  # RST_STREAM
    writer.transport.abort()
    await server.stop()
    assert len(noted) <= HTTP2_STREAMS_MAX


async def test_calls_without_a_proof_keep_no_place(server, connect):
    strangers = [MemberClient(f"127.0.0.1:{server.port}", TARGET) for _ in range(4)]
    for stranger in strangers:
        with pytest.raises(MemberUnreachable):
            await stranger.status(timeout_ms=60_000)
    assert len(server._front) <= 4
    assert not any(link.is_served for link in server._front._links.values())
    member = MemberClient(f"127.0.0.1:{server.port}", TARGET, keys=lambda: (KEY,))
    await member.status(timeout_ms=60_000)
    for one in (*strangers, member):
        await one.close()


async def test_health_checks_are_served_beside_silent_connections(server, connect):
    await connect(10)
    for _ in range(3):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(service="live"), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def listening_names():
    """Return the names of the Unix sockets on which this process listens."""
    fds = Path("/proc/self/fd").iterdir()
    mine = {str(one.readlink()) for one in fds if one.is_symlink()}
    lines = Path("/proc/net/unix").read_text("utf-8").splitlines()[1:]
    sockets = [row for row in map(str.split, lines) if f"socket:[{row[6]}]" in mine]
    return [row[7] for row in sockets if row[3] == LISTENS]


@pytest.mark.usefixtures("server")
async def test_no_other_user_can_connect_past_the_limits():
    names = listening_names()
    assert names
    assert not [name for name in names if name.startswith("@") or Path(name).parent.exists()]


async def test_a_folder_without_room_for_a_socket_is_named(member, monkeypatch, tmp_path):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    server = ControlServer(member)
    with pytest.raises(SettingsError, match=r"cannot listen at .*: set TMPDIR to a folder"):
        await server.start("127.0.0.1", 0)
    assert not list(long.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"needs a folder: set TMPDIR"):
        await server.start("127.0.0.1", 0)


async def test_callers_are_known_by_their_own_addresses(server, member):
    client = MemberClient(f"127.0.0.1:{server.port}", TARGET, keys=lambda: (KEY,))
    reports = client.watch(silence_ms=DEADLINE_S * 1000)
    await anext(reports)
    (stream,) = server.streams._open
    assert stream.caller.address == "127.0.0.1"
    await client.close()


async def test_a_connection_ends_with_its_peer(server, connect):
    before = fd_count()
    await connect(2)
    await until(lambda: len(server._front) == 2)
    await server.stop()
    await until(lambda: fd_count() <= before + 2)
    assert not len(server._front)


FLOOD = """
import asyncio, contextlib, struct, sys

def frame(kind, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, stream) + payload

HEADER = b"\\x00\\x03x-a\\x7f\\x99\\x74" + b"a" * (127 + 0x19 + (0x74 << 7))
PREFACE = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, b"") + frame(1, 1, HEADER)

async def flood(host, port):
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port, local_addr=(host, 0))
            writer.write(PREFACE)
            while not reader.at_eof():
                writer.write(frame(9, 1, HEADER) * 8)
                await writer.drain()

async def main():
    async with asyncio.TaskGroup() as group:
        for _ in range(250):
            group.create_task(flood(sys.argv[1], int(sys.argv[2])))

asyncio.run(main())
"""


async def admitted(elector):
    """Ask until a member answers, as electors do: gRPC gives up connecting after a while, which a
    busy machine may need.
    """
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(MemberUnreachable):
                await elector.status(timeout_ms=PATIENCE_MS)
                return


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"], ids=["its own host", "another host"])
async def test_a_flood_of_headers_delays_no_elector(member, host):
    """Without turns, the open connection misses deadlines, and a new one is never admitted."""
    server = ControlServer(member, keys=lambda: (KEY,))
    await server.start("0.0.0.0", 0)
    electors = [
        MemberClient(f"127.0.0.1:{server.port}", TARGET, keys=lambda: (KEY,)) for _ in range(4)
    ]
    await electors[0].status(timeout_ms=60_000)
    flood = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOOD, host, str(server.port)
    )
    try:
        await until(lambda: len(server._front) > 100)
        before = time.process_time()
        begun = time.monotonic()
        for elector in electors[1:]:
            for _ in range(4):
                await electors[0].status(timeout_ms=PATIENCE_MS)
                await asyncio.sleep(0.1)
            await admitted(elector)
        spent = (time.process_time() - before) / (time.monotonic() - begun)
    finally:
        flood.kill()
        await flood.wait()
        for elector in electors:
            await elector.close()
        await server.stop()
    assert spent < 0.5
