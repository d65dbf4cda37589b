# SPDX-License-Identifier: Apache-2.0
"""`cometmq lag --report`: the status of every consumer group, as one HTML page.

A single look at the cluster shows no trend. The Spark reports (docs/guides/lag-report.md) keep
snapshots and warn before messages are lost.
"""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.consuming import lag_page
from cometmq.cli.consuming.absent import AbsentBrokers
from cometmq.cli.consuming.progress import Progress
from cometmq.cli.lookup import known_group
from cometmq.cli.meter import live
from cometmq.cli.verbs.pages import is_page_of, write_page
from cometmq.client.admin import AdminClient
from cometmq.client.admin.known_groups import known_groups
from cometmq.client.clock import wall_ms
from cometmq.insight import times
from cometmq.insight.members import GroupMembers, is_ours
from cometmq.insight.queue_states import QueueState, missed_notes
from cometmq.remoting.errors import CometError, TopicNotExist
from cometmq.remoting.names import dead_letter_topic

ALLOWED_S: Final = 30.0
"""A group keeps up if its oldest unread message is younger than this, as in the Spark reports."""

BROADCASTING: Final = "BROADCASTING"


class Status(Enum):
    """A group's state, worst first: its label on the page, its colour, and its meaning."""

    LOST = ("lost", "critical", "messages were deleted before the group read them")
    SKIPS = ("skips", "critical", "offsets are beyond the end of the queues: cometmq lag GROUP")
    FAILED = ("unknown", "error", "brokers did not answer for this group")
    STOPPED = ("stopped", "error", "messages are unread, and no member is connected")
    BEHIND = ("behind", "warn", f"the oldest unread message is older than {ALLOWED_S:.0f} s")
    DEAD_LETTERS = ("dead letters", "warn", "messages failed for good and need a decision")
    BROADCAST = (
        "broadcast",
        "info",
        "members store their own offsets, so brokers do not have them",
    )
    OK = ("ok", "ok", "the group keeps up")

    def __init__(self, word: str, severity: str, meaning: str) -> None:
        self.word = word
        self.severity = severity
        self.meaning = meaning

    @property
    def rank(self) -> int:
        """Return the position in the order of severity; 0 is worst."""
        return list(Status).index(self)


class TopicRow(msgspec.Struct, frozen=True):
    """The state of one consumer group in one topic."""

    topic: str
    queue_count: int
    lag: int
    behind_s: float | None


class GroupRow(msgspec.Struct, frozen=True):
    """The state of one consumer group.

    If brokers are missing, the numbers are lower bounds.
    """

    group: str
    status: Status
    members: int = 0
    lag: int = 0
    behind_s: float | None = 0.0
    lost: int = 0
    dead_letters: int = 0
    topics: Sequence[TopicRow] = ()
    missing_brokers: Sequence[str] = ()
    error: str = ""
    notes: Sequence[str] = ()
    """Which messages the group has missed or will skip, and how to read them."""

    @property
    def has_offsets(self) -> bool:
        """Return whether brokers know the offsets of the group."""
        return not self.error and self.status is not Status.BROADCAST


class Report(msgspec.Struct, frozen=True):
    """The lag of all consumer groups at one time, worst first."""

    namesrv: str
    made_at: str
    groups: Sequence[GroupRow]
    missing_brokers: Sequence[str] = ()
    """All brokers that did not answer; groups that only they know are not in the report."""

    @property
    def troubled(self) -> int:
        """Return the number of groups that need attention."""
        return sum(row.status.rank < Status.BROADCAST.rank for row in self.groups)

    @property
    def failed(self) -> list[GroupRow]:
        """Return the groups without figures."""
        return [row for row in self.groups if row.error]


async def collect(
    admin: CommandAdmin, namesrv: str, group: str | None = None, topic: str | None = None
) -> Report:
    """Collect the state of one group, or of all groups that users created."""
    if group is not None:
        configs = {group: await known_group(admin, group)}
    else:
        found = await known_groups(admin)
        configs = {name: config for name, config in found.items() if is_ours(name)}
    dead = set(await admin.dead_letter_groups())
    absent = AbsentBrokers(admin)
    rows: list[GroupRow] = []
    progress = await Progress.read(admin)
    async with live(lambda: f"asked about {len(rows):,} of {len(configs):,} groups"):
        for name, states in (await progress.states(configs, topic)).items():
            try:
                if isinstance(states, CometError):
                    raise states
                members = await progress.members(name, configs[name])
                rows.append(await _row(admin, absent, states, members, topic, name in dead))
            except CometError as error:
                rows.append(GroupRow(name, Status.FAILED, behind_s=None, error=str(error)))
    rows.sort(key=lambda row: (row.status.rank, -row.lag, row.group))
    return Report(namesrv, times.shown(wall_ms()) or "", rows, absent.names)


async def _row(
    admin: CommandAdmin,
    absent: AbsentBrokers,
    states: Sequence[QueueState],
    members: GroupMembers,
    topic: str | None,
    has_dead: bool,
) -> GroupRow:
    group = members.group
    dead_letters = await _dead_letters(admin, group) if has_dead else 0
    lost = sum(state.lost_count for state in states)
    lag = sum(state.lag for state in states)
    behind_s = _oldest(states)
    known = {state.queue.topic for state in states} | members.topics
    is_broadcasting = members.model == BROADCASTING
    if has_dead:
        known.add(dead_letter_topic(group))
    missing = await absent.of(group, known, topic)
    if is_broadcasting:
        status = Status.BROADCAST
    else:
        status = judge(
            lag=lag,
            behind_s=behind_s,
            lost=lost,
            is_beyond_end=any(state.is_beyond_end for state in states),
            members=members.count,
            dead_letters=dead_letters,
            is_complete=not missing,
        )
    return GroupRow(
        group,
        status,
        members=members.count,
        lag=lag,
        behind_s=behind_s,
        lost=lost,
        dead_letters=dead_letters,
        topics=_topics(states),
        missing_brokers=missing,
        notes=() if is_broadcasting else missed_notes(group, states),
    )


def judge(
    *,
    lag: int,
    behind_s: float | None,
    lost: int,
    is_beyond_end: bool,
    members: int,
    dead_letters: int,
    is_complete: bool,
) -> Status:
    """Return the worst status that applies; `behind_s` is None if the age cannot be read.

    Incomplete figures never yield a status better than FAILED.
    """
    if lost:
        return Status.LOST
    if is_beyond_end:
        return Status.SKIPS
    if not is_complete:
        return Status.FAILED
    if lag and not members:
        return Status.STOPPED
    if lag and (behind_s is None or behind_s > ALLOWED_S):
        return Status.BEHIND
    return Status.DEAD_LETTERS if dead_letters else Status.OK


async def _dead_letters(admin: AdminClient, group: str) -> int:
    try:
        stats = await admin.topic_stats(dead_letter_topic(group))
    except TopicNotExist:
        return 0
    return sum(queue.max_offset - queue.min_offset for queue in stats.values())


def _oldest(states: Sequence[QueueState]) -> float | None:
    """Return the age of the oldest unread message, or None if no unread message is readable."""
    if not any(state.lag for state in states):
        return 0.0
    ages = [state.behind_s for state in states if state.lag and state.behind_s is not None]
    return max(ages, default=None)


def _topics(states: Sequence[QueueState]) -> list[TopicRow]:
    by_topic: dict[str, list[QueueState]] = {}
    for state in states:
        by_topic.setdefault(state.queue.topic, []).append(state)
    rows = [
        TopicRow(topic, len(found), sum(state.lag for state in found), _oldest(found))
        for topic, found in by_topic.items()
    ]
    return sorted(rows, key=lambda row: (-row.lag, row.topic))


def is_report(file: Path) -> bool:
    """Return whether a file is a page that this command wrote earlier."""
    return is_page_of(lag_page.GENERATOR, file)


def write(report: Report, file: Path) -> None:
    """Write the page to a file, a device, a pipe or standard output (`-`)."""
    write_page(lag_page.render(report), file)
