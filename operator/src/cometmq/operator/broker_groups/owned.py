# SPDX-License-Identifier: Apache-2.0
"""The objects of a group: created, repaired, deleted when they are not wanted any more.

An object is applied only if its last known version was not written by the operator, so an idle
group causes no writes.
"""

import hashlib
import json

from cometmq.operator.api import Body
from cometmq.operator.broker_groups import decide, render
from cometmq.operator.broker_groups.decide import Seen
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.master_service import (
    ServiceSeen,
    address_of,
    is_wanted,
    service_seen,
)
from cometmq.operator.broker_groups.observe import Live, is_key_required, is_owned, volume_size
from cometmq.operator.engine.context import Context


class OwnedObjects:
    """The objects of one group, as last applied."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._applied: dict[tuple[str, str], tuple[str, str]] = {}
        """Hash of each applied object, and the version that resulted."""
        self._owned: frozenset[tuple[str, str]] | None = None
        """Kinds and names of the objects that may exist; None before the first pass."""
        self.service: ServiceSeen | None = None
        """The Service that leads to the master; None before the first pass that finds it."""

    def forget(self, kind: str, name: str, version: str) -> None:
        """Note an object's version; the next pass repairs it if another client wrote it."""
        known = self._applied.get((kind, name))
        if known is not None and known[1] != version:
            del self._applied[kind, name]

    async def find_service(self, group: BrokerGroup) -> None:
        """Read the Service of the master once: a paused group's is not applied, but still moved."""
        if self.service is None and is_wanted(group):
            found = await self._context.api.get("Service", group.namespace, group.master_service)
            self.service = None if found is None else service_seen(found)

    async def apply(self, group: BrokerGroup, seen: Seen, live: Live) -> bool:
        """Create and repair the owned objects; return whether the StatefulSet has changed."""
        if is_wanted(group):  # first, because its address is in the settings of the brokers
            service = await self._apply_one(render.master_service(group))
            self.service = self.service if service is None else service_seen(service)
        wanted = render.objects(
            group,
            image=self._context.image,
            replicas=decide.replicas(group, seen),
            volume_size=volume_size(group, live),
            operator_namespace=self._context.operator_namespace,
            is_key_required=is_key_required(live),
            group_address=address_of(group, self.service),
        )
        changed = False
        for one in wanted:
            is_new = await self._apply_one(one)
            if is_new and one["kind"] == "StatefulSet":
                before = live.stateful_set and live.stateful_set["metadata"]["generation"]
                changed = is_new["metadata"]["generation"] != before
        await self._delete_unwanted(group, wanted)
        await self._grow_volumes(group, live)
        return changed

    async def _delete_unwanted(self, group: BrokerGroup, wanted: list[Body]) -> None:
        """Delete the group's objects that the spec no longer asks for."""
        api, names = self._context.api, frozenset(map(_key, wanted))
        if self._owned is None:
            found = [
                {**one, "kind": kind}
                for kind in render.OPTIONAL
                for one in await api.list(kind, group.namespace, group.selector)
            ]
            self._owned = frozenset(_key(one) for one in found if is_owned(one, group))
        self._owned |= names
        for kind, name in self._owned - names:
            await api.delete(kind, group.namespace, name)
        self._owned = names

    async def _apply_one(self, wanted: Body) -> Body | None:
        """Apply an object unless this operator's last version is current; return it if applied."""
        key = _key(wanted)
        mark = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
        if self._applied.get(key, ("",))[0] == mark:
            return None
        done = await self._context.api.apply(wanted)
        self._applied[key] = (mark, done["metadata"]["resourceVersion"])
        return done

    async def _grow_volumes(self, group: BrokerGroup, live: Live) -> None:
        """Expand volumes that are smaller than in the spec."""
        size = group.spec.storage.size
        for claim in live.claims:
            if decide.bytes_of(claim["spec"]["resources"]["requests"]["storage"]) < (
                decide.bytes_of(size)
            ):
                patch = {"spec": {"resources": {"requests": {"storage": size}}}}
                name = claim["metadata"]["name"]
                await self._context.api.patch("PersistentVolumeClaim", group.namespace, name, patch)


def _key(body: Body) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]
