# SPDX-License-Identifier: Apache-2.0
"""Points the Service of a group at each master that opens, during passes and between them."""

import asyncio
from typing import Final

from cometmq.operator.api import ApiRefused, ApiUnreachable
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.group_elector import GroupElector
from cometmq.operator.broker_groups.master_endpoint import KIND, MasterEndpoint
from cometmq.operator.broker_groups.master_service import MasterPod
from cometmq.operator.broker_groups.owned import OwnedObjects
from cometmq.operator.managed import Key
from cometmq.operator.passes import Context

RETRY_MS: Final = 500


class ServicePointer:
    def __init__(
        self, key: Key, context: Context, elector: GroupElector, owned: OwnedObjects
    ) -> None:
        self._key = key
        self._context = context
        self._elector = elector
        self._owned = owned
        self._endpoint = MasterEndpoint(context.api, log=context.log)
        self.group: BrokerGroup | None = None
        """The group, as of the last pass."""

    def note_version(self, kind: str, name: str, version: str) -> None:
        """Note an owned object's version; the next pass repairs the EndpointSlice if another client
        wrote it.
        """
        if kind == KIND:
            self._endpoint.note_version(name, version)

    async def attend(self) -> None:
        """Point the Service at each master that opens, without waiting for a pass."""
        opened = self._elector.master_opened
        while True:
            await opened.wait()
            opened.clear()
            try:
                await self.point()
            except (ApiUnreachable, ApiRefused) as error:
                name = "/".join(self._key[1:])
                self._context.log.warning("master_service.unmoved", group=name, error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
                opened.set()

    async def point(self) -> None:
        """Point the Service at the open master's pod; do nothing if there is no such master.

        This is also called between passes, when a master opens. A pod that has just started has no
        address yet; the pass that follows its event finds it.
        """
        record, service, group = self._elector.open_master, self._owned.service, self.group
        if group is None or service is None or record is None or not group.has_master_service:
            return
        name = group.pod(record.holder.ordinal)
        pods = list(self._context.pods.get((group.namespace, group.name), ()))
        pod = next((one for one in pods if one.name == name and one.address), None)
        if pod is not None:
            master = MasterPod(pod.name, pod.uid, pod.address, pod.node, record.epoch)
            await self._endpoint.point(group, service["metadata"]["uid"], master)
