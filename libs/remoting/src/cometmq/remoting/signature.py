# SPDX-License-Identifier: Apache-2.0
"""Request signatures: they prove the sender's identity and that the request is unchanged.

The signed content consists of the values of all ext fields except the signature and `FORWARDED`,
ordered by field name, followed by the body. The signature is this content's HMAC-SHA1 in Base64.

Compatibility: brokers disagree about the `_UNIQUE_KEY_QUERY` field of a QUERY_MESSAGE. Versions
before 5.0 leave it out of the content even though their own clients sign it; later ones include it.
Therefore `Signer.add_to` does not send this field, which only raises the limit to 32 messages, and
`Signer.has_signed` accepts either content.
"""

import hmac
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Final

import msgspec

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.spelling import SpelledFields
from cometmq.remoting.types import Buffer

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105  # the name of a field
SIGNATURE: Final = "Signature"
FORWARDED: Final = "cometmqForwarded"
"""Marks a request that a broker has forwarded to the master of its group, and the master's answer;
a broker adds this field to the fields that the client has signed.
"""
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

_ORDERS_MAX: Final = 1024
_ORDER_CHARS_MAX: Final = 512  # the names of the longest header have 180 characters
_orders: Final[dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]]] = {}
"""Getters by set of field names; they return the values in order. A client uses only a few sets."""


class SessionCredentials(msgspec.Struct, frozen=True, metaclass=SpelledFields):
    """A client's access key, and the secret that proves its identity."""

    access_key: str
    secret_key: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"SessionCredentials(access_key={self.access_key!r}, secret_key=***)"


def credentials_of(access_key: str, secret_key: str) -> SessionCredentials | None:
    """Return the account of a program; None if both keys are empty. Raise SettingsError if only one
    is.
    """
    if bool(access_key) != bool(secret_key):
        raise SettingsError("accessKey and secretKey belong together: set both or neither")
    return SessionCredentials(access_key, secret_key) if access_key else None


class Signer:
    """Signs requests with one secret and verifies their signatures."""

    __slots__ = ("_keyed",)

    def __init__(self, secret_key: str) -> None:
        """Prepare the key once, because preparing it takes longer than signing a request."""
        self._keyed = hmac.new(secret_key.encode(), digestmod="sha1")

    def sign(self, ext: Mapping[str, str], body: Buffer) -> str:
        """Return the signature of a request."""
        mac = self._keyed.copy()
        mac.update("".join(_values(ext)).encode("utf-8", "replace"))
        if body:
            mac.update(body)
        return b2a_base64(mac.digest(), newline=False).decode()

    def add_to(self, ext: dict[str, str], body: Buffer, credentials: SessionCredentials) -> None:
        """Add the access key and the signature to a request's fields."""
        ext.pop(UNIQUE_KEY_QUERY, None)
        ext[ACCESS_KEY] = credentials.access_key
        if credentials.security_token:
            ext[SECURITY_TOKEN] = credentials.security_token
        ext[SIGNATURE] = self.sign(ext, body)

    def has_signed(self, ext: Mapping[str, str], body: Buffer) -> bool:
        """Return whether the signature in the fields is valid."""
        given = ext.get(SIGNATURE, "").encode()
        if hmac.compare_digest(self.sign(ext, body).encode(), given):
            return True
        if UNIQUE_KEY_QUERY not in ext:
            return False
        older = {name: value for name, value in ext.items() if name != UNIQUE_KEY_QUERY}
        return hmac.compare_digest(self.sign(older, body).encode(), given)


def _values(ext: Mapping[str, str]) -> tuple[str, ...]:
    names = tuple(ext)
    take = _orders.get(names)
    if take is None:
        take = _ordered(names)
        if len(_orders) < _ORDERS_MAX and sum(map(len, names)) <= _ORDER_CHARS_MAX:
            _orders[names] = take
    return take(ext)


def _ordered(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], tuple[str, ...]]:
    """Return a getter for the values, sorted by the UTF-16 units of their names as in Java."""
    signed = [name for name in names if name not in (SIGNATURE, FORWARDED)]
    signed.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    if len(signed) > 1:
        return itemgetter(*signed)
    return lambda ext: tuple(ext[name] for name in signed)


def signing(credentials: SessionCredentials) -> Callable[[int, dict[str, str], Buffer], None]:
    """Return a hook for `RemotingClient` that signs every request."""
    signer = Signer(credentials.secret_key)

    def sign(_code: int, ext: dict[str, str], body: Buffer) -> None:
        signer.add_to(ext, body, credentials)

    return sign
