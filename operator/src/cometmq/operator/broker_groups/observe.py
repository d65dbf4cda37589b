# SPDX-License-Identifier: Apache-2.0
"""Derives the facts that decisions depend on (`Seen`) from a group's objects,
record and members (pure).
"""

from typing import Final

from cometmq.ha.actions import Statuses
from cometmq.ha.record import Record
from cometmq.operator.api import Body
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.live import Live
from cometmq.operator.broker_groups.seen import PodSeen, Seen

REVISION: Final = "controller-revision-hash"
STARTING: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons to wait that every container has when it starts, so they are no trouble."""
TROUBLE_CHARACTERS_MAX: Final = 200


def seen_of(group: BrokerGroup, live: Live, record: Record | None, statuses: Statuses) -> Seen:
    """Return the facts that decisions depend on."""
    found = live.stateful_set
    if found is None:
        return Seen()
    status = found.get("status", {})
    revision = status.get("updateRevision", "")
    return Seen(
        replicas=found["spec"]["replicas"],
        is_settled=status.get("observedGeneration") == found["metadata"]["generation"],
        pods={one: _pod(pod, revision) for one, pod in live.pods.items()},
        record=record if record is None or record.group == group.broker_name else None,
        statuses=statuses,
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
