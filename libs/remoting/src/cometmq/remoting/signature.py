# SPDX-License-Identifier: Apache-2.0
"""Signatures of requests: who asks, and that nobody has changed the request on its way.

The content to sign is the text of all ext fields but the signature itself, ordered by their
names, followed by the body; the signature is its HMAC-SHA1 in Base64.

Compatibility: brokers disagree about the field `_UNIQUE_KEY_QUERY` of a QUERY_MESSAGE. Those
before 5.0 leave it out of the content although their own clients sign it, later ones include it.
So `Signer.add_to` sends no such field, which only asks for 32 messages at most, and
`Signer.has_signed` takes either content.
"""

import hmac
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Final

import msgspec

from cometmq.remoting.types import Buffer

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105  # the name of a field
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

_ORDERS_MAX: Final = 1024
_ORDER_CHARS_MAX: Final = 512  # of all names: those of the longest header together have 180
_orders: Final[dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]]] = {}
"""How to take the values of such fields in order: each client repeats a few sets of fields."""


class SessionCredentials(msgspec.Struct, frozen=True):
    """Who a client is, and the secret that proves it."""

    access_key: str
    secret_key: str
    security_token: str = ""

    def __repr__(self) -> str:
        """Keep the secret out of logs and tracebacks."""
        return f"SessionCredentials(access_key={self.access_key!r}, secret_key=***)"


class Signer:
    """Signs with one secret, and checks what was signed with it."""

    __slots__ = ("_keyed",)

    def __init__(self, secret_key: str) -> None:
        """Prepare the secret, which costs more than signing does."""
        self._keyed = hmac.new(secret_key.encode(), digestmod="sha1")

    def sign(self, ext: Mapping[str, str], body: Buffer) -> str:
        """Return the signature of a request."""
        mac = self._keyed.copy()
        mac.update("".join(_values(ext)).encode("utf-8", "replace"))
        if body:
            mac.update(body)
        return b2a_base64(mac.digest(), newline=False).decode()

    def add_to(self, ext: dict[str, str], body: Buffer, credentials: SessionCredentials) -> None:
        """Put the account and its signature among the fields of a request."""
        ext.pop(UNIQUE_KEY_QUERY, None)
        ext[ACCESS_KEY] = credentials.access_key
        if credentials.security_token:
            ext[SECURITY_TOKEN] = credentials.security_token
        ext[SIGNATURE] = self.sign(ext, body)

    def has_signed(self, ext: Mapping[str, str], body: Buffer) -> bool:
        """Tell whether the signature among the fields is ours."""
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
    """Return what takes the values in the order of Java's strings: by their UTF-16 units."""
    signed = [name for name in names if name != SIGNATURE]
    signed.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    if len(signed) > 1:
        return itemgetter(*signed)
    return lambda ext: tuple(ext[name] for name in signed)


def signing(credentials: SessionCredentials) -> Callable[[int, dict[str, str], Buffer], None]:
    """Return a hook of `RemotingClient` that signs every request."""
    signer = Signer(credentials.secret_key)

    def sign(_code: int, ext: dict[str, str], body: Buffer) -> None:
        signer.add_to(ext, body, credentials)

    return sign
