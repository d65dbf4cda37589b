# SPDX-License-Identifier: Apache-2.0
"""A record in etcd 3, through the JSON gateway that every member of an etcd cluster serves.

Two calls are used: a linearizable range, and a transaction that compares the revision of the key.
Revisions increase across the whole cluster, so a deleted key's revisions are never reused. Python's
etcd clients are unmaintained, and gRPC would be a large dependency for two calls.
"""

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final

import msgspec

from cometmq.ha.places.http import HttpClient, HttpError, NotSent, Request, parsed
from cometmq.ha.port import CONFLICT, Outcome, RecordUnreachable, applied, poll, unknown
from cometmq.ha.record import Record, Versioned, decode_record, encode_record
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.tasks import sleep_on_grid

ABSENT: Final = "0"
"""The revision of a key that does not exist, in etcd's comparisons."""
UNAUTHENTICATED: Final = (401, 16)
"""The HTTP status or, if the response has a different status, the gRPC code in its body."""


class _KeyValue(msgspec.Struct):
    mod_revision: str
    value: str = ""


class _Header(msgspec.Struct):
    revision: str


class _Range(msgspec.Struct):
    header: _Header  # without it, another program's `{}` would mean that there is no record
    kvs: list[_KeyValue] = []


class _Transaction(msgspec.Struct):
    header: _Header
    succeeded: bool = False


class _Token(msgspec.Struct):
    token: Annotated[str, msgspec.Meta(pattern=r"\A[!-~]*\Z")]  # a header's value is ASCII


class _Refusal(msgspec.Struct):
    code: int = 0


class EtcdRecord:
    """The record of one group, stored under a key of etcd."""

    def __init__(
        self,
        endpoints: Sequence[str],
        key: str,
        *,
        tls: ssl.SSLContext | None = None,
        login: tuple[str, str] | None = None,
        timeout_ms: int = 2_000,
        poll_interval_ms: int = 250,
    ) -> None:
        """Try `endpoints` (HOST:PORT) in this order on each call; `login` is user and password."""
        self._clients = [HttpClient(*parse_address(endpoint), tls) for endpoint in endpoints]
        self._key = key
        self._login = login
        self._timeout_s = timeout_ms / 1000
        self._poll_interval_ms = poll_interval_ms
        self._token = ""

    async def read(self) -> Versioned | None:
        """Return the record, confirmed by a quorum of etcd's members; raise RecordUnreachable."""
        request = {"key": _encoded(self._key.encode())}
        try:
            data = await self._call("/v3/kv/range", request, is_repeatable=True)
            found = parsed(data, _Range).kvs
            value = b64decode(found[0].value) if found else b""
        except (HttpError, ValueError) as error:  # no base64, too
            raise RecordUnreachable(f"cannot read {self._key} from etcd: {error}") from error
        if not found:
            return None
        record = decode_record(value, place=f"etcd, key {self._key}")
        return Versioned(record, found[0].mod_revision)

    async def replace(self, base: Versioned, record: Record) -> Outcome:
        """Replace the record if its revision matches `base`, which implies the same uid."""
        if record.uid != base.record.uid:
            return CONFLICT
        return await self._write(base.version, record)

    async def create(self, record: Record) -> Outcome:
        """Write the key if it does not exist."""
        return await self._write(ABSENT, record)

    def watch(self) -> AsyncIterator[Versioned | None]:
        """Yield the record and its changes, polling the key every `poll_interval_ms`."""
        return poll(self.read, sleep=sleep_on_grid, interval_ms=self._poll_interval_ms)

    async def close(self) -> None:
        """Close idle connections to all endpoints."""
        for client in self._clients:
            await client.close()

    async def _write(self, revision: str, record: Record) -> Outcome:
        key = _encoded(self._key.encode())
        compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}
        put = {"key": key, "value": _encoded(encode_record(record))}
        request = {"compare": [compare], "success": [{"request_put": put}]}
        try:
            data = await self._call("/v3/kv/txn", request, is_repeatable=False)
            done = parsed(data, _Transaction)
        except HttpError as error:
            return unknown(f"cannot write {self._key} in etcd: {error}")
        return applied(record, done.header.revision) if done.succeeded else CONFLICT

    async def _call(self, path: str, content: object, *, is_repeatable: bool) -> bytes:
        """Try the endpoints in order, but stop once one of them may have received a write."""
        failed: HttpError = HttpError("no endpoints are configured")
        request = _post(path, content, is_repeatable=is_repeatable)
        for client in self._clients:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._ask(client, request)
            except TimeoutError:
                failed = HttpError(f"{client.address} did not answer within {self._timeout_s} s")
            except HttpError as error:
                failed = error
            if not (is_repeatable or isinstance(failed, NotSent)):
                break
        raise failed

    async def _ask(self, client: HttpClient, request: Request) -> bytes:
        if self._login and not self._token:
            self._token = await self._log_in(client, *self._login)
        status, answer = await client.send(msgspec.structs.replace(request, token=self._token))
        if self._login and _is_unauthenticated(status, answer):  # tokens expire
            self._token = await self._log_in(client, *self._login)
            status, answer = await client.send(msgspec.structs.replace(request, token=self._token))
        if status != 200:
            text = answer[:200].decode(errors="replace")
            raise HttpError(f"{client.address} answered {status}: {text}")
        return answer

    async def _log_in(self, client: HttpClient, user: str, password: str) -> str:
        content = {"name": user, "password": password}
        request = _post("/v3/auth/authenticate", content, is_repeatable=True)
        status, answer = await client.send(request)
        if status != 200:
            raise NotSent(f"{client.address} does not accept the user {user!r}: {status}")
        try:
            return parsed(answer, _Token).token
        except HttpError as error:
            raise NotSent(f"{client.address} answered the log-in with nonsense: {error}") from error


def _post(path: str, content: object, *, is_repeatable: bool) -> Request:
    body = msgspec.json.encode(content)
    return Request(method="POST", path=path, body=body, is_repeatable=is_repeatable)


def _is_unauthenticated(status: int, answer: bytes) -> bool:
    try:
        code = parsed(answer, _Refusal).code if status != 200 else 0
    except HttpError:
        code = 0
    return status == UNAUTHENTICATED[0] or code == UNAUTHENTICATED[1]


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()
