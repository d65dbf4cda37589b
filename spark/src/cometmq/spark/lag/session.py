# SPDX-License-Identifier: Apache-2.0
"""Creates the Spark session of a lag job."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

MASTER: Final = "local[*]"
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
}
_HOST: Final = "127.0.0.1"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_LOCAL_SETTINGS: Final = {
    "spark.driver.host": _HOST,
    "spark.driver.bindAddress": _HOST,
    "spark.driver.memory": "3g",
}
_FAST_START: Final = "-XX:TieredStopAtLevel=1"
"""A local job runs for seconds: the JVM's C2 compiler costs more time than it saves."""


def session(
    master: str | None = None, settings: Mapping[str, str] | None = None, *, name: str = "lag"
) -> SparkSession:
    """Create a session with UTC timestamps; its workers run this interpreter.

    `master` defaults to the one that spark-submit sets, or to all cores of this machine.
    """
    for name_ in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name_, sys.executable)  # noqa: TID251 (read by Spark)
    builder = SparkSession.builder.appName(f"cometmq-{name}")
    is_submitted = os.getenv("PYSPARK_GATEWAY_PORT") is not None
    if master is not None or not is_submitted:
        builder = builder.master(master or MASTER)
    chosen, java = dict(_SETTINGS), []
    if not is_submitted and (master or MASTER).startswith("local"):
        chosen |= _LOCAL_SETTINGS | {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
        os.environ.setdefault("SPARK_LOCAL_IP", _HOST)  # noqa: TID251 (read by Spark)
        java.append(_FAST_START)
    if not is_submitted and os.getenv("SPARK_CONF_DIR") is None:
        java.append(f"-Dlog4j2.configurationFile={_LOG_SETTINGS}")
    if java:
        chosen["spark.driver.extraJavaOptions"] = " ".join(java)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    with suppress(AttributeError):  # Spark Connect has none
        spark.sparkContext.setLogLevel("ERROR")
    return spark
