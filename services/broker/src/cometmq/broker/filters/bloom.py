# SPDX-License-Identifier: Apache-2.0
"""The bits of a subscription in RocketMQ's bloom filter (docs/protocol/store.md).

Compatibility: CometMQ's filters evaluate message properties only, and neither read nor write
bitmaps. The bits are saved in consumerFilter.json so that a Java broker can take over the file.
"""

import math
from typing import Final

import msgspec

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomPlaces(msgspec.Struct, frozen=True, rename="camel"):
    """The bit positions of one subscription, and the size of the filter in bits."""

    bit_num: int = 0
    bit_pos: tuple[int, ...] = ()


def bloom_places(text: str, *, error_percent: int, expected_count: int) -> BloomPlaces:
    """Return the bit positions of a string in a filter of this size and error rate."""
    error_rate = error_percent / 100
    hash_count = math.ceil(math.log(error_rate) / math.log(0.5))
    bits = expected_count * math.log(1 / error_rate) / math.log(2) * (1 / math.log(2))
    bit_num = 8 * math.ceil(math.ceil(bits) / 8)
    hash64 = murmur3_64(text.encode())
    low, high = _int32(hash64), _int32(hash64 >> 32)
    places = []
    for number in range(1, hash_count + 1):
        combined = _int32(low + number * high)
        places.append((combined if combined >= 0 else ~combined) % bit_num)
    return BloomPlaces(bit_num, tuple(places))


def murmur3_64(data: bytes) -> int:
    """Return the first half of the 128-bit MurmurHash3 (x64, seed 0)."""
    first = second = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        first ^= _mix_first(int.from_bytes(data[at : at + 8], "little"))
        first = ((_rotated(first, 27) + second) * 5 + 0x52DCE729) & _MASK
        second ^= _mix_second(int.from_bytes(data[at + 8 : at + 16], "little"))
        second = ((_rotated(second, 31) + first) * 5 + 0x38495AB5) & _MASK
    second ^= _mix_second(int.from_bytes(data[whole + 8 :], "little"))
    first ^= _mix_first(int.from_bytes(data[whole : whole + 8], "little"))
    first, second = first ^ len(data), second ^ len(data)
    first = (first + second) & _MASK
    second = (second + first) & _MASK
    return (_spread(first) + _spread(second)) & _MASK


def _mix_first(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second(word: int) -> int:
    return _rotated(word * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _spread(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def _int32(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number
