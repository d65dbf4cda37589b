# SPDX-License-Identifier: Apache-2.0
"""Servers that imitate etcd's gateway and the API of leases, and inject faults."""

import asyncio
import contextlib
import itertools
import json
from typing import Any

import pytest

from cometmq.ha.places.etcd import EtcdRecord
from cometmq.ha.places.http import HttpClient
from cometmq.ha.places.kubernetes import Api, KubernetesRecord


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

    def record(self, **options: Any) -> EtcdRecord:
        """Return a record with two endpoints, because a write must not go to the next one."""
        return EtcdRecord([self.address] * 2, "/orders", poll_interval_ms=5, **options)

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

    async def serve(reader, writer):
        await fake.serve(reader, writer)  # which a test may have replaced

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    fake.address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    yield fake
    server.close()
    await server.wait_closed()


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

    def record(self, token=lambda: "secret", **options: Any) -> KubernetesRecord:
        """Return a record, which the fixture closes."""
        api = Api(HttpClient("127.0.0.1", self.port), token)
        self.records.append(KubernetesRecord(api, "mq", "orders", **options))
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
