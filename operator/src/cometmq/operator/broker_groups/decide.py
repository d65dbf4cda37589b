# SPDX-License-Identifier: Apache-2.0
"""Chooses the next step for a group from its spec and its state (pure).

No state is kept between calls, so the operator may be killed at any point: its successor sees the
same state and makes the same decision.

These are planned changes, which wait for the readiness of pods. `cometmq.ha.election` decides about
failovers, from the answers of the brokers.
"""

from enum import StrEnum
from typing import Final

import msgspec

from cometmq.ha import planned
from cometmq.ha.actions import Tell
from cometmq.ha.orders import HandOver
from cometmq.ha.record import Record
from cometmq.operator.api_types.sections import Rollout
from cometmq.operator.api_types.security_sections import SecretReason
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.seen import Seen
from cometmq.operator.managed import SKIP_DRAIN

BEST: Final = "auto"
"""The switchover target with which the operator chooses the next master."""


class Reason(StrEnum):
    """Why a planned change waits, as shown in conditions."""

    STATEFUL_SET_LAGS = "StatefulSetLags"
    NO_RECORD = "NoRecord"
    POD_MISSING = "PodMissing"
    ROLL_BLOCKED = "RollBlocked"
    TOO_FEW_IN_SYNC = "TooFewInSync"
    NO_SUCCESSOR = "NoSuccessor"
    MEMBER_LEAVES = "MemberLeaves"
    BACKLOG_UNKNOWN = "BacklogUnknown"
    BACKLOG = "Backlog"
    SENDS_GO_ON = "SendsGoOn"


class Nothing(msgspec.Struct, frozen=True):
    """No step is needed: every pod matches the spec."""


class Wait(msgspec.Struct, frozen=True):
    """A change is due but must wait; `text` gives the reason."""

    reason: Reason | SecretReason
    text: str


class Restart(msgspec.Struct, frozen=True):
    """Delete the pod, so that it is recreated from the latest template."""

    ordinal: int


class Release(msgspec.Struct, frozen=True):
    """Remove the finalizer, so that the API server deletes the BrokerGroup."""


Step = Nothing | Wait | Restart | Tell[HandOver]
Ending = Wait | Release


class Decision(msgspec.Struct, frozen=True):
    """The decision of one pass of the operator over a broker group."""

    replicas: int
    """The number of pods that the StatefulSet should have now."""
    step: Step | Ending


def decide(group: BrokerGroup, seen: Seen, fault: Wait | None) -> Decision:
    """Return what to do now; `fault` is the reason why the Secrets of the spec cannot be used."""
    step: Step | Ending
    if group.is_deleting:
        step = ending(group, seen)
    elif group.spec.paused:
        step = Nothing()
    else:
        step = fault or next_step(group, seen)
    return Decision(replicas(group, seen), step)


# ---- scaling ---------------------------------------------------------------------------------


def replicas(group: BrokerGroup, seen: Seen) -> int:
    """Return the number of pods that the StatefulSet should have now.

    New pods are added at once. Pods to be removed are kept until the elector has taken all of them
    out of the in-sync set; a leaving master is taken out after a switchover.
    """
    wanted, now = group.spec.replicas, seen.replicas
    if now is None or wanted > now:
        return wanted
    if group.is_deleting or seen.record is None:
        return now
    ordinals = {copy.ordinal for copy in seen.record.in_sync}
    return now if ordinals & group.leaving(now, seen.pods) else wanted


# ---- rolling updates -------------------------------------------------------------------------


def next_step(group: BrokerGroup, seen: Seen) -> Step:
    """Return the next step of a rolling update: slaves by descending ordinal, the master last.

    A pod may be deleted only while all others are ready and in sync, so one broken pod stops the
    update before it reaches the master. A broken pod itself may always be replaced, unless it may
    have the only copy in sync.
    """
    stale = sorted(one for one, pod in seen.pods.items() if not pod.is_current)
    if group.spec.update_strategy.type is Rollout.ON_DELETE or not seen.pods:
        return Nothing()
    if not seen.is_settled:
        return Wait(Reason.STATEFUL_SET_LAGS, "the StatefulSet's controller has yet to act")
    if wait := _missing(group, seen):
        return wait if stale else Nothing()
    if not stale:
        return Nothing()
    if seen.record is None and seen.may_have_data and len(seen.pods) > 1:
        text = "it is unknown which pods are in sync, so none can be spared"
        return Wait(Reason.NO_RECORD, f"{text}; to replace a broken one nevertheless, delete it")
    members = _in_sync(seen)
    broken = [one for one in stale if not seen.pods[one].is_ready and one not in members]
    if broken:
        return Restart(broken[-1])
    if seen.record is None:
        return Wait(Reason.NO_RECORD, "the group has no master yet, so no pod can be spared")
    if group.leaving(seen.replicas, seen.pods):
        return Wait(Reason.MEMBER_LEAVES, "pods leave the group first, then others are restarted")
    return _healthy_step(group, seen, seen.record, stale)


def _healthy_step(group: BrokerGroup, seen: Seen, record: Record, stale: list[int]) -> Step:
    members, holder = _in_sync(seen), record.holder.ordinal
    slaves = [one for one in stale if one != holder]
    chosen = slaves[-1] if slaves else holder
    unfit = [
        group.pod(one)
        for one, pod in sorted(seen.pods.items())
        if one != chosen and not (pod.is_ready and one in members)
    ]
    if unfit:
        text = f"{', '.join(unfit)} must be ready and in sync before {group.pod(chosen)} restarts"
        return Wait(Reason.ROLL_BLOCKED, text)
    if len(seen.pods) == 1:
        return Restart(chosen)
    # If minInSync equals the number of pods, every restart falls below it. Pods restart anyway, and
    # sends wait until the pod is back.
    needed = min(group.spec.replication.min_in_sync, len(seen.pods) - 1)
    if len(members - {chosen}) < needed:
        text = f"without {group.pod(chosen)} fewer than {needed} copies would be in sync"
        return Wait(Reason.TOO_FEW_IN_SYNC, text)
    return Restart(chosen) if slaves else switch_over(seen, None)


def switch_over(seen: Seen, target: int | None) -> Tell[HandOver] | Wait:
    """Return the order that makes `target` the master, or the best slave if `target` is None."""
    if seen.record is None:
        return Wait(Reason.NO_RECORD, "the group has no master yet")
    stopping = {one for one, pod in seen.pods.items() if pod.is_terminating}
    stopping.discard(seen.record.holder.ordinal)
    fit = tuple(one for one in seen.statuses if one.copy.ordinal not in stopping)
    found = planned.switch_over(seen.record, fit, target)
    return found if isinstance(found, Tell) else Wait(Reason.NO_SUCCESSOR, found.text)


def _missing(group: BrokerGroup, seen: Seen) -> Wait | None:
    expected = range(seen.replicas or 0)
    gone = [
        group.pod(one) for one in expected if one not in seen.pods or seen.pods[one].is_terminating
    ]
    if not gone:
        return None
    return Wait(Reason.POD_MISSING, f"{', '.join(gone)} must be back before another pod restarts")


def _in_sync(seen: Seen) -> frozenset[int]:
    record = seen.record
    return frozenset() if record is None else frozenset(one.ordinal for one in record.in_sync)


# ---- deletion --------------------------------------------------------------------------------


def ending(group: BrokerGroup, seen: Seen) -> Ending:
    """Return whether the deletion of a group may finish now."""
    if group.skips_drain or not seen.has_stores:
        return Release()
    way_out = f"annotate the group with {SKIP_DRAIN}=true to delete it nevertheless"
    if seen.backlog is None:
        text = f"the master does not tell what consumers have left to consume; {way_out}"
        return Wait(Reason.BACKLOG_UNKNOWN, text)
    if seen.backlog.total:
        worst = ", ".join(f"{name} ({count})" for name, count in seen.backlog.worst_first[:3])
        text = f"{seen.backlog.total} messages are not consumed yet, by {worst}; {way_out}"
        return Wait(Reason.BACKLOG, text)
    if not seen.is_quiet:
        text = f"the group is read-only, and producers may not have noticed yet; {way_out}"
        return Wait(Reason.SENDS_GO_ON, text)
    return Release()
