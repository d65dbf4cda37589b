# SPDX-License-Identifier: Apache-2.0
"""Runs the demo: starts a suite and the groups, takes snapshots, builds a report, checks it.

With `--replay`, no broker is started: the report uses snapshots of a generated day.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from cometmq.client import Message, Producer
from cometmq.client.admin import AdminClient
from cometmq.peers.demo import children
from cometmq.remoting.errors import CometError
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.service import one_line
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.collect.snapshot import snapshot_id_of, take, write
from cometmq.spark.lag.analysis.report import build
from cometmq.spark.lag.history.snapshots import History
from cometmq.spark.lag.job import session
from cometmq.spark.lag.output.forms import write_report
from cometmq.spark.lag.rules import Rules
from lag_demo import old_messages
from lag_demo.groups import ACTORS, ORDER_QUEUES, ORDERS, ORDERS_PER_S, Stage
from lag_demo.replay import write_day

CONFIG: Final = "broker.properties"
INTERVAL_S: Final = 3.0
SEND_INTERVAL_S: Final = 0.2
SECONDS_MIN: Final = 100
"""The report covers the last minute, throughout which the groups must be in trouble."""
PROGRESS_S: Final = 15
EXIT_INTERRUPTED: Final = 130
LIVE_RULES: Final = Rules(window_s=60, allowed_age_s=5.0)


def prepare(folder: Path) -> None:
    """Create the broker's store and configuration."""
    old_messages.write_old_messages(folder / "store")
    (folder / CONFIG).write_text(
        f"fileReservedTime={old_messages.HOURS_KEPT}\n"
        f"mappedFileSizeCommitLog={old_messages.FILE_BYTES}\n"
        f"deleteWhen={';'.join(f'{hour:02}' for hour in range(24))}\n"
        # Whatever else fills this machine's disk must not put the groups at risk.
        "cleanFileForciblyEnable=false\n"
    )


async def perform(folder: Path, history: Path, seconds: float) -> None:
    """Run the suite and the groups; write the snapshots to `history`."""
    options = ("--config", str(folder / CONFIG), "--log-level", "error")
    async with children.suite(folder, *options) as namesrv:
        stage = Stage(namesrv, folder, seconds)
        async with AdminClient(namesrv) as admin:
            await admin.create_topic(ORDERS, queue_count=ORDER_QUEUES)
            await admin.create_topic(old_messages.TOPIC, queue_count=old_messages.QUEUES)
        async with asyncio.TaskGroup() as tasks:
            playing = [tasks.create_task(send_orders(namesrv))]
            playing += [tasks.create_task(actor.play(stage, actor.group)) for actor in ACTORS]
            await collect(namesrv, history, seconds)
            for task in playing:
                task.cancel()


async def send_orders(namesrv: str) -> None:
    """Send at a steady rate until cancelled."""
    count = round(ORDERS_PER_S * SEND_INTERVAL_S)
    async with Producer("demo-shop", namesrv) as producer:
        while True:
            await producer.send_batch([Message(ORDERS, b"an order") for _ in range(count)])
            await asyncio.sleep(SEND_INTERVAL_S)


async def collect(namesrv: str, history: Path, seconds: float) -> None:
    """Take snapshots every few seconds, numbered as if a minute apart; timestamps are real."""
    rounds = round(seconds / INTERVAL_S)
    first_id = snapshot_id_of(SystemClock().now_ms() + round(seconds * 1000)) - rounds
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for number in range(1, rounds + 1):
        await asyncio.sleep(begin + number * INTERVAL_S - loop.time())
        write(history, await take(CollectSettings(namesrv=namesrv), first_id + number))
        if number % round(PROGRESS_S / INTERVAL_S) == 0:
            say(f"  snapshot {number} of {rounds}")


def say(text: str) -> None:
    """Print without buffering, even into a pipe."""
    print(text, flush=True)  # noqa: T201  # the demo's output


def report_on(history: Path, out: Path, rules: Rules) -> dict[str, str]:
    """Write the report of the snapshots; return the status of each group."""
    # Two partitions are enough for these few rows.
    spark = session(settings={"spark.sql.shuffle.partitions": "2"}, name="lag-demo")
    try:
        report = build(spark, History(history), rules, lambda step: say(f"  report: {step}"))
    finally:
        spark.stop()
    write_report(report, out)
    rows = report.rows("group")
    return {row["group"]: row["status"] for row in rows}


def compare(found: dict[str, str]) -> bool:
    """Print each group's behaviour and reported status; return whether all are as expected."""
    for actor in ACTORS:
        status = found.get(actor.group, "missing")
        mark = "ok" if status == actor.status else f"WRONG, expected {actor.status}"
        say(f"  {actor.group:<13} {actor.does:<48} {status:<10} {mark}")
    return all(found.get(actor.group) == actor.status for actor in ACTORS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make lag-demo", description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=120, help=f"duration, at least {SECONDS_MIN}"
    )
    parser.add_argument(
        "--replay", action="store_true", help="use a generated day instead of a live broker"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("target/lag-demo"), help="folder of the report"
    )
    arguments = parser.parse_args()
    if arguments.seconds < SECONDS_MIN:
        parser.error(f"--seconds {arguments.seconds}: must be at least {SECONDS_MIN}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        play = _replay if arguments.replay else partial(_live, arguments.seconds)
        return _run(play, arguments.out.resolve())
    except (CometError, ExceptionGroup) as error:
        line = one_line(error)
        if line is None:
            raise
        sys.stderr.write(f"lag-demo: {line}\n")
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _live(seconds: int, folder: Path, history: Path) -> Rules:
    say(f"Running seven groups for {seconds} s on a private broker.")
    prepare(folder)
    asyncio.run(perform(folder, history, seconds))
    return LIVE_RULES


def _replay(_: Path, history: Path) -> Rules:
    say("Generating a day of seven groups: 1,440 snapshots.")
    write_day(history, datetime.fromtimestamp(SystemClock().now_ms() / 1000, tz=UTC), say)
    return Rules()


def _run(play: Callable[[Path, Path], Rules], out: Path) -> int:
    """Play the demo and build the report; return 0 if every group has its expected status."""
    with TemporaryDirectory(prefix="cometmq-lag-demo-") as name:
        history = Path(name) / "history"
        rules = play(Path(name), history)
        found = report_on(history, out, rules)
    is_right = compare(found)
    say(f"The report: {out / 'report.html'} (and report.json)")
    return 0 if is_right else 1
