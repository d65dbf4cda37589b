# SPDX-License-Identifier: Apache-2.0
"""Connections of the HTTP client are kept, bounded and closed; no write is sent twice."""

import asyncio
import contextlib
import socket
from collections import deque
from typing import NamedTuple

import pytest

from cometmq.ha.places import http
from cometmq.ha.places.http import HttpClient, HttpError, NotSent, Request

READ = Request(method="GET", path="/", is_repeatable=True)
WRITE = Request(method="PATCH", path="/", body=b"{}")
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
DEADLINE_S = 60


class Answer(NamedTuple):
    data: bytes = WHOLE
    closes: bool = False
    hangs: bool = False


BREAK = Answer(b"", closes=True)
HANG = Answer(hangs=True)


class Server:
    """Gives the answers in order, and `WHOLE` once there are none left."""

    def __init__(self):
        self.answers: deque[Answer] = deque()
        self.requests = []
        """The number of the connection and the method, for each request."""
        self.connections = []
        self.ended = []
        """Numbers of the connections that the client has closed."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.port = 0

    async def serve(self, reader, writer):
        number = len(self.connections)
        self.connections.append(writer)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append((number, head.split()[0].decode()))
                answer = self.answers.popleft() if self.answers else Answer()
                if answer != BREAK:  # which leaves a write's body unread
                    await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
                await self.gate.wait()
                if answer.hangs:
                    await reader.readexactly(1)  # until the client gives up
                writer.write(answer.data)
                if answer.closes:
                    break
        except (EOFError, OSError):
            self.ended.append(number)
        finally:
            writer.close()

    async def close_idle(self):
        """Close all connections, as a server does after its idle timeout."""
        for writer in self.connections:
            writer.close()
            with contextlib.suppress(OSError):  # the client has reset it
                await writer.wait_closed()

    async def until(self, condition):
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110  # states of several parts
                await asyncio.sleep(0.001)


@pytest.fixture
async def server():
    one = Server()
    listening = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = listening.sockets[0].getsockname()[1]
    yield one
    await one.close_idle()
    listening.close()
    await listening.wait_closed()


@pytest.fixture
async def client(server):
    one = HttpClient("127.0.0.1", server.port)
    yield one
    await one.close()


def test_the_host_header_of_an_ipv6_address_has_brackets():
    assert HttpClient("fd00::1", 2379).address == "[fd00::1]:2379"
    assert HttpClient("etcd", 2379).address == "etcd:2379"


async def test_requests_share_a_connection(server, client):
    for request in (READ, WRITE, READ):
        assert await client.send(request) == (200, b"{}")
    assert server.requests == [(0, "GET"), (0, "PATCH"), (0, "GET")]


@pytest.mark.parametrize("request_", [READ, WRITE], ids=lambda one: one.method)
async def test_a_connection_closed_while_idle_is_replaced_before_use(server, client, request_):
    await client.send(READ)
    await server.close_idle()
    assert await client.send(request_) == (200, b"{}")
    assert server.requests == [(0, "GET"), (1, request_.method)]


async def test_a_write_on_a_connection_that_breaks_is_sent_once(server, client):
    await client.send(READ)
    server.answers.append(BREAK)
    with pytest.raises(HttpError) as failed:
        await client.send(WRITE)
    assert not isinstance(failed.value, NotSent)
    assert server.requests == [(0, "GET"), (0, "PATCH")]
    await client.send(WRITE)
    assert server.requests[2:] == [(1, "PATCH")]


async def test_a_write_whose_response_is_cut_short_is_sent_once(server, client):
    await client.send(READ)
    server.answers.append(Answer(WHOLE[:-1], closes=True))
    with pytest.raises(HttpError, match="no usable response"):
        await client.send(WRITE)
    assert server.requests == [(0, "GET"), (0, "PATCH")]


async def test_a_read_on_a_connection_that_breaks_is_repeated(server, client):
    await client.send(READ)
    server.answers.append(BREAK)
    assert await client.send(READ) == (200, b"{}")
    assert server.requests == [(0, "GET"), (0, "GET"), (1, "GET")]


async def test_a_read_is_repeated_only_once(server, client):
    server.answers.extend([BREAK, BREAK])
    with pytest.raises(HttpError, match="no usable response"):
        await client.send(READ)
    assert server.requests == [(0, "GET"), (1, "GET")]


async def test_after_a_503_another_backend_is_asked(server, client):
    server.answers.append(Answer(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}"))
    assert await client.send(READ) == (503, b"{}")
    await server.until(lambda: server.ended == [0])
    await client.send(READ)
    assert server.requests == [(0, "GET"), (1, "GET")]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}abc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (http.ANSWER_BYTES_MAX + 1),
        b"SSH-2.0\r\n\r\n",
    ],
    ids=["longer", "coding", "length", "large", "stranger"],
)
async def test_an_unusable_response_ends_its_connection(server, client, answer):
    await client.send(READ)
    server.answers.append(Answer(answer, closes=True))
    with pytest.raises(HttpError, match="no usable response"):
        await client.send(WRITE)
    await client.send(WRITE)
    assert server.requests == [(0, "GET"), (0, "PATCH"), (1, "PATCH")]


async def together(server, client, count):
    """Send requests that are in progress at the same time."""
    before = len(server.requests)
    server.gate.clear()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(client.send(READ))
        await server.until(lambda: len(server.requests) == before + count)
        server.gate.set()


async def test_a_silent_connection_costs_one_deadline(server, client):
    """All idle connections probably lead to the server that has just been silent."""
    await together(server, client, 2)
    server.answers.append(HANG)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.send(READ)
    await server.until(lambda: sorted(server.ended) == [0, 1])
    await client.send(WRITE)
    assert server.requests[-1] == (2, "PATCH")


async def test_the_number_of_idle_connections_is_bounded(server, client):
    await together(server, client, 5)
    await server.until(lambda: len(server.ended) == 5 - http.IDLE_MAX)
    await together(server, client, 5)
    assert len(server.connections) == 10 - http.IDLE_MAX


async def test_without_a_server_nothing_is_sent():
    with socket.socket() as silent:  # keeps the port, but does not listen
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(NotSent, match="cannot connect"):
            await HttpClient(*silent.getsockname()).send(WRITE)
