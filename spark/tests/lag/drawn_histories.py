# SPDX-License-Identifier: Apache-2.0
"""Histories drawn by Hypothesis, with few minutes and few groups but every possible event.

A report takes seconds but can cover a thousand histories, so all histories are drawn first and then
analysed together, each as a separate cluster.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from cometmq.spark.tables.columns import TABLES

from .written import Written, micros

Rows = dict[str, list[dict[str, Any]]]
"""The rows of a snapshot by table."""

BASE = 10_000
"""First offset of all queues: 0 would mean "has consumed nothing", which no shift preserves."""
MINUTES_MAX = 14

_COUNTS = st.sampled_from([0, 0, 0, 1, 7, 60, 2000])


class QueueMinute(NamedTuple):
    """The changes of a queue in the minute before a snapshot."""

    arrived: int
    deleted: int
    is_made_anew: bool


class ReaderMinute(NamedTuple):
    """The changes of a group in the minute before a snapshot."""

    read: int | None
    """Number of messages read; None reads all, and a negative number sets the offset back."""
    online: bool
    is_sampled: bool


class Group(NamedTuple):
    """A group that consumes one queue."""

    begin: int | None
    """Distance of the first offset from the oldest message; None if the group has no offset."""
    model: str
    gone_at: int
    minutes: list[ReaderMinute]


class Drawn(NamedTuple):
    """A history: one queue and its groups, minute by minute up to the newest snapshot."""

    seen: list[bool]
    """Whether each minute has a snapshot; the last minute always has."""
    backlog: int
    """Number of messages stored before the first minute."""
    queue: list[QueueMinute]
    groups: list[Group]
    jitter_s: list[int]
    reserved_hours: int
    delete_when: str
    disk_ratio: float
    disk_growth: float
    shift: int
    """Added to all offsets in the shifted form of the history."""


def _minutes(of: SearchStrategy[Any]) -> SearchStrategy[list[Any]]:
    return st.lists(of, min_size=MINUTES_MAX, max_size=MINUTES_MAX)


_READER = st.builds(
    ReaderMinute,
    st.sampled_from([None, 0, 0, 0, 1, 7, 60, 2000, -1, -90]),
    st.sampled_from([True, True, True, False]),
    st.booleans(),
)
_STANDING = st.builds(ReaderMinute, st.just(0), st.just(False), st.booleans())
_HANGING = st.builds(ReaderMinute, st.just(0), st.just(True), st.booleans())
_STEADY = st.builds(ReaderMinute, st.sampled_from([5, 6, 7]), st.just(True), st.just(True))
_FAST = st.builds(ReaderMinute, st.sampled_from([100, 110, 120]), st.just(True), st.booleans())
_AT_END = st.builds(ReaderMinute, st.none(), st.just(True), st.booleans())
_GROUPS = st.builds(
    Group,
    st.sampled_from([0, 0, 3, 40, 900, -20, None]),
    st.sampled_from(["CLUSTERING"] * 9 + ["BROADCASTING"]),
    st.sampled_from([MINUTES_MAX] * 9 + [5]),
    st.sampled_from([_FAST, _HANGING, _READER, _STANDING, _STEADY, _AT_END]).flatmap(_minutes),
)


@st.composite
def histories(draw: st.DrawFn) -> Drawn:
    flow = draw(st.sampled_from([st.just(6), st.integers(50, 70), _COUNTS, st.just(0)]))
    deleted = draw(st.sampled_from([st.just(0), st.just(0), st.just(0), st.just(6), _COUNTS]))
    anew = draw(st.sampled_from([st.just(False), st.sampled_from([False] * 9 + [True])]))
    seen = draw(st.sampled_from([st.just(True), st.sampled_from([True, True, False])]))
    length = draw(st.sampled_from([MINUTES_MAX, MINUTES_MAX, MINUTES_MAX, 6, 1]))
    marks = [False] * (MINUTES_MAX - length) + [draw(seen) for _ in range(length - 1)]
    return Drawn(
        seen=[*marks, True],
        backlog=draw(st.sampled_from([0, 40, 5000])),
        queue=draw(_minutes(st.builds(QueueMinute, flow, deleted, anew))),
        groups=draw(st.lists(_GROUPS, min_size=1, max_size=4)),
        jitter_s=draw(_minutes(st.integers(0, 5))),
        reserved_hours=draw(st.sampled_from([72, 72, 72, 1, 0])),
        delete_when=draw(st.sampled_from(["04", "10", "11;23", "00;12"])),
        disk_ratio=draw(st.sampled_from([0.3, 0.7, 0.8, 0.86])),
        disk_growth=draw(st.sampled_from([0.0, 0.0001, -0.001])),
        shift=draw(st.sampled_from([1, 10**6, 10**12])),
    )


def drawn(strategy: SearchStrategy[Any], count: int) -> list[Any]:
    """Draw `count` histories with Hypothesis, which are the same in every run."""
    found: list[Any] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(strategy)
    def collect(one: Any) -> None:
        found.append(one)

    collect()
    return found


def write(root: Path, all_of: Sequence[Drawn], end: datetime, *, is_shifted: bool = False) -> None:
    """Write the snapshots of these histories, with the last one at `end`."""
    last_id = int(end.timestamp()) // 60
    first_id = last_id - MINUTES_MAX + 1
    written = Written(range(first_id, last_id + 1))
    for number, history in enumerate(all_of):
        base = BASE + history.shift * is_shifted
        for minute, rows in enumerate(rows_of(history, f"h{number:03d}", base, last_id)):
            for name, found in rows.items():
                for row in found:
                    written.add(first_id + minute, name, row)
    written.write(root)


def rows_of(history: Drawn, cluster: str, base: int, last_id: int) -> list[Rows]:
    """Return the rows of each minute; a minute without a snapshot has none."""
    first, last = base, base + history.backlog
    stored: list[tuple[int, int]] = []
    offsets = [None if it.begin is None else base + it.begin for it in history.groups]
    found = []
    for minute, change in enumerate(history.queue):
        snapshot_id = last_id - MINUTES_MAX + 1 + minute
        now_s = snapshot_id * 60 + history.jitter_s[minute]
        if change.is_made_anew:
            first = last = base
            stored.clear()
        stored += [(last, now_s)] * bool(change.arrived)
        last += change.arrived
        first += min(change.deleted, last - first)
        common = {
            "cluster": cluster, "broker_name": "broker-a",
            "topic": "T", "queue_id": 0, "min_offset": first, "max_offset": last,
            "last_update_ts": micros(_stored_s(stored, last - 1)), "read_ts": micros(now_s),
            "max_read_ts": micros(now_s + 1),
        }  # fmt: skip
        rows: Rows = {name: [] for name in TABLES}
        for number, group in enumerate(history.groups):
            step = group.minutes[minute]
            c = offsets[number] = _moved(offsets[number], step.read, last)
            if minute < group.gone_at:
                _add_group(rows, common, f"g{number}", group, step, c, stored)
        rows["offsets"].append(common | {"perm": 6, "topic_kind": "NORMAL"})
        rows["brokers"].append(_broker(history, common, minute))
        found.append(rows if history.seen[minute] else {})
    return found


def _moved(offset: int | None, read: int | None, last: int) -> int | None:
    if offset is None or read == 0:
        return offset  # may exceed the end of a recreated queue
    return last if read is None else min(min(offset, last) + read, last)


def _add_group(
    rows: Rows, common: dict[str, Any], name: str, group: Group,
    step: ReaderMinute, c: int | None, stored: list[tuple[int, int]],
) -> None:  # fmt: skip
    first, last = common["min_offset"], common["max_offset"]
    is_known = step.is_sampled and c is not None and c < last
    model = group.model if step.online else None
    more = {"group": name, "online": step.online, "message_model": model}
    position = {
        "consumer_offset": c, "filtered": False,
        "next_ts": micros(_stored_s(stored, max(c or 0, first)) if is_known else None),
        "consume_ts": micros(_stored_s(stored, (c or 0) - 1) if is_known else None),
    }  # fmt: skip
    rows["progress"].append(common | more | position)
    counts = {"online_clients": int(step.online), "subscriptions": [], "languages": []}
    rows["groups"].append(common | more | counts)


def _broker(history: Drawn, common: dict[str, Any], minute: int) -> dict[str, Any]:
    return common | {
        "broker_id": 0, "addr": "127.0.0.1:10911", "reachable": True,
        "file_reserved_hours": history.reserved_hours, "delete_when": history.delete_when,
        "disk_max_used_ratio": 75,
        "commitlog_disk_ratio": history.disk_ratio + minute * history.disk_growth,
    }  # fmt: skip


def _stored_s(stored: Sequence[tuple[int, int]], offset: int) -> int | None:
    return max((at for first, at in stored if first <= offset), default=None)
