# SPDX-License-Identifier: Apache-2.0
"""HTTP clients at a port of the remoting protocol learn why they are not served."""

import asyncio
import ssl
from typing import Any

import grpc
import pytest

from cometmq.remoting.codes import request_name
from cometmq.remoting.http_clients import PREFACE, RECEIVED_BYTES_MAX, Farewell, HttpSpoken
from cometmq.remoting.transport import ServerSettings, TlsMode, TlsSettings

from .conftest import TLS_KINDS, StartServer, starter

PERMISSIVE = ServerSettings(tls=TlsSettings(mode=TlsMode.PERMISSIVE))
METHOD = "/apache.rocketmq.v2.MessagingService/QueryRoute"
SETTINGS = bytes.fromhex("000000040000000000")


@pytest.fixture(params=TLS_KINDS)
def start_server(start_plain_server: StartServer, request: pytest.FixtureRequest) -> StartServer:
    """Start a server whose connections are also served by native code."""
    return starter(start_plain_server, request.param)


async def test_a_grpc_client_shows_the_reason(start_server: Any) -> None:
    refused: list[Any] = []

    def note(_context: object, call: Any, code: int, remark: str) -> None:
        refused.append((request_name(call.code), code, remark, call.peer.address))

    _, port = await start_server({}, ServerSettings(), refused=note)

    def call() -> grpc.RpcError:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(METHOD)(b"", timeout=60)
            return error.value

    error: Any = await asyncio.to_thread(call)

    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "remoting client" in error.details()
    name, code, remark, address = refused[0]
    assert (name, code, remark) == ("PRI of HTTP", 1, error.details())
    assert address.startswith("127.0.0.1:")


async def exchange(port: int, parts: list[bytes], tls: ssl.SSLContext | None = None) -> bytes:
    """Return what the server sends until it closes the connection."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        if tls is not None:
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        received = await reader.read()
        writer.close()
        return received


async def test_an_http_1_client_is_answered_with_400(start_server: Any) -> None:
    server, port = await start_server({}, ServerSettings())
    requests = [
        b"%b / HTTP/1.1\r\nHost: here\r\n\r\n" % method
        for method in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE")
    ]
    in_parts = [[it[:3], it[3:6], it[6:]] for it in requests]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(exchange(port, parts))
            for parts in [*in_parts, *([it] for it in requests)]
        ]
    assert server.stats().protocol_errors == len(tasks)
    for task in tasks:
        head, _, body = task.result().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"Content-Length: %d" % len(body) in head
        assert b"remoting" in body


async def test_http_2_is_agreed_on_and_answered_in_tls(start_server: Any) -> None:
    _, port = await start_server({}, PERMISSIVE)
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.set_alpn_protocols(["http/1.1", "h2"])

    received = await exchange(port, [PREFACE + SETTINGS], tls)

    assert received.startswith(SETTINGS)
    assert b"gRPC client" in received  # in GOAWAY: the client opens no stream


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_does_not_depend_on_the_parts_of_a_request(size: int) -> None:
    data = PREFACE + SETTINGS + bytes.fromhex("000002010400000001") + b"xx" + bytes(100)
    whole = Farewell(HttpSpoken(data)).feed(data)
    farewell = Farewell(HttpSpoken(data[:4]))
    parts = (data[at : at + size] for at in range(0, len(data), size))
    assert b"".join(map(farewell.feed, parts)) == whole
    assert farewell.is_over


def test_a_client_that_never_opens_a_stream_is_bounded() -> None:
    farewell = Farewell(HttpSpoken(PREFACE))
    farewell.feed(PREFACE)
    for _ in range(RECEIVED_BYTES_MAX // 1000 + 1):
        farewell.feed(bytes(1000))
    assert farewell.is_over
