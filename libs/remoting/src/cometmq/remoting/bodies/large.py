# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes tables and lists of hundreds of thousands of entries as JSON, in steps.

A step takes at most 1 ms to encode, and a few milliseconds to decode. Between two steps, a program
may serve other requests (`cometmq.runtime.incremental`).
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.json_members import decode_members
from cometmq.remoting.bodies.kept import extended
from cometmq.remoting.errors import RemoteProtocolError

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

PART_WEIGHT: Final = 4096
PART_ENTRIES: Final = 512
SMALL_WEIGHT: Final = 8
PART_ITEMS: Final = 1_000
WITHOUT_TABLE_BYTES_MAX: Final = 64 << 10


def encode_with_table(
    around: msgspec.Struct, table: Mapping[K, V], weigh: Callable[[V], int] | None = None
) -> Generator[None, None, bytes]:
    """Return the JSON of a struct, with its last empty map replaced by the table.

    `weigh` returns the number of values in an entry, if it may have more than a few. Entries that
    are added, changed or removed during the encoding may or may not appear in the result.
    """
    begin, _, end = encode_json(around).rpartition(b"{}")
    return b"".join((begin, (yield from encode_table(table, weigh)), end))


def encode_table(
    table: Mapping[K, V], weigh: Callable[[V], int] | None = None
) -> Generator[None, None, bytes]:
    """Return the JSON of a table; see `encode_with_table`."""
    pieces: list[bytes] = []
    part: dict[K, V] = {}
    weight = 0
    for name in list(table):
        value = table.get(name)
        if value is None:
            continue
        part[name] = value
        weight += SMALL_WEIGHT if weigh is None else weigh(value)
        if weight >= PART_WEIGHT or len(part) >= PART_ENTRIES:
            pieces.append(encode_json(part)[1:-1])
            part, weight = {}, 0
            yield
    if part:
        pieces.append(encode_json(part)[1:-1])
    return b"{%b}" % b",".join(pieces)


def encode_with_lists(
    around: msgspec.Struct, lists: Mapping[str, Sequence[Any]]
) -> Generator[None, None, bytes]:
    """Return the JSON of a struct with these lists as its members, by name; in the struct itself,
    they must be empty.
    """
    whole = encode_json(around)
    for name, items in lists.items():
        pieces: list[bytes] = []
        for start in range(0, len(items), PART_ITEMS):
            pieces.append(encode_json(items[start : start + PART_ITEMS])[1:-1])
            yield
        # Quotes inside strings are escaped, so this text is the member itself.
        begin, found, end = whole.partition(b'"%b":[' % name.encode())
        assert end.startswith(b"]")
        whole = b"".join((begin, found, b",".join(pieces), end))
    return whole


def decode_around(around: type[S], member: str, data: bytes) -> tuple[S, memoryview]:
    """Split a body whose last member is a table: return the body without the table as a struct,
    which keeps unknown members (`kept.py`), and the text of the table for `table_parts`.

    Raise RemoteProtocolError for a body of another shape.
    """
    data, name = data.rstrip(), b'"%b":{' % member.encode()
    start = data.find(name)
    if start >= 0 and data.endswith(b"}}"):
        text = data[:start] + name + b"}}"
        head = decode_json(extended(around, decode_json(dict[str, Any], text)), text)
        return head, memoryview(data)[start + len(name) - 1 : -1]
    if len(data) > WITHOUT_TABLE_BYTES_MAX:
        raise RemoteProtocolError(f"a body of {len(data)} bytes does not end with {member}")
    return decode_json(around, data), memoryview(b"{}")


def table_parts(text: memoryview, entries: type[T]) -> Generator[None, None, list[T]]:
    """Decode a table in steps, and return its parts, each of the type `entries`.

    Raise RemoteProtocolError for a malformed table.
    """

    def decode(part: bytes) -> T:
        try:
            return decode_json(entries, part)
        except RemoteProtocolError as error:  # a wrong cut, unless all of it is wrong
            raise msgspec.DecodeError(str(error)) from error

    try:
        return (yield from decode_members(text, decode))
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(str(error)) from error
