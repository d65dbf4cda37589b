# SPDX-License-Identifier: Apache-2.0
"""The changes that the operator makes to objects of any kind."""

from typing import Final

import msgspec

from cometmq.operator.api import ApiRefused, ApiUnreachable, Body, KubeApi
from cometmq.operator.api_types.broker_group import API_VERSION
from cometmq.operator.engine.context import Context
from cometmq.operator.engine.managed import Key

COMPONENT: Final = "cometmq-operator"


async def set_finalizer(
    api: KubeApi, kind: str, body: Body, finalizer: str, *, present: bool
) -> bool:
    """Add or remove a finalizer; return False if the object has changed since it was read."""
    metadata = body["metadata"]
    others = [one for one in metadata.get("finalizers") or () if one != finalizer]
    patch = {
        "metadata": {
            "finalizers": [*others, finalizer] if present else others,
            "resourceVersion": metadata["resourceVersion"],
        }
    }
    try:
        await api.patch(kind, metadata["namespace"], metadata["name"], patch)
    except ApiRefused as error:
        if error.status != 409:
            raise
        return False
    return True


async def write_status(api: KubeApi, key: Key, status: msgspec.Struct) -> None:
    """Replace the status of an object."""
    # A merge patch keeps fields that it does not name, so fields that are now empty are set to
    # null.
    empty = dict.fromkeys(status.__struct_encode_fields__)
    patch = {"status": {**empty, **msgspec.to_builtins(status)}}
    await api.patch(*key, patch, part="status")


async def is_ending(api: KubeApi, namespace: str) -> bool:
    """Return whether a namespace is being deleted."""
    found = await api.namespace(namespace)
    return found is None or "deletionTimestamp" in found["metadata"]


async def write_event(
    context: Context, key: Key, uid: str, change: tuple[str, str], *, is_warning: bool = False
) -> None:
    """Write an Event about an object; `change` has its reason and text. A failure is only logged,
    as nothing depends on Events.
    """
    kind, namespace, name = key
    reason, text = change
    now = context.wall_time()
    body = {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": f"{name}.", "namespace": namespace},
        "involvedObject": {
            "apiVersion": API_VERSION, "kind": kind, "name": name, "namespace": namespace,
            "uid": uid,
        },
        "type": "Warning" if is_warning else "Normal",
        "reason": reason, "message": text[:1024],
        "source": {"component": COMPONENT},
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    }  # fmt: skip
    try:
        await context.api.create("Event", namespace, body)
    except (ApiRefused, ApiUnreachable) as error:
        context.log.warning("event.lost", group=name, error=str(error))
