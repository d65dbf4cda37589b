# SPDX-License-Identifier: Apache-2.0
"""How much of which queue is read where: splitting into tasks, and limits of a batch. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
from pyspark.sql.datasource import InputPartition

from cometmq.spark.offsets_json import Queue
from cometmq.spark.topics import Addresses


class Span(msgspec.Struct, frozen=True):
    """A part of a queue: from `start` to before `end`."""

    queue: Queue
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets it holds."""
        return self.end - self.start


class QueueRange(InputPartition):
    """What one task reads, and where the brokers of the queue were at planning time."""

    def __init__(self, span: Span, addresses: Addresses) -> None:
        """Hold what a worker needs."""
        super().__init__(None)
        self.span = span
        self.addresses = dict(addresses)

    def __repr__(self) -> str:
        """Show it in Spark's messages."""
        return f"QueueRange({self.span.queue}: {self.span.start} to {self.span.end})"


def split(
    spans: Iterable[Span],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[Span]:
    """Cut spans into as many tasks as asked for, in the way of Spark's Kafka source."""
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
    """Cut into `count` parts whose sizes differ by one at most."""
    bounds = [span.start + span.size * index // count for index in range(count + 1)]
    return [Span(span.queue, start, end) for start, end in pairwise(bounds)]


def interleave(spans: Sequence[Span]) -> list[Span]:
    """Put large spans first and take brokers in turn, so that no broker gets all first tasks."""
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
    """Return where a batch of at most `limit` messages ends in each queue.

    Queues get shares by their size. A share below one counts as one, since queues that always
    get nothing would never be read; so a batch may be larger than a limit below the number of
    queues. What rounding leaves over goes to the largest rests.
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
    """Return how many offsets spans hold together."""
    return sum(max(0, span.size) for span in spans)


def spans_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[Span]:
    """Return what lies between two offsets; a queue that only one of them has holds nothing."""
    return [Span(queue, start[queue], end[queue]) for queue in sorted(end) if queue in start]
