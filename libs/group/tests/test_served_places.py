# SPDX-License-Identifier: Apache-2.0
"""Records in etcd and in a Lease: the contract, and servers whose answers cannot be used."""

import asyncio

import pytest

from cometmq.ha.port import Answer, RecordUnreachable
from cometmq.testing.ha.port_contract import CHECKS, FIRST, SECOND, new_record

DEEP = b'{"deep":' + b"[" * 9_000
OK = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.fixture(params=["etcd", "fake"], ids=["etcd", "lease"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(server, check):
    await check(server.record(), server.record(), server.delete)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{}",
        OK + b"not json",
        OK + b"{}",
        b'HTTP/1.0 403 X\r\n\r\n{"reason":"Forbidden"}',
        b'HTTP/1.0 503 X\r\n\r\n{"error":"etcdserver: request timed out","code":14}',
        OK + b" " * (1 << 20),
        b"SSH-2.0\r\n\r\n",
        OK + b'{"header":{"revision":"\xff"},"metadata":{"uid":"\xff"}}',
        OK + DEEP,
    ],
    ids=["nothing", "half", "text", "empty", "403", "503", "endless", "stranger", "latin", "deep"],
)
async def test_a_write_without_a_usable_answer_is_unknown_and_sent_once(server, answer):
    port = server.record()
    base = (await port.create(new_record())).written
    assert base
    before = len(server.requests)
    server.answer = answer
    wanted = base.record.renewed([FIRST, SECOND])
    assert (await port.replace(base, wanted)).answer is Answer.UNKNOWN
    assert len(server.requests) == before + 1
    server.answer = None
    found = await port.read()
    assert found
    assert found.record == wanted


@pytest.mark.parametrize(
    "answer",
    [
        b"not json",
        b'{"kvs":[{"value":"\xff"}],"metadata":{"uid":"\xff"}}',
        b'{"header":{"revision":"1"},"kvs":[{"value":"e30="}],"metadata":7}',
        b'{"header":{"revision":"1"},"kvs":[{"value":"abc","mod_revision":"1"}],"metadata":7}',
        b'{"header":{"revision":"1"},"kvs":[{"value":"\xc3\xa4","mod_revision":"1"}],"metadata":7}',
        DEEP,
    ],
    ids=["text", "latin", "version", "base64", "ascii", "deep"],
)
async def test_a_read_with_an_unreadable_answer_is_one_error(server, answer):
    server.answer = OK + answer
    with pytest.raises(RecordUnreachable, match="cannot read "):
        await server.record().read()


async def test_a_server_that_hangs_ends_the_call(server, monkeypatch):
    is_over = asyncio.Event()

    async def hang(_reader, writer):
        await is_over.wait()
        writer.close()

    name = "serve_next" if hasattr(server, "serve_next") else "serve"
    monkeypatch.setattr(server, name, hang)
    port = server.record(timeout_ms=50)
    with pytest.raises(RecordUnreachable, match=r"did not answer within 0\.05 s"):
        await port.read()
    assert (await port.create(new_record())).answer is Answer.UNKNOWN
    is_over.set()
