# SPDX-License-Identifier: Apache-2.0
"""Encodes tables of hundreds of thousands of entries as JSON, in steps of about 0.2 ms."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from cometmq.remoting.bodies.dialect import encode_json
from cometmq.runtime.incremental import Steps

K = TypeVar("K")
V = TypeVar("V")


class _Dirty(Protocol):
    is_dirty: bool


PART_WEIGHT: Final = 4096
PART_ENTRIES: Final = 512


def encode_large(
    around: msgspec.Struct, table: Mapping[K, V], weigh: Callable[[V], int] = lambda _: 8
) -> Steps[bytes]:
    """Return the JSON of a struct, with its last empty map replaced by the table.

    `weigh` returns the number of values in an entry. Entries that are added, changed or removed
    during the encoding may or may not appear in the result.
    """
    begin, _, end = encode_json(around).rpartition(b"{}")
    pieces: list[bytes] = []
    part: dict[K, V] = {}
    weight = 0
    for name in list(table):
        value = table.get(name)
        if value is None:
            continue
        part[name] = value
        weight += weigh(value)
        if weight >= PART_WEIGHT or len(part) >= PART_ENTRIES:
            pieces.append(encode_json(part)[1:-1])
            part, weight = {}, 0
            yield
    if part:
        pieces.append(encode_json(part)[1:-1])
    return b"%b{%b}%b" % (begin, b",".join(pieces), end)


def clean_after(table: _Dirty, encoding: Steps[bytes]) -> Steps[bytes]:
    """Clear `is_dirty` and encode; set `is_dirty` again if the encoding does not complete."""
    table.is_dirty = False
    is_whole = False
    try:
        data = yield from encoding
        is_whole = True
        return data
    finally:
        if not is_whole:
            table.is_dirty = True
