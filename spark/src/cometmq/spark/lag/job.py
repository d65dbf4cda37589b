# SPDX-License-Identifier: Apache-2.0
"""The job `report` from start to finish: Spark session, result, outputs."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cometmq.remoting.errors import CometError
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.lag.analysis.report import build
from cometmq.spark.lag.columns import Header, Report
from cometmq.spark.lag.history.inputs import keep
from cometmq.spark.lag.history.snapshots import History, HistoryError
from cometmq.spark.lag.members import query_members, with_holders, write_stacks
from cometmq.spark.lag.output.forms import FORMS, write_report, write_textfile
from cometmq.spark.lag.output.prometheus import push
from cometmq.spark.lag.rules import Rules
from cometmq.spark.tables.files import check_folder

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


STOP_TIMEOUT_S: Final = 30.0
"""A Spark session that has not stopped after this time is abandoned."""

Say = Callable[[str], None]


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """Destinations of a report other than the history."""

    folder: Path | None = None
    forms: Sequence[str] | None = None
    textfile: Path | None = None
    pushgateway: str | None = None

    def check(self) -> None:
        """Reject unknown forms and unwritable folders before the long job starts."""
        unknown = sorted(set(self.forms or ()) - set(FORMS))
        if unknown:
            raise CometError(f"--form: unknown form {unknown[0]}; known: {', '.join(FORMS)}")
        for folder in filter(None, (self.folder, self.textfile)):
            check_folder(folder)


class SparkOptions(msgspec.Struct, frozen=True):
    """The Spark master (None for all cores of this machine) and other Spark settings."""

    master: str | None = None
    settings: Mapping[str, str] = {}


def run_report(
    root: Path,
    rules: Rules,
    outputs: Outputs,
    *,
    where: SparkOptions,
    say: Say,
    members_of: CollectSettings | None = None,
) -> Header:
    """Build the report of the newest snapshot and write all outputs; return its header.

    With `members_of`, also query the members of the worst groups.
    """
    forms = tuple(outputs.forms or FORMS)
    outputs.check()
    history = History(root)
    last_id = history.newest_id()  # fails here, before Spark starts
    say(f"newest snapshot: {last_id}")
    with _spark(where) as spark:
        try:
            result = build(spark, history, rules, say, last_id=last_id)
        except PySparkException as error:
            raise HistoryError(f"{root}: {_first_line(error)}") from error
    if members_of is not None:
        result = _with_members(result, members_of, outputs.folder, say)
    keep(root, result)
    if outputs.folder is not None:
        for path in write_report(result, outputs.folder, forms):
            say(f"wrote {path}")
    if outputs.textfile is not None:
        write_textfile(result, outputs.textfile)
    if outputs.pushgateway is not None:
        push(result, outputs.pushgateway)
    counts = ", ".join(f"{n} {status}" for status, n in result.header.status_counts.items() if n)
    say(f"{result.header.severity}: {counts or 'no groups'}")
    return result.header


def _with_members(
    result: Report, settings: CollectSettings, folder: Path | None, say: Say
) -> Report:
    say("querying the members of the worst groups")
    try:
        asked = asyncio.run(query_members(result, settings))
    except CometError as error:
        say(f"cannot query the members: {error}")
        return result
    for found in asked:
        for client_id, reason in found.silent.items():
            say(f"{found.group}: {client_id} does not answer: {reason}")
    for path in write_stacks(folder, asked) if folder is not None else ():
        say(f"wrote {path}")
    return with_holders(result, asked)


@contextmanager
def _spark(where: SparkOptions) -> Iterator[SparkSession]:
    spark = session(where.master, where.settings, name="lag-report")
    spark.sparkContext.setLogLevel("OFF")  # failures are raised and printed on one line
    try:
        yield spark
    finally:
        stopper = threading.Thread(target=spark.stop, daemon=True, name="spark-stop")
        stopper.start()
        stopper.join(STOP_TIMEOUT_S)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
