# SPDX-License-Identifier: Apache-2.0
"""The unfinished frames of all connections take a bounded amount of memory, and whole ones pass."""

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.remoting import OK, Call, RawCommand, Reply, RequestCode
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport import ClientSettings, RemotingClient, ServerSettings
from cometmq.remoting.transport.flow import frames
from cometmq.remoting.transport.flow.connected import BACKLOG
from cometmq.remoting.transport.flow.turns import SLOW
from cometmq.remoting.transport.stats import TransportStats
from cometmq.testing.remoting.frames import encode_frame

BEAT = RequestCode.HEART_BEAT
MIB = 1 << 20
SETTINGS = ServerSettings(frames_bytes_max=16 * MIB, check_interval_ms=20)
BEGUN = struct.pack(">II", 16 * MIB - 4, 100) + bytes(100)
PATIENT_MS = 60_000


def size_of_body(_: None, call: Call[Any]) -> Reply:
    return Reply(remark=str(len(call.body)))


async def send_from_each(clients: list[RemotingClient], port: int) -> None:
    async def send(client: RemotingClient) -> None:
        address = f"127.0.0.1:{port}"
        answer = await client.invoke(address, BEAT, body=bytes(MIB), timeout_ms=PATIENT_MS)
        assert answer.remark == str(MIB)

    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(send(client))


async def test_peers_that_send_most_of_a_frame_take_no_more_than_the_limit(
    start_server: Any, connect_raw: Any, eventually: Any
) -> None:
    server, port = await start_server({BEAT: lambda _, call: OK}, SETTINGS)
    for _ in range(40):
        _, writer = await connect_raw(port)
        writer.write(BEGUN + bytes(4 * MIB))
    await eventually(lambda: server.stats().frames_paused >= 4)
    most = 0
    for _ in range(200):
        most = max(most, server.stats().frame_bytes)
        await asyncio.sleep(0)
    assert MIB < most <= SETTINGS.frames_bytes_max


async def test_large_requests_pass_beside_peers_that_finish_no_frame(
    start_server: Any,
    connect_raw: Any,
    new_client: Any,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever keeps others waiting is closed."""
    monkeypatch.setattr(frames, "FRAME_PATIENCE_MS", 200)
    server, port = await start_server({BEAT: size_of_body}, SETTINGS)
    for _ in range(8):
        _, writer = await connect_raw(port)
        writer.write(BEGUN + bytes(2 * MIB))
    await eventually(lambda: server.stats().frames_paused)
    settings = ClientSettings(write_high_water_bytes=64 * MIB)
    clients = [new_client(settings) for _ in range(6)]
    await send_from_each(clients, port)
    assert server.stats().frames_closed > 0


async def test_many_large_requests_at_once_take_turns(
    start_server: Any, new_client: Any, eventually: Any
) -> None:
    server, port = await start_server({BEAT: size_of_body}, SETTINGS)
    settings = ClientSettings(write_high_water_bytes=64 * MIB)
    clients = [new_client(settings) for _ in range(12)]
    await send_from_each(clients, port)
    stats = server.stats()
    assert (stats.frames_closed, stats.frame_bytes) == (0, 0)
    for account in server._hub.frames.accounts:
        assert not account.turns
        assert not account.waiting


async def test_a_frame_that_makes_no_progress_is_closed_only_if_memory_is_short(
    start_server: Any, connect_raw: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_PATIENCE_MS", 50)
    server, port = await start_server({BEAT: lambda _, call: OK}, SETTINGS)
    _, first = await connect_raw(port)
    first.write(BEGUN + bytes(3 * MIB))
    await eventually(lambda: server.stats().frame_bytes > 3 * MIB)
    server._hub.frames.check(server._hub.now_ms() + 1_000_000)
    assert server.stats().frames_closed == 0
    _, second = await connect_raw(port)
    second.write(BEGUN + bytes(3 * MIB))
    await eventually(lambda: server.stats().frames_closed)
    await eventually(lambda: server.stats().frame_bytes <= 4 * MIB)


async def test_a_frame_whose_last_bytes_wait_for_their_turn_does_not_count_any_more(
    start_server: Any, connect_raw: Any, eventually: Any
) -> None:
    """Its connection would be closed as too late once memory is short."""
    server, port = await start_server({BEAT: size_of_body}, SETTINGS)
    reader, writer = await connect_raw(port)
    request = encode_frame(RawCommand(code=BEAT, body=bytes(MIB)))
    writer.write(request[:-100])
    await eventually(lambda: server.stats().frame_bytes == len(request) - 100)
    (peer,) = server.peers
    peer.intake.pace.rank = SLOW  # as after requests that took long
    writer.write(request[-100:])
    assert await reader.read(1)
    assert server.stats().frame_bytes == 0
    assert not any(account.turns for account in server._hub.frames.accounts)


async def test_served_connections_do_not_wait_for_the_frames_of_strangers(
    start_server: Any, connect_raw: Any, new_client: Any, eventually: Any
) -> None:
    """Anyone can send most of a frame; users sent nothing for minutes beside 300 such peers."""
    server, port = await start_server({BEAT: size_of_body}, SETTINGS)
    client = new_client(ClientSettings(write_high_water_bytes=64 * MIB))
    await client.invoke(f"127.0.0.1:{port}", BEAT, timeout_ms=PATIENT_MS)
    for _ in range(8):
        _, writer = await connect_raw(port)
        writer.write(BEGUN + bytes(2 * MIB))
    await eventually(lambda: server.stats().frames_paused)
    body, timeout_ms = bytes(8 * MIB), frames.FRAME_PATIENCE_MS * 3 // 5
    answer = await client.invoke(f"127.0.0.1:{port}", BEAT, body=body, timeout_ms=timeout_ms)
    assert answer.remark == str(len(body))
    assert server.stats().frames_closed == 0


class Sender:
    """A connection with an unfinished frame."""

    address, is_open = "10.0.0.1:1", True

    def __init__(self, size: int, pauses: int = 0, *, is_served: bool = False) -> None:
        self.is_served = is_served
        self.connection = SimpleNamespace(buffered_bytes=size, missing_bytes=MIB)
        self.reading = SimpleNamespace(pauses=pauses, pause=lambda _: None, resume=lambda: None)
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


def test_a_connection_that_this_end_does_not_read_is_not_late() -> None:
    unfinished = frames.UnfinishedFrames(16 * MIB, stats=TransportStats(), log=NO_LOG)
    unread, other = Sender(MIB, BACKLOG), Sender(5 * MIB, BACKLOG)
    senders: list[Any] = [unread, other]
    for one in senders:
        unfinished.note(one, 0)
    late_ms = frames.FRAME_PATIENCE_MS
    unfinished.check(late_ms)
    unread.reading.pauses = 0
    unfinished.check(2 * late_ms - 1)
    assert not unread.is_closed
    unfinished.check(2 * late_ms)
    assert (unread.is_closed, other.is_closed) == (True, False)


def test_strangers_are_closed_before_served_connections() -> None:
    stats = TransportStats()
    unfinished = frames.UnfinishedFrames(16 * MIB, stats=stats, log=NO_LOG)
    known, second = Sender(5 * MIB, is_served=True), Sender(12 * MIB, is_served=True)
    strangers = [Sender(MIB, BACKLOG) for _ in range(12)]
    senders: list[Any] = [known, *strangers, second]
    for one in senders[:-1]:
        unfinished.note(one, 0)
    assert [one.is_closed for one in strangers].count(True) == 1
    unfinished.note(senders[-1], 0)
    assert all(one.is_closed for one in strangers)
    assert (known.is_closed, second.is_closed) == (False, True), "the longest, if no other is left"
    assert stats.frame_bytes == 5 * MIB
