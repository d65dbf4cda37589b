# SPDX-License-Identifier: Apache-2.0
"""Sections of a BrokerGroup's spec: see `broker_group.py`."""

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cometmq.operator.api_types.schema import OPAQUE, Opaque, rule, rules

IMMUTABLE: Final = rule(
    "self == oldSelf",
    "cannot be changed: create another BrokerGroup and let this one drain",
)
NameServer = Annotated[
    str,
    Meta(
        min_length=3,
        max_length=261,
        pattern=r"^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$",
    ),
]
"""HOST:PORT, or [IPv6]:PORT."""


class PullPolicy(StrEnum):
    """When a node pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Retain(StrEnum):
    """Whether volumes that are no longer used are kept or deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Rollout(StrEnum):
    """How changed pods are replaced."""

    ROLLING_SWITCHOVER = "RollingSwitchover"
    ON_DELETE = "OnDelete"


class Deletion(StrEnum):
    """Whether a deletion drains the group first."""

    DRAIN = "Drain"
    NOW = "Now"


class Image(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: (
        Annotated[
            str,
            Meta(min_length=1, max_length=512),
            "Image with registry, repository, and tag or digest. Without it, the operator's "
            "default is used, which is the image of its own release.",
        ]
        | None
    ) = None
    pull_policy: Annotated[
        PullPolicy, "When a node pulls the image: Always, IfNotPresent, Never."
    ] = PullPolicy.IF_NOT_PRESENT
    pull_secrets: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=253)]],
        Meta(max_length=8),
        "Names of Secrets in this namespace with the credentials of the registry.",
    ] = []


class Replication(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When a message counts as stored, and how soon a lost master is replaced."""

    min_in_sync: Annotated[
        int,
        Meta(ge=1, le=9),
        "Number of copies, including the master's, that must be in sync for sends to be accepted. "
        "With 2 of 2, sends stop while either pod is down; with 1, they continue, but losing the "
        "remaining disk would then lose messages.",
    ] = 1
    renew_deadline_ms: Annotated[
        int,
        Meta(ge=500, le=600_000),
        "If a master has not renewed the record for this many milliseconds, and its copies are "
        "also silent, it stops acknowledging messages. A failover waits 1.3 times as long if "
        "nothing else shows that the master is lost.",
    ] = 6_000
    heard_within_ms: Annotated[
        int,
        Meta(ge=300, le=60_000),
        "How long the master's replication stream may be silent, in milliseconds, before its "
        "slaves and the operator consider the master lost.",
    ] = 1_500
    replica_lag_timeout_ms: Annotated[
        int,
        Meta(ge=100, le=600_000),
        "Milliseconds after which a slave that has not caught up leaves the in-sync set.",
    ] = 10_000
    switchover_timeout_ms: Annotated[
        int,
        Meta(ge=10, le=60_000),
        "How long, in milliseconds, a master holds back requests during a switchover before it "
        "gives up. Keep it below the send timeout of the clients, which is 3000 by default.",
    ] = 2_000


class StorageRetention(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Retention policy for the volumes of removed pods."""

    when_deleted: Annotated[
        Retain,
        "Whether to Retain or Delete the volumes when the BrokerGroup is deleted.",
    ] = Retain.RETAIN
    when_scaled: Annotated[
        Retain,
        "Whether to Retain or Delete the volume of a removed pod when replicas is lowered.",
    ] = Retain.RETAIN


class Storage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The volume of each broker."""

    size: Annotated[
        str,
        Meta(
            max_length=20,
            pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)$",
            extra_json_schema=rules(
                rule(
                    "quantity(self).compareTo(quantity(oldSelf)) >= 0",
                    "volumes can grow but not shrink: keep the size or raise it",
                )
            ),
        ),
        "Size of each volume, for example 20Gi. It can grow if the storage class allows "
        "expansion, but never shrink.",
    ] = "20Gi"
    class_name: (
        Annotated[
            str,
            Meta(min_length=1, max_length=253),
            "Storage class of the volumes; without it, the cluster's default.",
        ]
        | None
    ) = None
    retain: Annotated[
        StorageRetention,
        "What happens to the volumes of pods that have been removed.",
    ] = StorageRetention()


class Scheduling(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where pods run, in the fields of a pod's spec."""

    node_selector: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]],
        Meta(max_length=32),
        "Labels that a node must have.",
    ] = {}
    tolerations: Annotated[list[Opaque], Meta(max_length=32), "Taints that pods tolerate."] = []
    affinity: (
        Annotated[
            dict[str, Any],
            Meta(extra_json_schema=OPAQUE),
            "Affinity of the pods. Without it, the pods of a group prefer different nodes.",
        ]
        | None
    ) = None
    topology_spread_constraints: Annotated[
        list[Opaque],
        Meta(max_length=8),
        "How pods spread over zones and nodes. Without it, they spread over zones where possible.",
    ] = []
    priority_class_name: (
        Annotated[str, Meta(max_length=253), "Priority class of the pods."] | None
    ) = None


class DisruptionBudget(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        "Whether a PodDisruptionBudget limits node drains to one broker of the group at a time. A "
        "group with one replica never gets such a budget, because it would block drains.",
    ] = True


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """How changed pods are replaced."""

    type: Annotated[
        Rollout,
        "RollingSwitchover: slaves are replaced first, one at a time, each back in sync before "
        "the next; then comes a switchover, and then the old master is replaced. OnDelete: pods "
        "are replaced when someone deletes them.",
    ] = Rollout.ROLLING_SWITCHOVER
