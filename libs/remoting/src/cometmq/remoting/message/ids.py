# SPDX-License-Identifier: Apache-2.0
"""Message ids: an offset message id locates the record, a unique key comes from the sender."""

import struct
from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple

_PORT: Final = struct.Struct(">i")

_HEX: Final = frozenset("0123456789abcdefABCDEF")

IPV4_BYTES: Final = 4
IPV6_BYTES: Final = 16

_MEMO_SIZE_MAX: Final = 1024
_host_texts: dict[bytes, str] = {}


class MessageLocation(NamedTuple):
    """The content of an offset message id: the broker, and the position in its commit log."""

    host: bytes
    physical_offset: int


def pack_host(address: bytes, port: int) -> bytes:
    """Return a host as records store it: 4 or 16 bytes for the address, and an int port."""
    if len(address) not in {IPV4_BYTES, IPV6_BYTES}:
        raise ValueError(f"an address has 4 or 16 bytes, not {len(address)}")
    return address + _PORT.pack(port)


def unpack_host(host: bytes) -> tuple[bytes, int]:
    """Return the address bytes and the port of a packed host."""
    if len(host) not in {IPV4_BYTES + 4, IPV6_BYTES + 4}:
        raise ValueError(f"a host has 8 or 20 bytes, not {len(host)}")
    return host[:-4], _PORT.unpack_from(host, len(host) - 4)[0]


def host_text(host: bytes) -> str:
    """Return `ip:port` of a packed host; IPv6 addresses are bracketed."""
    address, port = unpack_host(host)
    if len(address) == IPV4_BYTES:
        return f"{'.'.join(map(str, address))}:{port}"
    groups = [f"{high << 8 | low:x}" for high, low in zip(address[::2], address[1::2], strict=True)]
    return f"[{':'.join(groups)}]:{port}"


def host_hex(host: bytes) -> str:
    """Return a packed host as the hex digits at the start of an offset message id."""
    text = _host_texts.get(host)
    if text is None:
        if len(_host_texts) >= _MEMO_SIZE_MAX:
            _host_texts.clear()
        text = _host_texts[host] = host.hex().upper()
    return text


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """Return the id of the stored record: upper-case hex of host and offset."""
    # 1.3x faster than an f-string
    return "%s%016X" % (host_hex(host), physical_offset)  # noqa: UP031


def parse_offset_message_id(text: str) -> MessageLocation:
    """Return the location in an id of 32 or 56 hex digits; raise ValueError otherwise."""
    if len(text) not in {32, 56}:
        raise ValueError(f"an offset message id has 32 or 56 hex digits: {text!r}")
    if not _HEX.issuperset(text):
        raise ValueError(f"an offset message id has hex digits only: {text!r}")
    data = bytes.fromhex(text)
    return MessageLocation(data[:-8], int.from_bytes(data[-8:], "big", signed=True))


class UniqueIds:
    """Generates the unique keys of one producing process (32 or 56 upper-case hex digits).

    Layout: address, low 16 bits of the process id, a number that distinguishes the generators of
    one process, milliseconds since the month began, counter. The month begins in local time,
    because RocketMQ's tools derive the send time from the id.
    """

    def __init__(
        self, *, address: bytes, process_id: int, instance: int, clock_ms: Callable[[], int]
    ) -> None:
        self._address = address
        self.renew(process_id=process_id, instance=instance)
        self._clock_ms = clock_ms
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._counter = 0

    def renew(self, *, process_id: int, instance: int) -> None:
        """Restart with a new identity, because a child must not repeat its parent's ids."""
        number = struct.pack(">HI", process_id & 0xFFFF, instance & 0xFFFFFFFF)
        self._prefix = (self._address + number).hex().upper()

    def next_id(self) -> str:
        """Return the next id; a generator repeats an id only after 65536 calls in one ms."""
        now_ms = self._clock_ms()
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_around(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        elapsed_ms = (now_ms - self._month_start_ms) & 0xFFFFFFFF
        return f"{self._prefix}{elapsed_ms:08X}{self._counter:04X}"


def _month_around(now_ms: int) -> tuple[int, int]:
    moment = datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006  # local, as tools read it
    year, month = (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
    return _month_start_ms(moment.year, moment.month), _month_start_ms(year, month)


def _month_start_ms(year: int, month: int) -> int:
    return int(datetime(year, month, 1).timestamp()) * 1000  # noqa: DTZ001  # local
