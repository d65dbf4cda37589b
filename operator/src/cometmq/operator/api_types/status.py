# SPDX-License-Identifier: Apache-2.0
"""The status of a BrokerGroup, cometmq.io/v1alpha1; `broker_group.py` has the spec."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One aspect of the state of a group."""

    type: Annotated[str, Meta(description="Name of the condition.", max_length=64)]
    status: Annotated[str, Meta(description="True, False or Unknown.", max_length=7)]
    reason: Annotated[str, Meta(description="One-word reason.", max_length=64)]
    message: Annotated[
        str, Meta(description="What is wrong, and what to do about it.", max_length=4096)
    ] = ""
    observed_generation: Annotated[
        int, Meta(description="Generation of the spec that the condition is based on.")
    ] = 0
    last_transition_time: Annotated[
        str,
        Meta(
            description="When the status last changed.", extra_json_schema={"format": "date-time"}
        ),
    ] = ""


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One broker of the group."""

    pod: Annotated[str, Meta(description="Name of the pod.", max_length=253)]
    role: Annotated[
        str,
        Meta(
            description="Role that the broker reports; empty if it does not answer.", max_length=16
        ),
    ] = ""
    epoch: Annotated[int, Meta(description="Epoch in which it leads or follows.")] = 0
    in_sync: Annotated[bool, Meta(description="Whether it is in the in-sync set.")] = False
    ready: Annotated[bool, Meta(description="Whether the pod is ready.")] = False
    current: Annotated[bool, Meta(description="Whether the pod runs the latest spec.")] = False


class Drain(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Progress of the drain before a deletion."""

    remaining_messages: Annotated[
        int,
        Meta(
            description="Messages that at least one consumer group has not consumed; -1 if unknown."
        ),
    ] = -1
    waiting_for: Annotated[
        list[Annotated[str, Meta(max_length=512)]],
        Meta(description="Consumer groups with unconsumed messages, worst first.", max_length=10),
    ] = []


class LastOperation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last operation requested through an annotation."""

    verb: Annotated[str, Meta(description="Verb of the operation.", max_length=64)]
    value: Annotated[str, Meta(description="Value of the annotation.", max_length=253)]
    result: Annotated[str, Meta(description="Done, Refused or Started.", max_length=16)]
    message: Annotated[
        str, Meta(description="What came of it, or why it was refused.", max_length=1024)
    ] = ""
    time: Annotated[
        str,
        Meta(
            description="When the operator carried it out, or refused it.",
            extra_json_schema={"format": "date-time"},
        ),
    ] = ""


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of a broker group, as last seen by the operator."""

    observed_generation: Annotated[
        int, Meta(description="Generation of the spec that the operator has acted on.")
    ] = 0
    phase: Annotated[
        str,
        Meta(
            description="Summary: Creating, Running, Degraded, Upgrading, Scaling, Draining, Paused"
            " or Failed.",
            max_length=32,
        ),
    ] = ""
    master: Annotated[str, Meta(description="Pod of the master.", max_length=253)] = ""
    epoch: Annotated[int, Meta(description="Epoch of the master; every failover raises it.")] = 0
    loss_epoch: Annotated[
        int,
        Meta(
            description="Epoch to name in the annotation cometmq.io/accept-loss; 0 while there is"
            " no loss that can be accepted."
        ),
    ] = 0
    in_sync: Annotated[
        list[Annotated[str, Meta(max_length=253)]],
        Meta(description="Pods that have every acknowledged message.", max_length=9),
    ] = []
    in_sync_count: Annotated[int, Meta(description="Number of pods in sync.")] = 0
    replicas: Annotated[int, Meta(description="Number of pods.")] = 0
    ready_replicas: Annotated[int, Meta(description="Number of ready pods.")] = 0
    selector: Annotated[
        str, Meta(description="Label selector of the pods, for autoscalers.", max_length=512)
    ] = ""
    config_hash: Annotated[
        str, Meta(description="Hash of the settings that new pods get.", max_length=64)
    ] = ""
    members: Annotated[
        list[MemberStatus], Meta(description="The brokers of the group.", max_length=18)
    ] = []
    drain: Annotated[Drain, Meta(description="What a deletion waits for.")] | None = None
    last_operation: (
        Annotated[
            LastOperation, Meta(description="The last operation requested through an annotation.")
        ]
        | None
    ) = None
    conditions: Annotated[
        list[Condition],
        Meta(
            description="Conditions of the group: Available, Ready, FullyReplicated, Progressing,"
            " ElectionPossible, SpecAccepted.",
            max_length=16,
            extra_json_schema={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
    ] = []
