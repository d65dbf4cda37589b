# SPDX-License-Identifier: Apache-2.0
"""Reads messages in a batch; both ends are fixed when the query is planned."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cometmq.spark.checks import check_batch
from cometmq.spark.cluster.metadata import Metadata
from cometmq.spark.options.definitions import Options
from cometmq.spark.options.where import Where, parse_where
from cometmq.spark.read.fetching import data_loss
from cometmq.spark.read.planning import (
    Ends,
    QueueRange,
    Span,
    check_starts,
    ending_offsets,
    split,
    starting_offsets,
)
from cometmq.spark.read.task import read_range
from cometmq.spark.schemas import check_schema


class MessageReader(DataSourceReader):
    """Reads messages from queues, each between two fixed offsets."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_batch(options)
        check_schema(schema, options)
        # A batch has no later run that could report the loss, so it always fails.
        self._options = msgspec.structs.replace(options, fail_on_data_loss=True)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve each queue's start and end, and split the ranges into tasks."""
        with Metadata(self._options) as metadata:
            ends = metadata.ends(metadata.queues())
            start = starting_offsets(metadata, self._options, ends, default="earliest")
            end = ending_offsets(metadata, self._options, ends)
            spans = [Span(queue, start[queue], end[queue]) for queue in ends]
            spans = _within_times(spans, metadata, ends, parse_where(self._options.where))
            _check_exists(spans, ends)
            return ranges_of(spans, metadata, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self._schema, self._options)

    def __reduce__(self) -> Any:
        return type(self), (self._options, self._schema)


def ranges_of(spans: Sequence[Span], metadata: Metadata, options: Options) -> list[InputPartition]:
    """Split spans into tasks, leaving out those that the option `where` excludes."""
    where = parse_where(options.where)
    pieces = split(
        [it for it in spans if where.has_queue(it.queue.queue_id) and not where.takes_nothing],
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [
        QueueRange(piece, metadata.brokers.get(piece.queue.broker_name, {})) for piece in pieces
    ]


def _within_times(
    spans: Sequence[Span], metadata: Metadata, ends: Ends, where: Where
) -> list[Span]:
    """Narrow the spans to the store times of `where`, which do not decrease within a queue."""
    if not where.has_times:
        return list(spans)
    found = []
    for span in spans:
        start, end = span.start, span.end
        if where.begin_ms is not None:
            start = max(start, metadata.offset_at(span.queue, where.begin_ms, ends[span.queue]))
        if where.end_ms is not None:
            end = min(end, metadata.offset_at(span.queue, where.end_ms, ends[span.queue]))
        found.append(Span(span.queue, min(start, max(span.start, end)), max(span.start, end)))
    return found


def _check_exists(spans: Sequence[Span], ends: Ends) -> None:
    """Raise unless all messages of the spans exist."""
    check_starts({span.queue: span.start for span in spans}, ends)
    for span in spans:
        first, end = ends[span.queue]
        if span.size > 0 and span.start < first:
            raise data_loss(
                span.queue, span.start, min(first, span.end) - span.start, "no longer exist"
            )
        if span.size > 0 and span.end > end:
            raise data_loss(span.queue, end, span.end - end, "do not exist")
