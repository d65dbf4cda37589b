# SPDX-License-Identifier: Apache-2.0
"""Splits queue ranges into tasks, and limits the size of a micro-batch; does no I/O."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from cometmq.spark.cluster.metadata import Metadata
from cometmq.spark.cluster.topics import Addresses
from cometmq.spark.errors import OffsetMissing, OptionError
from cometmq.spark.options.definitions import NothingNewer, Options
from cometmq.spark.options.offsets_json import EARLIEST, LATEST, Queue, from_text


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


Ends = Mapping[Queue, tuple[int, int]]
"""First offset and exclusive end of each queue."""

_EARLIEST_WORD: Final = "earliest"
_LATEST_WORD: Final = "latest"
_NUMBERS: Final = {EARLIEST: _EARLIEST_WORD, LATEST: _LATEST_WORD}


def starting_offsets(
    metadata: Metadata, options: Options, ends: Ends, *, default: str
) -> dict[Queue, int]:
    """Resolve the start of each queue; queues that the options do not name use `default`."""
    if options.starting_timestamp is not None:
        moments: dict[Queue, int] = dict.fromkeys(ends, options.starting_timestamp)
        return _at_moments(metadata, options, ends, moments, default=default)
    if options.starting_offsets_by_timestamp:
        source = "option `startingOffsetsByTimestamp`"
        moments = _known(
            from_text(options.starting_offsets_by_timestamp, source=source, lowest=0), ends, source
        )
        return _at_moments(metadata, options, ends, moments, default=default)
    if options.starting_offsets_from_group:
        committed = metadata.committed(options.starting_offsets_from_group, ends)
        return {queue: committed.get(queue, first) for queue, (first, _) in ends.items()}
    return _offsets(options.starting_offsets or default, ends, "startingOffsets", default)


def check_starts(starts: Mapping[Queue, int], ends: Ends) -> None:
    """Raise OffsetMissing if a queue ends before its start."""
    for queue, start in starts.items():
        end = ends[queue][1]
        if start > end:
            raise OffsetMissing(f"{queue} ends at {end}, before the start {start}")


def ending_offsets(metadata: Metadata, options: Options, ends: Ends) -> dict[Queue, int]:
    source = "option `endingOffsetsByTimestamp`"
    if options.ending_timestamp is not None:
        moments: dict[Queue, int] = dict.fromkeys(ends, options.ending_timestamp)
    elif options.ending_offsets_by_timestamp:
        moments = _known(
            from_text(options.ending_offsets_by_timestamp, source=source, lowest=0), ends, source
        )
    else:
        return _offsets(options.ending_offsets, ends, "endingOffsets", _LATEST_WORD)
    found = {queue: end for queue, (_, end) in ends.items()}
    for queue, moment in moments.items():
        found[queue] = metadata.offset_at(queue, moment, ends[queue])
    return found


def _at_moments(
    metadata: Metadata, options: Options, ends: Ends, moments: Mapping[Queue, int], *, default: str
) -> dict[Queue, int]:
    found = _offsets(default, ends, "startingOffsets", default)
    for queue, moment in moments.items():
        end = ends[queue][1]
        offset = metadata.offset_at(queue, moment, ends[queue])
        if offset >= end and options.starting_offsets_by_timestamp_strategy is NothingNewer.ERROR:
            raise OffsetMissing(
                f"no message of {queue} was stored at {moment} ms or later; set the option "
                "`startingOffsetsByTimestampStrategy`=latest to start at its end"
            )
        found[queue] = offset
    return found


def _offsets(text: str, ends: Ends, option: str, default: str) -> dict[Queue, int]:
    """Resolve the offsets of an option; queues that it does not name use `default`."""
    words: dict[str, Callable[[Queue], int]] = {
        _EARLIEST_WORD: lambda queue: ends[queue][0],
        _LATEST_WORD: lambda queue: ends[queue][1],
    }
    word = text.strip().lower()
    if word in words:
        return {queue: words[word](queue) for queue in ends}
    source = f"option `{option}`"
    if not word.startswith("{"):
        raise OptionError(f"{source}={text!r}: must be `earliest`, `latest` or offsets as JSON")
    lowest = EARLIEST if option == "startingOffsets" else LATEST
    found = {queue: words[default](queue) for queue in ends}
    given = from_text(text, source=source, lowest=lowest)
    for queue, offset in _known(given, ends, source).items():
        found[queue] = words[_NUMBERS[offset]](queue) if offset in _NUMBERS else offset
    return found


def _known(offsets: Mapping[Queue, int], ends: Ends, source: str) -> dict[Queue, int]:
    """Reject queues that are not being read: their names are probably misspelled."""
    for queue in offsets:
        if queue not in ends:
            raise OptionError(f"{source}: queue {queue} is not part of this read")
    return dict(offsets)
