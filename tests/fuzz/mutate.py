# SPDX-License-Identifier: Apache-2.0
"""Mutates lengths, signs, boundaries and repetitions in valid input, to mislead decoders."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

INPUT_BYTES_MAX: Final = 16 * 1024
_NUMBERS: Final = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    2**32 - 1,
)
_TEXTS: Final = (
    b"-1",
    b"0",
    b"2147483648",
    b"9223372036854775808",
    b"1e308",
    b"NaN",
    b"null",
    b"true",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"{" * 70,
    b"[" * 2000,
    b'{"a":' * 200,
    b"\x01",
    b"\x02",
    b"\xff",
    b"\xc0\x80",
    b"../../",
    b"\x00",
    b",",
    b":",
    b"9" * 500,
)

Mutation = Callable[[Random, bytearray], None]


def mutated(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of the seeds after one to six mutations, or a splice of two."""
    data = bytearray(random.choice(seeds))
    if random.random() < 0.05:
        other = random.choice(seeds)
        data[random.randint(0, len(data)) :] = other[random.randint(0, len(other)) :]
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        random.choice(_MUTATIONS)(random, data)
    return bytes(data[:INPUT_BYTES_MAX])


def _flip_bit(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set_byte(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def _set_number(random: Random, data: bytearray) -> None:
    width = random.choice((1, 2, 4, 8))
    if len(data) >= width:
        start = random.randrange(len(data) - width + 1)
        number = random.choice(_NUMBERS) & (1 << 8 * width) - 1
        data[start : start + width] = number.to_bytes(width, "big")


def _nudge_number(random: Random, data: bytearray) -> None:
    if len(data) >= 4:
        start = random.randrange(len(data) - 3)
        number = int.from_bytes(data[start : start + 4], "big") + random.randint(-9, 9)
        data[start : start + 4] = (number & 0xFFFFFFFF).to_bytes(4, "big")


def _cut(random: Random, data: bytearray) -> None:
    start = random.randint(0, len(data))
    del data[start : start + random.choice((1, 2, 4, 20, len(data)))]


def _insert(random: Random, data: bytearray) -> None:
    start = random.randint(0, len(data))
    data[start:start] = random.choice(_TEXTS)


def _overwrite(random: Random, data: bytearray) -> None:
    text = random.choice(_TEXTS)
    start = random.randint(0, len(data))
    data[start : start + len(text)] = text


def _repeat(random: Random, data: bytearray) -> None:
    start = random.randint(0, len(data))
    part = data[start : start + random.choice((1, 4, 30))]
    data[start:start] = part * random.choice((1, 2, 50))


_MUTATIONS: Final[tuple[Mutation, ...]] = (
    _flip_bit,
    _flip_bit,
    _set_byte,
    _set_number,
    _nudge_number,
    _cut,
    _insert,
    _overwrite,
    _repeat,
)
