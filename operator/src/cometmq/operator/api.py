# SPDX-License-Identifier: Apache-2.0
"""Calls to the Kubernetes API: get, list, watch, server-side apply, merge patch, create, delete.

Records of groups use the same client. Failed calls are not retried here: callers read the state
again and decide again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final, Self
from urllib.parse import urlencode

import msgspec

from cometmq.ha.places.http import JSON, HttpError, Limits, parsed
from cometmq.ha.places.kube_api import MERGE_PATCH, Api
from cometmq.ha.places.kubernetes import KubernetesRecord
from cometmq.operator.api_types.broker_group import GROUP, PLURAL, VERSION
from cometmq.remoting.errors import CometError

Body = dict[str, Any]

FIELD_MANAGER: Final = "cometmq-operator"
TIMEOUT_S: Final = 10.0
APPLY: Final = "application/apply-patch+yaml"
CALLS_MAX: Final = 32
"""Maximum number of concurrent calls; watches and calls for records are not counted."""
LIMITS: Final = Limits(idle_max=64, answer_bytes_max=64 << 20)
"""Limits of the HTTP client. A list of 10,000 Topics has about 30 MB.

There should be as many idle connections as broker groups, here 64 for 50 groups; one takes 0.3 MB.
Each group reads its record twice per second, so usually only a few are in use. But after a pause of
the API server, all groups read at the same times, and every missing connection would be opened anew
for each read.
"""

PATHS: Final[Mapping[str, str]] = {
    "BrokerGroup": f"apis/{GROUP}/{VERSION}/{PLURAL}",
    "ConfigMap": "api/v1/configmaps",
    "ConsumerGroup": f"apis/{GROUP}/{VERSION}/consumergroups",
    "EndpointSlice": "apis/discovery.k8s.io/v1/endpointslices",
    "Event": "api/v1/events",
    "Lease": "apis/coordination.k8s.io/v1/leases",
    "NetworkPolicy": "apis/networking.k8s.io/v1/networkpolicies",
    "PersistentVolumeClaim": "api/v1/persistentvolumeclaims",
    "Pod": "api/v1/pods",
    "PodDisruptionBudget": "apis/policy/v1/poddisruptionbudgets",
    "Role": "apis/rbac.authorization.k8s.io/v1/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/rolebindings",
    "Secret": "api/v1/secrets",
    "Service": "api/v1/services",
    "ServiceAccount": "api/v1/serviceaccounts",
    "StatefulSet": "apis/apps/v1/statefulsets",
    "Topic": f"apis/{GROUP}/{VERSION}/topics",
}
"""API path of each kind, without a namespace."""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _Object(msgspec.Struct):
    metadata: _Metadata


class _List(msgspec.Struct):
    items: list[_Object]


class ApiRefused(CometError):
    """The API server rejected a request; retrying does not help."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NameTaken(ApiRefused):
    """An object of another program has the name of an object that the group needs."""

    def __init__(self, kind: str, name: str) -> None:
        text = "exists and is not this group's: delete it, or give the group another name"
        super().__init__(409, f"the {kind} {name} {text}")


class ApiUnreachable(CometError):
    """The response is missing or unusable; the server may have performed the request."""


class KubeApi:
    """One API server. Use as an async context manager, which closes idle connections."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self.requests: Counter[tuple[str, str]] = Counter()
        """Requests by method and status; the status is `none` without a response."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._api.client.close()

    def record(self, namespace: str, name: str) -> KubernetesRecord:
        """Return the record of a group: a Lease of the same name."""
        return KubernetesRecord(self._api, namespace, name)

    async def watch(
        self, kind: str, namespace: str = "", *, selector: str = "", version: str = ""
    ) -> AsyncIterator[tuple[str, Body]]:
        """Yield the type and the object of each event in one namespace, or in all, until the server
        ends the watch.

        With a `version`, these are the events after it; without, the first ones are ADDED for each
        object that exists. Raise ApiUnreachable if the watch fails, or cannot begin because
        `version` is too old or for another reason.
        """
        query = {"labelSelector": selector, "resourceVersion": version}
        given = {key: value for key, value in query.items() if value}
        path = _path(kind, namespace)
        try:
            watch = self._api.watch(path, wait_s=TIMEOUT_S, allowWatchBookmarks="true", **given)
            async with aclosing(watch) as events:
                async for event in events:
                    if event is not None:
                        body: Body = parsed(event.object, dict[str, Any])
                        yield event.type, _checked(f"watch of {path}", body, _Object)
        except HttpError as error:
            raise ApiUnreachable(f"watch of {path}: {error}") from error

    async def get(self, kind: str, namespace: str, name: str) -> Body | None:
        """Read an object; return None if it does not exist."""
        path = _path(kind, namespace, name)
        found = await self._found("GET", path)
        return None if found is None else _checked(f"GET {path}", found, _Object)

    async def namespace(self, name: str) -> Body | None:
        """Read a namespace; return None if it does not exist."""
        return await self._found("GET", f"/api/v1/namespaces/{name}")

    async def list_all(self, kind: str, namespace: str = "") -> list[Body]:
        """Read all objects of a kind, in one namespace or in all; return an empty list if the kind
        is not defined in the cluster.
        """
        path = _path(kind, namespace)
        found = await self._found("GET", path)
        return [] if found is None else _items(f"GET {path}", found)

    async def list(self, kind: str, namespace: str, selector: str) -> list[Body]:
        """Read the objects that match a label selector."""
        path = f"{_path(kind, namespace)}?{urlencode({'labelSelector': selector})}"
        return _items(f"GET {path}", await self._call("GET", path))

    async def apply(self, body: Body) -> Body:
        """Apply `body` server-side: create the object, or take ownership of the fields that `body`
        sets.
        """
        metadata = body["metadata"]
        path = _path(body["kind"], metadata["namespace"], metadata["name"])
        query = urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})
        return await self._call("PATCH", f"{path}?{query}", body, APPLY)

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
        return await self._found("PATCH", path, body, MERGE_PATCH)

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
        self, method: str, path: str, body: Body | None = None, content_type: str = JSON
    ) -> Body | None:
        try:
            return await self._call(method, path, body, content_type)
        except ApiRefused as error:
            if error.status != 404:
                raise
            return None

    async def _call(
        self, method: str, path: str, body: Body | None = None, content_type: str = JSON
    ) -> Body:
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            async with self._turns:
                status, data = await self._api.call(
                    method, path, data, content_type, wait_s=TIMEOUT_S
                )
        except HttpError as error:
            self.requests[method, "none"] += 1
            raise ApiUnreachable(f"{method} {path}: {error}") from error
        self.requests[method, str(status)] += 1
        return _answer(f"{method} {path}", status, data)


def _answer(call: str, status: int, data: bytes) -> Body:
    try:
        answer: Body = parsed(data, dict[str, Any])
    except HttpError as error:
        text = data[:200].decode(errors="replace")
        raise ApiUnreachable(f"{call}: {status}, {text}") from error
    if status < 300:
        return answer
    message = f"{call}: {answer.get('message', status)}"
    if status == 429 or status >= 500:
        raise ApiUnreachable(message)
    raise ApiRefused(status, message)


def _items(call: str, found: Body) -> list[Body]:
    """Return the objects of a list; raise ApiUnreachable if the answer is none."""
    items: list[Body] = _checked(call, found, _List)["items"]
    return items


def _checked(call: str, body: Body, type_: type[msgspec.Struct]) -> Body:
    """Return a body; raise ApiUnreachable if it lacks what every answer of this kind has.

    Such an answer comes from a proxy. Taken for an empty list, it would look like the loss of all
    objects.
    """
    try:
        msgspec.convert(body, type_)
    except msgspec.ValidationError as error:
        raise ApiUnreachable(f"{call}: the answer cannot be read: {error}") from error
    return body


def _path(kind: str, namespace: str, name: str = "") -> str:
    version, _, plural = PATHS[kind].rpartition("/")
    parts = (version, *(("namespaces", namespace) if namespace else ()), plural, name)
    return "".join(f"/{part}" for part in parts if part)
