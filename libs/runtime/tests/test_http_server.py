# SPDX-License-Identifier: Apache-2.0
"""The server makes room: nobody keeps others out by holding connections."""

import asyncio
import socket
import ssl
import struct
import subprocess
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from itertools import pairwise
from unittest.mock import Mock

import pytest
import uvloop
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse

from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.http import server as http_server
from cometmq.runtime.http.server import (
    ACCEPTED_AT_ONCE,
    UNSENT_BYTES_MAX,
    HttpServer,
    network_of,
)
from cometmq.runtime.places import listen

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
PLACES = 8
LARGE_BYTES = 8 << 20
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
CLOSE = b"Connection: close\r\n\r\n"


async def app(scope, receive, send):
    request = Request(scope, receive)
    size, status = 0, 200
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > 1 << 20:
                status = 413
                break
    except ClientDisconnect:
        return
    await PlainTextResponse("ok", status)(scope, receive, send)


async def large(scope, receive, send):
    await PlainTextResponse("x" * LARGE_BYTES)(scope, receive, send)


@pytest.fixture
def few_places(monkeypatch):
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", PLACES)


@asynccontextmanager
async def serving(handler=app, *, host="127.0.0.1", log=NO_LOG, tls=None, **options):
    """Yield the address of a server, and the server."""
    web = HttpServer(handler, log=log, **options)
    with listen(host, 0, setting="port") as listener:
        await web.start(listener, tls)
        try:
            yield listener.getsockname(), web
        finally:
            await web.stop()


@pytest.fixture
async def server(few_places):
    """Return the address of a server with room for few connections."""
    async with serving() as (address, _):
        yield address


async def opened(stack, server, sent=b"", *, host="127.0.0.1"):
    reader, writer = await asyncio.open_connection(*server, local_addr=(host, 0))
    stack.callback(writer.close)
    writer.write(sent)
    return reader, writer


def unread(stack, server, *, host="127.0.0.2"):
    """Ask for an answer that is not read."""
    other = stack.enter_context(socket.socket())
    other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    other.bind((host, 0))
    other.connect(server)
    other.sendall(GET + b"\r\n")


async def status_of(stack, server, request=GET + b"\r\n"):
    reader, _ = await opened(stack, server, request)
    async with asyncio.timeout(60):
        return int((await reader.readline()).split()[1])


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


# -- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [b"", GET, POST + b"\r\na=1", GET + b"\r\n"])
async def test_connections_that_wait_for_their_client_make_room(server, held):
    async with AsyncExitStack() as stack:
        for _ in range(3 * PLACES):
            await opened(stack, server, held)
        for _ in range(2 * PLACES):
            assert await status_of(stack, server) == 200


@pytest.mark.parametrize("held", [b"", POST + b"\r\na=1"])
async def test_a_stranger_with_many_connections_loses_own_ones(server, held):
    async with AsyncExitStack() as stack:
        slow = POST.replace(b"1000", b"5") + b"\r\na="
        reader, writer = await opened(stack, server, slow)
        for _ in range(4 * PLACES):
            await opened(stack, server, held, host="127.0.0.2")
        assert await status_of(stack, server) == 200
        writer.write(b"123")
        async with asyncio.timeout(60):
            assert (await reader.readline()).split()[1] == b"200"


@pytest.mark.parametrize(
    ("states", "network", "closed"),
    [
        (["a waits", "b waits", "b waits", "c waits"], "a", 1),
        (["a waits", "b asked", "b waits", "b waits"], "b", 2),
        (["a waits", "b asked", "b asked"], "b", None),  # it has the most itself
        (["a waits", "b asked", "b asked"], "a", 1),
        (["a waits", "b asked", "b asked"], "c", 1),
        (["a asked", "b asked"], "b", None),
        ([], "a", None),
    ],
)
def test_the_network_with_the_most_connections_loses_one(states, network, closed):
    web, gone = HttpServer(app, log=NO_LOG), []
    for number, state in enumerate(states):
        owner, kind = state.split()
        one = Mock(network=owner, may_close=kind == "waits")
        one.abort = lambda number=number: gone.append(number)
        web.connections[one] = None
    assert web._make_room(network) == (closed is not None)
    assert gone == ([] if closed is None else [closed])


async def test_without_places_a_connection_is_closed(server, monkeypatch):
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 0)
    with suppress(ConnectionError):
        assert await exchanged(server, GET + b"\r\n") == b""


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_what_made_room_is_no_error(loop_factory, few_places):
    """uvloop, which the programs use, raises an error if a closed connection is written to."""
    log = Mock()

    async def shed():
        async with AsyncExitStack() as stack, serving(log=log) as (server, web):
            for _ in range(2 * PLACES):
                await opened(stack, server, GET)
            async with web.turns.hold(Requester("a long turn")):
                for _ in range(2 * PLACES):
                    await opened(stack, server, GET + b"\r\n", host="127.0.0.2")
                reader, _ = await opened(stack, server, GET + b"\r\n")
                await until(lambda: "127.0.0.1" in {it.network for it in web.connections})
            async with asyncio.timeout(60):
                assert (await reader.readline()).split()[1] == b"200"
            for _ in range(2 * PLACES):
                assert await status_of(stack, server) == 200

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: log.error(context))
        runner.run(shed())
    assert log.mock_calls == []


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_answers_that_nobody_reads_hold_no_places(loop_factory, few_places):
    async def flooded():
        async with AsyncExitStack() as stack, serving(large) as (server, web):
            for _ in range(PLACES):
                unread(stack, server, host="127.0.0.1")
            await until(lambda: sum(it.is_unread for it in web.connections) == PLACES)
            for _ in range(3):
                assert await status_of(stack, server) == 200

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(flooded())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return a file with a key and a certificate."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-subj", "/CN=a", "-keyout", "-", "-out", "-"]
    path.write_bytes(subprocess.run(words, check=True, capture_output=True).stdout)
    return path


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_tls_sends_no_faster_than_its_client_reads(loop_factory, certificate):
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificate)
    tls = ssl.create_default_context(cafile=certificate)
    tls.check_hostname = False

    async def read_late():
        async with AsyncExitStack() as stack, serving(large, tls=server_tls) as (server, web):
            reader, writer = await asyncio.open_connection(*server, ssl=tls)
            stack.callback(writer.close)
            writer.write(GET + b"\r\n")
            await until(lambda: any(it.is_unread and it.unsent_bytes for it in web.connections))
            async with asyncio.timeout(60):
                await reader.readuntil(b"\r\n\r\n")
                assert len(await reader.readexactly(LARGE_BYTES)) == LARGE_BYTES
                await until(lambda: not any(it.is_unread for it in web.connections))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(read_late())


async def test_answers_that_nobody_reads_are_bounded_in_total():
    """The stranger who holds most of them loses connections; another client reads in peace."""
    answered = []

    async def note(*asgi):
        answered.append(1)
        await large(*asgi)

    async with AsyncExitStack() as stack, serving(note) as (server, web):
        reader, _ = await opened(stack, server, GET + b"\r\n")
        assert b"200" in await reader.readline()
        count = 2 * UNSENT_BYTES_MAX // LARGE_BYTES
        for _ in range(count):
            unread(stack, server)
        await until(lambda: len(answered) > count)  # the last answer comes later
        unsent_bytes = sum(it.unsent_bytes for it in web.connections)
        assert UNSENT_BYTES_MAX // 2 < unsent_bytes <= UNSENT_BYTES_MAX
        async with asyncio.timeout(60):
            await reader.readuntil(b"\r\n\r\n")
            assert len(await reader.readexactly(LARGE_BYTES)) == LARGE_BYTES


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:7:1::9", "20010db800000007"),
        ("fe80::1%eth0", "fe80000000000000"),
        ("somewhere", "somewhere"),
    ],
)
def test_the_network_of_an_address(address, network):
    assert network_of(address) == network


# -- turns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_turn_accepts_few_connections_and_answers_one_request(loop_factory):
    """A page takes 10 ms or more, and a stranger may ask for thousands at once."""
    clients, answered, counts = [], [], []

    async def flooded():
        turns = 0

        async def count(scope, receive, send):
            clients.append(scope["client"][0])
            answered.append(turns)
            await PlainTextResponse("ok")(scope, receive, send)

        with ExitStack() as stack:
            async with serving(count) as (server, web):
                for number in range(40):
                    other = stack.enter_context(socket.socket())
                    other.bind(("127.0.0.2" if number < 39 else "127.0.0.1", 0))
                    other.connect(server)
                    other.sendall((GET + b"\r\n") * 5)
                async with asyncio.timeout(60):
                    while len(answered) < 200:
                        await asyncio.sleep(0)
                        turns += 1
                        counts.append(len(web.connections))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(flooded())
    assert max(Counter(answered).values()) == 1
    assert max(b - a for a, b in pairwise([0, *counts])) <= ACCEPTED_AT_ONCE + 1
    assert clients.index("127.0.0.1") < 30


async def order_of(requests, **options):
    """Return the clients in the order of their answers; a request is (address, X-Forwarded-For)."""
    clients = []

    async def note(scope, receive, send):
        clients.append(scope["client"][0])
        await PlainTextResponse("ok")(scope, receive, send)

    async with AsyncExitStack() as stack, serving(note, **options) as (server, web):
        async with web.turns.hold(Requester("a long turn")):
            for address, forwarded in requests:
                head = GET + f"X-Forwarded-For: {forwarded}\r\n\r\n".encode()
                await opened(stack, server, head, host=address)
            await until(lambda: sum(it.is_queued for it in web.connections) == len(requests))
        await until(lambda: len(clients) == len(requests))
    return clients


async def test_the_clients_of_a_proxy_take_turns():
    flood = [("127.0.0.1", "192.0.2.1")] * 20
    found = await order_of([*flood, ("127.0.0.1", "192.0.2.2")], trusted_proxies="127.0.0.1")
    assert found.index("192.0.2.2") < 3


async def test_a_server_may_give_turns_otherwise():
    flood = [(f"127.0.1.{number}", "") for number in range(1, 21)]
    found = await order_of(
        [*flood, ("127.0.0.3", "")], requester=lambda client: Requester(client < "127.0.1")
    )
    assert found.index("127.0.0.3") < 3


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_client_that_is_gone_costs_no_page_and_no_error(loop_factory):
    pages, log = [], Mock()

    async def page(*_):
        pages.append(1)

    async def reset():
        async with serving(page, log=log) as (server, web):
            async with web.turns.hold(Requester("a long turn")):
                for count in range(1, 6):
                    client = socket.create_connection(server)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.sendall(GET + b"\r\n")
                    await until(lambda count=count: web.turns.waiting_count == count)
                    client.close()
                    await until(lambda: not web.connections)
            await until(lambda: not web.state.tasks)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: log.error(context))
        runner.run(reset())
    assert (pages, log.mock_calls) == ([], [])


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_stop_ends_every_connection_and_its_request(loop_factory, monkeypatch):
    monkeypatch.setattr(http_server, "STOP_S", 0.05)
    monkeypatch.setattr(http_server, "STOPPED_S", 0.1)
    log, clients = Mock(), []

    async def endless(scope, receive, send):
        if scope["path"] == "/endless":
            await asyncio.sleep(60)
        await large(scope, receive, send)

    async def stopped():
        async with AsyncExitStack() as stack, serving(endless, log=log) as (server, web):
            for head in [GET.replace(b"/ ", b"/endless ") + b"\r\n", GET] * 3:
                clients.append(socket.create_connection(server))
                clients[-1].sendall(head)
            await until(lambda: len(web.state.tasks) == 3 and len(web.connections) == 6)
            unread(stack, server)
            await until(lambda: any(it.is_unread for it in web.connections))
        assert not web.connections
        assert not web.state.tasks

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: log.error(context))
        runner.run(asyncio.wait_for(stopped(), 60))
    assert log.mock_calls == []
    for one in clients:
        one.settimeout(60)
        with one, suppress(ConnectionError):
            assert one.recv(1) == b""


# -- HTTP ---------------------------------------------------------------------------------------


async def exchanged(server, sent):
    """Send bytes, and return everything that the server answers until it closes."""
    reader, writer = await asyncio.open_connection(*server)
    writer.write(sent)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


async def test_requests_of_one_connection_are_answered_in_turn(server):
    chunked = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"\r\n2\r\na=\r\n1\r\n7\r\n0\r\n\r\n"
    )
    head = GET.replace(b"GET", b"HEAD") + b"\r\n"
    answer = await exchanged(server, chunked + head + GET + CLOSE)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert answer.count(b"\r\n\r\nok") == 2, "an answer to HEAD has no body"
    assert answer.lower().count(b"content-length: 2\r\n") == 3
    assert answer.lower().count(b"\r\ndate: ") == 3
    assert answer.lower().count(b"connection: close") == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        POST.replace(b"1000", b"-1") + b"\r\n",
        GET + b"Transfer-Encoding: gzip\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n",
        POST.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked") + b"\r\nno size\r\n",
        GET + b"X: " + b"x" * (70 << 10),
    ],
)
async def test_what_is_not_http_is_refused(server, sent):
    answer = await exchanged(server, sent)
    assert answer.split()[1] == b"400"
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("end", [b"\r\n", CLOSE])
async def test_a_form_that_is_refused_early_gets_its_answer(server, end):
    form = b"a=" + b"x" * (9 << 20)
    sent = POST.replace(b"1000", str(len(form)).encode()) + end + form
    async with AsyncExitStack() as stack:
        reader, writer = await opened(stack, server, sent)
        async with asyncio.timeout(60):
            await writer.drain()
            assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"413"
            assert await reader.readexactly(2) == b"ok"


async def test_a_refused_form_without_an_end_is_not_read_for_ever(server, monkeypatch):
    monkeypatch.setattr(http_server, "UNREAD_S", 0.05)
    endless = POST.replace(b"1000", b"9999999") + b"\r\n" + b"x" * (2 << 20)
    answer = await exchanged(server, endless)
    assert answer.split()[1] == b"413"
    assert b"connection: close" in answer.lower()


async def test_a_client_that_asks_first_sends_its_form(server):
    async with AsyncExitStack() as stack:
        head = POST.replace(b"1000", b"3") + b"Expect: 100-continue\r\n\r\n"
        reader, writer = await opened(stack, server, head)
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"a=1")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_form_that_ends_early_gets_no_answer(server):
    async with AsyncExitStack() as stack:
        reader, writer = await opened(stack, server, POST + b"\r\na=1")
        writer.write_eof()
        async with asyncio.timeout(60):
            assert b" 200 " not in await reader.read()
        assert await status_of(stack, server) == 200


@pytest.mark.parametrize("held", [b"", GET, GET + b"\r\n"])
async def test_a_connection_that_stays_silent_is_closed(server, monkeypatch, held):
    monkeypatch.setattr(http_server, "SILENT_S", 0.05)
    with suppress(ConnectionError):
        assert (await exchanged(server, held)).count(b"HTTP/1.1") == (held == GET + b"\r\n")


async def test_an_answer_that_stays_unread_is_dropped(monkeypatch):
    async with AsyncExitStack() as stack, serving(large) as (server, web):
        monkeypatch.setattr(http_server, "SILENT_S", 0.05)
        unread(stack, server)
        await until(lambda: web.connections)
        await until(lambda: not web.connections and not web.state.tasks)


async def test_an_answer_that_has_begun_ends_with_what_is_not_http():
    """A chunk that is none raised an error in uvicorn, which wanted to answer once more."""
    errors: list[object] = []

    async def begun(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with suppress(ClientDisconnect):
            await Request(scope, receive).body()

    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with AsyncExitStack() as stack, serving(begun) as (server, web):
        head = POST.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked")
        _, writer = await opened(stack, server, head + b"Expect: 100-continue\r\n\r\n")
        await until(lambda: any(not it.is_idle for it in web.connections))
        await asyncio.sleep(0.05)
        writer.write(b"no size\r\n")
        await until(lambda: not web.connections and not web.state.tasks)
    assert errors == []


async def test_a_request_that_a_bug_ends_is_logged(monkeypatch):
    log = Mock()

    async def fails(*_):
        raise ZeroDivisionError

    async with AsyncExitStack() as stack, serving(fails, log=log) as (server, _):
        assert await status_of(stack, server) == 500
    (call,) = log.error.mock_calls
    assert call.args == ("request.failed",)
    assert isinstance(call.kwargs["exc_info"], ZeroDivisionError)


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "client"),
    [
        ("", "127.0.0.9", "1.1.1.1", "127.0.0.9"),
        ("127.0.0.9", "127.0.0.9", "", "127.0.0.9"),
        ("127.0.0.9", "127.0.0.9", "6.6.6.6, 1.1.1.1", "1.1.1.1"),
        ("127.0.0.0/8,fd00::/8", "127.0.0.9", "1.1.1.1, fd00::7", "1.1.1.1"),
        ("127.0.0.9", "127.0.0.8", "1.1.1.1", "127.0.0.8"),
        ("127.0.0.9", "127.0.0.9", "unknown", "unknown"),
        ("*", "127.0.0.9", "1.1.1.1, 2.2.2.2", "1.1.1.1"),
    ],
)
async def test_the_client_behind_a_trusted_proxy(trusted, peer, forwarded, client):
    assert await order_of([(peer, forwarded)], trusted_proxies=trusted) == [client]


async def test_an_ipv4_client_of_an_ipv6_socket_keeps_its_address():
    async with AsyncExitStack() as stack, serving(host="") as ((_, port, *_), web):
        await opened(stack, ("127.0.0.1", port), host="127.0.0.2")
        await until(lambda: web.connections)
        (one,) = web.connections
        assert one.client is not None
        assert (one.client[0], one.network) == ("127.0.0.2", "127.0.0.2")
