# SPDX-License-Identifier: Apache-2.0
"""A record in a Lease of the Kubernetes API, for brokers and electors that run in pods.

The record is a JSON annotation of the Lease. The Lease's own fields repeat what users look for: the
holder's pod and, as `leaseTransitions`, the epoch. `renewTime` is left empty, because no decision
may depend on a wall clock.

A write is a merge patch with the resource version and the uid of the Lease as it was read. It
therefore changes exactly this object or nothing, and keeps labels set by other programs. Unlike a
PUT, it can never create a deleted Lease again (R10).
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from cometmq.ha.places.http import IDLE_MAX, JSON, HttpClient, HttpError, Request, parsed
from cometmq.ha.port import CONFLICT, Outcome, RecordUnreachable, applied, unknown
from cometmq.ha.record import Record, RecordDamaged, Versioned, decode_record, encode_record
from cometmq.remoting.errors import SettingsError

HOST: Final = "kubernetes.default.svc"
"""Every API server's certificate has this name."""
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MERGE_PATCH: Final = "application/merge-patch+json"
WATCH_S: Final = 60
"""The server ends a watch after this time. Longer silence means that the connection is dead."""
ANNOTATION: Final = "ha.cometmq.io/record"
LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
RETRY_S: Final = 0.5
REFUSAL_BYTES_MAX: Final = 200
"""Length of an answer in an error, unless it is a Status object of the API."""


class WatchEvent(msgspec.Struct):
    """A change of an object, as a watch reports it."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    object: msgspec.Raw


class Api:
    """An API server, and the credentials for it; many records may share it."""

    def __init__(self, client: HttpClient, token: Callable[[], str]) -> None:
        """`token` returns the current bearer token, or raises OSError if it cannot be read."""
        self.client = client
        self._token = token

    async def call(
        self, method: str, path: str, body: bytes = b"", content_type: str = JSON, *, wait_s: float
    ) -> tuple[int, bytes]:
        """Return status and body of the response; raise HttpError if there is none in time."""
        request = self._request(method, path, body, content_type)
        try:
            async with asyncio.timeout(wait_s):
                return await self.client.send(request)
        except TimeoutError as error:
            raise HttpError(f"{self.client.address} did not answer within {wait_s} s") from error

    async def watch(
        self, path: str, *, wait_s: float, **query: str
    ) -> AsyncGenerator[WatchEvent | None, None]:
        """Yield None once the watch has begun, then each event until its end; raise HttpError."""
        given = urlencode({"watch": 1, "timeoutSeconds": WATCH_S, **query})
        request = self._request("GET", f"{path}?{given}")
        stream = self.client.stream(request, waits_s=(wait_s, WATCH_S + wait_s))
        async with aclosing(stream) as lines:
            async for line in lines:
                event = parsed(line, WatchEvent) if line else None
                if event is not None and event.type == "ERROR":
                    raise HttpError(f"the watch of {path} failed: {bytes(event.object)[:200]!r}")
                yield event

    def _request(
        self, method: str, path: str, body: bytes = b"", content_type: str = JSON
    ) -> Request:
        try:
            token = self._token()
        except OSError as error:
            raise HttpError(f"cannot read the token of the service account: {error}") from error
        return Request(
            method=method,
            path=path,
            body=body,
            content_type=content_type,
            token=f"Bearer {token}" if token else "",
            is_repeatable=method == "GET",
        )


def api_at(
    host: str, port: int, token: Callable[[], str], ca: Path | None, idle_max: int = IDLE_MAX
) -> Api:
    """Return an API server; without `ca` its certificate is not verified, as in tests."""
    tls = ssl.create_default_context(cafile=ca)
    if ca is None:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return Api(HttpClient(host, port, tls, idle_max), token)


def in_cluster(account: Path = ACCOUNT) -> Api:
    """Return the API server of the pod's cluster; raise SettingsError outside a pod."""
    ca, token = account / "ca.crt", account / "token"
    try:
        return api_at(HOST, 443, lambda: token.read_text(encoding="ascii").strip(), ca)
    except OSError as error:
        raise SettingsError(
            f"{ca} cannot be read ({error}): the API of Kubernetes needs a pod with a service"
            " account, and automountServiceAccountToken"
        ) from error


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Lease(msgspec.Struct):
    metadata: _Metadata


class _Failure(msgspec.Struct):
    message: str = ""


class KubernetesRecord:
    """The record of one group, stored in a Lease."""

    def __init__(self, api: Api, namespace: str, name: str, *, timeout_ms: int = 2_000) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._place = f"Kubernetes, lease {namespace}/{name}"
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._timeout_s = timeout_ms / 1000

    async def read(self) -> Versioned | None:
        """Return the record, which the server reads from a quorum; raise RecordUnreachable."""
        try:
            status, answer = await self._call("GET", f"/{self._name}")
            lease = _found(status, answer)
        except HttpError as error:
            raise RecordUnreachable(f"cannot read the record in {self._place}: {error}") from error
        return None if lease is None else self._versioned(lease)

    async def replace(self, base: Versioned, record: Record) -> Outcome:
        """Patch the Lease if it still has the version and the uid of `base`."""
        if record.uid != base.record.uid:
            return CONFLICT
        uid, _, resource_version = base.version.partition("/")
        lease = self._lease(record, {"uid": uid, "resourceVersion": resource_version})
        # 404: the Lease was deleted; it may exist again, but with a different uid.
        return await self._write("PATCH", f"/{self._name}", lease, record, lost=(404, 409))

    async def create(self, record: Record) -> Outcome:
        """Create the Lease; an existing Lease, even without a record, is left unchanged."""
        lease = self._lease(record, {"name": self._name})
        return await self._write("POST", "", lease, record, lost=(409,))

    async def watch(self) -> AsyncIterator[Versioned | None]:
        """Yield the record and its changes as the server reports them."""
        is_first, last = True, None
        while True:
            try:
                async with aclosing(self._watch_once()) as watched:
                    async for found in watched:
                        if is_first or found != last:
                            is_first, last = False, found
                            yield found
            except (HttpError, RecordUnreachable):
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Close idle connections to the API server, including those that other records use."""
        await self._api.client.close()

    async def _watch_once(self) -> AsyncGenerator[Versioned | None, None]:
        only = f"metadata.name={self._name}"
        watched = self._api.watch(self._path, wait_s=self._timeout_s, fieldSelector=only)
        async with aclosing(watched) as events:
            async for event in events:
                if event is None:  # the watch has begun; this read has all earlier changes
                    yield await self.read()
                elif event.type == "DELETED":
                    yield None
                else:
                    yield self._versioned(parsed(event.object, _Lease))

    def _versioned(self, lease: _Lease) -> Versioned:
        metadata = lease.metadata
        text = metadata.annotations.get(ANNOTATION)
        if text is None:
            raise RecordDamaged(
                f"the record in {self._place} is missing: the lease exists without the annotation"
                f" {ANNOTATION}; delete it if nothing else uses it"
            )
        record = decode_record(text.encode(), place=self._place)
        return Versioned(record, f"{metadata.uid}/{metadata.resource_version}")

    def _lease(self, record: Record, metadata: dict[str, Any]) -> dict[str, Any]:
        annotations = {ANNOTATION: encode_record(record).decode()}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**metadata, "annotations": annotations},
            "spec": {
                "holderIdentity": f"{self._name}-{record.holder.ordinal}",
                "leaseTransitions": record.epoch,
            },
        }

    async def _write(
        self, method: str, path: str, lease: object, record: Record, *, lost: tuple[int, ...]
    ) -> Outcome:
        content_type = MERGE_PATCH if method == "PATCH" else JSON
        body = msgspec.json.encode(lease)
        try:
            status, answer = await self._call(method, path, body, content_type)
            if status in lost:
                return CONFLICT
            if status not in (200, 201):
                return self._unwritten(_refusal(status, answer))
            written = parsed(answer, _Lease).metadata
        except HttpError as error:
            return self._unwritten(str(error))
        return applied(record, f"{written.uid}/{written.resource_version}")

    def _unwritten(self, reason: str) -> Outcome:
        return unknown(f"cannot write the record in {self._place}: {reason}")

    async def _call(
        self, method: str, path: str, body: bytes = b"", content_type: str = JSON
    ) -> tuple[int, bytes]:
        path = self._path + path
        return await self._api.call(method, path, body, content_type, wait_s=self._timeout_s)


def _found(status: int, answer: bytes) -> _Lease | None:
    if status == 404:
        return None
    if status != 200:
        raise HttpError(_refusal(status, answer))
    return parsed(answer, _Lease)


def _refusal(status: int, answer: bytes) -> str:
    """Return the message of the API server, or the beginning of an answer without one."""
    try:
        text = parsed(answer, _Failure).message
    except HttpError:
        text = ""
    return (
        f"the API server answered {status}:"
        f" {text or answer[:REFUSAL_BYTES_MAX].decode(errors='replace')}"
    )


def parse_place(text: str) -> tuple[str, str]:
    """Parse a Lease in the form NAMESPACE/NAME; raise ValueError if the text is malformed."""
    namespace, _, name = text.partition("/")
    if not LABEL.fullmatch(namespace) or not SUBDOMAIN.fullmatch(name):
        raise ValueError(f"{text!r} is not NAMESPACE/NAME of a lease")
    return namespace, name
