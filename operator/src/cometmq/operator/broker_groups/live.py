# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes objects of a group, read from the API."""

from collections.abc import Mapping
from typing import Self

import msgspec

from cometmq.operator.api import Body, KubeApi
from cometmq.operator.broker_groups.group import KEY_MARK, KEY_REQUIRED, BrokerGroup


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The current Kubernetes objects of a group."""

    stateful_set: Body | None
    pods: dict[int, Body]
    claims: list[Body]

    @classmethod
    async def read(cls, api: KubeApi, group: BrokerGroup) -> Self:
        """Read the objects of a group; raise ApiUnreachable if the API does not answer."""
        found = await api.get("StatefulSet", group.namespace, group.name)
        if found is not None and not group.may_change(found):
            found = None
        pods = await api.list("Pod", group.namespace, group.labels)
        claims = await api.list("PersistentVolumeClaim", group.namespace, group.labels)
        by_ordinal = {group.ordinal(pod["metadata"]["name"]): pod for pod in pods}
        return cls(
            stateful_set=found,
            pods={one: pod for one, pod in by_ordinal.items() if one is not None},
            claims=[one for one in claims if group.is_claim(one["metadata"]["name"])],
        )

    @property
    def replicas(self) -> int | None:
        return None if self.stateful_set is None else self.stateful_set["spec"]["replicas"]

    @property
    def volume_size(self) -> str | None:
        """The volume size in the StatefulSet, which is immutable; to grow volumes, the claims are
        expanded one by one.
        """
        if self.stateful_set is None:
            return None
        (template,) = self.stateful_set["spec"]["volumeClaimTemplates"]
        return str(template["spec"]["resources"]["requests"]["storage"])

    def marks(self, ordinal: int) -> Mapping[str, str]:
        """Return the annotations of a pod; if there is none, those of the StatefulSet's
        template.
        """
        pod = self.pods.get(ordinal)
        if pod is None and self.stateful_set is not None:
            pod = self.stateful_set["spec"]["template"]
        return {} if pod is None else pod["metadata"].get("annotations") or {}

    @property
    def is_key_required(self) -> bool:
        """Whether new pods may demand a proof of the group's key from all members.

        Pods of earlier releases have no key. A first rolling update gives the key to all pods,
        which still accept members without it. Once all pods have it, a second update makes them
        require it.
        """
        if self.stateful_set is None:
            return True
        template = self.stateful_set["spec"]["template"]["metadata"].get("annotations") or {}
        if template.get(KEY_MARK) == KEY_REQUIRED:
            return True
        return bool(self.pods) and all(KEY_MARK in self.marks(one) for one in self.pods)
