# SPDX-License-Identifier: Apache-2.0
"""One report from start to end: Spark, the result, its files, its metrics."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cometmq.remoting.errors import CometError
from cometmq.spark.lag.columns import Header
from cometmq.spark.lag.history import History, HistoryError
from cometmq.spark.lag.movers import keep
from cometmq.spark.lag.output import FORMS, push, write_report, write_textfile
from cometmq.spark.lag.output.prometheus import PushFailed
from cometmq.spark.lag.report import build
from cometmq.spark.lag.rules import Rules
from cometmq.spark.lag.spark import session
from cometmq.spark.lag.stream import line_of, start
from cometmq.spark.source import RocketMQDataSource

STOP_TIMEOUT_S: Final = 30.0
"""A Spark that does not stop within this time is left behind."""
POLL_S: Final = 0.5
"""How often a job that stays looks whether it runs and is wanted."""

Say = Callable[[str], None]


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """Where a report goes, beside the history."""

    folder: Path | None = None
    forms: Sequence[str] | None = None
    textfile: Path | None = None
    pushgateway: str | None = None


def run_report(
    root: Path, rules: Rules, outputs: Outputs, *, master: str | None, say: Say
) -> Header:
    """Make the report of the newest snapshot and write it everywhere; return its header."""
    forms = tuple(outputs.forms or FORMS)
    unknown = sorted(set(forms) - set(FORMS))
    if unknown:
        raise CometError(f"no form {unknown[0]} of a report; there are {', '.join(FORMS)}")
    history = History(root)
    say(f"newest snapshot: {history.newest_id()}")  # fails here, before Spark starts
    with _spark(master) as spark:
        try:
            result = build(spark, history, rules, say)
        except PySparkException as error:
            raise HistoryError(f"{root}: {_first_line(error)}") from error
    keep(root, result)
    if outputs.folder is not None:
        for path in write_report(result, outputs.folder, forms):
            say(f"wrote {path}")
    if outputs.textfile is not None:
        write_textfile(result, outputs.textfile)
    if outputs.pushgateway is not None:
        try:
            push(result, outputs.pushgateway)
        except PushFailed as error:
            raise CometError(str(error)) from error
    counts = ", ".join(f"{n} {status}" for status, n in result.header.status_counts.items() if n)
    say(f"{result.header.severity}: {counts or 'no groups'}")
    return result.header


def run_stream(
    root: Path,
    rules: Rules,
    options: dict[str, str],
    *,
    master: str | None,
    tell: Callable[[str], None],
) -> None:
    """Run the streaming job until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with _spark(master) as spark:
        spark.dataSource.register(RocketMQDataSource)
        query = start(spark, root, options, rules, lambda change: tell(line_of(change)))
        while query.isActive and not stop.wait(POLL_S):
            pass
        failure = query.exception()
        query.stop()
    if failure is not None:
        raise CometError(_first_line(failure))


@contextmanager
def _spark(master: str | None) -> Iterator[SparkSession]:
    spark = session(master, name="lag-report")
    try:
        yield spark
    finally:
        stopper = threading.Thread(target=spark.stop, daemon=True, name="spark-stop")
        stopper.start()
        stopper.join(STOP_TIMEOUT_S)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
