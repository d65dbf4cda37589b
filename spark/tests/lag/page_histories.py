# SPDX-License-Identifier: Apache-2.0
"""Histories for pages: clusters of two brokers whose disks, queues and groups get into trouble.

Each history is one cluster, and its page is checked alone. Trouble begins at any minute: disks
start to fill, files are deleted, brokers restart, offsets are reset, groups stop or finish.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from .written import Written

MINUTES = 30
QUEUES = 4
BROKERS = ("broker-a", "broker-b")
LOG_BYTES = 400_000_000_000
DISK_BYTES = 1_000_000_000_000
NEVER = MINUTES
_MOMENT = st.integers(1, MINUTES - 1)


class Disk(NamedTuple):
    """The disk of a broker: it starts to fill at a minute, and may be trimmed later."""

    ratio: float
    grows_at: int
    growth: float
    trimmed_at: int
    by_log: bool
    """Whether the log fills the disk; otherwise other files do."""

    def ratio_at(self, minute: int) -> float:
        rises = max(0, minute - self.grows_at) * self.growth
        return min(0.99, max(0.05, self.ratio + rises - 0.03 * (minute >= self.trimmed_at)))


class Queue(NamedTuple):
    """A queue with a steady flow, whose oldest messages are deleted from a minute on."""

    rate: int
    backlog: int
    deleted_at: int
    deleted: int

    def ends_at(self, minute: int) -> tuple[int, int]:
        end = 10_000 + self.backlog + self.rate * minute
        begin = 10_000 + self.deleted * max(0, minute - self.deleted_at)
        return min(begin, end), end


class Reader(NamedTuple):
    """A group in one queue: what it does from which minute on."""

    behind: int
    speed: float
    """Messages read per message that arrives; 9 reads everything."""
    stops_at: int
    reset_at: int


class Group(NamedTuple):
    """A group with members until a minute, or without any, as a Spark query."""

    members_until: int
    readers: list[Reader | None]


class History(NamedTuple):
    """A cluster of two brokers."""

    disks: list[Disk]
    queues: list[Queue]
    groups: list[Group]
    down: list[tuple[int, int]]
    """Minutes during which each broker is down."""
    kept_hours: int = 72


_DISKS = st.builds(
    Disk,
    st.sampled_from([0.3, 0.6, 0.7, 0.745, 0.8, 0.86]),
    st.one_of(st.just(NEVER), _MOMENT, st.integers(MINUTES - 4, MINUTES - 2)),
    st.sampled_from([0.0001, 0.001, 0.02]),
    st.one_of(st.just(NEVER), _MOMENT),
    st.booleans(),
)
_QUEUES = st.builds(
    Queue,
    st.sampled_from([0, 6, 60, 600]),
    st.sampled_from([0, 50, 20_000]),
    st.one_of(st.just(NEVER), _MOMENT),
    st.sampled_from([1, 60, 3000]),
)
_READERS = st.builds(
    Reader,
    st.sampled_from([0, 0, 40, 5000]),
    st.sampled_from([9, 9, 1, 0.9, 1.3, 0, 0.99, 1.01]),
    st.one_of(st.just(NEVER), st.just(NEVER), _MOMENT),
    st.one_of(st.just(NEVER), st.just(NEVER), st.just(NEVER), _MOMENT),
)
_GROUPS = st.builds(
    Group,
    st.one_of(st.just(NEVER), st.just(NEVER), st.just(0), _MOMENT),
    st.one_of(
        st.lists(st.one_of(_READERS, st.none()), min_size=QUEUES, max_size=QUEUES),
        _READERS.map(lambda one: [one] * QUEUES),
        st.builds(
            lambda most, one: [most, most, one, most],
            _READERS, _READERS,
        ),
    ),
)  # fmt: skip
_DOWN = st.one_of(
    st.just((NEVER, NEVER)), st.just((NEVER, NEVER)), st.just((20, 23)), st.just((27, NEVER))
)

histories = st.builds(
    History,
    st.lists(_DISKS, min_size=2, max_size=2),
    st.lists(_QUEUES, min_size=QUEUES, max_size=QUEUES),
    st.lists(_GROUPS, min_size=1, max_size=3),
    st.lists(_DOWN, min_size=2, max_size=2),
    st.just(72),
)


def write(root: Path, all_of: Sequence[History], end: datetime) -> None:
    """Write the snapshots of these histories, with the last one at `end`."""
    last_id = int(end.timestamp()) // 60
    first_id = last_id - MINUTES + 1
    written = Written(range(first_id, last_id + 1))
    for minute in range(MINUTES):
        for index, history in enumerate(all_of):
            _add(written, history, f"p{index:03d}", minute, first_id + minute)
    written.write(root)


def _add(written: Written, history: History, cluster: str, minute: int, number: int) -> None:
    def add(table: str, **values: Any) -> None:
        moment = number * 60_000_000
        common = {"cluster": cluster, "read_ts": moment, "max_read_ts": moment}
        written.add(number, table, common | values)

    for index, name in enumerate(BROKERS):
        disk, down = history.disks[index], history.down[index]
        if down[0] <= minute < down[1]:
            add("brokers", broker_name=name, addr="10.0.0.1:10911", broker_id=0, reachable=False,
                error="timed out")  # fmt: skip
            continue
        ratio = disk.ratio_at(minute)
        added = max(0, minute - disk.grows_at) * disk.growth * DISK_BYTES * disk.by_log
        add("brokers", broker_name=name, addr="10.0.0.1:10911", broker_id=0, reachable=True,
            file_reserved_hours=history.kept_hours, delete_when="04",
            disk_max_used_ratio=75, clean_forcibly=True,
            commitlog_disk_ratio=ratio, commitlog_min=0,
            commitlog_max=LOG_BYTES + int(added))  # fmt: skip
        for queue_id in range(index, QUEUES, len(BROKERS)):
            begin, end = history.queues[queue_id].ends_at(minute)
            place = {"broker_name": name, "topic": "T", "queue_id": queue_id,
                     "min_offset": begin, "max_offset": end}  # fmt: skip
            add("offsets", **place, perm=6, topic_kind="NORMAL")
            for nth, group in enumerate(history.groups):
                reader = group.readers[queue_id]
                online = minute < group.members_until
                add("progress", **place, group=f"g{nth}", filtered=False, online=online,
                    message_model="CLUSTERING" if online else None,
                    consumer_offset=offset_at(reader, history.queues[queue_id], minute,
                                              group.members_until))  # fmt: skip


def offset_at(reader: Reader | None, queue: Queue, minute: int, members_until: int) -> int | None:
    """Return the committed offset; a group that had members stops with them."""
    if reader is None:
        return None
    offset = 10_000 + max(0, queue.backlog - reader.behind)
    for now in range(1, minute + 1):
        if now == reader.reset_at:
            offset = max(10_000, offset - 900)
        if now < reader.stops_at and (members_until == 0 or now < members_until):
            end = queue.ends_at(now)[1]
            step = end if reader.speed == 9 else offset + round(queue.rate * reader.speed)
            offset = min(end, step)
    return offset
