# SPDX-License-Identifier: Apache-2.0
"""The server makes room: nobody keeps others out by holding connections."""

import asyncio
import socket
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from unittest.mock import Mock

import pytest
import uvloop

from cometmq.console.web.clients import Known, Proxies, network_of
from cometmq.console.web.exchange import plain
from cometmq.console.web.guard import form_of
from cometmq.console.web.problems import Problem
from cometmq.console.web.server import UNSENT_BYTES_MAX, WebServer
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.remoting.transport.tasks import TaskSet

CONNECTIONS_MAX = 8
LARGE_BYTES = 8 << 20
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"


async def app(request):
    status = 200
    try:
        if request.method == "POST":
            await form_of(request)
    except Problem as problem:
        status = problem.status
    return plain("ok", status)


@pytest.fixture
async def server():
    """Return the address of a server with room for few connections."""
    async with web_server(app, connections_max=CONNECTIONS_MAX) as (address, _):
        yield address


@asynccontextmanager
async def web_server(handler, *, log=NO_LOG, known=(), trusted_proxies="", **options):
    """Yield the address of a server, and the server."""
    networks = Known()
    for address in known:
        networks.add(address)
    async with AsyncExitStack() as stack:
        web = WebServer(
            handler,
            tls=None,
            trusted_proxies=trusted_proxies,
            known=networks,
            tasks=TaskSet(),
            log=log,
            **options,
        )
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        await web.start(listener)
        stack.push_async_callback(web.stop)
        yield listener.getsockname(), web


async def status_of(stack, server, request):
    reader, writer = await asyncio.open_connection(*server)
    stack.callback(writer.close)
    writer.write(request)
    async with asyncio.timeout(60):
        return int((await reader.readline()).split()[1])


@pytest.mark.parametrize("held", [b"", GET, POST + FORM + b"\r\na=1", GET + b"\r\n"])
async def test_connections_that_wait_for_their_client_make_room(server, held):
    async with AsyncExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            _, writer = await asyncio.open_connection(*server)
            stack.callback(writer.close)
            writer.write(held)
        for _ in range(2 * CONNECTIONS_MAX):
            assert await status_of(stack, server, GET + b"\r\n") == 200


@pytest.mark.parametrize("held", [b"", POST + FORM + b"\r\na=1"])
async def test_a_stranger_with_many_connections_loses_own_ones(server, held):
    async with AsyncExitStack() as stack:
        reader, writer = await asyncio.open_connection(*server)
        stack.callback(writer.close)
        writer.write(POST.replace(b"1000", b"5") + FORM + b"\r\na=")  # a slow upload
        await writer.drain()
        for _ in range(4 * CONNECTIONS_MAX):
            _, other = await asyncio.open_connection(*server, local_addr=("127.0.0.2", 0))
            stack.callback(other.close)
            other.write(held)
        assert await status_of(stack, server, GET + b"\r\n") == 200
        writer.write(b"123")
        async with asyncio.timeout(60):
            assert (await reader.readline()).split()[1] == b"200"


async def test_a_turn_of_the_loop_answers_one_request_and_addresses_take_turns():
    """A page takes 10 ms or more, and a stranger may ask for thousands at once."""
    turns, clients, answered = 0, [], []

    async def count(request):
        clients.append(request.client)
        answered.append(turns)
        return plain("ok")

    async with AsyncExitStack() as stack, web_server(count) as (server, _):
        for number in range(40):
            other = stack.enter_context(socket.socket())
            other.bind(("127.0.0.2" if number < 39 else "127.0.0.1", 0))
            other.connect(server)
            other.sendall((GET + b"\r\n") * 5)
        async with asyncio.timeout(60):
            while len(answered) < 200:
                await asyncio.sleep(0)
                turns += 1
    assert max(Counter(answered).values()) == 1
    assert clients.index("127.0.0.1") < 30


async def order_of(requests, **options):
    """Return the clients in the order of their answers; a request is (address, X-Forwarded-For)."""
    clients = []

    async def note(request):
        clients.append(request.client)
        return plain("ok")

    async with AsyncExitStack() as stack, web_server(note, **options) as (server, web):
        async with web._turns.hold(Requester("a long turn")):
            for address, forwarded in requests:
                _, writer = await asyncio.open_connection(*server, local_addr=(address, 0))
                stack.callback(writer.close)
                writer.write(GET + f"X-Forwarded-For: {forwarded}\r\n\r\n".encode())
            async with asyncio.timeout(60):
                while sum(it._is_queued for it in web._open) < len(requests):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            while len(clients) < len(requests):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    return clients


async def test_strangers_with_many_addresses_share_one_turn():
    strangers = [(f"127.0.1.{number}", "") for number in range(1, 31)]
    found = await order_of(
        [*strangers, ("127.0.0.3", ""), ("127.0.0.4", "")], known=["127.0.0.3", "127.0.0.4"]
    )
    assert max(found.index("127.0.0.3"), found.index("127.0.0.4")) < 3


async def test_the_clients_of_a_proxy_take_turns():
    flood = [("127.0.0.1", "192.0.2.1")] * 20
    found = await order_of([*flood, ("127.0.0.1", "192.0.2.2")], trusted_proxies="127.0.0.1")
    assert found.index("192.0.2.2") < 3


def test_half_a_request_that_made_room_is_no_error():
    """uvloop, which the program uses, raises an error if a closed connection is written to."""
    log = Mock()

    async def shed():
        async with (
            AsyncExitStack() as stack,
            web_server(app, log=log, connections_max=CONNECTIONS_MAX) as (server, web),
        ):
            for _ in range(3 * CONNECTIONS_MAX):
                _, writer = await asyncio.open_connection(*server)
                stack.callback(writer.close)
                writer.write(GET)
            assert await status_of(stack, server, GET + b"\r\n") == 200
            async with asyncio.timeout(60):
                while len(web._tasks) > CONNECTIONS_MAX:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(shed())
    assert log.mock_calls == []


async def test_requests_that_wait_for_their_turn_make_room():
    async with AsyncExitStack() as stack:
        server, web = await stack.enter_async_context(
            web_server(app, connections_max=CONNECTIONS_MAX)
        )
        async with web._turns.hold(Requester("a long turn")):
            for _ in range(2 * CONNECTIONS_MAX):
                _, writer = await asyncio.open_connection(*server, local_addr=("127.0.0.2", 0))
                stack.callback(writer.close)
                writer.write(GET + b"\r\n")
            reader, writer = await asyncio.open_connection(*server)
            stack.callback(writer.close)
            writer.write(GET + b"\r\n")
            async with asyncio.timeout(60):
                while "127.0.0.1" not in {it.network for it in web._open}:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            assert (await reader.readline()).split()[1] == b"200"


async def test_answers_that_nobody_reads_are_bounded_in_total():
    """The stranger who holds most of them loses connections; another client reads in peace."""
    answers = []

    async def large(_request):
        answers.append(plain("x" * LARGE_BYTES))
        return answers[-1]

    async with AsyncExitStack() as stack, web_server(large) as (server, web):
        reader, writer = await asyncio.open_connection(*server)
        stack.callback(writer.close)
        writer.write(GET + b"\r\n")
        assert b"200" in await reader.readline()
        count = 2 * UNSENT_BYTES_MAX // LARGE_BYTES
        for _ in range(count):
            other = stack.enter_context(socket.socket())
            other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            other.bind(("127.0.0.2", 0))
            other.connect(server)
            other.sendall(GET + b"\r\n")
        async with asyncio.timeout(60):
            while len(answers) <= count:  # noqa: ASYNC110  # the last answer comes later
                await asyncio.sleep(0.01)
            assert UNSENT_BYTES_MAX // 2 < web.unsent.total_bytes <= UNSENT_BYTES_MAX
            await reader.readuntil(b"\r\n\r\n")
            assert len(await reader.readexactly(LARGE_BYTES)) == LARGE_BYTES


async def test_answers_that_nobody_reads_hold_no_places():
    """They did for a minute, in which others got the status 503."""

    async def large(_request):
        return plain("x" * (LARGE_BYTES // 2))

    async with AsyncExitStack() as stack:
        server, web = await stack.enter_async_context(
            web_server(large, connections_max=CONNECTIONS_MAX)
        )
        for _ in range(CONNECTIONS_MAX):
            other = stack.enter_context(socket.socket())
            other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            other.bind(("127.0.0.2", 0))
            other.connect(server)
            other.sendall(GET + b"\r\n")
        async with asyncio.timeout(60):
            while web.unsent.total_bytes < CONNECTIONS_MAX * LARGE_BYTES // 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await status_of(stack, server, GET + b"\r\n") == 200


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


# -- HTTP ---------------------------------------------------------------------------------------


async def exchanged(server, sent, *, until_end=True):
    """Send bytes, and return everything that the server answers until it closes."""
    reader, writer = await asyncio.open_connection(*server)
    writer.write(sent)
    async with asyncio.timeout(60):
        found = await (reader.read() if until_end else reader.readuntil(b"\r\n\r\n"))
    writer.close()
    return found


async def test_requests_of_one_connection_are_answered_in_turn(server):
    last = GET + b"Connection: close\r\n\r\n"
    chunked = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        + FORM
        + b"\r\n2\r\na=\r\n1\r\n7\r\n0\r\n\r\n"
    )
    head = GET.replace(b"GET", b"HEAD") + b"\r\n"
    answer = await exchanged(server, chunked + head + last)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert answer.count(b"\r\n\r\nok") == 2, "an answer to HEAD has no body"
    assert answer.lower().count(b"content-length: 2\r\n") == 3
    assert answer.lower().count(b"connection: close") == 1


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (POST.replace(b"1000", b"-1") + b"\r\n", b"400"),
        (GET + b"Transfer-Encoding: gzip\r\n\r\n", b"501"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n", b"400"),
        (GET + b"X: " + b"x" * (70 << 10), b"431"),
    ],
)
async def test_what_is_not_http_is_refused(server, sent, status):
    answer = await exchanged(server, sent)
    assert answer.split()[1] == status
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_form_that_is_refused_early_gets_its_answer(server):
    form = b"a=" + b"x" * (9 << 20)
    sent = POST.replace(b"1000", str(len(form)).encode()) + FORM + b"\r\n" + form
    assert (await exchanged(server, sent)).split()[1] == b"400"


async def test_a_client_that_asks_first_sends_its_form(server):
    reader, writer = await asyncio.open_connection(*server)
    writer.write(POST.replace(b"1000", b"3") + FORM + b"Expect: 100-continue\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"a=1")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_a_form_that_ends_early_changes_nothing_and_ends_the_connection(server):
    reader, writer = await asyncio.open_connection(*server)
    writer.write(POST + FORM + b"\r\na=1")
    writer.write_eof()
    async with asyncio.timeout(60):
        assert b" 200 " not in await reader.read()
    writer.close()
    assert await exchanged(server, GET + b"\r\n", until_end=False)


async def test_a_connection_that_stays_silent_is_closed(server, monkeypatch):
    monkeypatch.setattr("cometmq.console.web.server.SILENT_S", 0.05)
    for held in (b"", GET):
        reader, writer = await asyncio.open_connection(*server)
        writer.write(held)
        async with asyncio.timeout(60):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "client"),
    [
        ("", "10.0.0.9", "1.1.1.1", "10.0.0.9"),
        ("10.0.0.9", "10.0.0.9", "", "10.0.0.9"),
        ("10.0.0.9", "10.0.0.9", "6.6.6.6, 1.1.1.1", "1.1.1.1"),
        ("10.0.0.0/8,fd00::/8", "::ffff:10.0.0.9", "1.1.1.1, fd00::7", "1.1.1.1"),
        ("10.0.0.9", "10.0.0.8", "1.1.1.1", "10.0.0.8"),
        ("10.0.0.9", "10.0.0.9", "unknown", "unknown"),
        ("*", "10.0.0.9", "1.1.1.1, 2.2.2.2", "1.1.1.1"),
    ],
)
def test_the_client_behind_a_trusted_proxy(trusted, peer, forwarded, client):
    assert Proxies(trusted).client(peer, forwarded) == client


def test_trusted_proxies_are_addresses():
    with pytest.raises(SettingsError, match=r"trustedProxies=proxy\.example"):
        Proxies("proxy.example")


def test_the_server_needs_no_package_that_does_more():
    heavy = ("starlette", "uvicorn", "anyio", "email", "http.client", "uvloop")
    code = f"import sys, cometmq.console.app\nprint([it for it in {heavy} if it in sys.modules])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
