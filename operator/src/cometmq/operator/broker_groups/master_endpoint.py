# SPDX-License-Identifier: Apache-2.0
"""Points the Service of a group at its master, as soon as the elector sees the master open.

After a change of the acting operator, two operators may write for a while. So each write names the
version of the EndpointSlice that it was based on, and a master of a later epoch is never replaced.
A pass over the group repairs changes by other programs.
"""

from typing import Final

from cometmq.operator.api import ApiRefused, Body, KubeApi, NameTaken
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.master_service import MasterPod, endpoint_slice, epoch_of
from cometmq.remoting.log import Log

KIND: Final = "EndpointSlice"
TRIES_MAX: Final = 3


class MasterEndpoint:
    """The EndpointSlice of one group, as last written."""

    def __init__(self, api: KubeApi, *, log: Log) -> None:
        self._api = api
        self._log = log
        self._written: tuple[str, MasterPod] | None = None
        self._name = ""
        self._version = ""

    def note_version(self, name: str, version: str) -> None:
        """Note the version of the EndpointSlice; the next pass repairs it if another client wrote
        it.
        """
        if name == self._name and version != self._version:
            self._written = None

    async def point(self, group: BrokerGroup, service_uid: str, pod: MasterPod) -> None:
        """Make the Service lead to a pod; do nothing if it does already.

        Raise ApiRefused or ApiUnreachable if that fails, and ApiRefused if the EndpointSlice of
        this name is not the group's.
        """
        if self._written == (service_uid, pod):
            return
        wanted = endpoint_slice(group, service_uid, pod)
        name = wanted["metadata"]["name"]
        version = self._version if self._written is not None and name == self._name else ""
        for _ in range(TRIES_MAX):
            body = await self._write(wanted, version)
            if body is not None:
                self._written, self._name = (service_uid, pod), name
                self._version = body["metadata"]["resourceVersion"]
                self._log.info(
                    "master_service.moved", group=group.name, pod=pod.name, epoch=pod.epoch
                )
                return
            found = await self._api.get(KIND, group.namespace, name)
            if found is not None and not group.may_change(found):
                raise NameTaken(KIND, name)
            if found is not None and epoch_of(found) > pod.epoch:
                return  # another operator knows a later master
            version = "" if found is None else found["metadata"]["resourceVersion"]

    async def _write(self, wanted: Body, version: str) -> Body | None:
        """Create the EndpointSlice, or replace this version of it; return None if another client
        has created or changed it.
        """
        metadata = wanted["metadata"]
        try:
            if not version:
                return await self._api.create(wanted)
            change = {**wanted, "metadata": {**metadata, "resourceVersion": version}}
            return await self._api.patch(KIND, metadata["namespace"], metadata["name"], change)
        except ApiRefused as error:
            if error.status != 409:
                raise
            return None
