# SPDX-License-Identifier: Apache-2.0
"""Creates and repairs the objects of a group, and deletes those that the spec no longer asks for.

Objects of other programs with the same names are not changed. An object is applied only if it has
to change or another client wrote its last known version, so an idle group causes no writes.
"""

import hashlib
import json
from typing import Final

from cometmq.ha.places.kubernetes import ANNOTATION
from cometmq.operator.api import Body, KubeApi, NameTaken
from cometmq.operator.broker_groups import render
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.live import Live
from cometmq.operator.broker_groups.master_service import address_of
from cometmq.operator.passes import Context

_UNITS: Final = {
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
}  # fmt: skip


class OwnedObjects:
    """The objects of one group, as last applied."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._applied: dict[tuple[str, str], tuple[str, str]] = {}
        """Hash of each applied object, and the version that resulted."""
        self._owned: frozenset[tuple[str, str]] | None = None
        """Kinds and names of the objects that may exist; None before the first pass."""
        self.service: Body | None = None
        """The Service that leads to the master; None before the first pass that finds it."""
        self._address = ""

    def note_version(self, kind: str, name: str, version: str) -> None:
        """Note an object's version; the next pass repairs it if another client wrote it."""
        known = self._applied.get((kind, name))
        if known is not None and known[1] != version:
            del self._applied[kind, name]

    async def wanted(self, group: BrokerGroup, live: Live, replicas: int) -> list[Body]:
        """Return the objects that the spec asks for, the StatefulSet last."""
        # Read here, because a paused group's Service is not applied, but still moved.
        if self.service is None and group.has_master_service:
            name = group.master_service
            self.service = await self._context.api.get("Service", group.namespace, name)
        self._address = address_of(group, self.service)
        return render.objects(
            group,
            image=self._context.image,
            replicas=replicas,
            volume_size=live.volume_size or group.spec.storage.size,
            operator_namespace=self._context.operator_namespace,
            is_key_required=live.is_key_required,
            group_address=self._address,
        )

    async def apply(self, group: BrokerGroup, wanted: list[Body], live: Live) -> bool:
        """Create and repair the owned objects. Return whether the StatefulSet has changed, or the
        Service's address, on which other objects depend.

        Raise ApiRefused if the API server rejects an object, or if an object of
        this name belongs to another program.
        """
        if self._owned is None:
            await self._check_record(group)
        changed = False
        for one in wanted:
            done = await self._apply_one(group, one)
            if done is None:
                continue
            if _key(one) == ("Service", group.master_service):
                self.service = done
                if address_of(group, done) != self._address:
                    return True
            if one["kind"] == "StatefulSet":
                generation = live.stateful_set and live.stateful_set["metadata"]["generation"]
                changed = done["metadata"]["generation"] != generation
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
                for one in await api.list(kind, group.namespace, group.labels)
            ]
            self._owned = frozenset(_key(one) for one in found if group.owns(one))
        self._owned |= names
        for kind, name in self._owned - names:
            await api.delete(kind, group.namespace, name)
        self._owned = names

    async def _check_record(self, group: BrokerGroup) -> None:
        """Raise ApiRefused if the Lease with the group's name belongs to another program, because
        the brokers would get the right to change it.
        """
        lease = await self._context.api.get("Lease", group.namespace, group.name)
        if lease is not None and not _has_record(lease):
            raise NameTaken("Lease", group.name)

    async def _apply_one(self, group: BrokerGroup, wanted: Body) -> Body | None:
        """Apply an object unless it is still as last applied; return the result,
        None if not applied.
        """
        key = _key(wanted)
        mark = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
        if self._applied.get(key, ("",))[0] == mark:
            return None
        if key not in self._applied:
            kind, name = key
            found = await self._context.api.get(kind, group.namespace, name)
            if found is not None and not group.may_change(found):
                raise NameTaken(kind, name)
        done = await self._context.api.apply(wanted)
        self._applied[key] = (mark, done["metadata"]["resourceVersion"])
        return done

    async def _grow_volumes(self, group: BrokerGroup, live: Live) -> None:
        """Expand volumes that are smaller than in the spec."""
        size = group.spec.storage.size
        for claim in live.claims:
            if _bytes_of(claim["spec"]["resources"]["requests"]["storage"]) < _bytes_of(size):
                patch = {"spec": {"resources": {"requests": {"storage": size}}}}
                name = claim["metadata"]["name"]
                await self._context.api.patch("PersistentVolumeClaim", group.namespace, name, patch)


async def delete_record(api: KubeApi, group: BrokerGroup) -> None:
    """Delete the record of a group. A Lease without a record belongs to another
    program and is kept.
    """
    lease = await api.get("Lease", group.namespace, group.name)
    if lease is not None and _has_record(lease):
        await api.delete("Lease", group.namespace, group.name, uid=lease["metadata"]["uid"])


def _has_record(lease: Body) -> bool:
    return ANNOTATION in (lease["metadata"].get("annotations") or {})


def _key(body: Body) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]


def _bytes_of(size: str) -> int:
    """Convert a volume size in the API's notation to bytes."""
    unit = next((one for one in _UNITS if size.endswith(one)), "")
    return int(size.removesuffix(unit)) * _UNITS.get(unit, 1)
