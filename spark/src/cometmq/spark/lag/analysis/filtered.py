# SPDX-License-Identifier: Apache-2.0
"""The table `filtered`: estimates how many unread messages match a group's filter.

The matching share is taken from the newest samples of each broker, with a 95 % Wilson interval.
Adding up the brokers' bounds makes the interval of the sum slightly too wide.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cometmq.spark.lag.columns import REPORT_TABLES
from cometmq.spark.tables.arrow import table_of
from cometmq.spark.tables.state import Sample

_Z: Final = 1.96


class _Topic(NamedTuple):
    cluster: str
    group: str
    topic: str


def filtered(queues: pa.Table, groups: pa.Table) -> pa.Table:
    """Build one row per filtered topic with unread messages.

    `queues` is the report's table `queue`; `groups` is the snapshot table `groups` over the long
    window.
    """
    unread = _unread(queues)
    tries = _newest_tries(groups)
    words = _expressions(groups, {it.group for it in unread})
    rows = [_row(it, unread[it], tries, words.get(it)) for it in unread]
    rows.sort(key=lambda row: (-row[4], row[:3]))
    return table_of(REPORT_TABLES["filtered"], rows)


def wilson(sample: Sample) -> tuple[float, float]:
    """Compute the 95 % Wilson score interval of the matching share."""
    count, share = sample.tried, sample.matched / sample.tried
    centre = share + _Z**2 / (2 * count)
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    scale = 1 + _Z**2 / count
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _unread(queues: pa.Table) -> dict[_Topic, Counter[str]]:
    wanted = queues.filter(pc.and_(queues["filtered"], pc.greater(queues["lag"], 0)))
    found: defaultdict[_Topic, Counter[str]] = defaultdict(Counter)
    for row in wanted.select(["cluster", "group", "topic", "broker_name", "lag"]).to_pylist():
        topic = _Topic(row["cluster"], row["group"], row["topic"])
        found[topic][row["broker_name"]] += row["lag"]
    return found


def _newest_tries(groups: pa.Table) -> dict[tuple[_Topic, str], Sample]:
    rows = groups.filter(pc.is_valid(groups["tried"])).sort_by("snapshot_id").to_pylist()
    return {
        (_Topic(row["cluster"], row["group"], topic), row["broker_name"]): Sample(tried, matched)
        for row in rows
        for topic, tried, matched in _counts(row)
        if tried > 0
    }


def _counts(row: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    matched = dict(row["matched"])
    for topic, tried in row["tried"]:
        yield topic, tried, matched[topic]


def _expressions(groups: pa.Table, names: set[str]) -> dict[_Topic, str]:
    rows = groups.filter(pc.is_in(groups["group"], pa.array(sorted(names), pa.string())))
    rows = rows.select(["cluster", "group", "subscriptions", "snapshot_id"]).sort_by("snapshot_id")
    return {
        _Topic(row["cluster"], row["group"], topic): text
        for row in rows.to_pylist()
        for topic, text in row["subscriptions"]
    }


def _row(
    topic: _Topic,
    unread: Counter[str],
    tries: Mapping[tuple[_Topic, str], Sample],
    expression: str | None,
) -> tuple[Any, ...]:
    samples = {it: tries[topic, it] for it in unread if (topic, it) in tries}
    tried = sum(it.tried for it in samples.values()) if samples else None
    matched = sum(it.matched for it in samples.values()) if samples else None
    known = (*topic, expression, unread.total(), tried, matched)
    if len(samples) < len(unread):
        return (*known, None, None, None)
    shares = ((unread[name], it.matched / it.tried, *wilson(it)) for name, it in samples.items())
    sums = [
        sum(parts) for parts in zip(*((n * a, n * b, n * c) for n, a, b, c in shares), strict=True)
    ]
    return (*known, *(round(it) for it in sums))
