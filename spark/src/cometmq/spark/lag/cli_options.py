# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and what becomes of them."""

from pathlib import Path
from typing import Annotated

import typer

from cometmq.client.cluster.namesrv import parse_addresses
from cometmq.client.credentials import credentials_from_file
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.spark.collect.loop import INTERVAL_MIN_S
from cometmq.spark.collect.settings import CollectSettings

Root = Annotated[Path, typer.Argument(help="Folder of the history.", metavar="HISTORY")]
Namesrv = Annotated[
    str, typer.Option("--namesrv", "-n", envvar="NAMESRV_ADDR", help="host:port;host:port.")
]
Cluster = Annotated[str | None, typer.Option("--cluster", "-c", help="Only this cluster.")]
Interval = Annotated[
    int | None,
    typer.Option(min=INTERVAL_MIN_S, help="Stay, and take one each so many seconds."),
]
Budget = Annotated[int, typer.Option(min=0, help="Questions for the age of messages in one round.")]
SampleTags = Annotated[
    int,
    typer.Option(
        min=0, max=10_000, help="Try so many unread messages of each group with a filter."
    ),
]
Credentials = Annotated[
    Path | None,
    typer.Option(
        envvar="COMETMQ_CREDENTIALS",
        help="File with accessKey and secretKey, as RocketMQ's conf/tools.yml.",
    ),
]
Tls = Annotated[bool, typer.Option("--tls", envvar="COMETMQ_TLS", help="Connect over TLS.")]
TlsCa = Annotated[
    Path | None, typer.Option(help="Certificates to verify servers with; implies --tls.")
]
Master = Annotated[str | None, typer.Option(help="Spark master; default: all of this machine.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the report's files.")]
Forms = Annotated[
    list[str] | None, typer.Option("--form", help="html, markdown, json; default: all.")
]


def link_settings(
    namesrv: str, credentials: Path | None, tls: bool, tls_ca: Path | None
) -> CollectSettings:
    """Return whom to ask, and how."""
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


def source_options(
    namesrv: str, credentials: Path | None, tls: bool, tls_ca: Path | None
) -> dict[str, str]:
    """Return the same as options of the data source."""
    link_settings(namesrv, credentials, tls, tls_ca)  # what cannot be read is told before Spark
    options = {"nameServer": ";".join(parse_addresses(namesrv))}
    if credentials is not None:
        options["secretFile"] = str(credentials.absolute())
    if tls or tls_ca is not None:
        options |= {"useTLS": "true", "tls.verify": str(tls_ca is not None).lower()}
    if tls_ca is not None:
        options["tls.caFile"] = str(tls_ca.absolute())
    return options
