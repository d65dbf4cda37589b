# SPDX-License-Identifier: Apache-2.0
"""Calls to the Kubernetes API from a pod, for records and for the operator.

Failed calls are not retried here: callers read the state again and decide again.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import msgspec

from cometmq.ha.places.http import JSON, LIMITS, HttpClient, HttpError, Limits, Request, parsed
from cometmq.remoting.errors import SettingsError

HOST: Final = "kubernetes.default.svc"
"""Every API server's certificate has this name."""
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MERGE_PATCH: Final = "application/merge-patch+json"
WATCH_S: Final = 60
"""The server ends a watch after this time. Longer silence means that the connection is dead."""


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
    host: str, port: int, token: Callable[[], str], ca: Path | None, limits: Limits = LIMITS
) -> Api:
    """Return an API server; without `ca` its certificate is not verified, as in tests."""
    tls = ssl.create_default_context(cafile=ca)
    if ca is None:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return Api(HttpClient(host, port, tls, limits), token)


def in_cluster(account: Path = ACCOUNT, limits: Limits = LIMITS) -> Api:
    """Return the API server of the pod's cluster; raise SettingsError outside a pod."""
    ca, token = account / "ca.crt", account / "token"
    try:
        return api_at(HOST, 443, lambda: token.read_text(encoding="ascii").strip(), ca, limits)
    except OSError as error:
        raise SettingsError(
            f"{ca} cannot be read ({error}): the API of Kubernetes needs a pod with a service"
            " account, and automountServiceAccountToken"
        ) from error
