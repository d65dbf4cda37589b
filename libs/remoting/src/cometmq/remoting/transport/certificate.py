# SPDX-License-Identifier: Apache-2.0
"""Generate a self-signed certificate for the TLS test mode, without a third-party library.

Compatibility: in test mode, the default, RocketMQ serves TLS with a certificate generated at
startup, so a client with `tls.enable` works with an unconfigured server. No client verifies this
certificate. Outside tests, give the server a certificate of your own.

The key is an elliptic curve key (P-256), which takes a few milliseconds to generate and use here.
The arithmetic is not constant-time, because test mode does not require that.
"""

import base64
import binascii
import hashlib
import re
from datetime import UTC, datetime
from ipaddress import ip_address
from random import SystemRandom
from typing import Final

_RANDOM: Final = SystemRandom()  # as in `secrets`, which would be one more module to start
_P: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_EC_PUBLIC_KEY: Final = bytes.fromhex("06072a8648ce3d0201")
_PRIME256V1: Final = bytes.fromhex("06082a8648ce3d030107")
_ECDSA_SHA256: Final = bytes.fromhex("300a06082a8648ce3d040302")
_COMMON_NAME: Final = bytes.fromhex("0603550403")
_ALTERNATIVE_NAME: Final = bytes.fromhex("0603551d11")

Point = tuple[int, int]


def self_signed_pem(name: str) -> str:
    """Return a private key and a certificate for `name`, a name or an address, as PEM text."""
    secret = _RANDOM.randrange(1, _N)
    public = _multiply(secret, _BASE)
    point = b"\x04" + public[0].to_bytes(32, "big") + public[1].to_bytes(32, "big")
    body = _certificate_body(name, point)
    certificate = _sequence(body, _ECDSA_SHA256, _bits(_sign(secret, body)))
    key = _sequence(
        _integer(1),
        _tagged(0x04, secret.to_bytes(32, "big")),
        _tagged(0xA0, _PRIME256V1),
        _tagged(0xA1, _bits(point)),
    )
    return _pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", certificate)


def _certificate_body(name: str, point: bytes) -> bytes:
    text = _tagged(0x0C, name.encode())
    names = _sequence(_tagged(0x31, _sequence(_COMMON_NAME, text)))
    try:
        place = _tagged(0x87, ip_address(name).packed)
    except ValueError:
        place = _tagged(0x82, name.encode())
    more = _sequence(_ALTERNATIVE_NAME, _tagged(0x04, _sequence(place)))
    return _sequence(
        _tagged(0xA0, _integer(2)),
        _integer(_RANDOM.getrandbits(63) | 1),
        _ECDSA_SHA256,
        names,
        _sequence(_tagged(0x17, b"200101000000Z"), _tagged(0x18, b"20991231235959Z")),
        names,
        _sequence(_sequence(_EC_PUBLIC_KEY, _PRIME256V1), _bits(point)),
        _tagged(0xA3, _sequence(more)),
    )


def _sign(secret: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    while True:
        nonce = _RANDOM.randrange(1, _N)
        r = _multiply(nonce, _BASE)[0] % _N
        s = pow(nonce, -1, _N) * (digest + r * secret) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _multiply(factor: int, point: Point) -> Point:
    """Return `factor` times `point`; the factor is in 1 .. N-1."""
    result: Point | None = None
    while factor:
        if factor & 1:
            result = point if result is None else _add(result, point)
        point = _add(point, point)
        factor >>= 1
    assert result is not None
    return result


def _add(left: Point, right: Point) -> Point:
    """Return the sum of two points that are not inverses of each other."""
    if left == right:
        slope = 3 * (left[0] ** 2 - 1) * pow(2 * left[1], -1, _P) % _P
    else:
        slope = (right[1] - left[1]) * pow(right[0] - left[0], -1, _P) % _P
    x = (slope**2 - left[0] - right[0]) % _P
    return x, (slope * (left[0] - x) - left[1]) % _P


def _tagged(tag: int, content: bytes) -> bytes:
    """Return a DER value with its tag and length."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _sequence(*values: bytes) -> bytes:
    return _tagged(0x30, b"".join(values))


def _integer(value: int) -> bytes:
    return _tagged(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _tagged(0x03, b"\x00" + content)


def _pem(label: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))


_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----([^-]*)-----END")
_TIME_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


def expiry_of(text: str) -> float | None:
    """Return when the first certificate of a PEM text expires, in seconds since 1970; None if it
    cannot be read.
    """
    found = _CERTIFICATE.search(text)
    return None if found is None else _expiry_of_base64(found[1])


def first_expiry_of(text: str) -> float | None:
    """Return when the first of all certificates in a PEM text expires; None if none can be read."""
    found = (_expiry_of_base64(it[1]) for it in _CERTIFICATE.finditer(text))
    return min((it for it in found if it is not None), default=None)


def expiry_of_der(data: bytes) -> float | None:
    """Return when a certificate in DER form expires; None if it cannot be read."""
    try:
        body = _values(_values(data)[0][1])[0][1]
        fields = _values(body)
        if fields[0][0] == 0xA0:  # the version
            fields = fields[1:]
        tag, value = _values(fields[3][1])[1]
        return datetime.strptime(value.decode(), _TIME_FORMATS[tag]).replace(tzinfo=UTC).timestamp()
    except (IndexError, KeyError, ValueError):
        return None


def _expiry_of_base64(text: str) -> float | None:
    try:
        return expiry_of_der(base64.b64decode(text))
    except binascii.Error:
        return None


def _values(content: bytes) -> list[tuple[int, bytes]]:
    """Return the tags and contents of consecutive DER values."""
    found: list[tuple[int, bytes]] = []
    while content:
        tag, size, start = content[0], content[1], 2
        if size >= 0x80:
            start += size - 0x80
            size = int.from_bytes(content[2:start], "big")
        found.append((tag, content[start : start + size]))
        content = content[start + size :]
    return found
