# SPDX-License-Identifier: Apache-2.0
"""Reads the tables about brokers and groups: one task queries every broker once.

As a stream, `progress` yields one batch for each minute in which a trigger fires. The figures are
always current: a batch that Spark repeats has its original minute but current figures.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from cometmq.spark.checks import check_common
from cometmq.spark.cluster.connection import LinkSettings
from cometmq.spark.cluster.topics import addresses_of
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.collect.snapshot import snapshot_id_of, take
from cometmq.spark.errors import OptionError
from cometmq.spark.log import WORKER_LOG
from cometmq.spark.options.definitions import Options, Table
from cometmq.spark.schemas import check_schema

_SNAPSHOT: Final = "snapshot"


class Round(InputPartition):
    """One round of queries to all brokers."""

    def __init__(self, snapshot_id: int | None) -> None:
        super().__init__(snapshot_id)
        self.snapshot_id = snapshot_id


class TableReader(DataSourceReader):
    """Reads one table once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_common(options)
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a single task: querying all brokers takes less time than starting a second one."""
        return [Round(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_round(partition, self._schema, self._options)


class ProgressStreamReader(DataSourceStreamReader):
    """Reads the table `progress` repeatedly: a collector that runs inside Spark."""

    def __init__(
        self,
        options: Options,
        schema: StructType,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        check_common(options)
        if options.table is not Table.PROGRESS:
            raise OptionError(
                f"table `{options.table}` cannot be a stream; `messages` and `progress` can"
            )
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._clock_ms = clock_ms

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # the name is Spark's
        """Start before the current minute, so that the first trigger reads it."""
        return {_SNAPSHOT: snapshot_id_of(self._clock_ms()) - 1}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the current minute; if the clock is set back, no minute is repeated."""
        return {_SNAPSHOT: max(start[_SNAPSHOT], snapshot_id_of(self._clock_ms()))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return one round if a new minute has begun; missed minutes are not made up."""
        return [Round(end[_SNAPSHOT])] if end[_SNAPSHOT] > start[_SNAPSHOT] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_round(partition, self._schema, self._options)

    def __reduce__(self) -> Any:
        return type(self), (self._options, self._schema)


def read_round(
    partition: InputPartition, schema: StructType, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one round; Spark passes a plain partition if the plan is empty."""
    if not isinstance(partition, Round):
        return
    link = LinkSettings.of(options)
    settings = CollectSettings(
        namesrv=";".join(addresses_of(options.name_server)),
        timestamp_budget=options.timestamp_budget,
        credentials=link.session(),
        tls=link.tls,
    )
    snapshot = asyncio.run(take(settings, partition.snapshot_id))
    for name, reason in snapshot.failures.items():
        WORKER_LOG.warning("broker.skipped", broker_name=name, error=reason)
    table = snapshot.table(options.table.value).select(schema.fieldNames())
    yield from table.cast(to_arrow_schema(schema, timezone="UTC")).combine_chunks().to_batches()
