# SPDX-License-Identifier: Apache-2.0
"""Checks MessagePack before it is decoded, because a header of five bytes can make a decoder
allocate gigabytes.

The scan reads the headers only. It accepts a single map or array that fills the whole body; a lone
number or string is more likely something else.
"""

from typing import Final

DEPTH_MAX: Final = 32
ITEMS_MAX: Final = 50_000
"""The most values in a body that is decoded; scanning them takes about 10 ms."""

_SIZES: Final = {  # headers of scalars -> bytes after the header byte
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1,
    0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
_LENGTHS: Final = {  # headers with a length -> its width, and bytes beside the length
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Headers of arrays and maps -> the width of their count, and the values of each entry."""


def reason_against(body: bytes) -> str:
    """Return why a body is not decoded; empty if it may be."""
    if not _begins_container(body[:1]):
        return "it does not begin with a map or an array"
    at, items = 0, 0
    left = [1]  # values that are missing in each open container
    while left:
        if at >= len(body):
            return "it ends early"
        items += 1
        if items > ITEMS_MAX:
            return f"it has more than {ITEMS_MAX:,} values"
        left[-1] -= 1
        values, at = _value(body, at)
        if values < 0 or at > len(body):
            return "it is not MessagePack"
        if values > len(body) - at:
            return "it announces more values than it has bytes"
        left += [values] * bool(values)
        if len(left) > DEPTH_MAX:
            return f"it is nested more than {DEPTH_MAX} deep"
        while left and not left[-1]:
            left.pop()
    return "" if at == len(body) else "more follows after its end"


def _begins_container(first: bytes) -> bool:
    return b"\x80" <= first <= b"\x9f" or any(first == bytes([it]) for it in _CONTAINERS)


def _value(body: bytes, at: int) -> tuple[int, int]:
    """Return how many values belong to the value at a position, and the position after its header
    and own bytes; -1 values if no value begins so.
    """
    head = body[at]
    at += 1
    if head < 0x80 or head >= 0xE0:
        return 0, at
    if head < 0x90:
        return 2 * (head & 0x0F), at
    if head < 0xA0:
        return head & 0x0F, at
    if head < 0xC0:
        return 0, at + (head & 0x1F)
    if head in _SIZES:
        return 0, at + _SIZES[head]
    if head in _LENGTHS:
        width, more = _LENGTHS[head]
        return 0, at + width + more + int.from_bytes(body[at : at + width])
    if head in _CONTAINERS:
        width, each = _CONTAINERS[head]
        return each * int.from_bytes(body[at : at + width]), at + width
    return -1, at
