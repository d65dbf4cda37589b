# SPDX-License-Identifier: Apache-2.0
"""The data source `rocketmq`: what Spark asks first, and which reader or writer it gets."""

from collections.abc import MutableMapping
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from cometmq.spark.batch import MessageReader
from cometmq.spark.options import Table, parse
from cometmq.spark.schemas import table_schema
from cometmq.spark.sink import MessageStreamWriter, MessageWriter
from cometmq.spark.stream import MessageStreamReader
from cometmq.spark.table_reader import ProgressStreamReader, TableReader

FORMAT: Final = "rocketmq"


class RocketMQDataSource(DataSource):
    """Topics of RocketMQ or CometMQ as DataFrames; the option `table` names other tables."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Read the options; each use checks what it needs."""
        super().__init__(options)
        self._parsed = parse(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the table."""
        return table_schema(self._parsed)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads once."""
        if self._parsed.table is Table.MESSAGES:
            return MessageReader(self._parsed, schema)
        return TableReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads as a stream."""
        if self._parsed.table is Table.MESSAGES:
            return MessageStreamReader(self._parsed, schema)
        return ProgressStreamReader(self._parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what writes once."""
        return MessageWriter(self._parsed, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # Spark names it
    ) -> DataSourceStreamArrowWriter:
        """Return what writes a stream."""
        return MessageStreamWriter(self._parsed, schema, overwrite=overwrite)
