# SPDX-License-Identifier: Apache-2.0
"""`cometmq-lag`: take snapshots of offsets, and report on them.

Exit status: 0 healthy, 1 failure (explained on one line), 2 usage error, 3 coverage too low,
10 warnings, 20 errors, 30 unread messages are lost or soon will be, 130 interrupted.
"""

import asyncio
import os
import sys
import threading
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import msgspec
import typer

from cometmq.client.credentials import credentials_from_file
from cometmq.insight.judge import LATE_S, RISK_S, SEVERITIES, WINDOW_S
from cometmq.remoting.errors import CometError
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.visible import visible
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.collect.exposition import CollectorStats, exposed
from cometmq.spark.collect.loop import INTERVAL_MIN_S, collect_once, collect_until_signal
from cometmq.spark.lag.columns import Header
from cometmq.spark.lag.rules import Rules

Root = Annotated[
    Path, typer.Argument(help="Folder with the history of snapshots.", metavar="HISTORY")
]
Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv", "-n", envvar="NAMESRV_ADDR", help="Name servers, host:port;host:port."
    ),
]
Cluster = Annotated[str | None, typer.Option("--cluster", "-c", help="Only this cluster.")]
Interval = Annotated[
    int | None,
    typer.Option(
        min=INTERVAL_MIN_S, help="Keep running, and take a snapshot at this interval in seconds."
    ),
]
HttpPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Port of /metrics and /readyz; only with --interval."),
]
Budget = Annotated[
    int, typer.Option(min=0, help="Limit of message-age queries per broker and snapshot.")
]
SampleTags = Annotated[
    int,
    typer.Option(
        min=0, max=10_000, help="Unread messages to test per group with a filter; 0: none."
    ),
]
Window = Annotated[int, typer.Option(min=60, help="Window W, in seconds.")]
AllowedLag = Annotated[int, typer.Option(min=0, help="Lag up to which a queue is OK.")]
AllowedAge = Annotated[
    float,
    typer.Option(min=0, help="Age of unread messages, in seconds, up to which a queue is OK."),
]
Credentials = Annotated[
    Path | None,
    typer.Option(
        envvar="COMETMQ_CREDENTIALS",
        help="File with accessKey and secretKey, like RocketMQ's conf/tools.yml.",
    ),
]
Tls = Annotated[bool, typer.Option("--tls", envvar="COMETMQ_TLS", help="Connect over TLS.")]
TlsCa = Annotated[
    Path | None, typer.Option(help="CA certificates that verify the servers; implies --tls.")
]
Master = Annotated[
    str | None, typer.Option(help="Spark master; default: all cores of this machine.")
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Setting of Spark; repeatable."),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the report's files.")]
Forms = Annotated[
    list[str] | None,
    typer.Option("--form", help="html or json; repeatable; default: all."),
]


def spark_settings(conf: list[str] | None) -> dict[str, str]:
    """Return the settings in `--conf`; raise BadParameter unless each is spark.NAME=VALUE."""
    pairs = [one.partition("=") for one in conf or ()]
    for key, equals, _ in pairs:
        if not key.startswith("spark.") or not equals:
            raise typer.BadParameter(f"--conf {key}: give it as spark.NAME=VALUE")
    return {key: value for key, _, value in pairs}


def link_settings(
    namesrv: str, credentials: Path | None, tls: bool, tls_ca: Path | None
) -> CollectSettings:
    return CollectSettings(
        namesrv=namesrv,
        credentials=None if credentials is None else credentials_from_file(credentials),
        tls=TlsSettings(
            enable=tls or tls_ca is not None,
            test_mode=tls_ca is None,
            auth_server=tls_ca is not None,
            trust_cert_path=tls_ca,
        ),
    )


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    COVERAGE = 3
    WARN = 10
    ERROR = 20
    CRITICAL = 30
    INTERRUPTED = 130


class FailOn(StrEnum):
    """The lowest severity that a report signals through its exit status."""

    NEVER = "never"
    WARN = "warn"
    ERROR = "error"
    CRITICAL = "critical"


_EXITS = {"warn": Exit.WARN, "error": Exit.ERROR, "critical": Exit.CRITICAL}


def exit_of(header: Header, *, fail_on: FailOn, coverage_min: float) -> Exit:
    """Map a report to an exit status; severity takes precedence over low coverage."""
    found = SEVERITIES.index(header.severity)
    if fail_on is not FailOn.NEVER and found >= SEVERITIES.index(fail_on.value):
        return _EXITS[header.severity]
    return Exit.COVERAGE if header.coverage < coverage_min else Exit.OK


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    help=__doc__.split("\n\n", maxsplit=1)[0],
)


def say(text: str) -> None:
    """Print progress on stderr, separate from output that programs read."""
    _tell(f"cometmq-lag: {text}", err=True)


def _tell(text: str, *, err: bool = False) -> None:
    """Print a text; clients chose the names in it."""
    typer.echo(visible(text), err=err)  # noqa: TID251  # the one place


@app.command()
def snapshot(
    root: Root,
    namesrv: Namesrv = "",
    cluster: Cluster = None,
    interval: Interval = None,
    timestamp_budget: Budget = 2000,
    sample_tags: SampleTags = 0,
    http_port: HttpPort = None,
    textfile: Annotated[
        Path | None,
        typer.Option(help="Folder of `report --textfile`, whose metrics the port shows, too."),
    ] = None,
    credentials: Credentials = None,
    *,
    tls: Tls = False,
    tls_ca: TlsCa = None,
) -> None:
    """Query the offsets of every broker once, and write a snapshot to HISTORY/raw."""
    if http_port is not None and interval is None:
        raise typer.BadParameter("--http-port needs --interval: a single snapshot serves nobody")
    if textfile is not None and http_port is None:
        raise typer.BadParameter("--textfile needs --http-port, which shows its metrics")
    settings = msgspec.structs.replace(
        link_settings(namesrv, credentials, tls, tls_ca),
        cluster=cluster,
        timestamp_budget=timestamp_budget,
        sample_tags=sample_tags,
    )
    if interval is None:
        asyncio.run(collect_once(root, settings, say))
    else:
        asyncio.run(_collect(root, settings, interval, http_port, textfile))


async def _collect(
    root: Path,
    settings: CollectSettings,
    interval_s: int,
    http_port: int | None,
    reports: Path | None,
) -> None:
    stats = CollectorStats()
    async with AsyncExitStack() as stack:
        if http_port is not None:
            page = f"history={root}\nnamesrv={settings.namesrv}\ninterval={interval_s} s\n"
            await stack.enter_async_context(exposed(stats, http_port, page, reports))
        await collect_until_signal(root, settings, interval_s, say, stats)


@app.command()
def compact(root: Root) -> None:
    """Merge each past hour's snapshots into one file per table, add hourly sums, then vacuum."""
    # Imported here, because `snapshot` must start fast and needs neither Spark nor these modules.
    from cometmq.spark.lag.history.snapshots import History  # noqa: PLC0415
    from cometmq.spark.lag.history.upkeep import compact as job  # noqa: PLC0415

    hours = job(History(root), datetime.now(UTC))
    say(f"compacted {len(hours)} hours")
    vacuum(root)


@app.command()
def vacuum(
    root: Root,
    hours: Annotated[int, typer.Option(min=1, help="Hours to keep per-minute data.")] = 48,
    days: Annotated[int, typer.Option(min=1, help="Days to keep every tenth minute.")] = 30,
    sum_days: Annotated[int, typer.Option(min=1, help="Days to keep hourly sums.")] = 400,
) -> None:
    """Delete data that is past its retention."""
    from cometmq.spark.lag.history.snapshots import History  # noqa: PLC0415
    from cometmq.spark.lag.history.upkeep import Retention  # noqa: PLC0415
    from cometmq.spark.lag.history.upkeep import vacuum as job  # noqa: PLC0415

    keep = Retention(
        hour=timedelta(hours=hours), agg10=timedelta(days=days), agg60=timedelta(days=sum_days)
    )
    say(f"removed {len(job(History(root), datetime.now(UTC), keep))} files and folders")


@app.command()
def verify(root: Root) -> None:
    """Check every file of the history for damage; print one line per problem."""
    from cometmq.spark.lag.history.snapshots import History  # noqa: PLC0415
    from cometmq.spark.lag.history.upkeep import verify as job  # noqa: PLC0415

    if not root.is_dir():
        raise CometError(f"{root}: the folder does not exist")
    findings = job(History(root))
    for finding in findings:
        _tell(finding)
    if findings:
        raise typer.Exit(Exit.FAILED)
    say("the history is intact")


def _known_timezone(name: str) -> str:
    try:
        return ZoneInfo(name).key
    except (KeyError, ValueError, OSError) as error:
        raise typer.BadParameter(f"unknown time zone {name}") from error


@app.command()
def report(
    root: Root,
    out: Out = None,
    form: Forms = None,
    window: Window = WINDOW_S,
    long_window: Annotated[int, typer.Option(min=60, help="Long window, in seconds.")] = 3600,
    history: Annotated[
        int, typer.Option(min=60, help="How far back to look up arrival times, in seconds.")
    ] = 86_400,
    risk_hours: Annotated[
        float, typer.Option(min=0, help="AT_RISK below this many hours to data loss.")
    ] = RISK_S / 3600,
    allowed_lag: AllowedLag = 0,
    allowed_age: AllowedAge = LATE_S,
    broker_timezone: Annotated[
        str, typer.Option(help="Time zone of the brokers' deleteWhen.")
    ] = "UTC",
    fail_on: Annotated[
        FailOn, typer.Option(help="Lowest severity that sets the exit status.")
    ] = FailOn.CRITICAL,
    min_coverage: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 3 below this coverage.")
    ] = 0.99,
    textfile: Annotated[
        Path | None, typer.Option(help="Folder of the node exporter's textfile collector.")
    ] = None,
    pushgateway: Annotated[
        str | None, typer.Option(help="URL of a Prometheus Pushgateway.")
    ] = None,
    namesrv: Namesrv = "",
    credentials: Credentials = None,
    tls_ca: TlsCa = None,
    master: Master = None,
    conf: Conf = None,
    *,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Query members of the worst groups for queues and threads."),
    ] = False,
    tls: Tls = False,
) -> None:
    """Report which groups are behind, since when, and how long until data is lost."""
    from cometmq.spark.lag.job import Outputs, SparkOptions, run_report  # noqa: PLC0415  # Spark

    rules = Rules(
        window_s=window,
        long_window_s=max(long_window, window),
        history_s=max(history, window),
        risk_hours=risk_hours,
        allowed_lag=allowed_lag,
        allowed_age_s=allowed_age,
        timezone=_known_timezone(broker_timezone),
    )
    outputs = Outputs(folder=out, forms=form, textfile=textfile, pushgateway=pushgateway)
    members_of = link_settings(namesrv, credentials, tls, tls_ca) if deep else None
    where = SparkOptions(master, spark_settings(conf))
    header = run_report(root, rules, outputs, where=where, say=say, members_of=members_of)
    raise typer.Exit(exit_of(header, fail_on=fail_on, coverage_min=min_coverage))


def main() -> None:
    """Run the command line; errors that a user can fix are printed on one line."""
    _leave(_status())


def _status() -> int:
    try:
        status = app(standalone_mode=False)  # the code of `typer.Exit`, otherwise None
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except (CometError, OSError, msgspec.ValidationError) as error:
        say(str(error))
        return Exit.FAILED
    except Exception as error:
        if not hasattr(error, "exit_code"):
            raise
        error.show()  # type: ignore[attr-defined]  # usage errors of the parser beneath typer
        return Exit.USAGE
    return Exit.OK if status is None else int(status)


def _leave(status: int) -> None:
    """Exit even if a Spark thread is still running."""
    sys.stdout.flush()
    sys.stderr.flush()
    if threading.active_count() > 1:  # `sys.exit` would wait for the gateway to the JVM
        os._exit(status)
    sys.exit(status)
