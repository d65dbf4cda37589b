# SPDX-License-Identifier: Apache-2.0
"""Calls to the Kubernetes API by lightkube: get, list, apply, patch, create, replace, delete.

Failed calls are not retried here: callers read the state again and decide again.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, Self

import httpx2
import msgspec
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.types import PatchType

from cometmq.ha.places import kubernetes
from cometmq.ha.places.kubernetes import KubernetesRecord
from cometmq.operator.api_types.broker_group import GROUP, KIND, PLURAL, VERSION
from cometmq.operator.api_types.topics_and_groups import PLURALS
from cometmq.remoting.errors import CometError, SettingsError

Body = dict[str, Any]

FIELD_MANAGER: Final = "cometmq-operator"
TIMEOUT_S: Final = 10.0
CALLS_MAX: Final = 8  # a connection takes 0.3 MB
"""Maximum number of concurrent calls; those of kopf and those for records are not counted."""
RECORD_IDLE_MAX: Final = 16
"""A connection takes 0.3 MB. After a pause of the API server, all groups read their records at the
same times, and open missing connections anew until their reads spread again.
"""

KINDS: Final[dict[str, Any]] = {
    kind: create_namespaced_resource(group, version, kind, plural)
    for kind, group, version, plural in (
        ("ConfigMap", "", "v1", "configmaps"),
        ("EndpointSlice", "discovery.k8s.io", "v1", "endpointslices"),
        ("Lease", "coordination.k8s.io", "v1", "leases"),
        ("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
        ("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
        ("Pod", "", "v1", "pods"),
        ("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
        ("Role", "rbac.authorization.k8s.io", "v1", "roles"),
        ("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings"),
        ("Secret", "", "v1", "secrets"),
        ("Service", "", "v1", "services"),
        ("ServiceAccount", "", "v1", "serviceaccounts"),
        ("StatefulSet", "apps", "v1", "statefulsets"),
        (KIND, GROUP, VERSION, PLURAL),
        *((kind, GROUP, VERSION, plural) for kind, plural in PLURALS.items()),
    )
}
"""All kinds as dictionaries: what the operator applies is rendered, not built from types."""
_NAMESPACE: Final[Any] = create_global_resource("", "v1", "Namespace", "namespaces")


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


class ApiServer(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the API server, and the files with the credentials for it."""

    host: str
    port: int
    ca: Path | None
    """None: the server's certificate is not verified."""
    token: Path
    """The kubelet replaces the token before it expires."""

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    def read_token(self) -> str:
        return self.token.read_text(encoding="ascii").strip()

    def records(self) -> kubernetes.Api:
        """Return the client for records, which is that of brokers and electors."""
        return kubernetes.api_at(self.host, self.port, self.read_token, self.ca, RECORD_IDLE_MAX)


def in_cluster(account: Path = kubernetes.ACCOUNT) -> ApiServer:
    """Return the API server of the pod's cluster; raise SettingsError outside a pod."""
    server = ApiServer(
        host=kubernetes.HOST, port=443, ca=account / "ca.crt", token=account / "token"
    )
    try:
        server.read_token()
    except OSError as error:
        raise SettingsError(
            f"{server.token} cannot be read ({error}): the operator needs a pod with a service"
            " account, and automountServiceAccountToken"
        ) from error
    return server


class _Transport(httpx2.AsyncHTTPTransport):
    """Counts the requests, and limits the connections."""

    def __init__(self, server: ApiServer) -> None:
        tls = ssl.create_default_context(cafile=server.ca)
        if server.ca is None:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        super().__init__(verify=tls, limits=httpx2.Limits(max_connections=CALLS_MAX))
        self.requests: Counter[tuple[str, str]] = Counter()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        status = "none"
        try:
            response = await super().handle_async_request(request)
            status = str(response.status_code)
            return response
        finally:
            self.requests[request.method, status] += 1


class _Client(AsyncClient):
    """A client whose deletions can have preconditions, which lightkube 1.0 does not offer."""

    async def delete_exactly(
        self, kind: Any, name: str, namespace: str, preconditions: dict[str, str]
    ) -> None:
        client: Any = self._client
        request = client.prepare_request("delete", kind, name=name, namespace=namespace)
        request.data = {"preconditions": preconditions}
        client.raise_for_status(await client.send(client.build_adapter_request(request)))


class KubeApi:
    """One API server. Use as an async context manager, which closes the connections."""

    def __init__(
        self, server: ApiServer, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        """`transport` replaces the network in tests."""
        user = User(token_file=str(server.token))
        cluster = Cluster(server=server.url, insecure=True)  # the transport verifies
        counting = _Transport(server)
        self._client = _Client(
            KubeConfig.from_one(cluster=cluster, user=user).get(),
            transport=transport or counting,
            field_manager=FIELD_MANAGER,
            timeout=httpx2.Timeout(TIMEOUT_S),
            trust_env=False,
        )
        self.requests = counting.requests
        """Requests by method and status; the status is `none` without a response."""
        self.may_write: Callable[[], bool] = lambda: True
        """Asked before each call that changes something; calls for the Lease of the operators use
        another KubeApi.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._client.close()

    async def get(self, kind: str, namespace: str, name: str) -> Body | None:
        """Read an object; return None if it does not exist."""
        what = f"get {kind} {namespace}/{name}"
        found = await _found(_call(what, self._client.get(KINDS[kind], name, namespace=namespace)))
        return None if found is None else _checked(what, found)

    async def namespace(self, name: str) -> Body | None:
        """Read a namespace; return None if it does not exist."""
        return await _found(_call(f"get namespace {name}", self._client.get(_NAMESPACE, name)))

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Body]:
        """Read the objects of a kind that have these labels."""
        what = f"list {kind} in {namespace}"
        found = self._client.list(KINDS[kind], namespace=namespace, labels={**labels})
        return [_checked(what, one) for one in await _call(what, _all(found))]

    async def apply(self, body: Body, *, part: str = "") -> Body:
        """Apply `body` server-side: create the object, or take ownership of the fields that `body`
        sets; with `part="Status"`, of an existing object's status.
        """
        metadata, kind = body["metadata"], KINDS[body["kind"]]
        made = (getattr(kind, part) if part else kind)(body)
        place = {"name": metadata["name"], "namespace": metadata["namespace"]}
        return await self._write("apply", body, self._client.apply(made, **place, force=True))

    async def create(self, body: Body) -> Body:
        """Create an object; raise ApiRefused with status 409 if it exists."""
        return await self._write("create", body, self._client.create(KINDS[body["kind"]](body)))

    async def replace(self, body: Body) -> Body:
        """Replace the version of an object that `body` names; raise ApiRefused with status 409 if
        it is not the current one.
        """
        return await self._write("replace", body, self._client.replace(KINDS[body["kind"]](body)))

    async def patch(self, kind: str, namespace: str, name: str, change: Body) -> Body | None:
        """Merge `change` into an object; return None if the object does not exist."""
        body = {"kind": kind, "metadata": {"namespace": namespace, "name": name}}
        call = self._client.patch(
            KINDS[kind], name, change, namespace=namespace, patch_type=PatchType.MERGE
        )
        return await _found(self._write("patch", body, call))

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str = "", version: str = ""
    ) -> bool:
        """Delete an object; return False if it is not the one with this `uid` and this resource
        version, each of which is checked if it is given.
        """
        conditions = {"uid": uid, "resourceVersion": version}
        given = {key: value for key, value in conditions.items() if value}
        body = {"kind": kind, "metadata": {"namespace": namespace, "name": name}}
        try:
            call = self._client.delete_exactly(KINDS[kind], name, namespace, given)
            await _found(self._write("delete", body, call))
        except ApiRefused as error:
            if error.status != 409:
                raise
            return False
        return True

    async def _write(self, verb: str, body: Body, call: Coroutine[Any, Any, Any]) -> Body:
        metadata = body["metadata"]
        what = f"{verb} {body['kind']} {metadata.get('namespace')}/{metadata['name']}"
        if not self.may_write():
            call.close()
            raise ApiUnreachable(f"{what}: this operator no longer holds the Lease")
        return dict(await _call(what, call) or {})


def record_of(api: kubernetes.Api) -> Callable[[str, str], KubernetesRecord]:
    """Return a function that returns the record of a group: a Lease of the same name."""
    return lambda namespace, name: KubernetesRecord(api, namespace, name)


async def _call(what: str, call: Awaitable[Any]) -> Any:
    """Wait for a call of lightkube, and translate its errors."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await call
    except ApiError as error:
        status, message = error.response.status_code, f"{what}: {error}"
        if status == 429 or status >= 500:
            raise ApiUnreachable(message) from error
        raise ApiRefused(status, message) from error
    # Besides errors of httpx2, lightkube lets those of its own parsing out when a proxy answers:
    # KeyError without Content-Type, ValueError without JSON, TypeError with other JSON.
    except Exception as error:
        raise ApiUnreachable(f"{what}: {type(error).__name__}: {error}") from error


async def _all(found: AsyncIterable[Any]) -> list[Any]:
    return [one async for one in found]


async def _found(call: Awaitable[Body]) -> Body | None:
    """Wait for a call; return None if the object is missing."""
    try:
        return await call
    except ApiRefused as error:
        if error.status != 404:
            raise
        return None


def _checked(what: str, body: Any) -> Body:
    """Return an object; raise ApiUnreachable if it lacks what every object has.

    Such an answer comes from a proxy. Taken for an object, it would look like a loss.
    """
    metadata = body.get("metadata") if isinstance(body, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("resourceVersion"), str):
        raise ApiUnreachable(f"{what}: the answer cannot be read: it has no resourceVersion")
    return dict(body)
