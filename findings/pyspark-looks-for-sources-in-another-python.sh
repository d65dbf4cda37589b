#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PySpark 4.3.0 (Java 17), a data source that is installed beside it as a package pyspark_*.
# Started as `venv/bin/python job.py` without activating the environment, Spark does not find the
# source: it looks installed sources up with `python3` of PATH, not with the interpreter that runs
# the job. The error (DATA_SOURCE_NOT_FOUND) names a missing class of Scala, not the interpreter.
# With PYSPARK_PYTHON set to the job's own interpreter, the same program reads.
. "$(dirname "$0")/common.sh"
python_packages pyspark==4.3.0 pyarrow
mkdir "$(echo venv/lib/python3*/site-packages)/pyspark_finding"
cat >"$(echo venv/lib/python3*/site-packages)/pyspark_finding/__init__.py" <<'PY'
from pyspark.sql.datasource import DataSource, DataSourceReader


class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "finding"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return Reader()


class Reader(DataSourceReader):
    def read(self, partition):
        yield (1,)
PY
cat >job.py <<'PY'
import re

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    print("rows", spark.read.format("finding").load().count())
except Exception as error:
    print(re.search(r"\b[A-Z]+(_[A-Z]+)+\b", str(error))[0])
PY
expect "not activated" DATA_SOURCE_NOT_FOUND "$(venv/bin/python job.py 2>log | tail -1)"
expect "PYSPARK_PYTHON set" "rows 1" "$(PYSPARK_PYTHON=$PWD/venv/bin/python venv/bin/python job.py 2>log | tail -1)"
