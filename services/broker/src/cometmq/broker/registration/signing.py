# SPDX-License-Identifier: Apache-2.0
"""Signs the requests with which a broker registers, for name servers that demand an account."""

from collections.abc import Callable
from typing import Final

from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.table import PUBLIC, Service
from cometmq.remoting.signature import credentials_of, signing
from cometmq.remoting.types import Buffer

SIGNED: Final = frozenset(
    code
    for code, command in COMMANDS.items()
    if Service.NAMESRV in command.services and command.access is not PUBLIC
)
"""The requests that are signed. Requests to other brokers are not: they need no
account, and could reuse a signature.
"""

Hook = Callable[[int, dict[str, str], Buffer], None]


def registration_signing(settings: BrokerSettings) -> tuple[Hook, ...]:
    """Return the hooks that sign the requests of the broker's client; raise SettingsError if only
    one of access key and secret key is set.
    """
    credentials = credentials_of(settings.access_key, settings.secret_key)
    if credentials is None:
        return ()
    sign = signing(credentials)

    def sign_registrations(code: int, ext: dict[str, str], body: Buffer) -> None:
        if code in SIGNED:
            sign(code, ext, body)

    return (sign_registrations,)
