# SPDX-License-Identifier: Apache-2.0
"""Decides whether a person can accept that a group loses messages, and explains how (pure).

Electors never choose a store that may lack acknowledged messages. If no other store is left, only a
person can decide that the group continues with such a store.
"""

from typing import Final

import msgspec

from cometmq.ha.actions import Blocked
from cometmq.ha.missing_record import ACCEPTABLE, ACCEPTANCE
from cometmq.ha.record import Copy, Record
from cometmq.operator.broker_groups.group import ACCEPT_LOSS, FENCE, BrokerGroup
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
