#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PySpark 4.3.0 (Java 17). A reader of a Python data source that has the optional method
# `pushFilters` cannot be read at all with the session's default settings, not even by a query
# without a filter: DATA_SOURCE_PUSHDOWN_DISABLED. A source that wants to work in every session can
# give its reader this method only where the setting is on.
. "$(dirname "$0")/common.sh"
python_packages pyspark==4.3.0 pyarrow
cat >job.py <<'PY'
import re
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader


class Source(DataSource):
    @classmethod
    def name(cls):
        return "finding"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return Reader()


class Reader(DataSourceReader):
    def pushFilters(self, filters):
        return filters

    def read(self, partition):
        yield (1,)


builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for value in sys.argv[1:]:
    builder.config("spark.sql.python.filterPushdown.enabled", value)
spark = builder.getOrCreate()
spark.dataSource.register(Source)
try:
    print("rows", spark.read.format("finding").load().count())
except PySparkException as error:
    print(re.search(r"DATA_SOURCE_PUSH\w+|$", str(error))[0])
PY
export PYSPARK_PYTHON=$PWD/venv/bin/python
expect "a plain count with default settings" DATA_SOURCE_PUSHDOWN_DISABLED "$(venv/bin/python job.py 2>log | tail -1)"
expect "the same with the setting on" "rows 1" "$(venv/bin/python job.py true 2>log | tail -1)"
