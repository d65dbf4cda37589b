# SPDX-License-Identifier: Apache-2.0
"""Performs the work of a reading task: turns a range of a queue into Arrow batches."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cometmq.spark.cluster.pulling import filter_of
from cometmq.spark.log import WORKER_LOG
from cometmq.spark.options.definitions import Options
from cometmq.spark.read.decode import decode_records, record_starts
from cometmq.spark.read.decode_scalar import Context
from cometmq.spark.read.fetching import Fetcher, data_loss
from cometmq.spark.read.planning import QueueRange

BATCH_BYTES_MAX: Final = 8 << 20
"""Bytes of records after which a batch is emitted, whatever its number of rows."""


def read_range(
    partition: InputPartition, schema: StructType, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range; Spark passes a plain partition if the plan is empty."""
    if not isinstance(partition, QueueRange):
        return
    span = partition.span
    message_filter = filter_of(options)
    context = Context.of(
        to_arrow_schema(schema, timezone="UTC"),
        span.queue.broker_name,
        options,
        tags=message_filter.tags,
    )
    fetcher = Fetcher(span, partition.addresses, options, log=WORKER_LOG)
    count = 0
    for buffer, starts in _gathered(fetcher, options.arrow_batch_rows, span.start):
        count += len(starts)
        yield decode_records(buffer, starts, context)
    missing = span.size - count - fetcher.lost_count
    if message_filter.takes_all and missing > 0:
        if options.fail_on_data_loss:
            raise data_loss(span.queue, span.start, missing, "or later no longer exist")
        WORKER_LOG.warning("messages.lost", queue=str(span.queue), count=missing)


def _gathered(fetcher: Fetcher, rows: int, begin: int) -> Iterator[tuple[bytes, list[int]]]:
    """Group pull answers into batches; yield each batch's bytes and the starts of its records."""
    bodies: list[bytes] = []
    starts: list[int] = []
    size = 0
    source = fetcher.pieces()
    try:
        for body, end in source:
            starts += [size + start for start in record_starts(body, begin, end)]
            bodies.append(body)
            size += len(body)
            if len(starts) >= rows or size >= BATCH_BYTES_MAX:
                yield b"".join(bodies), starts
                bodies, starts, size = [], [], 0
    finally:
        source.close()  # type: ignore[attr-defined]  # generators have close: closes the socket now
    if starts:
        yield b"".join(bodies), starts
