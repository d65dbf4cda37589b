# SPDX-License-Identifier: Apache-2.0
"""The proof in a registration that its sender knows the key of its broker group.

It covers everything that a name server stores. A captured registration can be sent again, but only
with the same content, and name servers refuse it once they have seen a later epoch.
"""

import hashlib
from binascii import unhexlify
from typing import NamedTuple

from cometmq.ha.group_key import Keys
from cometmq.ha.signed import Signed, message_mac, signing_key
from cometmq.remoting.types import Buffer


class RegistrationFacts(NamedTuple):
    """The fields that the proof of a registration or (`is_leaving`) unregistration covers."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    epoch: int | None
    is_leaving: bool = False


def registration_proof(keys: Keys, facts: RegistrationFacts, body: Buffer = b"") -> str | None:
    """Return the proof for the header of a registration; None without a key."""
    if not keys:
        return None
    fields = _fields(facts, new_body_digest(body).digest())
    return message_mac(keys[0], Signed.REGISTRATION, fields).hex()


def new_body_digest(body: Buffer = b"") -> "hashlib._Hash":
    """Return a hash object for a body; call its `update` with further parts of the body."""
    return hashlib.sha256(body)


def is_registration_proven(
    keys: Keys, facts: RegistrationFacts, body_digest: bytes, proof: str | None
) -> bool:
    """Return whether one of the keys made the proof for a body with this `new_body_digest`."""
    try:
        found = unhexlify(proof or "")
    except ValueError:
        return False
    fields = _fields(facts, body_digest)
    return signing_key(keys, Signed.REGISTRATION, fields, found) is not None


def _fields(facts: RegistrationFacts, body_digest: bytes) -> tuple[bytes, ...]:
    return (
        *(str(fact).encode("utf-8", "replace") for fact in facts),
        body_digest,
    )
