# SPDX-License-Identifier: Apache-2.0
"""Calls to the Kubernetes API: get, list, server-side apply, merge patch, create, delete.

The operator has its own client, because the official one needs more memory than the rest of the
operator, and kopf offers no API client. Failed calls are not retried here: callers read the state
again and decide again.
"""

import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import msgspec

from cometmq.ha.places.kubernetes import ACCOUNT, HOST
from cometmq.operator.models import GROUP, PLURAL, VERSION
from cometmq.remoting.errors import CometError, SettingsError

Body = dict[str, Any]

FIELD_MANAGER: Final = "cometmq-operator"
TIMEOUT_S: Final = 10.0
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"

PATHS: Final[Mapping[str, str]] = {
    "BrokerGroup": f"apis/{GROUP}/{VERSION}/namespaces/{{ns}}/{PLURAL}",
    "ConfigMap": "api/v1/namespaces/{ns}/configmaps",
    "ConsumerGroup": f"apis/{GROUP}/{VERSION}/namespaces/{{ns}}/consumergroups",
    "EndpointSlice": "apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices",
    "Event": "api/v1/namespaces/{ns}/events",
    "Lease": "apis/coordination.k8s.io/v1/namespaces/{ns}/leases",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies",
    "PersistentVolumeClaim": "api/v1/namespaces/{ns}/persistentvolumeclaims",
    "Pod": "api/v1/namespaces/{ns}/pods",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{ns}/poddisruptionbudgets",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings",
    "Secret": "api/v1/namespaces/{ns}/secrets",
    "Service": "api/v1/namespaces/{ns}/services",
    "ServiceAccount": "api/v1/namespaces/{ns}/serviceaccounts",
    "StatefulSet": "apis/apps/v1/namespaces/{ns}/statefulsets",
    "Topic": f"apis/{GROUP}/{VERSION}/namespaces/{{ns}}/topics",
}
"""API path of each kind."""


class ApiRefused(CometError):
    """The API server rejected a request; retrying does not help."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiUnreachable(CometError):
    """The response is missing or unusable; the server may have performed the request."""


class Server(msgspec.Struct, frozen=True):
    """An API server, and the operator's credentials for it."""

    url: str
    token: Callable[[], str]
    """Returns the current bearer token; raises OSError if it cannot be read."""
    ca: Path | None = None
    """CA certificates; if None, the server is not verified, which only tests do."""


def in_cluster(account: Path = ACCOUNT) -> Server:
    """Return the API server of the pod's cluster; raise SettingsError outside a pod."""
    token = account / "token"
    if not token.exists():
        raise SettingsError(f"{token} does not exist: the operator runs in a pod of Kubernetes")
    return Server(
        f"https://{HOST}", lambda: token.read_text(encoding="ascii").strip(), account / "ca.crt"
    )


class KubeApi:
    """One API server, over a pool of connections. Use as an async context manager."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.requests: Counter[tuple[str, str]] = Counter()
        """Requests by method and status; the status is `none` without a response."""
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        """Open the pool; nothing is sent yet."""
        if self._server.ca is None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        else:
            context = ssl.create_default_context(cafile=str(self._server.ca))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=32),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._session.close()

    async def get(self, kind: str, namespace: str, name: str) -> Body | None:
        """Read an object; return None if it does not exist."""
        return await self._found("GET", _path(kind, namespace, name))

    async def namespace(self, name: str) -> Body | None:
        """Read a namespace; return None if it does not exist."""
        return await self._found("GET", f"api/v1/namespaces/{name}")

    async def list_all(self, kind: str, namespace: str = "") -> list[Body]:
        """Read all objects of a kind, in one namespace or in all; return an empty list if the kind
        is not defined in the cluster.
        """
        path = _path(kind, namespace) if namespace else PATHS[kind].replace("namespaces/{ns}/", "")
        found = await self._found("GET", path)
        return [] if found is None else list(found["items"])

    async def list(self, kind: str, namespace: str, selector: str) -> list[Body]:
        """Read the objects that match a label selector."""
        found = await self._call("GET", _path(kind, namespace), query={"labelSelector": selector})
        return list(found["items"])

    async def apply(self, body: Body) -> Body:
        """Apply `body` server-side: create the object, or take ownership of the fields that `body`
        sets.
        """
        metadata = body["metadata"]
        return await self._call(
            "PATCH", _path(body["kind"], metadata["namespace"], metadata["name"]), body,
            content_type=APPLY, query={"fieldManager": FIELD_MANAGER, "force": "true"},
        )  # fmt: skip

    async def create(self, kind: str, namespace: str, body: Body) -> Body:
        """Create an object; raise ApiRefused with status 409 if it exists."""
        return await self._call("POST", _path(kind, namespace), body)

    async def patch(
        self, kind: str, namespace: str, name: str, body: Body, *, part: str = ""
    ) -> Body | None:
        """Merge `body` into an object, or into its subresource `part`; return None if the object
        does not exist.
        """
        path = _path(kind, namespace, name) + (f"/{part}" if part else "")
        return await self._found("PATCH", path, body, content_type=MERGE)

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str = "", version: str = ""
    ) -> bool:
        """Delete an object; return False if it is not the one with this `uid` and this resource
        version, each of which is checked if it is given.
        """
        conditions = {"uid": uid, "resourceVersion": version}
        given = {key: value for key, value in conditions.items() if value}
        try:
            await self._found(
                "DELETE", _path(kind, namespace, name), {"preconditions": given} if given else {}
            )
        except ApiRefused as error:
            if error.status != 409:
                raise
            return False
        return True

    async def _found(
        self, method: str, path: str, body: Body | None = None, *, content_type: str = ""
    ) -> Body | None:
        try:
            return await self._call(method, path, body, content_type=content_type)
        except ApiRefused as error:
            if error.status != 404:
                raise
            return None

    async def _call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        content_type: str = "",
        query: Mapping[str, str] | None = None,
    ) -> Body:
        try:
            headers = {"Authorization": f"Bearer {self._server.token()}"}
            if body is not None:
                headers["Content-Type"] = content_type or "application/json"
            async with self._session.request(
                method,
                f"{self._server.url}/{path}",
                params=query,
                data=None if body is None else msgspec.json.encode(body),
                headers=headers,
            ) as response:
                status, data = response.status, await response.read()
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            self.requests[method, "none"] += 1
            raise ApiUnreachable(f"{method} {path}: {type(error).__name__} {error}") from error
        self.requests[method, str(status)] += 1
        return _answer(f"{method} {path}", status, data)


def _answer(call: str, status: int, data: bytes) -> Body:
    try:
        answer: Body = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        text = data[:200].decode(errors="replace")
        raise ApiUnreachable(f"{call}: {status}, {text}") from error
    if status < 300:
        return answer
    message = f"{call}: {answer.get('message', status)}"
    if status == 429 or status >= 500:
        raise ApiUnreachable(message)
    raise ApiRefused(status, message)


def _path(kind: str, namespace: str, name: str = "") -> str:
    path = PATHS[kind].format(ns=namespace)
    return f"{path}/{name}" if name else path
