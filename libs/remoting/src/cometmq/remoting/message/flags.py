# SPDX-License-Identifier: Apache-2.0
"""Flag bits of messages, topics and pulls, and the hash of tags and keys.

Hot path: `tag_code` runs once per message, `index_hash` once per key. `int(text, 31)` evaluates a
base-31 polynomial in C, so the hash takes one or two conversions of a translated key instead of a
loop: 0.2 us for 32 hex digits instead of 3 us (bench/micro/bench_record.py). `_hash_blocks` takes
long strings and those that are not ASCII.
"""

import sys
from collections.abc import Sequence
from enum import IntFlag
from operator import mul
from typing import Final

from cometmq.remoting.types import NamedNumber


class SysFlag(IntFlag):
    """Bits that the system sets on a message (docs/protocol/record.md#system-flag)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    PREPARED = 0x4
    COMMIT = 0x8
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80


TRANSACTION_MASK: Final = 0xC
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

COMPRESSION_MASK: Final = 0x700
COMPRESSION_SHIFT: Final = 8

# Bits that describe the record's byte layout; clients must never choose them.
LAYOUT_MASK: Final = 0x10 | 0x20 | 0x40 | 0x80


class CompressionType(NamedNumber):
    """Value of the compression bits in sysFlag; UNSPECIFIED with COMPRESSED set means ZLIB (old
    clients).
    """

    UNSPECIFIED = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class Perm(IntFlag):
    """Permission of a topic or a broker."""

    INHERIT = 0x1
    WRITE = 0x2
    READ = 0x4


class PullSysFlag(IntFlag):
    """Bits of the sysFlag field of a pull request."""

    COMMIT_OFFSET = 0x1
    SUSPEND = 0x2
    SUBSCRIPTION = 0x4
    CLASS_FILTER = 0x8
    LITE_PULL = 0x10


class TopicSysFlag(IntFlag):
    """Bits of the topicSysFlag field of a topic."""

    UNIT = 0x1
    UNIT_SUB = 0x2


_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_BASE: Final = 31
_POLYNOMIAL_LENGTH_MAX: Final = 255  # int() takes quadratic time and rejects 4300 digits
_FIRST: Final = ord("0")  # one conversion handles '0'..'N', so decimal and upper-case hex text

_NATIVE_UTF_16: Final = f"utf-16-{sys.byteorder[0]}e"
_NO_DIGIT: Final = ord("!")  # stands for a byte outside '0'..'N'
_ONE_DIGIT: Final = bytes(
    _DIGITS[byte - _FIRST] if _FIRST <= byte < _FIRST + _BASE else _NO_DIGIT for byte in range(256)
)
_LOW_DIGIT: Final = bytes(_DIGITS[byte % _BASE] for byte in range(256))
_HIGH_DIGIT: Final = bytes(_DIGITS[byte // _BASE] for byte in range(256))


def _repeated_first() -> tuple[int, ...]:
    """Return the hashes of "0", "00" and so on; these are subtracted from the results of `int`."""
    sums = [0]
    for _ in range(_POLYNOMIAL_LENGTH_MAX):
        sums.append((sums[-1] * _BASE + _FIRST) & 0xFFFFFFFF)
    return tuple(sums)


_FIRST_SUMS: Final = _repeated_first()
_POWERS: Final = tuple(pow(_BASE, n, 1 << 32) for n in range(_POLYNOMIAL_LENGTH_MAX + 1))


def _hash_unsigned(text: str) -> int:
    length = len(text)
    if length > _POLYNOMIAL_LENGTH_MAX or not text.isascii():
        return _hash_blocks(text)
    data = text.encode()
    digits = data.translate(_ONE_DIGIT)
    if _NO_DIGIT not in digits:  # searching for a number is 4x faster than for b"!"
        # 2x faster than two conversions: bench/micro/bench_record.py
        return int(digits or b"0", _BASE) + _FIRST_SUMS[length]
    # 8x faster than the loop: bench/micro/bench_record.py
    return int(data.translate(_LOW_DIGIT), _BASE) + _BASE * int(data.translate(_HIGH_DIGIT), _BASE)


def _hash_blocks(text: str) -> int:
    """Return the hash of a text that one conversion cannot take.

    Peers choose the length of keys and tags, and the event loop waits: 60,000 characters take
    1.5 ms in blocks, or 3.5 ms if one of them is not ASCII; one by one, they took 17 ms.
    """
    is_ascii = text.isascii()
    units = memoryview(text.encode(_NATIVE_UTF_16, "surrogatepass")).cast("H")
    value = 0
    for start in range(0, len(units), _POLYNOMIAL_LENGTH_MAX):
        end = min(start + _POLYNOMIAL_LENGTH_MAX, len(units))
        if is_ascii:
            block = _hash_unsigned(text[start:end])
        else:
            block = sum(map(mul, units[start:end], _POWERS[end - start - 1 :: -1]))
        value = (value * _POWERS[end - start] + block) & 0xFFFFFFFF
    return value


def java_hash(text: str) -> int:
    """Return `String.hashCode()`: 31 * h + unit over UTF-16 code units, as signed 32 bits."""
    value = _hash_unsigned(text) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


_MEMO_SIZE_MAX: Final = 4096
_TAG_LENGTH_MAX: Final = 64  # longer ones are not cached
_tag_codes: dict[str, int] = {"": 0}


def tag_code(tags: str | None) -> int:
    """Return a tag's code in the consume queue; 0 if there is no tag.

    Tags repeat, so their codes are cached in bounded memory.
    """
    if tags is None:
        return 0
    code = _tag_codes.get(tags)
    if code is None:
        code = java_hash(tags)
        if len(tags) > _TAG_LENGTH_MAX:
            return code
        if len(_tag_codes) >= _MEMO_SIZE_MAX:
            _tag_codes.clear()
        _tag_codes[tags] = code
    return code


_topic_hashes: dict[str, int] = {}


def _topic_hash(topic: str) -> int:
    value = _topic_hashes.get(topic)
    if value is None:
        if len(_topic_hashes) >= _MEMO_SIZE_MAX:
            _topic_hashes.clear()
        value = _topic_hashes[topic] = _hash_blocks(topic + "#")
    return value


def index_hash(topic: str, key: str) -> int:
    """Return the hash of `topic#key` in the index file; never negative.

    Java takes the absolute value and maps -2**31, which has no absolute value, to 0.
    """
    length = len(key)
    if length > _POLYNOMIAL_LENGTH_MAX or not key.isascii():
        value = _hash_blocks(f"{topic}#{key}")
    else:
        value = (_topic_hash(topic) * _POWERS[length] + _hash_unsigned(key)) & 0xFFFFFFFF
    if value & 0x8000_0000:
        return (0x1_0000_0000 - value) & 0x7FFF_FFFF
    return value


def index_hashes(topics: Sequence[str], keys: Sequence[str]) -> list[int]:
    """Return `index_hash` for each pair of topic and key.

    Keys of decimal and upper-case hex digits, such as unique keys, are converted together, which is
    1.8x faster than one by one (bench_record.py).
    """
    digits = "".join(keys).encode("utf-8", "surrogatepass").translate(_ONE_DIGIT)
    if _NO_DIGIT in digits or max(map(len, keys), default=0) > _POLYNOMIAL_LENGTH_MAX:
        return list(map(index_hash, topics, keys))
    hashes: list[int] = []
    end = 0
    for topic, key in zip(topics, keys, strict=True):
        length = len(key)
        start, end = end, end + length
        value = _topic_hashes.get(topic) or _topic_hash(topic)
        number = int(digits[start:end] or b"0", _BASE)
        value = (value * _POWERS[length] + number + _FIRST_SUMS[length]) & 0xFFFFFFFF
        if value & 0x8000_0000:
            value = (0x1_0000_0000 - value) & 0x7FFF_FFFF
        hashes.append(value)
    return hashes
