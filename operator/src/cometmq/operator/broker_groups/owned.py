# SPDX-License-Identifier: Apache-2.0
"""The objects of a group: created, repaired, deleted when they are not wanted any more. Objects of
others that have the same names are left alone.

An object is applied only if its last known version was not written by the operator, so an idle
group causes no writes.
"""

import hashlib
import json

from cometmq.ha.places.kubernetes import ANNOTATION
from cometmq.operator.api import Body, KubeApi
from cometmq.operator.broker_groups import decide, render
from cometmq.operator.broker_groups.decide import Seen
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.master_service import (
    ServiceSeen,
    address_of,
    is_wanted,
    service_seen,
)
from cometmq.operator.broker_groups.observe import (
    Live,
    belongs,
    is_key_required,
    is_owned,
    taken,
    volume_size,
)
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

    def note_version(self, kind: str, name: str, version: str) -> None:
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
        """Create and repair the owned objects; return whether the StatefulSet has changed.

        Raise ApiRefused if the API server rejects one, or one exists that is not the group's.
        """
        if self._owned is None:
            await self._check_record(group)
        if is_wanted(group):  # first, because its address is in the settings of the brokers
            service = await self._apply_one(group, render.master_service(group))
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
            is_new = await self._apply_one(group, one)
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

    async def _check_record(self, group: BrokerGroup) -> None:
        """Raise ApiRefused if the Lease of the group's name is another program's: brokers would get
        the right to change it.
        """
        lease = await self._context.api.get("Lease", group.namespace, group.name)
        if lease is not None and not _has_record(lease):
            raise taken("Lease", group.name)

    async def _apply_one(self, group: BrokerGroup, wanted: Body) -> Body | None:
        """Apply an object unless this operator's last version is current; return it if applied."""
        key = _key(wanted)
        mark = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
        if self._applied.get(key, ("",))[0] == mark:
            return None
        if key not in self._applied:
            kind, name = key
            found = await self._context.api.get(kind, group.namespace, name)
            if found is not None and not belongs(found, group):
                raise taken(kind, name)
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


async def delete_record(api: KubeApi, group: BrokerGroup) -> None:
    """Delete the record of a group; a Lease without a record is another program's."""
    lease = await api.get("Lease", group.namespace, group.name)
    if lease is not None and _has_record(lease):
        await api.delete("Lease", group.namespace, group.name, uid=lease["metadata"]["uid"])


def _has_record(lease: Body) -> bool:
    return ANNOTATION in (lease["metadata"].get("annotations") or {})


def _key(body: Body) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]
