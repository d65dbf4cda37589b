# SPDX-License-Identifier: Apache-2.0
"""Builds the status of a BrokerGroup, which users see (pure).

Later passes read two of its fields: the epoch, to know whether there has been a master, and the
last operation, to continue an accepted loss.
"""

from collections.abc import Iterable

import msgspec

from cometmq.ha.actions import Tell
from cometmq.operator.api_types.status import (
    Condition,
    Drain,
    GroupStatus,
    LastOperation,
    MemberStatus,
)
from cometmq.operator.broker_groups import user_orders
from cometmq.operator.broker_groups.decide import (
    Ending,
    Nothing,
    Release,
    Restart,
    Step,
    Wait,
)
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.seen import Seen
from cometmq.operator.managed import dated


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass over a group has found and decided."""

    seen: Seen
    step: Step | Ending = Nothing()
    refusal: str = ""
    """Why the API server rejected an object of the group."""
    secret_fault: Wait | None = None
    """Why a Secret that the spec names cannot be used."""
    config_hash: str = ""
    last_operation: LastOperation | None = None


def status_of(group: BrokerGroup, found: Findings, before: GroupStatus, now: str) -> GroupStatus:
    """Return the status; `now` is the time for conditions whose status changed since `before`."""
    seen = found.seen
    record = seen.record
    in_sync = [] if record is None else [group.pod(copy.ordinal) for copy in record.in_sync]
    fault, loss_epoch = user_orders.explained(group, seen)
    fresh = _conditions(group, found, fault)
    return GroupStatus(
        observed_generation=group.generation,
        phase=_phase(group, found),
        master=group.pod(record.holder.ordinal) if record and seen.has_master else "",
        epoch=record.epoch if record else 0,
        loss_epoch=loss_epoch,
        in_sync=in_sync,
        in_sync_count=len(in_sync),
        replicas=len(seen.pods),
        ready_replicas=sum(pod.is_ready for pod in seen.pods.values()),
        selector=group.selector,
        config_hash=found.config_hash,
        members=_members(group, seen),
        drain=_drain(group, seen),
        last_operation=found.last_operation or before.last_operation,
        conditions=dated(fresh, before.conditions, now),
    )


def _members(group: BrokerGroup, seen: Seen) -> list[MemberStatus]:
    statuses = {one.copy.ordinal: one for one in seen.statuses}
    in_sync = {copy.ordinal for copy in seen.record.in_sync} if seen.record else set()
    members = []
    for ordinal, pod in sorted(seen.pods.items()):
        status = statuses.get(ordinal)
        members.append(
            MemberStatus(
                pod=group.pod(ordinal),
                role=status.role.value if status else "",
                epoch=status.epoch if status else 0,
                in_sync=ordinal in in_sync,
                ready=pod.is_ready,
                current=pod.is_current,
            )
        )
    return members


def _drain(group: BrokerGroup, seen: Seen) -> Drain | None:
    if not group.is_deleting:
        return None
    if seen.backlog is None:
        return Drain()
    names = [f"{name}: {count}" for name, count in seen.backlog.worst_first]
    return Drain(remaining_messages=seen.backlog.total, waiting_for=names[:10])


def _phase(group: BrokerGroup, found: Findings) -> str:
    seen = found.seen
    count = len(seen.record.in_sync) if seen.record else 0
    is_scaling = seen.replicas is not None and seen.replicas != group.spec.replicas
    # The first phase whose condition is true applies.
    phases = (
        ("Draining", group.is_deleting),
        ("Failed", bool(found.refusal) or found.secret_fault is not None),
        ("Paused", group.spec.paused),
        ("Creating", seen.record is None),
        ("Scaling", is_scaling),
        ("Upgrading", any(not pod.is_current for pod in seen.pods.values())),
        ("Degraded", not seen.has_master or count < group.spec.replicas),
        ("Running", True),
    )
    return next(name for name, holds in phases if holds)


def _conditions(
    group: BrokerGroup, found: Findings, fault: tuple[str, str] | None
) -> Iterable[Condition]:
    seen, spec = found.seen, group.spec
    count = len(seen.record.in_sync) if seen.record else 0
    is_open = seen.has_master
    has_enough = is_open and count >= spec.replication.min_in_sync
    yield _condition(
        group, "Available", has_enough,
        ("MasterOpen", "the master accepts messages"),
        ("NoMaster", "no master is open; a failover is due, or see ElectionPossible")
        if not is_open
        else (
            "TooFewInSync",
            f"{count} copies are in sync, minInSync is {spec.replication.min_in_sync}: sends wait",
        ),
    )  # fmt: skip
    yield _condition(
        group, "FullyReplicated", count == spec.replicas,
        ("InSync", "every copy is in sync"),
        ("CopiesMissing", f"{count} of {spec.replicas} copies are in sync"),
    )  # fmt: skip
    unready = [
        group.pod(one)
        for one in range(spec.replicas)
        if one not in seen.pods or not seen.pods[one].is_fit
    ]
    yield _condition(
        group, "Ready",
        has_enough and not unready and count == spec.replicas and found.secret_fault is None,
        ("AsSpecified", "the group is as specified"),
        _worded(found.secret_fault)
        if found.secret_fault is not None
        else ("PodsNotReady", _unready_text(group, seen, unready))
        if unready
        else ("NotReplicated", "see the conditions Available and FullyReplicated"),
    )  # fmt: skip
    yield _progressing(group, found)
    yield _condition(
        group, "ElectionPossible", fault is None,
        ("Watching", "a lost master would be replaced"), fault or ("", ""),
    )  # fmt: skip
    yield _condition(
        group, "SpecAccepted", not found.refusal and found.secret_fault is None,
        ("Applied", "the API server accepted all objects of the group"),
        ("Refused", found.refusal)
        if found.secret_fault is None
        else _worded(found.secret_fault),
    )  # fmt: skip


def _worded(wait: Wait) -> tuple[str, str]:
    return wait.reason.value, wait.text


def _unready_text(group: BrokerGroup, seen: Seen, unready: list[str]) -> str:
    troubles = [
        f"; {group.pod(one)}: {pod.trouble}"
        for one, pod in sorted(seen.pods.items())
        if pod.trouble
    ]
    return f"not ready, or not current: {', '.join(unready)}{''.join(troubles)}"


def _progressing(group: BrokerGroup, found: Findings) -> Condition:
    words = said(group, found.step)
    return _condition(group, "Progressing", not isinstance(found.step, Nothing), words, words)


def said(group: BrokerGroup, step: Step | Ending) -> tuple[str, str]:
    """Return the reason and the text of a step, for conditions and Events."""
    match step:
        case Nothing():
            return "Idle", "no change is under way"
        case Release():
            return "Drained", "the deletion goes on"
        case Wait(reason=reason, text=text):
            return reason.value, text
        case Restart(ordinal=ordinal):
            return "RollingUpdate", f"{group.pod(ordinal)} restarts"
        case Tell(order=order):
            return "Switchover", f"{group.pod(order.successor)} becomes the master"


def _condition(
    group: BrokerGroup, type_: str, holds: bool, good: tuple[str, str], bad: tuple[str, str]
) -> Condition:
    reason, message = good if holds else bad
    return Condition(
        type=type_,
        status="True" if holds else "False",
        reason=reason,
        message=message,
        observed_generation=group.generation,
    )
