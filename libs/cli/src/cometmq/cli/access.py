# SPDX-License-Identifier: Apache-2.0
"""Options before the command: who asks, and whether over TLS.

They hold for every command, so that no command needs them among its own. What they name is read
when a client is made, not before: a command that asks nobody needs no file.
"""

from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

AccessKey = Annotated[
    str, typer.Option(envvar="COMETMQ_ACCESS_KEY", help="Account, for brokers with access control.")
]
SecretKey = Annotated[
    str,
    typer.Option(
        envvar="COMETMQ_SECRET_KEY",
        show_envvar=True,
        help="Its secret; better in the environment or a file, where nobody else sees it.",
    ),
]
SecurityToken = Annotated[
    str, typer.Option(envvar="COMETMQ_SECURITY_TOKEN", help="Its token, if there is one.")
]
CredentialsFile = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        envvar="COMETMQ_CREDENTIALS",
        help="File with accessKey and secretKey, as RocketMQ's conf/tools.yml.",
    ),
]
Tls = Annotated[bool, typer.Option("--tls", envvar="COMETMQ_TLS", help="Connect over TLS.")]
TlsConfig = Annotated[
    Path | None,
    typer.Option(
        envvar="COMETMQ_TLS_CONFIG",
        help="File with tls.client keys, as RocketMQ's tls.properties; implies --tls.",
    ),
]


class Access(NamedTuple):
    """What was said before the command."""

    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    credentials: Path | None = None
    is_tls: bool = False
    tls_config: Path | None = None


ACCESS: Final[ContextVar[Access]] = ContextVar("ACCESS", default=Access())  # noqa: B039  # a tuple
