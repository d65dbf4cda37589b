# SPDX-License-Identifier: Apache-2.0
"""The status of a BrokerGroup, cometmq.io/v1alpha1; `broker_group.py` has the spec."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One aspect of the state of a group."""

    type: Annotated[str, Meta(max_length=64), "Name of the condition."]
    status: Annotated[str, Meta(max_length=7), "True, False or Unknown."]
    reason: Annotated[str, Meta(max_length=64), "One-word reason."]
    message: Annotated[str, Meta(max_length=4096), "What is wrong, and what to do about it."] = ""
    observed_generation: Annotated[
        int, "Generation of the spec that the condition is based on."
    ] = 0
    last_transition_time: Annotated[
        str,
        Meta(extra_json_schema={"format": "date-time"}),
        "When the status last changed.",
    ] = ""


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pod: Annotated[str, Meta(max_length=253), "Name of the pod."]
    role: Annotated[
        str,
        Meta(max_length=16),
        "Role that the broker reports; empty if it does not answer.",
    ] = ""
    epoch: Annotated[int, "Epoch in which it leads or follows."] = 0
    in_sync: Annotated[bool, "Whether it is in the in-sync set."] = False
    ready: Annotated[bool, "Whether the pod is ready."] = False
    current: Annotated[bool, "Whether the pod runs the latest spec."] = False


class Drain(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Progress of the drain before a deletion."""

    remaining_messages: Annotated[
        int,
        "Messages that at least one consumer group has not consumed; -1 if unknown.",
    ] = -1
    waiting_for: Annotated[
        list[Annotated[str, Meta(max_length=512)]],
        Meta(max_length=10),
        "Consumer groups with unconsumed messages, worst first.",
    ] = []


class LastOperation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last operation requested through an annotation."""

    verb: Annotated[str, Meta(max_length=64), "Verb of the operation."]
    value: Annotated[str, Meta(max_length=253), "Value of the annotation."]
    result: Annotated[str, Meta(max_length=16), "Done, Refused or Started."]
    message: Annotated[str, Meta(max_length=1024), "What came of it, or why it was refused."] = ""
    time: Annotated[
        str,
        Meta(extra_json_schema={"format": "date-time"}),
        "When the operator carried it out, or refused it.",
    ] = ""


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of a broker group, as last seen by the operator."""

    observed_generation: Annotated[
        int, "Generation of the spec that the operator has acted on."
    ] = 0
    phase: Annotated[
        str,
        Meta(max_length=32),
        "Summary: Creating, Running, Degraded, Upgrading, Scaling, Draining, Paused or Failed.",
    ] = ""
    master: Annotated[str, Meta(max_length=253), "Pod of the master."] = ""
    epoch: Annotated[int, "Epoch of the master; every failover raises it."] = 0
    loss_epoch: Annotated[
        int,
        "Epoch to name in the annotation cometmq.io/accept-loss; 0 while there is no loss that "
        "can be accepted.",
    ] = 0
    in_sync: Annotated[
        list[Annotated[str, Meta(max_length=253)]],
        Meta(max_length=9),
        "Pods that have every acknowledged message.",
    ] = []
    in_sync_count: Annotated[int, "Number of pods in sync."] = 0
    replicas: Annotated[int, "Number of pods."] = 0
    ready_replicas: Annotated[int, "Number of ready pods."] = 0
    selector: Annotated[
        str, Meta(max_length=512), "Label selector of the pods, for autoscalers."
    ] = ""
    config_hash: Annotated[str, Meta(max_length=64), "Hash of the settings that new pods get."] = ""
    members: Annotated[list[MemberStatus], Meta(max_length=18), "The brokers of the group."] = []
    drain: Annotated[Drain, "What a deletion waits for."] | None = None
    last_operation: (
        Annotated[LastOperation, "The last operation requested through an annotation."] | None
    ) = None
    conditions: Annotated[
        list[Condition],
        Meta(
            max_length=16,
            extra_json_schema={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
        "Conditions of the group: Available, Ready, FullyReplicated, Progressing, "
        "ElectionPossible, SpecAccepted.",
    ] = []
