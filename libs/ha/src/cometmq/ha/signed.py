# SPDX-License-Identifier: Apache-2.0
"""Single messages that prove that their sender knows a key of the group: HMAC-SHA256 over a purpose
and the fields of the message, each with its length.

A MAC is worthless for another purpose and for other fields. It does not prevent replays: the
receiver must find a fresh value among the fields, or accept only newer values than before.
"""

import hashlib
import hmac
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from cometmq.ha.group_key import MAC_BYTES, Keys

_LABEL: Final = b"CometMQ group message 1"


class Signed(StrEnum):
    """What a message is for; a MAC for one purpose proves nothing for another."""

    REGISTRATION = "registration"
    """A member registers with a name server, or leaves it."""
    CALL = "control call"
    """A call of the control API."""
    ANSWER = "control answer"
    """An answer of the control API, or one message of a stream."""


def message_mac(key: bytes, purpose: Signed, fields: Sequence[bytes]) -> bytes:
    """Return the MAC of a message."""
    parts = (_LABEL, purpose.encode(), *fields)
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, text, hashlib.sha256)


def fingerprint(key: bytes) -> str:
    """Return a short text from which two programs see whether they have the same key."""
    return hmac.digest(key, b"CometMQ group key", hashlib.sha256).hex()[:16]


def signing_key(keys: Keys, purpose: Signed, fields: Sequence[bytes], found: bytes) -> bytes | None:
    """Return the key that made the MAC `found`; None if none of the keys did."""
    if len(found) != MAC_BYTES:
        return None
    made_by = None
    for key in keys:  # all of them: the time must not tell which one fits
        if hmac.compare_digest(message_mac(key, purpose, fields), found):
            made_by = key
    return made_by
