# SPDX-License-Identifier: Apache-2.0
"""Plans the orders given by users' annotations: switchover-to, fence, rebuild,
rotate-key, accept-loss (pure).

Electors never choose a store that may lack acknowledged messages. If no other store is left, only a
person can decide that the group continues with such a store.
"""

from enum import StrEnum
from typing import Final

import msgspec

from cometmq.ha.actions import Blocked, Status, Tell
from cometmq.ha.missing_record import ACCEPTABLE, ACCEPTANCE
from cometmq.ha.orders import Fence, HandOver, Rebuild
from cometmq.ha.record import Copy, Record
from cometmq.operator.api_types.broker_group import GROUP
from cometmq.operator.broker_groups import decide
from cometmq.operator.broker_groups.decide import Wait
from cometmq.operator.broker_groups.group import ACCEPT_LOSS, FENCE, SWITCHOVER, BrokerGroup
from cometmq.operator.broker_groups.seen import Seen

WITH_RECORD: Final = frozenset({Blocked.NO_CANDIDATE})
"""Reasons why no master can be elected that an accepted loss removes even if there is a record."""


class AcceptLoss(msgspec.Struct, frozen=True):
    """Create the record from the most complete store, even if messages may be lost."""

    epoch: int
    record: Record | None
    """The record to delete first; None if there is none."""
    copies: frozenset[Copy]
    """The stores of all brokers."""


def _epoch_of(seen: Seen) -> int:
    """Return the epoch that an acceptance must name.

    It is the record's epoch or, without a record, the highest one that a broker has promised. The
    record created after an acceptance has a later epoch, so an annotation that is applied again,
    for example as part of a manifest, accepts no later loss.
    """
    if seen.record is not None:
        return seen.record.epoch
    return max([1, *(one.promised for one in seen.statuses)])


def _obstacle(group: BrokerGroup, seen: Seen) -> str:
    """Return what must happen before a loss can be accepted; empty if it can be accepted now."""
    if seen.has_master:
        return "the group has a master, so there is nothing to accept"
    live = [group.pod(one.copy.ordinal) for one in seen.statuses if one.role.is_live]
    if live:
        return f"{live[0]} still acts as the master: stop it first, with {FENCE}={live[0]}"
    if seen.election_fault is None:
        return "nothing prevents an election: wait for it"
    reason, text = seen.election_fault
    if reason in ACCEPTABLE:  # the elector has found that all brokers answer
        return ""
    if reason not in WITH_RECORD:
        return f"this does not solve {reason}: {text}"
    silent = _silent(group, seen)
    if silent:
        return (
            f"{', '.join(silent)} must answer first, because a broker that does not answer may have"
            " a complete store; if its volume is lost, let it start with an empty one"
        )
    return ""


def explained(group: BrokerGroup, seen: Seen) -> tuple[tuple[str, str] | None, int]:
    """Return why no master can be elected, with the way to accept a loss if that would help; and
    the epoch to name for a loss that can be accepted now, 0 if there is none.
    """
    if seen.election_fault is None:
        return None, 0
    reason, text = seen.election_fault
    if reason not in ACCEPTABLE | WITH_RECORD:
        return (reason, text), 0
    if reason in WITH_RECORD:
        risk = "if the recorded stores are lost, so may be acknowledged messages"
        text = f"{text}; {risk}: {ACCEPTANCE}"
    if why := _obstacle(group, seen):
        return (reason, f"{text}, but not yet: {why}"), 0
    epoch = _epoch_of(seen)
    way = f"with cometmq k8s accept-loss {group.name} or the annotation {ACCEPT_LOSS}={epoch}"
    return (reason, f"{text}, {way}"), 0 if group.is_deleting else epoch


def judged(group: BrokerGroup, seen: Seen, value: str) -> AcceptLoss | str:
    """Return the acceptance that an annotation with this value stands for, or why it is refused."""
    if why := _obstacle(group, seen):
        return why
    epoch = _epoch_of(seen)
    if value != str(epoch):
        return (
            f"the loss that can be accepted now has the epoch {epoch}, not {value!r}: look at the"
            f" condition ElectionPossible again, then use {ACCEPT_LOSS}={epoch}"
        )
    return AcceptLoss(epoch, seen.record, frozenset(one.copy for one in seen.statuses))


def _silent(group: BrokerGroup, seen: Seen) -> list[str]:
    """Return the pods whose store is unknown: their brokers do not answer, or still recover it.

    A broker of the in-sync set counts even if the group was scaled in without it.
    """
    known = {one.copy.ordinal for one in seen.statuses if one.role.has_store}
    named = () if seen.record is None else seen.record.in_sync
    expected = {*seen.asked, *(copy.ordinal for copy in named)}
    return [group.pod(one) for one in sorted(expected - known)]


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
        found = judged(group, seen, order.value)
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
