# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes objects of a group, read from the API, and the facts that decisions depend on
(`Seen`), derived from them and the record and members.
"""

from collections.abc import Mapping
from typing import Final, Self

import msgspec

from cometmq.operator.api import Body, KubeApi
from cometmq.operator.api_types.status import GroupStatus
from cometmq.operator.broker_groups.group import KEY_MARK, KEY_REQUIRED, BrokerGroup
from cometmq.operator.broker_groups.seen import Election, PodSeen, Seen

REVISION: Final = "controller-revision-hash"
STARTING: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons to wait that every container has when it starts, so they are no trouble."""
TROUBLE_CHARACTERS_MAX: Final = 200


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


def seen_of(group: BrokerGroup, live: Live, election: Election, before: GroupStatus) -> Seen:
    """Return the facts that decisions depend on; `before` is the status of the last pass."""
    found, record = live.stateful_set, election.record
    seen = Seen(
        may_have_data=_may_have_data(election, before),
        asked=election.asked,
        election_fault=election.fault,
    )
    if found is None:
        return seen
    status = found.get("status", {})
    revision = status.get("updateRevision", "")
    return msgspec.structs.replace(
        seen,
        replicas=found["spec"]["replicas"],
        is_settled=status.get("observedGeneration") == found["metadata"]["generation"],
        pods={one: _pod(pod, revision) for one, pod in live.pods.items()},
        record=record if record is None or record.group == group.broker_name else None,
        statuses=election.statuses,
    )


def _may_have_data(election: Election, before: GroupStatus) -> bool:
    """Return whether there is, may be or has been a master.

    If the record was deleted, the status soon has no epoch either, but the brokers' stores show
    that they had a master.
    """
    return (
        election.record is not None
        or not (election.is_record_known and election.has_looked)
        or before.epoch > 0
        or any(one.last_log_epoch > 0 for one in election.statuses)
    )


def _pod(pod: Body, revision: str) -> PodSeen:
    metadata, conditions = pod["metadata"], pod.get("status", {}).get("conditions") or ()
    return PodSeen(
        is_ready=any(one["type"] == "Ready" and one["status"] == "True" for one in conditions),
        is_current=metadata.get("labels", {}).get(REVISION) == revision,
        is_terminating="deletionTimestamp" in metadata,
        trouble=_trouble(pod.get("status", {})),
    )


def _trouble(status: Body) -> str:
    """Return why a pod cannot be scheduled or a container cannot start, as reason and message."""
    causes = [
        one
        for one in status.get("conditions") or ()
        if one["type"] == "PodScheduled" and one["status"] == "False"
    ]
    states = (one.get("state", {}) for one in status.get("containerStatuses") or ())
    causes += [one["waiting"] for one in states if "waiting" in one]
    for cause in causes:
        reason, message = cause.get("reason", ""), cause.get("message", "")
        if reason and reason not in STARTING:
            return f"{reason}: {message}"[:TROUBLE_CHARACTERS_MAX].removesuffix(": ")
    return ""
