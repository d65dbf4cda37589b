# SPDX-License-Identifier: Apache-2.0
"""Writes rows as messages, at least once.

If Spark repeats a batch, its messages are resent. `dedupId` gives them the same ids as before, so
that consumers can drop duplicates; this requires the same row order in each task.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from cometmq.spark.checks import check_write
from cometmq.spark.errors import OptionError, SendIncomplete
from cometmq.spark.log import WORKER_LOG
from cometmq.spark.options.definitions import Options
from cometmq.spark.write.rows import RowIds, check_input, outgoing_rows
from cometmq.spark.write.sending import Sender

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    row_count: int
    stored_count: int


class _Writer:
    """The part of a writing task that batch and streaming writers share."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        check_write(options)
        if overwrite:
            raise OptionError('messages can only be appended: use `mode("append")`')
        check_input(schema, has_topic=bool(options.topic))
        self._options = options
        # Created once on the driver, so that all attempts of a task share it.
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        ids = RowIds(*self._task_names()) if self._options.dedup_id else RowIds(uuid.uuid4())
        task = TaskContext.get()
        sender = Sender(self._options, first_queue=task.partitionId() if task else 0)
        count = 0
        try:
            for batch in iterator:
                rows = outgoing_rows(batch, first=count, topic=self._options.topic, ids=ids)
                for row in rows:
                    sender.add(row)
                count += batch.num_rows
            sender.finish()
        finally:
            sender.close()
        return Written(count, sender.stored_count)

    def _task_names(self) -> tuple[object, ...]:
        """Return values that identify the task across all of its attempts."""
        task = TaskContext.get()
        if task is None:
            return self._write_id, 0
        batch_id = task.getLocalProperty(_BATCH_ID)
        query_id = task.getLocalProperty(_QUERY_ID)
        if batch_id is None or query_id is None:
            return self._write_id, task.partitionId()
        return query_id, batch_id, task.partitionId()


def _check(messages: list[WriterCommitMessage | None]) -> None:
    for message in messages:
        if not isinstance(message, Written) or message.row_count != message.stored_count:
            raise SendIncomplete(f"a task did not store all its rows: {message}")


class MessageWriter(_Writer, DataSourceArrowWriter):
    """Writes a whole DataFrame (batch)."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _check(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many messages were stored before the failure."""
        _log_abort(messages, None)


class MessageStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _check(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log how many messages were stored before the failure; Spark will repeat the batch."""
        _log_abort(messages, batchId)


def _log_abort(messages: list[WriterCommitMessage | None], batch_id: int | None) -> None:
    stored = sum(message.stored_count for message in messages if isinstance(message, Written))
    WORKER_LOG.warning("write.aborted", batch_id=batch_id, stored_count=stored)
