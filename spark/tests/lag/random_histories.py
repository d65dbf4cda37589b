# SPDX-License-Identifier: Apache-2.0
"""Random histories: snapshots of clusters with every kind of problem.

Each history is one cluster; the histories of a batch share a folder and the newest snapshot.
"""

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cometmq.spark.tables.columns import topic_kind

from .written import Written, micros


@dataclass
class Queue:
    min_offset: int
    max_offset: int
    rate: float
    kept: float
    """Ratio of deleted to stored messages, applied once per minute."""
    is_made_anew: bool
    store_times: list[tuple[int, float]] = field(default_factory=list)

    def step(self, random_: random.Random, now_s: float) -> None:
        if self.is_made_anew and random_.random() < 0.03:
            self.min_offset = self.max_offset = 0
            self.store_times.clear()
        arrived = max(0, round(self.rate * random_.uniform(0, 2)))
        if arrived:
            self.store_times.append((self.max_offset, now_s))
            self.max_offset += arrived
        room = self.max_offset - self.min_offset
        self.min_offset += min(room, round(arrived * self.kept * random_.uniform(0, 2)))

    def stored_s(self, offset: int) -> float | None:
        """Return when a message was stored, or None if that was before the history began."""
        return max((s for first, s in self.store_times if first <= offset), default=None)


@dataclass
class Reader:
    offset: int | None
    speed: float
    rewind: float
    sampled: float

    def step(self, random_: random.Random, queue: Queue) -> None:
        if self.offset is None:
            return
        self.offset = min(self.offset, max(queue.max_offset, 0))
        step = round(self.speed * random_.uniform(0, 2))
        self.offset = min(queue.max_offset, self.offset + step)
        if random_.random() < self.rewind:
            self.offset = max(0, self.offset - random_.randint(1, 500))


@dataclass
class Group:
    name: str
    online: float
    model: str
    is_filtered: bool
    gone_at: int | None
    readers: dict[int, Reader]


def batch(
    folder: Path, *, seed: int, end: datetime, minutes: int, first: int, count: int
) -> list[str]:
    """Write `count` histories that end at `end`; return their clusters."""
    last_id = int(end.timestamp()) // 60
    ids = range(last_id - minutes + 1, last_id + 1)
    written = Written(ids)
    clusters = [f"h{first + number:03d}" for number in range(count)]
    for cluster in clusters:
        _history(random.Random(f"{seed} {cluster}"), cluster, ids, written)
    written.write(folder)
    return clusters


def _history(random_: random.Random, cluster: str, ids: range, written: Written) -> None:
    first_id, last_id = ids[0], ids[-1]
    queues = [
        Queue(
            min_offset=(begin := random_.choice([0, 100, 10**12])),
            max_offset=begin + random_.choice([0, 5, 400]),
            rate=random_.choice([0, 0.3, 60, 600]),
            kept=random_.choice([0, 0, 0.9, 1.2]),
            is_made_anew=random_.random() < 0.15,
        )
        for _ in range(3)
    ]
    groups = [_group(random_, f"g{number}", queues, len(ids)) for number in range(5)]
    gap = random_.choice([0, 0, 0.1, 0.6])
    away_from = last_id - random_.randint(0, 8) if random_.random() < 0.15 else last_id + 1
    ratio, growth = random_.uniform(0.3, 0.9), random_.choice([0, 0, 0.0005, -0.001])
    for number in ids:
        now_s = number * 60 + random_.uniform(0, 5)
        for queue in queues:
            queue.step(random_, now_s)
        for group in groups:
            for queue_id, reader in group.readers.items():
                reader.step(random_, queues[queue_id])
        ratio = min(0.99, ratio + growth * random_.random())
        if number < last_id and random_.random() < gap:
            continue
        is_away = number >= away_from
        broker = _broker(random_, cluster, now_s, ratio, is_away=is_away)
        written.add(number, "brokers", broker)
        if not is_away:
            there = [it for it in groups if it.gone_at is None or number - first_id < it.gone_at]
            _add(random_, cluster, number, now_s, queues, there, written)


def _group(random_: random.Random, name: str, queues: list[Queue], minutes: int) -> Group:
    readers = {}
    for queue_id, queue in enumerate(queues):
        if random_.random() < 0.3:
            continue
        readers[queue_id] = Reader(
            offset=random_.choice([None, 0, queue.min_offset, queue.max_offset, queue.max_offset]),
            speed=queue.rate * random_.choice([0, 0, 0.5, 0.98, 1.3, 5]),
            rewind=random_.choice([0, 0, 0, 0.05]),
            sampled=random_.choice([0, 0.3, 1]),
        )
    return Group(
        name=name,
        online=random_.choice([0, 1, 1, 0.7]),
        model="BROADCASTING" if random_.random() < 0.08 else "CLUSTERING",
        is_filtered=random_.random() < 0.2,
        gone_at=random_.randint(1, minutes) if random_.random() < 0.1 else None,
        readers=readers,
    )


def _broker(
    random_: random.Random, cluster: str, now_s: float, ratio: float, *, is_away: bool
) -> dict[str, Any]:
    told = random_.random() < 0.97 and not is_away
    return {
        "cluster": cluster,
        "broker_name": "broker-a",
        "broker_id": 0,
        "addr": "127.0.0.1:10911",
        "reachable": not is_away,
        "error": "no answer" if is_away else None,
        "file_reserved_hours": None if is_away or not told else 1 + int(cluster[1:]) % 72,
        "delete_when": None
        if is_away or not told
        else ("04", "02", "00;12", "23")[int(cluster[1:]) % 4],
        "disk_max_used_ratio": None if is_away else 75,
        "commitlog_disk_ratio": None if is_away else ratio,
        "read_ts": micros(now_s),
    }


def _add(
    random_: random.Random,
    cluster: str,
    number: int,
    now_s: float,
    queues: list[Queue],
    groups: list[Group],
    written: Written,
) -> None:
    read_s, max_s = now_s, now_s + random_.uniform(0, 3)
    copies = 2 if random_.random() < 0.05 else 1
    for queue_id, queue in enumerate(queues):
        newest = queue.stored_s(queue.max_offset - 1)
        place = {
            "cluster": cluster, "broker_name": "broker-a", "topic": "T", "queue_id": queue_id,
            "min_offset": queue.min_offset, "max_offset": queue.max_offset,
            "last_update_ts": micros(newest), "read_ts": micros(max_s), "perm": 6,
            "topic_kind": topic_kind("T"),
        }  # fmt: skip
        written.add(number, "offsets", place, copies=copies)
    for group in groups:
        online = random_.random() < group.online
        for queue_id, reader in group.readers.items():
            row = _progress(random_, cluster, (read_s, max_s), group, queue_id,
                            queues[queue_id], reader, online=online)  # fmt: skip
            written.add(number, "progress", row, copies=copies)
        model = group.model if online else None
        values = {
            "cluster": cluster, "group": group.name,
            "broker_name": "broker-a", "online_clients": int(online), "message_model": model,
            "subscriptions": [], "languages": [], "read_ts": micros(read_s),
        }  # fmt: skip
        written.add(number, "groups", values)


def _progress(
    random_: random.Random,
    cluster: str,
    moments: tuple[float, float],
    group: Group,
    queue_id: int,
    queue: Queue,
    reader: Reader,
    *,
    online: bool,
) -> dict[str, Any]:
    offset, is_sampled = reader.offset, random_.random() < reader.sampled
    next_s = consumed_s = None
    if is_sampled and offset is not None and offset < queue.max_offset:
        next_s = queue.stored_s(max(offset, queue.min_offset))
        consumed_s = queue.stored_s(offset - 1) if offset > queue.min_offset else None
    return {
        "cluster": cluster,
        "group": group.name,
        "broker_name": "broker-a",
        "topic": "T",
        "queue_id": queue_id,
        "consumer_offset": offset,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "consume_ts": micros(consumed_s),
        "next_ts": micros(next_s),
        "last_update_ts": micros(queue.stored_s(queue.max_offset - 1)),
        "read_ts": micros(moments[0]),
        "max_read_ts": micros(moments[1]),
        "online": online,
        "message_model": group.model if online else None,
        "filtered": group.is_filtered,
    }


def moment(text: str, minutes: int = 0) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00") + timedelta(minutes=minutes)
