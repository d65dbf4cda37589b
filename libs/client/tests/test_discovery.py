# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.client import InvalidArgument, Message, NoNamesrv, Producer, ProducerOptions
from cometmq.client.cluster.namesrv import find_addresses
from cometmq.client.option_checks import fetch_namesrv_list
from cometmq.client.testing import MemoryCluster


class AddressServer:
    """Answers every HTTP request with the same text."""

    def __init__(self) -> None:
        self.status = "200 OK"
        self.text = ""
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = self.text.encode()
        head = f"HTTP/1.1 {self.status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[AddressServer]:
    address_server = AddressServer()
    listener = await asyncio.start_server(address_server.answer, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    address_server.url = f"http://127.0.0.1:{port}/rocketmq/nsaddr"
    yield address_server
    listener.close()
    await listener.wait_closed()


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


async def test_a_client_finds_its_name_server_over_http(
    server: AddressServer, cluster: MemoryCluster
) -> None:
    server.text = f"{cluster.namesrv}\nsomething else"
    options = ProducerOptions(namesrv_url=server.url)
    async with Producer("pg", options=options) as producer:
        await producer.send(Message("T", b"x"))
    assert [message.body for message in cluster.messages("T")] == [b"x"]


async def test_an_address_given_makes_the_list_unnecessary(server: AddressServer) -> None:
    server.text = "b:2"
    assert await find_addresses("a:1", server.url) == ["a:1"]
    assert await find_addresses("", server.url) == ["b:2"]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        *(("404 Not Found", "a:1"), ("204 No Content", "a:1"), ("200 OK", " \n"), ("none", "a:1")),
        ("200 OK\r\nTransfer-Encoding: chunked", "9\r\na:1"),
    ],
)
async def test_other_answers_yield_no_name_server(
    server: AddressServer, status: str, text: str
) -> None:
    server.status, server.text = status, text
    with pytest.raises(NoNamesrv):
        await fetch_namesrv_list(server.url)


async def test_only_http_is_asked() -> None:
    with pytest.raises(InvalidArgument):
        await fetch_namesrv_list("file:///etc/hostname")
    with pytest.raises(NoNamesrv, match="does not answer"):
        await fetch_namesrv_list("http://127.0.0.1:1/")
