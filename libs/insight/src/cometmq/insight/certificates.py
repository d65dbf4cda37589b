# SPDX-License-Identifier: Apache-2.0
"""Lists the certificates of a cluster: in the files of brokers and of this program, and as shown by
servers on connecting.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cometmq.client.admin import AdminClient
from cometmq.insight.asking import BrokerAnswers
from cometmq.insight.history import Place
from cometmq.insight.model import Certificate, Unreachable

KEY: Final = "certificates"
"""The key in the answer to GET_BROKER_RUNTIME_INFO."""
SHOWN: Final = "tls.server.certPath"
OURS: Final = "this program"


def certificates_of(
    admin: AdminClient,
    outcomes: Sequence[tuple[Place, BrokerAnswers | Unreachable]],
    further: Sequence[Certificate],
) -> list[Certificate]:
    """Return the certificates of this program, of the name servers and of the brokers, and
    `further`.
    """
    found = [*certificates_at(OURS, admin.expiries_s()), *further]
    for address in admin.namesrv.addresses:
        found += _shown(admin, f"name server {address}", address)
    for place, outcome in outcomes:
        where = f"broker {place.name}:{place.broker_id}"
        told = {} if isinstance(outcome, Unreachable) else _told(outcome.runtime.get(KEY, ""))
        found += [Certificate(where, name, at_ms) for name, at_ms in told.items()]
        if SHOWN not in told:
            found += _shown(admin, where, place.address)
    return found


def certificates_at(where: str, expiries_s: Mapping[str, float]) -> list[Certificate]:
    """Return the certificates of a program; the times are in seconds since 1970, by setting."""
    return [_certificate(where, name, at_s) for name, at_s in expiries_s.items()]


def _shown(admin: AdminClient, where: str, address: str) -> Iterator[Certificate]:
    at_s = admin.peer_expiry_s(address)
    if at_s is not None:
        yield _certificate(where, "", at_s)


def _certificate(where: str, what: str, at_s: float) -> Certificate:
    return Certificate(where, what, int(at_s * 1000))


def _told(text: str) -> dict[str, int]:
    """Parse `SETTING=MS` separated by commas; malformed pairs are left out."""
    pairs = (word.partition("=") for word in text[:1_000].split(","))
    return {name: int(ms) for name, _, ms in pairs if name and ms.isdecimal() and len(ms) < 16}
