# SPDX-License-Identifier: Apache-2.0
"""Records in etcd, tested with a server that imitates etcd's gateway and injects faults.

`tests/compat/test_etcd.py` runs the same checks with etcd itself.
"""

import asyncio
import json
from base64 import b64decode, b64encode

import pytest

from cometmq.ha.places.etcd import EtcdRecord
from cometmq.ha.port import Answer, RecordUnreachable
from cometmq.ha.record import RecordDamaged
from cometmq.remoting.errors import SettingsError
from cometmq.testing.ha.port_contract import CHECKS, FIRST, SECOND, new_record


class FakeEtcd:
    """A server with one key, its revisions, and the answers of etcd 3.4's gateway."""

    def __init__(self):
        self.revision = 1
        self.value = None
        self.mod_revision = 0
        self.needs_token = ""
        self.answer = None
        """Answer sent instead of the right one, after the request has been served."""
        self.requests = []
        self.address = ""

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.partition("Content-Length: ")[2].split()[0])
        body = json.loads(await reader.readexactly(length))
        path = head.split()[1]
        self.requests.append(path)
        status, answer = self.serve_request(path, body, head)
        text = json.dumps(answer).encode()
        reply = b"HTTP/1.0 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text)
        writer.write(reply if self.answer is None else self.answer)
        await writer.drain()
        writer.close()

    def serve_request(self, path, body, head):
        if path == "/v3/auth/authenticate":
            if (body["name"], body["password"]) != ("cometmq", "secret"):
                return 400, {"error": "authentication failed", "code": 3}
            return 200, {"header": {}, "token": self.needs_token}
        if self.needs_token and f"Authorization: {self.needs_token}\r\n" not in head:
            return 401, {"error": "etcdserver: invalid auth token", "code": 16}
        if path == "/v3/kv/range":
            return 200, self.range()
        return 200, self.transaction(body)

    def range(self):
        if self.value is None:
            return {"header": {"revision": str(self.revision)}}
        value = {"value": self.value, "mod_revision": str(self.mod_revision), "version": "1"}
        return {"header": {"revision": str(self.revision)}, "kvs": [value], "count": "1"}

    def transaction(self, body):
        (compare,) = body["compare"]
        (operation,) = body["success"]
        assert (compare["target"], compare["result"]) == ("MOD", "EQUAL")
        if int(compare["mod_revision"]) != self.mod_revision:
            return {"header": {"revision": str(self.revision)}}
        self.revision += 1
        self.mod_revision, self.value = self.revision, operation["request_put"]["value"]
        return {"header": {"revision": str(self.revision)}, "succeeded": True, "responses": [{}]}

    async def delete(self):
        self.revision += 1
        self.mod_revision, self.value = 0, None


@pytest.fixture
async def etcd():
    fake = FakeEtcd()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    yield fake
    server.close()
    await server.wait_closed()


@pytest.fixture
async def closed_address():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    server.close()
    await server.wait_closed()
    return address


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(etcd, check):
    one, other = (EtcdRecord([etcd.address], "/g", poll_interval_ms=5) for _ in range(2))
    await check(one, other, etcd.delete)


async def test_a_member_that_is_down_is_passed_over(etcd, closed_address):
    port = EtcdRecord([closed_address, etcd.address], "/g")
    assert (await port.create(new_record())).answer is Answer.APPLIED
    found = await port.read()
    assert found
    assert found.record == new_record()


async def test_without_any_member_nothing_is_known(closed_address):
    port = EtcdRecord([closed_address], "/orders")
    with pytest.raises(RecordUnreachable, match=r"cannot read /orders from etcd: cannot connect"):
        await port.read()
    outcome = await port.create(new_record())
    assert outcome.answer is Answer.UNKNOWN
    assert outcome.reason.startswith("cannot write /orders in etcd: cannot connect")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\nnot json",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b'HTTP/1.0 503 X\r\n\r\n{"error":"etcdserver: request timed out","code":14}',
        b"HTTP/1.0 200 OK\r\n\r\n" + b" " * (1 << 20),
        b"SSH-2.0\r\n\r\n",
        b'HTTP/1.0 200 OK\r\n\r\n{"header":{"revision":"\xff"}}',
        b'HTTP/1.0 200 OK\r\n\r\n{"deep":' + b"[" * 9_000,
    ],
    ids=["nothing", "half", "text", "empty", "503", "endless", "stranger", "latin", "deep"],
)
async def test_a_write_without_a_usable_answer_is_unknown_and_sent_once(etcd, answer):
    port = EtcdRecord([etcd.address, etcd.address], "/g")
    etcd.answer = answer
    assert (await port.create(new_record())).answer is Answer.UNKNOWN
    assert etcd.requests == ["/v3/kv/txn"]
    etcd.answer = None
    found = await port.read()
    assert found
    assert found.record == new_record()


@pytest.mark.parametrize(
    "answer",
    [
        b"not json",
        b"{}",
        b'{"kvs":[{"value":"\xff"}]}',
        b'{"header":{"revision":"1"},"kvs":[{"value":"e30="}]}',
        b'{"header":{"revision":"1"},"kvs":[{"value":"abc","mod_revision":"1"}]}',
        b'{"header":{"revision":"1"},"kvs":[{"value":"\xc3\xa4","mod_revision":"1"}]}',
        b'{"deep":' + b"[" * 9_000,
    ],
    ids=["text", "empty", "latin", "version", "base64", "ascii", "deep"],
)
async def test_a_read_with_an_unreadable_answer_is_one_error(etcd, answer):
    etcd.answer = b"HTTP/1.0 200 OK\r\n\r\n" + answer
    with pytest.raises(RecordUnreachable, match="cannot read /g from etcd"):
        await EtcdRecord([etcd.address], "/g").read()


async def test_a_read_without_a_usable_answer_goes_to_the_next_member(etcd):
    port = EtcdRecord([etcd.address, etcd.address], "/g")
    etcd.answer = b"HTTP/1.0 503 X\r\n\r\nno leader"
    with pytest.raises(RecordUnreachable, match=f"{etcd.address} answered 503: no leader"):
        await port.read()
    assert etcd.requests == ["/v3/kv/range"] * 2


async def test_a_member_that_hangs_ends_the_call():
    is_over = asyncio.Event()

    async def hang(reader, writer):
        await is_over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    port = EtcdRecord([address], "/g", timeout_ms=50)
    with pytest.raises(RecordUnreachable, match=r"did not answer within 0\.05 s"):
        await port.read()
    assert (await port.create(new_record())).answer is Answer.UNKNOWN
    is_over.set()
    server.close()
    await server.wait_closed()


async def test_a_user_logs_in_and_again_when_the_token_has_expired(etcd):
    etcd.needs_token = "one"
    port = EtcdRecord([etcd.address], "/g", login=("cometmq", "secret"))
    base = (await port.create(new_record())).written
    assert base
    etcd.needs_token = "two"
    outcome = await port.replace(base, base.record.renewed([FIRST, SECOND]))
    assert outcome.answer is Answer.APPLIED
    assert etcd.requests.count("/v3/auth/authenticate") == 2


@pytest.mark.parametrize("token", ["é", "a\nb", "\x00", " "])
async def test_a_token_that_no_header_can_carry_is_not_kept(etcd, token):
    port = EtcdRecord([etcd.address], "/g", login=("cometmq", "secret"))
    etcd.needs_token = token
    with pytest.raises(RecordUnreachable, match="answered the log-in with nonsense"):
        await port.read()
    etcd.needs_token = "one"
    assert await port.read() is None


async def test_a_wrong_password_is_named(etcd):
    etcd.needs_token = "one"
    port = EtcdRecord([etcd.address], "/g", login=("cometmq", "wrong"))
    with pytest.raises(RecordUnreachable, match="does not accept the user 'cometmq'"):
        await port.read()


async def test_a_value_that_is_no_record_is_named(etcd):
    etcd.value = b64encode(b"{}").decode()
    with pytest.raises(RecordDamaged, match="etcd, key /orders"):
        await EtcdRecord([etcd.address], "/orders").read()


async def test_the_value_is_readable_json(etcd):
    await EtcdRecord([etcd.address], "/g").create(new_record())
    assert json.loads(b64decode(etcd.value))["group"] == "orders"


@pytest.mark.parametrize(
    "endpoint", ["", "host", "host:", ":2379", "http://host", "http://host:2379", "host:65536"]
)
def test_an_endpoint_is_host_and_port(endpoint):
    with pytest.raises(SettingsError, match=f"not an address: {endpoint!r}; give host:port"):
        EtcdRecord([endpoint], "/g")
