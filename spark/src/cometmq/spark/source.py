# SPDX-License-Identifier: Apache-2.0
"""The data source `rocketmq`: the entry point that Spark loads."""

import os
import sys
from collections.abc import MutableMapping
from typing import Final

from pyspark import SparkContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from cometmq.spark.checks import check_load
from cometmq.spark.options.definitions import Mode, Table, check_modes, parse
from cometmq.spark.read.batch import MessageReader
from cometmq.spark.read.stream import MessageStreamReader
from cometmq.spark.read.tables import ProgressStreamReader, TableReader
from cometmq.spark.schemas import table_schema
from cometmq.spark.write.sink import MessageStreamWriter, MessageWriter

FORMAT: Final = "rocketmq"


class RocketMQDataSource(DataSource):
    """Topics of RocketMQ or CometMQ as DataFrames; the option `table` selects other tables."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Parse the options; each reader and writer validates its own."""
        super().__init__(options)
        self._given = sorted(options)
        self._parsed = parse(dict(options))
        self._is_checked = False

    @classmethod
    def name(cls) -> str:
        """Return the name of the format; Spark calls this when the source is registered."""
        use_own_python()
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema; Spark calls this at `load()`, which is the time to refuse options."""
        self._check(Mode.BATCH, Mode.STREAM)
        return table_schema(self._parsed)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(Mode.BATCH)
        if self._parsed.table is Table.MESSAGES:
            return MessageReader(self._parsed, schema)
        return TableReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        self._check(Mode.STREAM)
        if self._parsed.table is Table.MESSAGES:
            return MessageStreamReader(self._parsed, schema)
        return ProgressStreamReader(self._parsed, schema)

    def _check(self, *modes: Mode) -> None:
        """Check the options of a read, against the cluster once; `schema` is not called if the user
        gives one.
        """
        is_table = self._parsed.table is not Table.MESSAGES
        check_modes(self._given, *((Mode.TABLE,) if is_table else modes))
        if not self._is_checked:
            check_load(self._parsed)
            self._is_checked = True

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        check_modes(self._given, Mode.WRITE)
        return MessageWriter(self._parsed, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # the name is Spark's
    ) -> DataSourceStreamArrowWriter:
        check_modes(self._given, Mode.WRITE)
        return MessageStreamWriter(self._parsed, schema, overwrite=overwrite)


_VARIABLE: Final = "PYSPARK_PYTHON"
_SETTING: Final = "spark.pyspark.python"


def use_own_python() -> None:
    """Set the interpreter of a local session's workers, unless the user has chosen one.

    Workers on other machines are left alone: the path of this interpreter may not exist there.
    """
    context = SparkContext._active_spark_context  # noqa: SLF001  # there is no public accessor
    if context is None or os.getenv(_VARIABLE) or context.getConf().get(_SETTING):
        return
    if (context.master or "").startswith("local"):
        context.pythonExec = sys.executable
