# SPDX-License-Identifier: Apache-2.0
"""Server and client of the control API, over a real connection."""

import asyncio
import contextlib
import socket

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cometmq.control import client as clients
from cometmq.control import server as servers
from cometmq.control.client import MemberClient
from cometmq.control.controlled import (
    ConfigChange,
    Electors,
    MemberUnreachable,
    Target,
    WrongMember,
)
from cometmq.control.methods import METHODS, from_message, to_message, to_target
from cometmq.control.server import CODES, ControlServer
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Fence, Promote
from cometmq.ha.record import Copy
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.remoting.errors import RemoteProtocolError, SettingsError
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.places import check_port
from cometmq.testing.control.each_order import each_order
from cometmq.testing.control.scripted import TARGET

DEADLINE_S = 60


def fill(member):
    member.becomes(
        role=Role.SLAVE, promised=4, epoch=4, last_log_epoch=3, max_offset=1 << 40, tables_epoch=2,
        tables=17, standing=Standing.PROVEN, has_lost_master=True, lag_bytes=12,
        is_full=True, has_room=True,
        last_in_sync=(Copy(0, "m"), Copy(2, "y")),
    )  # fmt: skip
    member.now = msgspec.structs.replace(
        member.now, master=0, confirm_offset=1 << 39, record_uid="u", version="1.2", fault="full"
    )


def bare(report):
    """Return a report without the number of electors, which the server adds."""
    return msgspec.structs.replace(report, electors=None)


async def test_a_status_arrives_as_it_is(member, client):
    fill(member)
    assert await client.status() == member.now
    member.now = msgspec.structs.replace(member.now, master=None)
    assert (await client.status()).master is None


def test_every_field_of_a_status_travels(member):
    fill(member)
    member.now = msgspec.structs.replace(
        member.now, electors=2, group_keys=("a", "b"), risk="no groupKeyFile"
    )
    message = to_message(member.now)
    travelling = {field.name for field, _ in message.ListFields()}
    assert {field.name for field in pb.MemberStatus.DESCRIPTOR.fields} == travelling
    assert from_message(message) == member.now


def test_values_of_a_later_version_are_refused_in_words(member):
    message = to_message(member.now)
    message.role = "observer"
    with pytest.raises(RemoteProtocolError, match="role 'observer'"):
        from_message(message)


@pytest.mark.parametrize("call", ["status", "order", "watch", "settings"])
async def test_an_answer_of_another_program_is_refused_in_words(client, monkeypatch, call):
    async def answer(*_args, **_options):
        return b"\xff\xff garbage"

    async def stream(*_args):
        yield b"\xff\xff garbage"

    monkeypatch.setattr(client, "_call", answer)
    monkeypatch.setattr(client, "_stream", stream)
    calls = {
        "status": client.status,
        "order": lambda: client.order(Fence(7)),
        "watch": lambda: anext(client.watch()),
        "settings": lambda: client.update_config({}),
    }
    with pytest.raises(RemoteProtocolError, match="answers what is no"):
        await calls[call]()


async def test_orders_reach_the_member_and_are_answered_with_the_status_after(member, client):
    assert (await client.order(Fence(7))).status.promised == 7
    for order in each_order():
        await client.order(order)
    assert member.orders == [Fence(7), *each_order()]


@pytest.mark.parametrize("reason", list(OrderRefusal))
async def test_a_refusal_arrives_with_its_reason_and_text(member, client, reason):
    member.refusal = OrderRefused(reason, "too late, for a reason")
    with pytest.raises(OrderRefused, match="too late, for a reason") as caught:
        await client.order(Promote(5))
    assert caught.value.reason is reason
    assert reason in CODES


async def test_settings_are_changed_or_refused(client):
    changes = {"fileReservedTime": "48", "storePathRootDir": "/x"}
    assert await client.update_config(changes) == ConfigChange(
        ("fileReservedTime",), ("storePathRootDir",)
    )
    with pytest.raises(SettingsError, match="nonsense: unknown setting"):
        await client.update_config({"nonsense": "1"})


async def test_a_call_meant_for_another_member_is_refused_by_both_names(member, server):
    for other in (Target("orders", 0), Target("bills", 1)):
        client = MemberClient(f"127.0.0.1:{server.port}", other)
        with pytest.raises(WrongMember, match=f"this is broker 1 of group 'orders', not {other}"):
            await client.order(Fence(9))
        with pytest.raises(WrongMember):
            await anext(client.watch())
        await client.close()
    assert member.orders == []


async def test_a_fault_of_the_member_is_an_answer_and_is_logged(member, client):
    member.refusal = RuntimeError("a bug")
    with pytest.raises(MemberUnreachable, match="INTERNAL, Promote failed: RuntimeError: a bug"):
        await client.order(Promote(5))
    assert await client.status()


async def test_an_order_ends_even_if_its_caller_goes_away(member, server):
    member.gate.clear()
    calls = TaskSet()
    request = METHODS["Fence"].request(target=to_target(TARGET), epoch=9)
    calls.spawn(server.order("Fence", request, None), name="call")
    await until(lambda: len(server._orders) == 1)
    await calls.close()  # as gRPC does when a caller disconnects
    member.gate.set()
    await until(lambda: member.orders == [Fence(9)])


async def test_an_order_that_takes_too_long_goes_on(member, client, monkeypatch):
    monkeypatch.setattr(servers, "ORDER_TIMEOUT_MS", 50)
    member.gate.clear()
    with pytest.raises(MemberUnreachable, match="Fence takes longer than 50 ms and goes on"):
        await client.order(Fence(9))
    member.gate.set()
    await until(lambda: member.orders == [Fence(9)])


async def test_the_watch_sends_changes_at_once_and_growth_at_intervals(member, client):
    reports = client.watch(interval_ms=10_000, silence_ms=DEADLINE_S * 1000)
    assert bare(await anext(reports)) == member.now
    member.becomes(max_offset=5, lag_bytes=3, tables=2)
    member.becomes(role=Role.MASTER, epoch=5, promised=5)
    changed = await anext(reports)
    assert (changed.status.role, changed.status.max_offset) == (Role.MASTER, 5)
    await reports.aclose()

    reports = client.watch(interval_ms=100)
    await anext(reports)
    member.becomes(max_offset=6)
    async with asyncio.timeout(DEADLINE_S):
        async for report in reports:
            if report.status.max_offset == 6:
                break
    await reports.aclose()


async def test_the_watch_ends_when_the_member_is_silent_or_gone(member, server, client):
    server.electors = Electors(lambda: 0)  # that no elector calls would be news after 3 s
    reports = client.watch(interval_ms=60_000, silence_ms=5_000)
    await anext(reports)
    with pytest.raises(MemberUnreachable, match="silent for 5000 ms"):
        await anext(reports)
    reports = client.watch()
    await anext(reports)
    await server.stop()
    with pytest.raises(MemberUnreachable, match="broker 1 of group 'orders' at"):
        async for _ in reports:
            pass


async def test_a_member_that_is_gone_refuses_and_one_that_returns_answers(member, server, client):
    await client.status()
    assert not await client.is_refusing()
    await server.stop()
    with pytest.raises(MemberUnreachable):
        await client.status()
    async with asyncio.timeout(DEADLINE_S):
        while not await client.is_refusing():  # on a busy machine the probe may end first
            pass
    again = ControlServer(member)
    await again.start("127.0.0.1", server.port)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await client.status()
                break
            except MemberUnreachable:
                await asyncio.sleep(0.02)
    await again.stop()


async def test_an_order_ends_on_the_connection_that_was_replaced(member, server, client):
    member.gate.clear()
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        order = group.create_task(client.order(Promote(4)))
        await until(lambda: len(server._orders) == 1)
        with pytest.raises(MemberUnreachable, match="DEADLINE_EXCEEDED"):
            await client.status(timeout_ms=-1)
        assert await client.status() == member.now  # on the new connection
        member.gate.set()
    assert order.result() == member.now


async def test_a_watch_on_a_connection_that_was_replaced_breaks(client, monkeypatch):
    """gRPC cancels it, as if its task had been cancelled."""
    monkeypatch.setattr(clients, "RETIRED_MS", 50)
    async with asyncio.timeout(DEADLINE_S):
        reports = client.watch(interval_ms=60_000, silence_ms=60_000)
        await anext(reports)
        with pytest.raises(MemberUnreachable, match="DEADLINE_EXCEEDED"):
            await client.status(timeout_ms=-1)
        with pytest.raises(MemberUnreachable, match="the connection was replaced or closed"):
            async for _ in reports:
                pass


@pytest.mark.parametrize("address", ["", "host", "host:", "host:65536", "http://host:1"])
async def test_a_malformed_address_is_refused_before_any_call(address):
    with pytest.raises(SettingsError, match=f"not an address: {address!r}; give host:port"):
        MemberClient(address, TARGET)


async def test_a_process_that_does_not_answer_is_not_taken_for_a_refusal():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = MemberClient(f"127.0.0.1:{silent.getsockname()[1]}", TARGET)
        assert not await client.is_refusing()
        with pytest.raises(MemberUnreachable, match="does not answer: DEADLINE_EXCEEDED"):
            await client.status(timeout_ms=50)
        await client.close()


class Greeter(asyncio.Protocol):
    """A server for a different protocol, in which the server sends first."""

    def connection_made(self, transport):
        transport.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        transport.close()


async def test_another_program_at_the_port_is_told_from_a_member_that_is_down():
    loop = asyncio.get_running_loop()
    async with await loop.create_server(Greeter, "127.0.0.1", 0) as other:
        client = MemberClient(f"127.0.0.1:{other.sockets[0].getsockname()[1]}", TARGET)
        with pytest.raises(MemberUnreachable, match="another program listens there"):
            await client.status(timeout_ms=60_000)
        await client.close()


async def test_a_port_in_use_is_named(server, member):
    with pytest.raises(SettingsError, match="controlPort"):
        await ControlServer(member).start("127.0.0.1", server.port)
    check_port("127.0.0.1", 0, setting="controlPort")


async def test_too_many_unfinished_orders_are_refused(member, client, server, monkeypatch):
    monkeypatch.setattr(servers, "ORDERS_MAX", 3)
    member.gate.clear()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(client.order(Fence(9)))
        await until(lambda: len(server._orders) == 3)
        with pytest.raises(MemberUnreachable, match="RESOURCE_EXHAUSTED, 3 orders are unfinished"):
            await client.order(Fence(9))
        assert await client.status() == member.now
        member.gate.set()
    assert len(member.orders) == 3
    assert await client.order(Fence(10))


async def test_a_request_that_is_too_large_is_refused(client):
    with pytest.raises(MemberUnreachable, match="RESOURCE_EXHAUSTED"):
        await client.update_config({"a": "x" * servers.REQUEST_BYTES_MAX})


# ---- health ----------------------------------------------------------------------------------


async def ask(stub, service):
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def test_health_follows_the_role(member, server):
    member.becomes(role=Role.RECOVERING)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        names = ("live", "startup", "ready", "")
        assert [await ask(stub, name) for name in names] == [
            "SERVING",
            "NOT_SERVING",
            "NOT_SERVING",
            "NOT_SERVING",
        ]
        member.becomes(role=Role.SLAVE)
        assert await ask(stub, "ready") == "SERVING"
        member.becomes(has_lost_master=True)
        assert await ask(stub, "ready") == "NOT_SERVING"
        member.becomes(role=Role.FENCED, has_lost_master=False)
        assert [await ask(stub, name) for name in ("startup", "ready")] == [
            "SERVING",
            "NOT_SERVING",
        ]
        with pytest.raises(grpc.aio.AioRpcError, match="known services: live, startup, ready"):
            await ask(stub, "nonsense")


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # states of several parts
            await asyncio.sleep(0.005)


async def test_silent_connections_have_bounded_places_for_a_while(member, monkeypatch):
    monkeypatch.setattr(servers, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(servers, "HANDSHAKE_MS", 100)
    server = ControlServer(member)
    await server.start("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
    client = MemberClient(f"127.0.0.1:{server.port}", TARGET)
    async with asyncio.timeout(DEADLINE_S):
        for reader, writer in silent:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
        while True:
            with contextlib.suppress(MemberUnreachable):
                assert await client.status(timeout_ms=60_000) == member.now
                break
    await client.close()
    await server.stop()
