# SPDX-License-Identifier: Apache-2.0
"""Patterns of remote addresses: `*`, `10.0.*.*`, `10.0.0.1-50`, `10.0.0.{1,2}`, lists, IPv6.

Compatibility: every pattern that RocketMQ accepts means the same here, with two exceptions. With a
range before the last part, `10.1-9.0.7` means one machine in each of nine networks, whereas
RocketMQ ignores the parts after the range. A leading zero, as in `010.0.0.*`, is refused, because
some read it as octal; in RocketMQ, no address matches. Lists may contain patterns that RocketMQ
rejects in lists, such as ranges.
"""

import struct
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from typing import Final

from cometmq.runtime.acl.errors import AclError

Ranges = tuple[tuple[int, int], ...]
"""Lowest and highest value of each part: 4 parts for IPv4, 8 for IPv6."""

_ALL_ADDRESSES: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_PORT_BYTES: Final = 4
_V6_BYTES: Final = 16
_V6_PARTS: Final = 8
_unpack_v6: Final = struct.Struct(">8H").unpack


class Addresses:
    """A set of addresses, given by a pattern."""

    __slots__ = ("_has_all", "_patterns", "text")

    def __init__(self, text: str | None) -> None:
        """Parse a pattern; a blank one is the empty set. Raise AclError if it is invalid."""
        self.text = (text or "").strip()
        self._has_all = self.text in _ALL_ADDRESSES
        self._patterns = () if self._has_all else tuple(map(_ranges, _alternatives(self.text)))

    def matches(self, host: bytes) -> bool:
        """Return whether the set contains a peer; `host` is its packed address followed by its
        port.
        """
        if self._has_all:
            return True
        address = host[:-_PORT_BYTES]
        parts = _unpack_v6(address) if len(address) == _V6_BYTES else tuple(address)
        return any(
            len(ranges) == len(parts)
            and all(low <= part <= high for part, (low, high) in zip(parts, ranges, strict=True))
            for ranges in self._patterns
        )


def _alternatives(text: str) -> Iterator[str]:
    """Yield the individual patterns of a list, or of a pattern whose last part is a list."""
    head, tails = "", text
    if text.endswith("}"):
        head, brace, tails = text[:-1].rpartition("{")
        if not brace or head[-1:] not in (".", ":"):
            raise _wrong(text)
    for tail in tails.split(","):
        if tail.strip():
            yield head + tail.strip()


def _ranges(text: str) -> Ranges:
    if "*" in text or "-" in text:
        return _pattern(text)
    try:
        address = ip_address(text)
    except ValueError as error:
        raise _wrong(text) from error
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return tuple((part, part) for part in _unpack_v6(address.packed))
        address = address.ipv4_mapped
    return tuple((part, part) for part in address.packed)


def _pattern(text: str) -> Ranges:
    if ":" in text:
        parts, base, part_max = _expanded(text), 16, 0xFFFF
        count = _V6_PARTS
    else:
        parts, base, part_max = text.split("."), 10, 0xFF
        count = 4
    if len(parts) != count:
        raise _wrong(text)
    return tuple(_range(part.strip(), base=base, part_max=part_max, text=text) for part in parts)


def _expanded(text: str) -> list[str]:
    """Return the eight parts of an IPv6 pattern, replacing `::` with the omitted zeros."""
    left, gap, right = text.partition("::")
    before, after = (side.split(":") if side else [] for side in (left, right))
    zeros = max(0, _V6_PARTS - len(before) - len(after)) if gap else 0
    return [*before, *["0"] * zeros, *after]


def _range(part: str, *, base: int, part_max: int, text: str) -> tuple[int, int]:
    if part == "*":
        return 0, part_max
    first, dash, last = part.partition("-")
    if base == 10 and not dash and first != "0" and first.startswith("0"):
        raise _wrong(text)  # RocketMQ compares it as text, with which no address begins
    low = _number(first, base, text)
    high = _number(last, base, text) if dash else low
    if not low <= high <= part_max:
        raise _wrong(text)
    return low, high


def _number(digits: str, base: int, text: str) -> int:
    if not digits.isascii() or not digits.isalnum() or len(digits) > 4:
        raise _wrong(text)
    try:
        return int(digits, base)
    except ValueError as error:
        raise _wrong(text) from error


def _wrong(text: str) -> AclError:
    return AclError(f"Netaddress examine Exception netaddress is {text}")
