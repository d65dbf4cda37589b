# SPDX-License-Identifier: Apache-2.0
"""Reads the tables about brokers and groups: one task asks every broker once.

As a stream, `progress` has a batch for each minute in which a trigger falls. What is read is how
things are then; a batch that Spark repeats has the number of its minute and the present figures.
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
from cometmq.spark.collect.settings import CollectSettings
from cometmq.spark.collect.snapshot import snapshot_id_of, take
from cometmq.spark.connection import LinkSettings
from cometmq.spark.errors import OptionError
from cometmq.spark.log import WORKER_LOG
from cometmq.spark.options import Options, Table
from cometmq.spark.schemas import check_schema
from cometmq.spark.topics import addresses_of

_SNAPSHOT: Final = "snapshot"


class Round(InputPartition):
    """One round at all brokers."""

    def __init__(self, snapshot_id: int | None) -> None:
        """Remember its number; None: that of the minute in which it is read."""
        super().__init__(snapshot_id)
        self.snapshot_id = snapshot_id


class TableReader(DataSourceReader):
    """One of the tables, once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check what was asked for; nothing is connected yet."""
        check_common(options)
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the only task: a round is much smaller than the start of a second one."""
        return [Round(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Ask all brokers, in a worker."""
        return read_round(partition, self._schema, self._options)


class ProgressStreamReader(DataSourceStreamReader):
    """The table `progress`, again and again: a collector that Spark runs."""

    def __init__(
        self,
        options: Options,
        schema: StructType,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Check what was asked for; nothing is connected yet."""
        check_common(options)
        if options.table is not Table.PROGRESS:
            raise OptionError(f"table `{options.table}` is no stream; `messages`, `progress` are")
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._clock_ms = clock_ms

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's names
        """Begin before this minute, so that the first trigger reads it."""
        return {_SNAPSHOT: snapshot_id_of(self._clock_ms()) - 1}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return this minute; a clock that was set back repeats no minute."""
        return {_SNAPSHOT: max(start[_SNAPSHOT], snapshot_id_of(self._clock_ms()))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return one round, if a new minute has begun; missed minutes cannot be made up for."""
        return [Round(end[_SNAPSHOT])] if end[_SNAPSHOT] > start[_SNAPSHOT] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Ask all brokers, in a worker."""
        return read_round(partition, self._schema, self._options)

    def __reduce__(self) -> Any:
        """Travel to workers without the clock."""
        return type(self), (self._options, self._schema)


def read_round(
    partition: InputPartition, schema: StructType, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one round; nothing for the partition that Spark makes of none."""
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
