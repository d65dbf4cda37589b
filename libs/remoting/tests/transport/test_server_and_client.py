# SPDX-License-Identifier: Apache-2.0
"""Requests and answers between client and server, in both directions."""

import asyncio
import socket
import time
from typing import Any

import msgspec
import pytest

from cometmq.remoting import OK, Call, RawCommand, Reply, RequestCode, ResponseCode, Serialization
from cometmq.remoting.codes import request_name
from cometmq.remoting.commands.callbacks import NotifyConsumerIdsChanged
from cometmq.remoting.commands.offsets import QueryConsumerOffset, QueryConsumerOffsetReply
from cometmq.remoting.commands.pull import PullMessage, PullMessageReply
from cometmq.remoting.errors import (
    ConnectFailed,
    ConnectionLost,
    NoPermission,
    QueryNotFound,
    RequestCodeNotSupported,
    RequestTimeout,
    ServerError,
    SystemBusy,
)
from cometmq.remoting.transport import ClientSettings, ServerSettings, hub
from cometmq.remoting.transport.addresses import NO_HOST
from cometmq.remoting.transport.client import LATE_MS
from cometmq.testing.remoting.frames import encode_frame

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
HEADER = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=3)

BOTH = pytest.mark.parametrize("serialization", list(Serialization))


def settings(serialization: Serialization) -> ClientSettings:
    return ClientSettings(serialization=serialization)


@BOTH
async def test_a_struct_is_a_successful_answer(
    start_server: Any, new_client: Any, serialization: Serialization
) -> None:
    def query(_: None, call: Call[QueryConsumerOffset]) -> QueryConsumerOffsetReply:
        assert call.header == HEADER
        assert call.body == b"body"
        assert call.received_ms == 1_700_000_000_000
        assert call.ext == {"consumerGroup": "g", "topic": "t", "queueId": "3", "x": "y"}
        return QueryConsumerOffsetReply(offset=2**40)

    _, port = await start_server({QUERY: query})
    client = new_client(settings(serialization))

    response = await client.invoke(
        f"127.0.0.1:{port}", QUERY, HEADER, b"body", timeout_ms=60_000, ext={"x": "y"}
    )

    assert response.header == QueryConsumerOffsetReply(offset=2**40)
    assert response.ext == {"offset": str(2**40)}


async def test_a_check_may_be_due_at_once(
    start_server: Any, new_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the process is stopped for a moment; uvloop returns another kind of handle then."""
    _, port = await start_server({QUERY: lambda _, call: QueryConsumerOffsetReply(offset=1)})
    client = new_client(settings(Serialization.JSON))
    monkeypatch.setattr(hub, "due_on_grid", lambda now_s, _: now_s)
    found = await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000)
    assert found.header == QueryConsumerOffsetReply(offset=1)


@BOTH
@pytest.mark.parametrize("is_deferred", [False, True])
async def test_an_answer_that_no_peer_accepts_is_an_error(
    start_server: Any, new_client: Any, serialization: Serialization, is_deferred: bool
) -> None:
    """A peer closes the connection at a frame above its limit, and asks again."""

    def query(_: None, call: Call[QueryConsumerOffset]) -> Reply | None:
        reply = Reply(header=QueryConsumerOffsetReply(offset=1), body=bytes(call.header.queue_id))
        if not is_deferred:
            return reply
        asyncio.get_running_loop().call_soon(call.answer, reply)
        return None

    server, port = await start_server({QUERY: query}, ServerSettings(frame_bytes_max=5_000))
    client = new_client(settings(serialization))

    async def ask(size: int) -> int:
        header = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=size)
        response = await client.invoke(f"127.0.0.1:{port}", QUERY, header, timeout_ms=60_000)
        return len(response.body)

    assert await ask(4_500) == 4_500
    with pytest.raises(ServerError, match="ask for less"):
        await ask(6_000)
    assert await ask(10) == 10
    assert server.stats().connections == 1


@BOTH
async def test_errors_of_handlers_are_answers(
    start_server: Any, new_client: Any, serialization: Serialization
) -> None:
    def query(_: None, call: Call[QueryConsumerOffset]) -> Reply:
        if call.header.queue_id == 1:
            raise QueryNotFound('no "offset"')
        if call.header.queue_id == 2:
            raise ValueError("broken")
        return Reply(code=77, remark="odd")

    server, port = await start_server({QUERY: query})
    client = new_client(settings(serialization))
    address = f"127.0.0.1:{port}"

    with pytest.raises(QueryNotFound) as not_found:
        await client.invoke(address, QUERY, QueryConsumerOffset("g", "t", 1), timeout_ms=60_000)
    assert not_found.value.remark == 'no "offset"'
    with pytest.raises(ServerError, match="ValueError: broken"):
        await client.invoke(address, QUERY, QueryConsumerOffset("g", "t", 2), timeout_ms=60_000)
    response = await client.invoke(address, QUERY, HEADER, timeout_ms=60_000, ok=(77,))
    assert (response.code, response.remark, response.header) == (77, "odd", None)
    with pytest.raises(RequestCodeNotSupported) as unknown:
        await client.invoke(address, 4711, timeout_ms=60_000)
    assert unknown.value.remark == " request type 4711 not supported"
    assert server.stats().handler_failures == 1


@BOTH
async def test_a_missing_field_is_named(
    start_server: Any, new_client: Any, serialization: Serialization
) -> None:
    _, port = await start_server({QUERY: lambda _, call: OK})
    client = new_client(settings(serialization))

    with pytest.raises(ServerError, match="queueId"):
        await client.invoke(
            f"127.0.0.1:{port}",
            QUERY,
            ext={"consumerGroup": "g", "topic": "t"},
            timeout_ms=60_000,
        )


async def test_a_held_call_is_answered_later_and_once(
    start_server: Any, new_client: Any, background: Any, eventually: Any
) -> None:
    held: list[Call[Any]] = []
    server, port = await start_server({QUERY: lambda _, call: held.append(call)})
    client = new_client()
    waiting = background(client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000))
    await eventually(lambda: held)
    assert server.stats().in_flight == 1

    held[0].answer(QueryConsumerOffsetReply(offset=5))
    held[0].answer(QueryConsumerOffsetReply(offset=6))
    held[0].fail(NoPermission("late"))

    assert (await waiting).header.offset == 5
    assert server.stats().in_flight == 0


async def test_a_coroutine_may_answer(
    start_server: Any, new_client: Any, background: Any, eventually: Any
) -> None:
    gate = asyncio.Event()

    async def query(_: None, call: Call[QueryConsumerOffset]) -> QueryConsumerOffsetReply:
        await gate.wait()
        if call.header.queue_id == 1:
            raise NoPermission("no")
        if call.header.queue_id == 2:
            raise ZeroDivisionError
        return QueryConsumerOffsetReply(offset=9)

    server, port = await start_server({QUERY: query})
    client = new_client()
    address = f"127.0.0.1:{port}"
    calls = [
        background(
            client.invoke(address, QUERY, QueryConsumerOffset("g", "t", n), timeout_ms=60_000)
        )
        for n in (0, 1, 2)
    ]
    await eventually(lambda: server.stats().in_flight == 3)
    gate.set()

    assert (await calls[0]).header.offset == 9
    with pytest.raises(NoPermission):
        await calls[1]
    with pytest.raises(ServerError):
        await calls[2]
    assert server.stats().in_flight == 0


async def test_a_oneway_request_gets_no_answer(
    start_server: Any, new_client: Any, eventually: Any
) -> None:
    seen: list[str] = []

    def query(_: None, call: Call[QueryConsumerOffset]) -> Any:
        seen.append(call.header.topic)
        if call.header.topic == "late":
            call.answer(OK)
            return None
        if call.header.topic == "wrong":
            raise NoPermission("no")
        return OK

    server, port = await start_server({QUERY: query})
    client = new_client()
    address = f"127.0.0.1:{port}"
    for topic in ("now", "late", "wrong", "last"):
        header = QueryConsumerOffset("g", topic, 0)
        await client.invoke_oneway(address, QUERY, header, timeout_ms=60_000)
    await eventually(lambda: "last" in seen)

    assert seen == ["now", "late", "wrong", "last"]
    assert server.stats().in_flight == 0
    assert server.stats().bytes_sent == 0


async def test_a_server_asks_and_tells_its_client(start_server: Any, new_client: Any) -> None:
    told: list[str] = []
    answers: list[int] = []

    def changed(_: None, call: Call[NotifyConsumerIdsChanged]) -> Reply:
        told.append(call.header.consumer_group)
        return Reply(code=5)

    async def query(_: None, call: Call[QueryConsumerOffset]) -> Reply:
        header = NotifyConsumerIdsChanged(consumer_group="told")
        assert call.peer.send(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
        header = NotifyConsumerIdsChanged(consumer_group="asked")
        response = await call.peer.invoke(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, timeout_ms=60_000
        )
        answers.append(response.code)
        return Reply(code=77)

    _, port = await start_server({QUERY: query})
    client = new_client(handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: changed})

    await client.invoke(f"127.0.0.1:{port}", QUERY, HEADER, timeout_ms=60_000, ok=(77,))

    assert told == ["told", "asked"]
    assert answers == [5]


async def test_a_late_loop_is_blamed_for_its_timeouts(start_server: Any, new_client: Any) -> None:
    """A blocked loop may send a request late and read its answer late."""

    def query(_: None, call: Call[QueryConsumerOffset]) -> Reply | None:
        if call.header.queue_id:
            return Reply(header=QueryConsumerOffsetReply(offset=1))
        time.sleep(1)  # blocks the loop of client and server, as a wrong listener does
        return None

    _, port = await start_server({QUERY: query})
    client = new_client(ClientSettings(check_interval_ms=50))
    address = f"127.0.0.1:{port}"
    await client.invoke(address, QUERY, HEADER, timeout_ms=60_000)
    unanswered = msgspec.structs.replace(HEADER, queue_id=0)
    with pytest.raises(RequestTimeout) as caught:
        await client.invoke(address, QUERY, unanswered, timeout_ms=700)
    assert caught.value.loop_late_ms >= LATE_MS
    assert caught.match(
        rf"{address} did not answer .* within 700 ms, but this program's event loop was late by "
        rf"{caught.value.loop_late_ms} ms meanwhile.* too many calls at once.* asyncio.to_thread"
    )


async def test_no_answer_in_time(start_server: Any, new_client: Any) -> None:
    def query(_: None, call: Call[QueryConsumerOffset]) -> Reply | None:
        return Reply(header=QueryConsumerOffsetReply(offset=1)) if call.header.queue_id else None

    _, port = await start_server({QUERY: query})
    client = new_client()
    address = f"127.0.0.1:{port}"
    await client.invoke(address, QUERY, HEADER, timeout_ms=60_000)  # the connection is made

    text = rf"{address} did not answer QUERY_CONSUMER_OFFSET \(14\) within 20 ms"
    with pytest.raises(RequestTimeout, match=text) as late:
        await client.invoke(address, QUERY, QueryConsumerOffset("g", "t", 0), timeout_ms=20)
    assert late.value.address == address
    assert request_name(9999) == "request 9999"


async def test_a_lost_connection_fails_what_waits_and_is_made_anew(
    start_server: Any, new_client: Any
) -> None:
    def query(_: None, call: Call[QueryConsumerOffset]) -> Reply | None:
        if call.header.queue_id == 0:
            call.peer.close()
            return None
        return Reply(header=QueryConsumerOffsetReply(offset=1))

    _, port = await start_server({QUERY: query})
    client = new_client()
    address = f"127.0.0.1:{port}"

    with pytest.raises(ConnectionLost):
        await client.invoke(address, QUERY, QueryConsumerOffset("g", "t", 0), timeout_ms=60_000)
    response = await client.invoke(address, QUERY, HEADER, timeout_ms=60_000)

    assert response.header.offset == 1


class Greeter(asyncio.Protocol):
    """A server for a different protocol, in which the server sends first."""

    def connection_made(self, transport: Any) -> None:
        transport.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        transport.close()


async def test_a_server_of_another_protocol_is_named(new_client: Any) -> None:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(Greeter, "127.0.0.1", 0) as other:
        address = f"127.0.0.1:{other.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionLost, match="is not RocketMQ's protocol"):
            await new_client().invoke(address, QUERY, HEADER, timeout_ms=60_000)


async def test_a_reset_without_a_peer_name_names_the_address(
    start_server: Any, new_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an immediate reset, the system no longer reports the peer's address."""
    monkeypatch.setattr("cometmq.remoting.transport.protocol.peer_address", lambda _: ("", NO_HOST))
    _, port = await start_server({QUERY: lambda _, call: call.peer.abort()})
    address = f"127.0.0.1:{port}"
    with pytest.raises(ConnectionLost, match=f"connection to {address} "):
        await new_client().invoke(address, QUERY, HEADER, timeout_ms=60_000)


async def test_nobody_listens(new_client: Any) -> None:
    with socket.socket() as silent:  # keeps the port, but does not listen
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectFailed):
            await new_client().invoke(address, QUERY, HEADER, timeout_ms=60_000)


async def test_an_unknown_host_is_described_without_a_number(new_client: Any) -> None:
    with pytest.raises(ConnectFailed, match=r"no\.invalid:1: [A-Z]") as caught:
        await new_client().invoke("no.invalid:1", QUERY, HEADER, timeout_ms=60_000)
    assert "Errno" not in str(caught.value)


async def test_hooks_see_every_call_and_answer(start_server: Any, new_client: Any) -> None:
    answers: list[int] = []

    def check(_: None, call: Call[Any]) -> None:
        if call.ext.get("Signature") != "good":
            raise NoPermission("unsigned")

    def sign(code: int, ext: dict[str, str], body: object) -> None:
        assert (code, body) == (QUERY, b"body")
        ext["Signature"] = "good" if ext["topic"] == "t" else "bad"

    _, port = await start_server(
        {QUERY: lambda _, call: QueryConsumerOffsetReply(offset=1)},
        before=[check],
        after=[lambda _, call, answer: answers.append(getattr(answer, "code", 0))],
    )
    client = new_client(before=[sign])
    address = f"127.0.0.1:{port}"

    await client.invoke(address, QUERY, HEADER, b"body", timeout_ms=60_000)
    other = QueryConsumerOffset("g", "other", 0)
    with pytest.raises(NoPermission):
        await client.invoke(address, QUERY, other, b"body", timeout_ms=60_000)

    assert answers == [0, ResponseCode.NO_PERMISSION]


@pytest.mark.parametrize("body_bytes", [0, 200_000], ids=["at the end of the turn", "within it"])
@pytest.mark.parametrize("is_gathering", [False, True])
async def test_promises_are_kept_before_answers_leave(
    start_server: Any, new_client: Any, body_bytes: int, is_gathering: bool
) -> None:
    promised: list[int] = []
    seen: list[tuple[int, int]] = []
    servers: list[Any] = []

    def promise(_: None, call: Call[Any]) -> Reply:
        if is_gathering:
            servers[0].writes.gather()
        promised.append(call.code)
        return Reply(body=bytes(body_bytes))

    def note() -> None:
        seen.append((len(promised), servers[0].stats().bytes_sent))

    server, port = await start_server(
        {RequestCode.HEART_BEAT: promise},
        ServerSettings(write_high_water_bytes=65_536, write_low_water_bytes=16_384),
        **{"save" if is_gathering else "before_write": note},
    )
    servers.append(server)
    await new_client().invoke(f"127.0.0.1:{port}", RequestCode.HEART_BEAT, timeout_ms=60_000)

    assert seen[0] == (1, 0)
    assert server.stats().bytes_sent > body_bytes


async def test_gathered_answers_of_all_connections_share_one_save(start_server: Any) -> None:
    served: list[int] = []
    saved: list[int] = []
    servers: list[Any] = []

    def promise(_: None, call: Call[Any]) -> Reply:
        servers[0].writes.gather()
        served.append(call.code)
        return Reply()

    server, port = await start_server(
        {RequestCode.HEART_BEAT: promise}, save=lambda: saved.append(len(served))
    )
    servers.append(server)
    request = encode_frame(RawCommand(code=RequestCode.HEART_BEAT, opaque=1))
    ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    async with asyncio.timeout(60):
        while saved != [3]:  # again if the requests have not arrived in one turn
            served.clear()
            saved.clear()
            for _, writer in ends:
                writer.write(request)
            for reader, _ in ends:
                size = int.from_bytes(await reader.readexactly(4), "big")
                await reader.readexactly(size)
            assert saved == sorted(set(saved))  # each save served further answers
            assert saved[-1] == 3
    for _, writer in ends:
        writer.close()


async def test_requests_over_the_bound_are_refused(
    start_server: Any, new_client: Any, background: Any
) -> None:
    held: list[Call[Any]] = []
    server, port = await start_server(
        {QUERY: lambda _, call: held.append(call)},
        ServerSettings(in_flight_per_connection_max=4),
    )
    client = new_client()
    address = f"127.0.0.1:{port}"
    calls = [background(client.invoke(address, QUERY, HEADER, timeout_ms=60_000)) for _ in range(6)]

    for refused in calls[4:]:
        with pytest.raises(SystemBusy, match="OVERLOAD"):
            await refused
    for call in held:
        call.answer(QueryConsumerOffsetReply(offset=1))
    for accepted in calls[:4]:
        assert (await accepted).header.offset == 1
    assert server.stats().requests_refused == 2
    assert server.stats().in_flight == 0


async def test_a_client_with_much_to_send_still_reads(start_server: Any, new_client: Any) -> None:
    much = bytes(12_000_000)
    _, port = await start_server(
        {
            RequestCode.PULL_MESSAGE: lambda _, call: Reply(
                header=PullMessageReply(0, 0, 0, 0), body=much
            ),
            RequestCode.HEART_BEAT: lambda _, call: OK,
        }
    )
    client, address = new_client(), f"127.0.0.1:{port}"
    pull = PullMessage("g", "t", 0, 0, 32, 0, 0, 0, 0)

    async with asyncio.TaskGroup() as group:
        pulled = group.create_task(
            client.invoke(address, RequestCode.PULL_MESSAGE, pull, timeout_ms=60_000)
        )
        group.create_task(
            client.invoke(address, RequestCode.HEART_BEAT, None, much, timeout_ms=60_000)
        )

    assert pulled.result().body == much
