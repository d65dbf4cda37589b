# SPDX-License-Identifier: Apache-2.0
"""TLS handshakes are bounded in number, bytes and time, and take turns."""

import asyncio
import ssl
from typing import Any

import pytest

from cometmq.remoting import RequestCode
from cometmq.remoting.commands.offsets import QueryConsumerOffset, QueryConsumerOffsetReply
from cometmq.remoting.transport import ClientSettings, ServerSettings, TlsSettings
from cometmq.remoting.transport.flow import turns as module
from cometmq.remoting.transport.flow.turns import HANDSHAKES, Turns
from cometmq.remoting.transport.peer import tls_state

from .conftest import TLS_KINDS, StartServer, starter

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
HEADER = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=3)
HANDLERS = {QUERY: lambda _, __: QueryConsumerOffsetReply(offset=1)}


class Events:
    """A log that keeps the errors of refused connections."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def info(self, event: str, /, **facts: object) -> None:
        if event == "connection.refused":
            self.errors.append(str(facts["error"]))

    debug = warning = error = info


@pytest.fixture(params=TLS_KINDS)
def start_server(start_plain_server: StartServer, request: pytest.FixtureRequest) -> StartServer:
    return starter(start_plain_server, request.param)


class Peer:
    def __init__(self, order: list[str], name: str, *, fails: bool = False) -> None:
        self._order = order
        self._name = name
        self._fails = fails
        self.host = name[:1].encode() * 8
        self.state: dict[str, object] = {}

    def shake_on(self) -> None:
        if self._fails:
            raise RuntimeError("a bug")
        self._order.append(self._name)

    def abort(self) -> None:
        self._order.append(f"{self._name} aborted")


async def test_hosts_take_turns_and_a_bug_ends_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_HANDSHAKES_S", 3600.0)
    order: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: order.append(context["message"]))
    turns = Turns(loop, 64)
    for name in ("a1", "a2", "a3", "b1", "b2"):
        peer: Any = Peer(order, name, fails=name == "b2")
        turns.add(HANDSHAKES, peer, peer.shake_on)
    assert not turns.may_shake  # others wait already
    await asyncio.sleep(0)

    assert order == ["a1", "b1", "a2", "a handshake cannot be continued", "b2 aborted", "a3"]
    assert turns.may_shake


async def test_the_time_of_a_turn_is_bounded() -> None:
    turns = Turns(asyncio.get_running_loop(), 64)
    turns.note_shaken(0.004)
    assert turns.may_shake
    turns.note_shaken(0.002)
    assert not turns.may_shake
    await asyncio.sleep(0)
    assert turns.may_shake


async def test_all_handshakes_that_wait_for_a_turn_succeed(
    start_server: Any, new_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HANDSHAKES_S", 0.0)  # one per turn
    server, port = await start_server(HANDLERS)
    clients = [new_client(ClientSettings(tls=TlsSettings(enable=True))) for _ in range(30)]
    async with asyncio.TaskGroup() as group:
        for one in clients:
            group.create_task(one.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000))
    assert server.stats().connections == 30
    assert not server._gate.handshakes


async def test_a_peer_that_does_not_complete_its_handshake_is_closed(
    start_server: Any, connect_raw: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_state, "HANDSHAKE_TIMEOUT_MS", 20)
    log = Events()
    server, port = await start_server(HANDLERS, ServerSettings(check_interval_ms=20), log=log)
    reader, writer = await connect_raw(port)
    writer.write(b"\x16\x03\x01")
    async with asyncio.timeout(60):
        while await reader.read():
            pass
    assert log.errors == ["the TLS handshake takes more than 10 s"]
    await eventually(lambda: not server.stats().connections)
    assert not server._gate.handshakes


async def test_a_handshake_has_a_bounded_size(
    start_server: Any, connect_raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_state, "HANDSHAKE_BYTES_MAX", 100)
    log = Events()
    _, port = await start_server(HANDLERS, log=log)
    reader, writer = await connect_raw(port)
    writer.write(b"\x16\x03\x01\x01\x00" + bytes(100))
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    assert log.errors == ["the TLS handshake has more than 100 bytes"]


async def test_a_host_with_too_many_incomplete_handshakes_is_refused(
    start_server: Any, connect_raw: Any, eventually: Any
) -> None:
    log = Events()
    _, port = await start_server(HANDLERS, ServerSettings(connections_max=64), log=log)
    for _ in range(17):
        _, writer = await connect_raw(port)
        writer.write(b"\x16\x03\x01")
    await eventually(lambda: log.errors)
    assert log.errors == ["too many incomplete TLS handshakes from this host"]


async def test_ciphers_that_native_code_does_not_know_are_served(start_server: Any) -> None:
    _, port = await start_server(HANDLERS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    async with asyncio.timeout(60):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    assert writer.get_extra_info("cipher")[0] == "ECDHE-ECDSA-AES128-SHA256"
    writer.close()
