# SPDX-License-Identifier: Apache-2.0
"""What the passes over all objects share: settings, services, and writes that are
the same for all kinds of objects.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.operator.api import ApiRefused, ApiUnreachable, Body, KubeApi
from cometmq.operator.api_types.broker_group import API_VERSION
from cometmq.operator.engine.managed import Key
from cometmq.operator.secrets import Secrets
from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock

COMPONENT: Final = "cometmq-operator"


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and services, and the writes of finalizers, statuses and Events."""

    api: KubeApi
    secrets: Secrets
    clock: Clock
    log: Log
    wall_time: Callable[[], str]
    """Returns the time in the API's format."""
    image: str = ""
    operator_namespace: str = ""
    resync_ms: int
    """Pause between passes over an idle group."""
    quiet_ms: int
    """A queue or log in which no message is stored for this long counts as unused by producers."""

    async def is_ending(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted."""
        found = await self.api.namespace(namespace)
        return found is None or "deletionTimestamp" in found["metadata"]

    async def set_finalizer(self, key: Key, body: Body, finalizer: str, *, present: bool) -> bool:
        """Add or remove a finalizer; return False if the object has changed since it was read."""
        metadata = body["metadata"]
        others = [one for one in metadata.get("finalizers") or () if one != finalizer]
        wanted = {
            "finalizers": [*others, finalizer] if present else others,
            "resourceVersion": metadata["resourceVersion"],
        }
        try:
            await self.api.patch(*key, {"metadata": wanted})
        except ApiRefused as error:
            if error.status != 409:
                raise
            return False
        return True

    async def write_status(self, key: Key, status: msgspec.Struct) -> None:
        # A merge patch keeps fields that it does not name, so fields that are now empty are set to
        # null.
        empty = dict.fromkeys(status.__struct_encode_fields__)
        patch = {"status": {**empty, **msgspec.to_builtins(status)}}
        await self.api.patch(*key, patch, part="status")

    async def write_event(
        self, key: Key, uid: str, change: tuple[str, str], *, is_warning: bool = False
    ) -> None:
        """Write an Event about an object; `change` has its reason and text. A failure is only
        logged, as nothing depends on Events.
        """
        kind, namespace, name = key
        reason, text = change
        now = self.wall_time()
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
            await self.api.create("Event", namespace, body)
        except (ApiRefused, ApiUnreachable) as error:
            self.log.warning("event.lost", object=f"{kind}/{name}", error=str(error))
