# SPDX-License-Identifier: Apache-2.0
"""Rules about consumer groups: unread messages, and messages that they will never read."""

from collections.abc import Iterator
from typing import Any, Final

from cometmq.insight.finding import Finding, Severity, found
from cometmq.insight.history import History, Progress
from cometmq.insight.judge import LATE_S, RISK_S, STATES, WINDOW_S, Status, judge
from cometmq.insight.model import Group, Since, Snapshot, Unknown, known
from cometmq.insight.words import command, counted, lasting, listed

_DAMAGES: Final = frozenset({"loses", "skips", "dead_letters"})
"""Facts of which other rules tell."""


def facts_of(group: Group, now_ms: int, seen: Progress | None = None) -> set[str]:
    """Return the facts about a group, as `judge` names them; `seen` is its progress in earlier
    snapshots. Figures without all brokers are lower bounds, which count as known.
    """
    lag, unread = group.lag, not isinstance(group.lag, Unknown) and bool(group.lag)
    still = group.still_since if seen is None else seen.still_since
    is_still = unread and still is not None and _is_since(still, now_ms, LATE_S)
    is_old = not isinstance(group.behind_s, Unknown) and group.behind_s > LATE_S
    is_late = unread and (is_old or is_still or grows(seen, now_ms) or not group.members)
    left_s = group.loss_s
    told = {
        "broadcasts": group.is_broadcasting,
        "loses": bool(group.lost),
        "at_risk": is_late and isinstance(left_s, float | int) and left_s < RISK_S,
        "skips": bool(group.skips),
        "known": not isinstance(group.members, Unknown)
        and (is_late or not isinstance(group.behind_s, Unknown)),
        "counted": not isinstance(lag, Unknown),
        "late": is_late,
        "always_late": is_late,
        "online": bool(group.members),
        "stands": is_still or not group.members,
        "dead_letters": not isinstance(group.dead_left, Unknown) and group.dead_left > 0,
    }
    return {name for name, is_true in told.items() if is_true}


def grows(seen: Progress | None, now_ms: int) -> bool:
    """Return whether no snapshot of the window has found fewer unread messages than the one
    before.
    """
    if seen is None or seen.lag_grows_since is None or seen.lag <= seen.lag_at_first:
        return False
    return _is_since(seen.lag_grows_since, now_ms, WINDOW_S)


def _is_since(since: Since, now_ms: int, seconds: int) -> bool:
    return now_ms - since.ms >= seconds * 1_000


def _read(snapshot: Snapshot) -> Iterator[Group]:
    return (it for it in known(snapshot.groups) if not it.is_system and not it.is_broadcasting)


def lost(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find groups that have lost messages."""
    for group in _read(snapshot):
        if group.lost:
            yield _found(
                "messages-lost",
                group,
                f"{counted(group.lost, 'message')} were deleted before {group.name} read them",
                STATES[Status.LOST].advice,
            )


def judged(snapshot: Snapshot, history: History) -> Iterator[Finding]:
    """Find groups that have stopped, hang, or read too slowly.

    A single snapshot cannot show whether a group reads at all, so the severity of all is the same:
    a look and a watch agree.
    """
    for group in _read(snapshot):
        seen = history.progress.get(group.name)
        facts = facts_of(group, snapshot.taken_ms, seen)
        status = judge(facts - _DAMAGES - {"at_risk"})
        if status not in {Status.STOPPED, Status.STALLED, Status.SLOW}:
            continue
        unread = f"{counted(_lag(group), 'unread message')}{_age(group)}"
        has = f"{group.name} has {counted(len(known(group.members)), 'member')}"
        nothing = " has read nothing yet" if group.has_read_nothing else ""
        waiting = _unread_since(snapshot, group)
        still = group.still_since or (seen.still_since if seen is not None else None)
        remedy, since = STATES[status].advice, _best_bound(still, waiting)
        options: tuple[str, ...] = ()
        if status is Status.STOPPED:
            rule, since = "group-stopped", _best_bound(group.still_since, waiting)
            text = f"{group.name} has no member{nothing and f',{nothing}'}, and"
            text += f"{' has' if nothing else ''} {unread}"
        elif status is Status.STALLED:
            rule, text = "group-stuck", f"{has} but{nothing or ' commits nothing'}, with {unread}"
        elif seen is not None and grows(seen, snapshot.taken_ms):
            rule, since = "lag-grows", seen.lag_grows_since
            text = f"the lag of {group.name} grows: {seen.lag_at_first:,} unread messages have"
            text += f" become {seen.lag:,}"
        else:
            rule, since, options = "group-behind", waiting, ("--watch", "5")
            pace, remedy = _pace(group)
            text = f"{has}{nothing and f' but{nothing}'}, and {unread}{pace}"
        yield _found(
            rule,
            group,
            text + (f", the first of which is deleted in {_left(group)}" if _left(group) else ""),
            remedy,
            severity=Severity.CRITICAL if "at_risk" in facts else None,
            since=since,
            command=command("lag", group.name, options=options),
        )


def _best_bound(still: Since | None, unread: Since | None) -> Since | None:
    """Return since when a group reads nothing. If that is only a bound, return `unread` if it is
    earlier, so that no finding names a message older than the pause.
    """
    if still is None or unread is None or not still.is_bound:
        return still or unread
    return min(still, unread, key=lambda it: it.ms)


def _found(rule: str, group: Group, text: str, remedy: str, **more: Any) -> Finding:
    shown = {"command": command("lag", group.name), **more}
    return found(rule, group.name, text, remedy, **shown)


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


def _pace(group: Group) -> tuple[str, str]:
    """Return how fast a group reads, as text, and the remedy."""
    rate = group.out_per_s
    if isinstance(rate, Unknown) or rate <= 0:
        return "", "see whether its offsets move; if not, look at its members and their logs"
    return (
        f"; it reads {rate:,.1f}/s, {lasting(_lag(group) / rate)} for these",
        "if that is too slow, add members up to one per queue, or make the listeners faster",
    )


def skips(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find groups whose offsets are beyond the end of their queues."""
    for group in _read(snapshot):
        for it in group.topics:
            if it.skips:
                yield found(
                    "messages-skipped",
                    f"{group.name} in {it.topic}",
                    f"{group.name} will skip {counted(it.skips, 'message')} of {it.topic}: its"
                    " offsets are beyond the end, as after the topic was deleted and created again",
                    command("group reset", group.name, it.topic, options=("--to", "first")),
                    command=command("lag", group.name),
                )


def stranded(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find messages in queues that a topic no longer offers to readers."""
    for group in _read(snapshot):
        for it in group.topics:
            if it.unread_queues:
                yield found(
                    "messages-stranded",
                    f"{group.name} in {it.topic}",
                    f"{counted(it.unread_queues, 'message')} wait for {group.name} in queues of"
                    f" {it.topic} that nobody reads, because the topic has fewer queues now",
                    f"{command('topic alter', it.topic, options=('--queues', 'N'))},"
                    " with the old number",
                    command=command("lag", group.name),
                )


def dead_letters(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
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
        yield _found(
            "dead-letters",
            group,
            f"{group.name} has {counted(left, 'dead letter')}{sent}",
            "correct what made its listener fail, which its log says, then send them again:"
            f" {command('dlq replay', group.name, options=('--dry-run',))}",
            command=command("dlq show", group.name),
            since=group.dead_since,
        )


def disagreeing(snapshot: Snapshot, _history: History) -> Iterator[Finding]:
    """Find groups whose members subscribe differently."""
    for group in known(snapshot.groups):
        if group.disagreements:
            yield _found(
                "subscriptions-disagree",
                group,
                f"the members of {group.name} disagree: {listed(group.disagreements)}",
                "all members of a group must subscribe to the same topics and tags",
            )


def _lag(group: Group) -> int:
    return 0 if isinstance(group.lag, Unknown) else group.lag


def _left(group: Group) -> str:
    """Return in which time the oldest unread message is deleted because of its age; empty if that
    is not soon.
    """
    left_s = group.loss_s
    if left_s is None or isinstance(left_s, Unknown) or left_s > RISK_S:
        return ""
    return lasting(left_s)
