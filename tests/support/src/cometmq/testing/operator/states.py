# SPDX-License-Identifier: Apache-2.0
"""Sample groups and states for tests of decisions."""

from collections.abc import Mapping
from typing import Any

import msgspec

from cometmq.ha.actions import Status
from cometmq.ha.record import Copy, Record
from cometmq.ha.role import Role
from cometmq.operator.broker_groups.group import BrokerGroup, group_of
from cometmq.operator.broker_groups.seen import PodSeen, Seen

READY = PodSeen(is_ready=True, is_current=True)
STALE = PodSeen(is_ready=True, is_current=False)
DOWN = PodSeen(is_ready=False, is_current=True)
DOWN_STALE = PodSeen(is_ready=False, is_current=False)
ENDING = PodSeen(is_ready=False, is_current=False, is_terminating=True)


def copy(ordinal: int) -> Copy:
    return Copy(ordinal, f"i{ordinal}")


def group(**spec: Any) -> BrokerGroup:
    metadata = {"namespace": "mq", "name": "orders", "uid": "u-1", "generation": 3}
    return group_of({"metadata": metadata, "spec": {"nameServers": ["ns:9876"], **spec}})


def deleting(one: BrokerGroup, annotations: Mapping[str, str] | None = None) -> BrokerGroup:
    return msgspec.structs.replace(one, is_deleting=True, annotations=annotations or {})


def seen(*pods: PodSeen | None, master: int = 0, out: tuple[int, ...] = (), **more: Any) -> Seen:
    """Return a state with all pods in sync except the ordinals in `out`; a pod given as None is
    missing.
    """
    present = {one: pod for one, pod in enumerate(pods) if pod is not None}
    members = tuple(copy(one) for one in range(len(pods)) if one not in out)
    record = Record(
        uid="r", group="orders", epoch=4, holder=copy(master), in_sync=members, copies=len(pods)
    )
    statuses = tuple(
        Status(
            copy=copy(one),
            role=Role.MASTER if one == master else Role.SLAVE,
            promised=4,
            epoch=4,
        )
        for one in present
    )
    facts: dict[str, Any] = {
        "replicas": len(pods),
        "pods": present,
        "record": record,
        "statuses": statuses,
    }
    return Seen(**{**facts, **more})
