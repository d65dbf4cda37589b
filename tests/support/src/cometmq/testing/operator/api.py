# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API in memory, for tests of passes."""

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import Mock

from cometmq.operator.api import ApiRefused, Body, KubeApi
from cometmq.operator.managed import FINALIZER
from cometmq.operator.passes import Context
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock

NOW = "2026-01-01T00:00:00Z"
Place = tuple[str, str, str]


class MemoryApi(KubeApi):
    """Keeps objects with their versions, as KubeApi reads and writes them."""

    def __init__(self) -> None:
        self.objects: dict[Place, Body] = {}
        self.calls: list[tuple[str, str, str]] = []
        """Verb, kind and name of each call."""
        self.before: Callable[[str, str], None] = lambda _verb, _kind: None
        """Called before each call with its verb and kind; it may raise an error."""
        self.versions = itertools.count(1)

    def put(self, kind: str, name: str, namespace: str = "mq", /, **parts: Any) -> Body:
        """Store an object as if a user had written it; return what is stored."""
        metadata = {
            "namespace": namespace, "name": name, "uid": "u", "generation": 1,
            "resourceVersion": str(next(self.versions)), **parts.pop("metadata", {}),
        }  # fmt: skip
        body = {"apiVersion": "v1", "kind": kind, "metadata": metadata, **parts}
        self.objects[kind, namespace, name] = body
        return body

    def put_group(self, **spec: Any) -> Body:
        """Store the group `orders`, with kopf's finalizer."""
        metadata: Any = {"finalizers": [FINALIZER], "annotations": {}}
        return self.put("BrokerGroup", "orders", metadata=metadata, spec={
            "nameServers": ["ns:9876"], **spec,
        })  # fmt: skip

    def put_stateful_set(self, **parts: Any) -> Body:
        """Store the StatefulSet of two pods of the group `orders`, with the template `new`."""
        claim = {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}
        template: Any = {"metadata": {}}
        return self.put(
            "StatefulSet", "orders", metadata={"ownerReferences": [{"uid": "u"}]},
            spec={"replicas": 2, "template": template, "volumeClaimTemplates": [claim]},
            status={"updateRevision": "new", "observedGeneration": 1}, **parts,
        )  # fmt: skip

    def delete_as_user(self, kind: str, name: str, namespace: str = "mq") -> None:
        self.objects[kind, namespace, name]["metadata"]["deletionTimestamp"] = NOW

    def made(self, verb: str) -> list[tuple[str, str]]:
        """Return kind and name of the calls with a verb."""
        return [(kind, name) for given, kind, name in self.calls if given == verb]

    def _note(self, verb: str, kind: str, name: str) -> None:
        self.calls.append((verb, kind, name))
        self.before(verb, kind)

    async def get(self, kind: str, namespace: str, name: str) -> Body | None:
        self._note("get", kind, name)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def namespace(self, name: str) -> Body | None:
        self._note("get", "Namespace", name)
        return copy.deepcopy(self.objects.get(("Namespace", "", name), {"metadata": {}}))

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Body]:
        self._note("list", kind, "")
        return [
            copy.deepcopy(body)
            for (found, place, _), body in self.objects.items()
            if (found, place) == (kind, namespace)
            and (body["metadata"].get("labels") or {}).items() >= labels.items()
        ]

    async def apply(self, body: Body, *, part: str = "") -> Body:
        metadata, kind = body["metadata"], body["kind"]
        self._note("apply", kind, metadata["name"])
        key = kind, metadata["namespace"], metadata["name"]
        if part:
            if key not in self.objects:
                raise ApiRefused(404, "not found")
            self.objects[key]["status"] = copy.deepcopy(body["status"])
            return self._written(key)
        before = self.objects.get(key, {"metadata": {"uid": "u", "generation": 1}})
        self.objects[key] = {
            **before, **copy.deepcopy(body), "metadata": {**before["metadata"], **metadata},
        }  # fmt: skip
        return self._written(key)

    async def create(self, body: Body) -> Body:
        metadata, kind = body["metadata"], body["kind"]
        self._note("create", kind, metadata["name"])
        key = kind, metadata["namespace"], metadata["name"]
        if key in self.objects:
            raise ApiRefused(409, "exists")
        self.objects[key] = copy.deepcopy(body)
        return self._written(key)

    async def replace(self, body: Body) -> Body:
        metadata, kind = body["metadata"], body["kind"]
        self._note("replace", kind, metadata["name"])
        key = kind, metadata["namespace"], metadata["name"]
        self._check(key, metadata)
        self.objects[key] = copy.deepcopy(body)
        return self._written(key)

    async def patch(self, kind: str, namespace: str, name: str, change: Body) -> Body | None:
        self._note("patch", kind, name)
        key = kind, namespace, name
        if key not in self.objects:
            return None
        self._check(key, change.get("metadata", {}))
        _merge(self.objects[key], change)
        return self._written(key)

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str = "", version: str = ""
    ) -> bool:
        self._note("delete", kind, name)
        found = self.objects.get((kind, namespace, name))
        if found is None:
            return True
        metadata = found["metadata"]
        if uid not in ("", metadata["uid"]) or version not in ("", metadata["resourceVersion"]):
            return False
        del self.objects[kind, namespace, name]
        return True

    def _check(self, key: Place, metadata: Body) -> None:
        found = self.objects[key]["metadata"]["resourceVersion"]
        if metadata.get("resourceVersion", found) != found:
            raise ApiRefused(409, "changed")

    def _written(self, key: Place) -> Body:
        metadata = self.objects[key]["metadata"]
        metadata["resourceVersion"] = str(next(self.versions))
        metadata.setdefault("uid", "u")
        return copy.deepcopy(self.objects[key])


def _merge(body: Body, change: Body) -> None:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(body.get(key), dict):
            _merge(body[key], value)
        elif value is None:
            body.pop(key, None)
        else:
            body[key] = copy.deepcopy(value)


def context_of(api: Any, **more: Any) -> Context:
    """Return the context of passes, with mocks for what `more` does not give."""
    facts: dict[str, Any] = {
        "secrets": Mock(), "clock": SystemClock(), "log": NO_LOG, "wall_time": lambda: NOW,
        "resync_ms": 60_000, "quiet_ms": 60_000,
    }  # fmt: skip
    return Context(api=api, **{**facts, **more})
