# SPDX-License-Identifier: Apache-2.0
"""Derives the facts that decisions depend on (`Seen`) from a group's objects,
record and members (pure).
"""

from typing import Final

import msgspec

from cometmq.operator.api import Body
from cometmq.operator.api_types.status import GroupStatus
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.live import Live
from cometmq.operator.broker_groups.seen import Election, PodSeen, Seen

REVISION: Final = "controller-revision-hash"
STARTING: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons to wait that every container has when it starts, so they are no trouble."""
TROUBLE_CHARACTERS_MAX: Final = 200


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
