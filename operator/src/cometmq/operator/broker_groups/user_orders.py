# SPDX-License-Identifier: Apache-2.0
"""Plans the orders given by users' annotations: switchover-to, fence, rebuild,
rotate-key, accept-loss (pure).
"""

from enum import StrEnum

import msgspec

from cometmq.ha.actions import Status, Tell
from cometmq.ha.orders import Fence, HandOver, Rebuild
from cometmq.operator.api_types.broker_group import GROUP
from cometmq.operator.broker_groups import acceptance, decide
from cometmq.operator.broker_groups.acceptance import AcceptLoss
from cometmq.operator.broker_groups.decide import Wait
from cometmq.operator.broker_groups.group import SWITCHOVER, BrokerGroup
from cometmq.operator.broker_groups.seen import Seen


class Verb(StrEnum):
    """The orders in annotations, in the sequence in which they are carried out."""

    FENCE = "fence"
    SWITCHOVER = "switchover-to"
    REBUILD = "rebuild"
    ROTATE_KEY = "rotate-key"
    ACCEPT_LOSS = "accept-loss"


class UserOrder(msgspec.Struct, frozen=True):
    """One order, not yet validated."""

    annotation: str
    verb: Verb
    value: str


class Refused(msgspec.Struct, frozen=True):
    """The order cannot be carried out; `text` gives the reason and the remedy."""

    text: str


class RotateKey(msgspec.Struct, frozen=True):
    """Replace the key of the group, step by step."""


Plan = Tell[HandOver] | Tell[Fence] | Tell[Rebuild] | AcceptLoss | RotateKey | Refused


def given(group: BrokerGroup) -> UserOrder | None:
    """Return the next order to carry out; others wait for the next pass."""
    for verb in Verb:
        if (annotation := f"{GROUP}/{verb}") in group.annotations:
            return UserOrder(annotation, verb, group.annotations[annotation])
    return None


def plan(group: BrokerGroup, seen: Seen, order: UserOrder) -> Plan:
    """Return the call that carries out an order now, or why there is none."""
    if order.verb is Verb.SWITCHOVER and order.value == decide.BEST:
        return _switch_over(seen, None)
    if order.verb is Verb.ROTATE_KEY:
        return RotateKey()
    if order.verb is Verb.ACCEPT_LOSS:
        found = acceptance.judged(group, seen, order.value)
        return Refused(found) if isinstance(found, str) else found
    ordinal = group.ordinal(order.value)
    if ordinal is None:
        best = f", or {decide.BEST}" if order.verb is Verb.SWITCHOVER else ""
        return Refused(f"{order.value!r} is not a pod of the group; use {group.pod(0)}{best}")
    match order.verb:
        case Verb.SWITCHOVER:
            return _switch_over(seen, ordinal)
        case Verb.FENCE:
            return _fence(group, seen, ordinal)
        case Verb.REBUILD:
            return _rebuild(group, seen, ordinal)


def _switch_over(seen: Seen, ordinal: int | None) -> Plan:
    found = decide.switch_over(seen, ordinal)
    return Refused(found.text) if isinstance(found, Wait) else found


def _fence(group: BrokerGroup, seen: Seen, ordinal: int) -> Plan:
    status = _status(seen, ordinal)
    if status is None:
        return Refused(f"{group.pod(ordinal)} does not answer: look at its log, or delete the pod")
    if not status.role.is_live:
        return Refused(f"{group.pod(ordinal)} is {status.role}, not the master")
    known = 0 if seen.record is None else seen.record.epoch
    return Tell(ordinal, Fence(max(known, status.promised, status.epoch) + 1))


def _rebuild(group: BrokerGroup, seen: Seen, ordinal: int) -> Plan:
    pod, record, status = group.pod(ordinal), seen.record, _status(seen, ordinal)
    if status is None:
        return Refused(
            f"{pod} does not answer: delete its volume claim and the pod to give it a new volume"
        )
    if record is None or not seen.has_master:
        return Refused("no master is open, so there is nothing to copy from")
    if ordinal == record.holder.ordinal or status.role.is_live:
        return Refused(f"{pod} is the master: switch over first, with {SWITCHOVER}={decide.BEST}")
    needed = group.spec.replication.min_in_sync
    others = sum(one.ordinal != ordinal for one in record.in_sync)
    if record.member(ordinal) is not None and others < needed:
        return Refused(
            f"without {pod}, {others} copies are in sync, and minInSync is {needed}: have another"
            " broker catch up first"
        )
    return Tell(ordinal, Rebuild())


def _status(seen: Seen, ordinal: int) -> Status | None:
    return next((one for one in seen.statuses if one.copy.ordinal == ordinal), None)
