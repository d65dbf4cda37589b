# SPDX-License-Identifier: Apache-2.0
"""Rules about stores: refused writes, full disks, missing and slow copies."""

from collections.abc import Iterator
from typing import Final

from cometmq.insight.finding import Condition, Severity
from cometmq.insight.history import History
from cometmq.insight.model import Disk, Snapshot
from cometmq.insight.rules.brokers import broker_condition, place, states
from cometmq.insight.words import lasting, sized

FULL_RATIO: Final = 0.85
"""Above this ratio, brokers delete messages before they are older than fileReservedTime."""
FULL_SOON_S: Final = 86_400
BEHIND_BYTES: Final = 64_000_000


def writes_refused(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find the masters that accept no messages."""
    for broker, state in states(snapshot):
        reasons = state.figures.writes_refused
        if reasons and broker.is_master:
            yield broker_condition(
                rule="writes-refused",
                severity=Severity.CRITICAL,
                subject=broker.name,
                text=f"{place(broker)} accepts no messages: {reasons}",
                remedy="look at its disk, its log and its /readyz",
                runbook="disk-full.md" if "disk" in reasons else "writes-refused.md",
            )


def messages_damaged(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find brokers with messages that they do not deliver, because the disk changed them."""
    for broker, state in states(snapshot):
        if damaged := state.figures.messages_damaged:
            yield broker_condition(
                rule="messages-damaged",
                severity=Severity.CRITICAL,
                subject=f"{broker.name}:{broker.broker_id}",
                text=f"{place(broker)} does not deliver damaged messages: {damaged}",
                remedy="restore the bytes from another copy, or send these messages again",
                runbook="store-damaged.md",
            )


def disk_fills(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find disks that are full, or will be within a day."""
    for broker, state in states(snapshot):
        disk = state.disk
        if not isinstance(disk, Disk):
            continue
        is_full = disk.used_ratio >= FULL_RATIO
        is_soon = disk.full_in_s is not None and disk.full_in_s < FULL_SOON_S
        if not (is_full or is_soon):
            continue
        text = f"the disk of {place(broker)} is {disk.used_ratio:.0%} full"
        if disk.full_in_s is not None:
            text += f", and has no room left in {lasting(disk.full_in_s)} if it goes on so"
        yield broker_condition(
            rule="disk-full",
            severity=Severity.CRITICAL if is_full and is_soon else Severity.WARNING,
            subject=f"{broker.name}:{broker.broker_id}",
            text=text,
            remedy="lower fileReservedTime, add space, or send less",
            runbook="disk-full.md",
        )


def copies_missing(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find masters whose messages have fewer copies than they should."""
    for broker, state in states(snapshot):
        copies = state.figures.copies
        if copies is not None and copies.missing:
            numbers = ", ".join(map(str, copies.missing))
            is_refusing = len(copies.in_sync) < copies.min_in_sync
            yield broker_condition(
                rule="copies-missing",
                severity=Severity.CRITICAL if is_refusing else Severity.WARNING,
                subject=broker.name,
                text=(
                    f"broker group {broker.name} lacks copies: brokerId {numbers} not in sync"
                    f" ({len(copies.in_sync)} of {len(copies.members)} are, minInSync is"
                    f" {copies.min_in_sync})"
                ),
                remedy="start the missing members, or wait until they have caught up",
                runbook="group-degraded.md",
            )
        if reason := state.figures.slave_missing:
            yield broker_condition(
                rule="copies-missing",
                severity=Severity.WARNING,
                subject=broker.name,
                text=(
                    f"{place(broker)} is a SYNC_MASTER, but its slave is {reason}: it stores"
                    " messages without a second copy"
                ),
                remedy="start the slave, or look at its log",
                runbook="slave-does-not-follow.md",
            )


def slaves_behind(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find slaves that cannot follow, or that lack much of the log."""
    for broker, state in states(snapshot):
        if broker.is_master:
            continue
        refused, behind = state.figures.not_following, state.behind_bytes
        text = ""
        if refused:
            text = f"{place(broker)} cannot follow its master: {refused}"
        elif isinstance(behind, int) and behind > BEHIND_BYTES:
            text = f"{place(broker)} lacks {sized(behind)} of its master's log"
        if text:
            yield broker_condition(
                rule="copy-behind",
                severity=Severity.WARNING,
                subject=f"{broker.name}:{broker.broker_id}",
                text=text,
                remedy="look at its log; if it catches up, wait",
                runbook="slave-does-not-follow.md",
            )
