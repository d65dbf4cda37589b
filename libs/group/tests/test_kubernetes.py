# SPDX-License-Identifier: Apache-2.0
"""Records in a Lease, tested with a server that imitates the API of leases and injects faults."""

import asyncio
import contextlib
import itertools
import json
from typing import Any

import pytest

from cometmq.ha.places.http import HttpClient
from cometmq.ha.places.kube_api import Api, in_cluster
from cometmq.ha.places.kubernetes import ANNOTATION, KubernetesRecord, parse_place
from cometmq.ha.port import Answer, RecordUnreachable
from cometmq.ha.record import RecordDamaged
from cometmq.remoting.errors import SettingsError
from cometmq.testing.ha.port_contract import CHECKS, FIRST, SECOND, new_record

PATH = "/apis/coordination.k8s.io/v1/namespaces/mq/leases"


class FakeApi:
    """One namespace's leases: create, get, merge patch with preconditions, watch.

    Like the real server, it keeps connections open after a response.
    """

    def __init__(self):
        self.versions = itertools.count(7)
        self.uids = itertools.count(1)
        self.lease: Any = None
        self.token = "secret"
        self.answer = None
        """Answer sent instead of the right one, after the request has been served."""
        self.requests = []
        self.watchers = set()
        self.port = 0
        self.connections = 0
        self.open = set()
        self.records = []

    def record(self, token=lambda: "secret"):
        """Return a record, which the fixture closes."""
        api = Api(HttpClient("127.0.0.1", self.port), token)
        self.records.append(KubernetesRecord(api, "mq", "orders"))
        return self.records[-1]

    async def serve(self, reader, writer):
        self.connections += 1
        self.open.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while not writer.is_closing():
                await self.serve_next(reader, writer)
        writer.close()
        self.open.discard(writer)

    async def serve_next(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.partition("Content-Length: ")[2].split()[0])
        body = await reader.readexactly(length)
        method, path, _ = head.split(maxsplit=2)
        self.requests.append(method)
        if f"Authorization: Bearer {self.token}\r\n" not in head:
            self.reply(writer, 401, {"reason": "Unauthorized"})
        elif "watch=1" in path:
            await self.serve_watch(writer)
        else:
            self.reply(writer, *self.serve_request(method, path, json.loads(body or b"{}")))

    def reply(self, writer, status, answer):
        text = json.dumps(answer).encode()
        reply = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text)
        writer.write(reply if self.answer is None else self.answer)
        if self.answer is not None:
            writer.close()

    def serve_request(self, method, path, body):
        if method == "POST":
            assert path == PATH
            if self.lease is not None:
                return 409, {"reason": "AlreadyExists"}
            self.lease = body
            body["metadata"]["uid"] = f"object-{next(self.uids)}"
            return 201, self.changed("ADDED")
        assert path == f"{PATH}/orders"
        if self.lease is None:
            return 404, {"reason": "NotFound"}
        if method == "GET":
            return 200, self.lease
        assert method == "PATCH"
        ours, theirs = self.lease["metadata"], body["metadata"]
        if any(ours[key] != theirs[key] for key in ("uid", "resourceVersion")):
            return 409, {"reason": "Conflict"}
        ours["annotations"] |= theirs["annotations"]
        self.lease["spec"] |= body["spec"]
        return 200, self.changed("MODIFIED")

    def changed(self, kind):
        self.lease["metadata"]["resourceVersion"] = str(next(self.versions))
        self.tell(kind)
        return self.lease

    def tell(self, kind):
        event = json.dumps({"type": kind, "object": self.lease}).encode()
        for writer in self.watchers:
            writer.write(event + b"\n")

    async def serve_watch(self, writer):
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        if self.lease is not None:
            writer.write(json.dumps({"type": "ADDED", "object": self.lease}).encode() + b"\n")
        self.watchers.add(writer)

    async def delete(self):
        self.changed("DELETED")
        self.lease = None

    def end_watches(self):
        for writer in self.watchers:
            writer.close()
        self.watchers.clear()


@pytest.fixture
async def fake():
    one = FakeApi()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    yield one
    for record in one.records:
        await record.close()
    for writer in tuple(one.open | one.watchers):
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(fake, check):
    await check(fake.record(), fake.record(), fake.delete)


async def test_people_see_the_holder_and_the_epoch(fake):
    port = fake.record()
    base = (await port.create(new_record())).written
    assert base
    fake.lease["metadata"]["labels"] = {"team": "sales"}
    await port.replace(base, base.record.elected(SECOND, 4))
    assert fake.lease["spec"] == {"holderIdentity": "orders-1", "leaseTransitions": 4}
    assert fake.lease["metadata"]["labels"] == {"team": "sales"}
    assert json.loads(fake.lease["metadata"]["annotations"][ANNOTATION])["group"] == "orders"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\nnot json",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b'HTTP/1.0 403 X\r\n\r\n{"reason":"Forbidden"}',
        b'HTTP/1.0 504 X\r\n\r\n{"reason":"Timeout"}',
        b'HTTP/1.0 200 OK\r\n\r\n{"metadata":{"uid":"\xff"}}',
        b'HTTP/1.0 504 X\r\n\r\n{"deep":' + b"[" * 9_000,
    ],
    ids=["nothing", "half", "text", "empty", "403", "504", "latin", "deep"],
)
async def test_a_write_without_a_usable_answer_is_unknown_and_sent_once(fake, answer):
    port = fake.record()
    base = (await port.create(new_record())).written
    assert base
    fake.answer = answer
    wanted = base.record.renewed([FIRST, SECOND])
    assert (await port.replace(base, wanted)).answer is Answer.UNKNOWN
    assert fake.requests == ["POST", "PATCH"]
    fake.answer = None
    found = await port.read()
    assert found
    assert found.record == wanted


@pytest.mark.parametrize(
    "answer",
    [b"not json", b'{"metadata":{"uid":"\xff"}}', b'{"deep":' + b"[" * 9_000],
    ids=["text", "latin", "deep"],
)
async def test_a_read_with_an_unreadable_answer_is_one_error(fake, answer):
    fake.answer = b"HTTP/1.0 200 OK\r\n\r\n" + answer
    with pytest.raises(RecordUnreachable, match="cannot read the record in Kubernetes"):
        await fake.record().read()


async def test_a_write_whose_kept_connection_breaks_is_unknown_and_sent_once(fake):
    port = fake.record()
    base = (await port.create(new_record())).written
    assert base
    fake.answer = b""
    assert (await port.replace(base, base.record.renewed())).answer is Answer.UNKNOWN
    assert fake.requests == ["POST", "PATCH"]
    assert fake.connections == 1


async def test_a_read_whose_kept_connection_breaks_is_repeated_once(fake):
    port = fake.record()
    assert await port.read() is None
    fake.answer = b""
    with pytest.raises(RecordUnreachable, match="no usable response"):
        await port.read()
    assert fake.requests == ["GET"] * 3
    assert fake.connections == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b'403 X\r\n\r\n{"message":"brokers may not create leases"}', "brokers may not create"),
        (b"502 X\r\n\r\n<html>a proxy", "<html>a proxy"),
    ],
    ids=["status", "text"],
)
async def test_a_refused_write_repeats_the_reason(fake, answer, reason):
    port = fake.record()
    fake.answer = b"HTTP/1.0 " + answer
    outcome = await port.create(new_record())
    assert outcome.answer is Answer.UNKNOWN
    assert outcome.reason.startswith(
        "cannot write the record in Kubernetes, lease mq/orders: the API server answered"
        f" {answer[:3].decode()}: {reason}"
    )


async def test_a_refused_read_repeats_the_reason(fake):
    port = fake.record(lambda: "wrong")
    with pytest.raises(RecordUnreachable, match=r"lease mq/orders: .*401.*Unauthorized"):
        await port.read()


async def test_a_server_that_hangs_ends_the_call():
    is_over = asyncio.Event()

    async def hang(reader, writer):
        await is_over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    api = Api(HttpClient("127.0.0.1", server.sockets[0].getsockname()[1]), lambda: "")
    port = KubernetesRecord(api, "mq", "orders", timeout_ms=50)
    with pytest.raises(RecordUnreachable, match=r"did not answer within 0\.05 s"):
        await port.read()
    assert (await port.create(new_record())).answer is Answer.UNKNOWN
    is_over.set()
    server.close()
    await server.wait_closed()


async def test_a_lease_without_a_record_is_named_and_kept(fake):
    fake.lease = {"metadata": {"uid": "x", "resourceVersion": "1", "annotations": {}}, "spec": {}}
    port = fake.record()
    with pytest.raises(RecordDamaged, match=r"lease mq/orders is missing: .*delete it"):
        await port.read()
    assert (await port.create(new_record())).answer is Answer.CONFLICT


async def test_a_watch_continues_after_the_server_ends_it(fake):
    port = fake.record()
    async with asyncio.timeout(60):
        watched = aiter(port.watch())
        assert await anext(watched) is None
        base = (await port.create(new_record())).written
        assert base
        assert await anext(watched) == base
        fake.end_watches()
        outcome = await port.replace(base, base.record.renewed())
        assert await anext(watched) == outcome.written


async def test_the_token_is_read_for_each_request(fake):
    tokens = iter(["secret", "stale", "secret"])
    port = fake.record(lambda: next(tokens))
    assert await port.read() is None
    with pytest.raises(RecordUnreachable, match="401"):
        await port.read()
    assert await port.read() is None
    assert fake.connections == 1


async def test_an_unreadable_token_is_an_unreachable_record(fake, tmp_path):
    with pytest.raises(RecordUnreachable, match="token of the service account"):
        await fake.record((tmp_path / "token").read_text).read()


def test_outside_a_pod_the_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"ca\.crt cannot be read .* service account"):
        in_cluster(tmp_path)


@pytest.mark.parametrize("text", ["", "orders", "/orders", "mq/", "MQ/orders", "mq/or_ders"])
def test_a_place_is_a_namespace_and_a_name(text):
    with pytest.raises(ValueError, match="is not NAMESPACE/NAME"):
        parse_place(text)
