# SPDX-License-Identifier: Apache-2.0
"""Defines command-line options that several commands share, and converts them to settings."""

from pathlib import Path
from typing import Annotated

import typer

from cometmq.client.credentials import credentials_from_file
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.spark.collect.loop import INTERVAL_MIN_S
from cometmq.spark.collect.settings import CollectSettings

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
