# SPDX-License-Identifier: Apache-2.0
"""Rules about consumer groups: unread messages, and messages that they will never read."""

from collections.abc import Iterator
from typing import Final

from cometmq.insight.finding import Condition, Severity
from cometmq.insight.history import History
from cometmq.insight.model import Group, Since, Snapshot, Unknown, known
from cometmq.insight.words import command, counted, lasting, listed

STUCK_S: Final = 120
"""A group with unread messages whose offsets do not move for this time is stuck."""
GROWS_S: Final = 300
LOSS_SOON_S: Final = 86_400


def _read(snapshot: Snapshot) -> Iterator[Group]:
    return (it for it in known(snapshot.groups) if not it.is_system and not it.is_broadcasting)


def _condition(
    rule: str,
    severity: Severity,
    group: Group,
    text: str,
    remedy: str,
    runbook: str,
    since: Since | None = None,
) -> Condition:
    return Condition(
        rule=rule,
        severity=severity,
        subject=group.name,
        text=text,
        remedy=remedy,
        runbook=runbook,
        command=command("lag", group.name),
        page="groups",
        since=since,
    )


def lost(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find groups that have lost messages."""
    for group in _read(snapshot):
        if group.lost:
            yield _condition(
                "messages-lost",
                Severity.CRITICAL,
                group,
                f"{counted(group.lost, 'message')} were deleted before {group.name} read them",
                "keep messages longer (fileReservedTime), or read faster",
                "lag-grows.md",
            )


def stopped(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find groups with unread messages and without members."""
    for group in _read(snapshot):
        if _lag(group) and not isinstance(group.members, Unknown) and not group.members:
            yield _condition(
                "group-stopped",
                Severity.WARNING,
                group,
                f"{group.name} has no member{_nothing(group, ',')}, and"
                f"{' has' if group.has_read_nothing else ''}"
                f" {counted(_lag(group), 'unread message')}{_age(group)}{_loss(group)}",
                "start a member, or delete the group if it is no longer used",
                "lag-grows.md",
                _best_bound(group.still_since, _unread_since(snapshot, group)),
            )


def _nothing(group: Group, conjunction: str) -> str:
    return f"{conjunction} has read nothing yet" if group.has_read_nothing else ""


def _best_bound(still: Since | None, unread: Since | None) -> Since | None:
    """Return since when a group reads nothing. If that is only a bound, return `unread` if it is
    earlier, so that no finding names a message older than the pause.
    """
    if still is None or unread is None or not still.is_bound:
        return still or unread
    return min(still, unread, key=lambda it: it.ms)


def _unread_since(snapshot: Snapshot, group: Group) -> Since | None:
    """Return when unread messages began to wait, if that is known.

    The store time of the oldest unread message is only the latest possible beginning: older
    messages may have waited and been read since.
    """
    if isinstance(group.behind_s, Unknown) or not group.behind_s:
        return None
    return Since(round(snapshot.taken_ms - group.behind_s * 1_000), is_bound=True)


def _age(group: Group) -> str:
    """Return the age of the oldest unread message as text; empty if it is not known."""
    if isinstance(group.behind_s, Unknown) or group.behind_s < 1:
        return ""
    return f", the oldest {lasting(group.behind_s)} old"


def stuck(snapshot: Snapshot, history: History) -> Iterator[Condition]:
    """Find groups with members and unread messages whose offsets do not move."""
    for group in _read(snapshot):
        seen = history.progress.get(group.name)
        if not group.members or isinstance(group.members, Unknown) or seen is None:
            continue
        if _lag(group) and snapshot.taken_ms - seen.still_since.ms >= STUCK_S * 1_000:
            yield Condition(
                rule="group-stuck",
                severity=Severity.WARNING,
                subject=group.name,
                text=(
                    f"{group.name} has {counted(len(group.members), 'member')} but"
                    f"{_nothing(group, '') or ' commits nothing'}, with"
                    f" {counted(_lag(group), 'unread message')}{_age(group)}{_loss(group)}"
                ),
                remedy="look at what its members do: the stacks on its page, and their logs",
                runbook="lag-grows.md",
                command=command("lag", group.name),
                page="groups",
                since=_best_bound(
                    group.still_since or seen.still_since, _unread_since(snapshot, group)
                ),
            )


def lag_grows(snapshot: Snapshot, history: History) -> Iterator[Condition]:
    """Find groups that read more slowly than messages arrive."""
    for group in _read(snapshot):
        seen = history.progress.get(group.name)
        if not group.members or isinstance(group.members, Unknown) or seen is None:
            continue
        since = seen.lag_grows_since
        is_still = snapshot.taken_ms - seen.still_since.ms >= STUCK_S * 1_000
        if since is None or is_still or seen.lag <= seen.lag_at_first:
            continue
        if snapshot.taken_ms - since.ms >= GROWS_S * 1_000:
            yield Condition(
                rule="lag-grows",
                severity=Severity.WARNING,
                subject=group.name,
                text=(
                    f"the lag of {group.name} grows: {seen.lag_at_first:,} unread messages have"
                    f" become {seen.lag:,}{_loss(group)}"
                ),
                remedy="add members up to one per queue, or make the listeners faster",
                runbook="lag-grows.md",
                command=command("lag", group.name),
                page="groups",
                since=since,
            )


def behind(snapshot: Snapshot, history: History) -> Iterator[Condition]:
    """Find groups with members whose oldest unread message is old.

    They read slowly, or there is only one snapshot, which cannot show whether they read at all: so
    the severity is that of a group that is stuck, and a look and a watch agree.
    """
    told = {it.subject for rule in (stuck, lag_grows) for it in rule(snapshot, history)}
    for group in _read(snapshot):
        if isinstance(group.behind_s, Unknown) or group.behind_s < STUCK_S:
            continue
        if not group.members or isinstance(group.members, Unknown):
            continue
        if group.name not in told:
            pace, remedy = _pace(group)
            yield Condition(
                rule="group-behind",
                severity=Severity.WARNING,
                subject=group.name,
                text=(
                    f"{group.name} has {counted(len(group.members), 'member')}"
                    f"{_nothing(group, ' but')}, and"
                    f" {counted(_lag(group), 'unread message')}{_age(group)}{pace}"
                    f"{_loss(group)}"
                ),
                remedy=remedy,
                runbook="lag-grows.md",
                command=command("lag", group.name, options=("--watch", "5")),
                page="groups",
                since=_unread_since(snapshot, group),
            )


def _pace(group: Group) -> tuple[str, str]:
    """Return how fast a group reads, as text, and the remedy."""
    rate = group.out_per_s
    if isinstance(rate, Unknown) or rate <= 0:
        return "", "see whether its offsets move; if not, look at its members and their logs"
    return (
        f"; it reads {rate:,.1f}/s, {lasting(_lag(group) / rate)} for these",
        "if that is too slow, add members up to one per queue, or make the listeners faster",
    )


def skips(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find groups whose offsets are beyond the end of their queues."""
    for group in _read(snapshot):
        for it in group.topics:
            if it.skips:
                yield Condition(
                    rule="messages-skipped",
                    severity=Severity.CRITICAL,
                    subject=f"{group.name} in {it.topic}",
                    text=(
                        f"{group.name} will skip {counted(it.skips, 'message')} of {it.topic}: its"
                        " offsets are beyond the end, as after the topic was deleted and created"
                        " again"
                    ),
                    remedy=command("group reset", group.name, it.topic, options=("--to", "first")),
                    runbook="lag-grows.md",
                    command=command("lag", group.name),
                    page="groups",
                )


def stranded(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find messages in queues that a topic no longer offers to readers."""
    for group in _read(snapshot):
        for it in group.topics:
            if it.unread_queues:
                yield Condition(
                    rule="messages-stranded",
                    severity=Severity.WARNING,
                    subject=f"{group.name} in {it.topic}",
                    text=(
                        f"{counted(it.unread_queues, 'message')} wait for {group.name} in queues of"
                        f" {it.topic} that nobody reads, because the topic has fewer queues now"
                    ),
                    remedy=(
                        f"{command('topic alter', it.topic, options=('--queues', 'N'))},"
                        " with the old number"
                    ),
                    runbook="lag-grows.md",
                    command=command("lag", group.name),
                    page="groups",
                )


def dead_letters(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find groups with dead letters that were not sent again; those that were are kept until they
    expire.
    """
    for group in known(snapshot.groups):
        left = group.dead_left
        if isinstance(left, Unknown) or not left:
            continue
        sent = ""
        if group.dead_sent:
            sent = f" that {'was' if left == 1 else 'were'} not sent again, and {group.dead_sent:,}"
            sent += f" that {'was' if group.dead_sent == 1 else 'were'}"
        yield Condition(
            rule="dead-letters",
            severity=Severity.WARNING,
            subject=group.name,
            text=f"{group.name} has {counted(left, 'dead letter')}{sent}",
            remedy=(
                "correct what made its listener fail, which its log says, then send them again:"
                f" {command('dlq replay', group.name, options=('--dry-run',))}"
            ),
            runbook="dead-letters.md",
            command=command("dlq show", group.name),
            page="dead-letters",
            since=group.dead_since,
        )


def disagreeing(snapshot: Snapshot, _history: History) -> Iterator[Condition]:
    """Find groups whose members subscribe differently."""
    for group in known(snapshot.groups):
        if group.disagreements:
            yield _condition(
                "subscriptions-disagree",
                Severity.CRITICAL,
                group,
                f"the members of {group.name} disagree: {listed(group.disagreements)}",
                "all members of a group must subscribe to the same topics and tags",
                "lag-grows.md",
            )


def _lag(group: Group) -> int:
    return 0 if isinstance(group.lag, Unknown) else group.lag


def _loss(group: Group) -> str:
    """Return, as text, when the oldest unread message is deleted because of its age; empty if that
    is not soon.
    """
    left_s = group.loss_s
    if left_s is None or isinstance(left_s, Unknown) or left_s > LOSS_SOON_S:
        return ""
    return f", the first of which is deleted in {lasting(left_s)}"
