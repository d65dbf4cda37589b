# SPDX-License-Identifier: Apache-2.0
"""Encodes and decodes tables and lists of hundreds of thousands of entries as JSON, in steps.

A step takes at most 1 ms to encode, and a few milliseconds to decode. Between two steps, a program
may serve other requests (`cometmq.runtime.incremental`).
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from cometmq.remoting.bodies.dialect import decode_json, encode_json
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


PART_BYTES: Final = 32 * 1024
"""Size of a part: up to 6 ms for tables in Java's dialect; the last part may have twice as many."""
TEXT_BYTES_MAX: Final = 4 * PART_BYTES
"""The maximum length of a string in an object that has to be cut by counting brackets."""
_SPACE: Final = b" \t\r\n"
_TOKENS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}"]', re.DOTALL)
_DEPTHS: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


def decode_members(
    text: memoryview, decode: Callable[[bytes], T]
) -> Generator[None, None, list[T]]:
    """Decode an object in parts, one per step; `decode` gets each part as an object.

    The object must be valid JSON. A cut is guessed first: after the first `}` before a comma that
    follows the wanted size. The guess is right if the text before it decodes as an object. If
    values contain objects, it may be wrong; then the end of a member is found by counting brackets.

    Raise what `decode` raises for invalid content.
    """
    parts: list[T] = []
    position = 1  # after the first bracket
    while len(text) - position > 2 * PART_BYTES:
        window = bytes(text[position : position + PART_BYTES + TEXT_BYTES_MAX])
        cut = window.find(b"},", PART_BYTES) + 1
        try:
            part = decode(_object(window[:cut])) if cut else None
        except msgspec.DecodeError:
            part = None
        yield
        if part is None:
            cut = (yield from _member_end(text, position)) - position
            part = decode(_object(bytes(text[position : position + cut])))
            yield
        parts.append(part)
        position += cut
    head, rest = bytes(text[:1]), bytes(text[position:])
    parts.append(decode(head + rest.lstrip(_SPACE).removeprefix(b",")))
    return parts


def _object(members: bytes) -> bytes:
    return b"{" + members.lstrip(_SPACE).removeprefix(b",") + b"}"


def _member_end(text: memoryview, position: int) -> Generator[None, None, int]:
    """Return the end of the first member that ends at least PART_BYTES after `position`, where a
    member begins, or the end of the last member.
    """
    depth, at = 0, position
    while at < len(text):
        window = bytes(text[at : at + TEXT_BYTES_MAX])
        read = len(window)
        for token in _TOKENS.finditer(window):
            kind = token[0]
            if kind == b'"':  # of a text that continues after the window
                read = token.start()
                break
            depth += _DEPTHS.get(kind, 0)
            if depth < 0:
                return at + token.start()
            if not depth and kind == b"}" and at + token.end() - position >= PART_BYTES:
                return at + token.end()
        if not read:
            raise RemoteProtocolError(f"a text in an object is longer than {TEXT_BYTES_MAX} bytes")
        at += read
        yield
    raise RemoteProtocolError("an object ends early")
