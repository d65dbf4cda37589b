# SPDX-License-Identifier: Apache-2.0
"""The parts of an object that are the same for all kinds (pure): metadata, conditions, status."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from cometmq.operator.api_types.broker_group import API_VERSION, GROUP
from cometmq.operator.api_types.status import Condition

FINALIZER: Final = f"operator.{GROUP}/drain"
"""kopf's finalizer, on objects whose deletion may have to wait."""
SKIP_DRAIN: Final = f"{GROUP}/skip-drain"
"""Annotation that lets a deletion go on although messages are left."""

Key = tuple[str, str, str]
"""Kind, namespace and name of an object."""


class Managed(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata that decisions depend on."""

    namespace: str
    name: str
    uid: str
    generation: int
    annotations: Mapping[str, str] = {}
    is_deleting: bool = False
    has_finalizer: bool = False


def metadata_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of Managed as read from the API."""
    metadata = body["metadata"]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "generation": metadata.get("generation", 0),
        "annotations": metadata.get("annotations") or {},
        "is_deleting": "deletionTimestamp" in metadata,
        "has_finalizer": FINALIZER in (metadata.get("finalizers") or ()),
    }


def dated(fresh: Iterable[Condition], before: list[Condition], now: str) -> list[Condition]:
    """Date the conditions: the transition time changes only together with the status."""
    known = {one.type: one for one in before}

    def since(one: Condition) -> str:
        old = known.get(one.type)
        return old.last_transition_time if old and old.status == one.status else now

    return [msgspec.structs.replace(one, last_transition_time=since(one)) for one in fresh]


def status_body(key: Key, status: msgspec.Struct) -> dict[str, Any]:
    """Return what is applied to write a status; fields that are empty now are no longer applied,
    so the API server removes them.
    """
    kind, namespace, name = key
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name},
        "status": msgspec.to_builtins(status),
    }
