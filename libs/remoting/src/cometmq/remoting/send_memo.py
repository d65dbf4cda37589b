# SPDX-License-Identifier: Apache-2.0
"""Decode binary headers of sends that differ from an earlier send in only three fields.

A producer repeats its group, topic, flags and so on in every send. Only queue, time and properties
change, and their lengths change rarely. The memo cuts a header at the positions where an earlier
header of the same length had these three values, and looks up the bytes around them without parsing
the header.

Invariants
    The memo returns the same header as ``parse_ext`` and the conversion. An entry matches only
    headers with the same layout and the same bytes outside the three values.
    The bytes outside the values hold every name and every length, including the lengths of the
    values, so all fields begin and end where the full parse of the earlier header found them.
    The layout must be part of the key: a header that is cut at the positions of a different
    layout can have the same bytes around values of different lengths, and a value would then
    include the next field. The memo does not learn headers in which one of the three fields
    occurs twice, nor signed headers, because no two signed headers have the same bytes around
    the values. The number of entries and the size of each are bounded.

Hot path
    ``SendMemo.find`` runs once per send in the ROCKETMQ serialization; budget 0.9 us, against
    2.8 us for a full parse (bench/micro/bench_header.py).
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from cometmq.remoting.commands.send import SendMessageV2

ENTRIES_MAX: Final = 4096
HEAD_BYTES_MAX: Final = 2048
LAYOUTS_MAX: Final = 4  # per header length: where the three values may lie

_FIELDS: Final = [field.encode_name for field in msgspec.structs.fields(SendMessageV2)]
_QUEUE_ID: Final = _FIELDS.index("e")
_BORN_TIMESTAMP: Final = _FIELDS.index("g")
_PROPERTIES: Final = _FIELDS.index("i")
_QUEUE_ID_DIGITS_MAX: Final = 9  # any such number fits into 32 bits
_TIMESTAMP_DIGITS_MAX: Final = 18  # any such number fits into 64 bits
_SIGNATURE_ENTRY: Final = b"\x00\x09Signature"

Layout = tuple[int, int, int, int, int, int]
"""The begin and end of queue id, born timestamp and properties."""


Known = dict[tuple[bytes, bytes, bytes, bytes], list[Any]]
"""Headers of one layout, keyed by their bytes before, between and after the three values."""


class SendMemo:
    """The headers of earlier sends, without their three changing values."""

    __slots__ = ("_count", "_layouts")

    def __init__(self) -> None:
        self._layouts: dict[int, list[tuple[int, int, int, int, int, int, Known]]] = {}
        self._count = 0

    def find(self, head: bytes, position: int) -> SendMessageV2 | None:
        """Return the typed header that begins at ``position``, or None if the memo has no entry."""
        for a, b, c, d, e, f, known in self._layouts.get(len(head), ()):
            row = known.get((head[position:a], head[b:c], head[d:e], head[f:]))
            if row is not None:
                queue_id, born_timestamp = head[a:b], head[c:d]
                if not (queue_id.isdigit() and born_timestamp.isdigit()):
                    return None
                row = row.copy()
                row[_QUEUE_ID] = int(queue_id)
                row[_BORN_TIMESTAMP] = int(born_timestamp)
                row[_PROPERTIES] = str(head[e:f], "utf-8", "replace")
                return SendMessageV2(*row)
        return None

    def learn(self, head: bytes, position: int, header: SendMessageV2) -> None:
        """Remember a fully parsed header, unless it is too long, signed or of an unusual layout."""
        if len(head) > HEAD_BYTES_MAX or _SIGNATURE_ENTRY in head:
            return
        layout = _layout(head, position)
        if layout is None:
            return
        if self._count >= ENTRIES_MAX:
            self._layouts.clear()
            self._count = 0
        known = self._known(len(head), layout)
        a, b, c, d, e, f = layout
        around = head[position:a], head[b:c], head[d:e], head[f:]
        self._count += around not in known
        known[around] = list(msgspec.structs.astuple(header))

    def _known(self, size: int, layout: Layout) -> Known:
        """Return the entries for a size and a layout; a new layout may evict the oldest one."""
        layouts = self._layouts.setdefault(size, [])
        for *places, known in layouts:
            if tuple(places) == layout:
                return known
        if len(layouts) >= LAYOUTS_MAX:
            self._count -= len(layouts.pop()[-1])
        known = {}
        layouts.insert(0, (*layout, known))
        return known


def _layout(head: bytes, position: int) -> Layout | None:
    """Return the positions of the three values in a valid header; None if the layout is unusual."""
    places: dict[str, tuple[int, int]] = {}
    for name, start, end in _entries(head, position):
        if name in ("e", "g", "i"):
            if name in places or start == end:
                return None
            places[name] = (start, end)
    if list(places) != ["e", "g", "i"]:
        return None
    layout = (*places["e"], *places["g"], *places["i"])
    a, b, c, d, _, _ = layout
    if b - a > _QUEUE_ID_DIGITS_MAX or d - c > _TIMESTAMP_DIGITS_MAX:
        return None
    return layout


def _entries(head: bytes, position: int) -> Iterator[tuple[str, int, int]]:
    """Yield the name of every field, and the positions where its value begins and ends."""
    while position < len(head):
        name_end = position + 2 + int.from_bytes(head[position : position + 2], "big")
        start = name_end + 4
        end = start + int.from_bytes(head[name_end:start], "big")
        yield head[position + 2 : name_end].decode("utf-8", "replace"), start, end
        position = end
