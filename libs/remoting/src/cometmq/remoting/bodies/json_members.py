# SPDX-License-Identifier: Apache-2.0
"""Cuts a large JSON object into smaller ones, so that no step decodes all of it.

The object must be valid JSON. A cut is guessed first: after the first `}` before a comma that
follows the wanted size. The guess is right if the text before it decodes as an object. If values
contain objects, it may be wrong; then the end of a member is found by counting brackets.
"""

import re
from collections.abc import Callable, Generator
from typing import Final, TypeVar

import msgspec

from cometmq.remoting.errors import RemoteProtocolError

T = TypeVar("T")

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
