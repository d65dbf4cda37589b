# SPDX-License-Identifier: Apache-2.0
"""Splits queue ranges into tasks, and limits the size of a micro-batch; does no I/O."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
from pyspark.sql.datasource import InputPartition

from cometmq.spark.cluster.topics import Addresses
from cometmq.spark.options.offsets_json import Queue


class Span(msgspec.Struct, frozen=True):
    """A range of a queue; `end` is exclusive."""

    queue: Queue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class QueueRange(InputPartition):
    """The input of one task: a span, and the broker addresses known at planning time."""

    def __init__(self, span: Span, addresses: Addresses) -> None:
        super().__init__(None)
        self.span = span
        self.addresses = dict(addresses)

    def __repr__(self) -> str:
        return f"QueueRange({self.span.queue}: {self.span.start} to {self.span.end})"


def split(
    spans: Iterable[Span],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[Span]:
    """Split spans into tasks, by the same rules as Spark's Kafka source."""
    whole = [span for span in spans if span.size > 0]
    total = sum(span.size for span in whole)
    pieces: list[Span] = []
    for span in whole:
        count = 1
        if min_partitions is not None:
            count = max(count, round(min_partitions * span.size / total))
        if max_records is not None:
            count = max(count, math.ceil(span.size / max_records))
        pieces += _pieces(span, min(count, span.size))
    return interleave(pieces)


def _pieces(span: Span, count: int) -> list[Span]:
    """Split a span into `count` parts whose sizes differ by at most one."""
    bounds = [span.start + span.size * index // count for index in range(count + 1)]
    return [Span(span.queue, start, end) for start, end in pairwise(bounds)]


def interleave(spans: Sequence[Span]) -> list[Span]:
    """Order spans by size and alternate between brokers, so that all brokers get early tasks."""
    by_broker: defaultdict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (-span.size, span.queue, span.start)):
        by_broker[span.queue.broker_name].append(span)
    ordered = [
        (index, name, span)
        for name, rows in sorted(by_broker.items())
        for index, span in enumerate(rows)
    ]
    return [span for _, _, span in sorted(ordered, key=lambda row: row[:2])]


def limited(spans: Sequence[Span], limit: int | None) -> dict[Queue, int]:
    """Return the end of each queue in a micro-batch of at most `limit` messages.

    The limit is shared in proportion to size. Shares below one are rounded up, since queues with a
    share of zero would never be read; so a batch may exceed a limit smaller than the number of
    queues. Messages left over by rounding down go to the largest remainders.
    """
    total = sum(max(0, span.size) for span in spans)
    if limit is None or total <= limit:
        return {span.queue: max(span.start, span.end) for span in spans}
    shares: dict[Queue, int] = {}
    rests: list[tuple[float, Queue]] = []
    for span in spans:
        exact = limit * max(0, span.size) / total
        shares[span.queue] = math.ceil(exact) if exact < 1 else math.floor(exact)
        if exact >= 1:
            rests.append((exact - math.floor(exact), span.queue))
    left = limit - sum(shares.values())
    for _, queue in sorted(rests, key=lambda row: (-row[0], row[1]))[: max(0, left)]:
        shares[queue] += 1
    return {span.queue: span.start + shares[span.queue] for span in spans}


def total_size(spans: Iterable[Span]) -> int:
    return sum(max(0, span.size) for span in spans)


def spans_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[Span]:
    """Build the spans between two sets of offsets; queues missing from either set are skipped."""
    return [Span(queue, start[queue], end[queue]) for queue in sorted(end) if queue in start]
