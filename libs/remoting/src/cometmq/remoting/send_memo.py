# SPDX-License-Identifier: Apache-2.0
"""Decode binary headers of sends that differ from an earlier send in three fields only.

A producer repeats its group, topic, flags and so on in every send; only queue, time and
properties change, and their lengths rarely do. The memo cuts a header at the places where an
earlier header of the same length had these three values, and looks up the bytes between them
without parsing the header.

Invariants
    The memo returns what ``parse_ext`` and the conversion would return. An entry is found only
    by a header that has the entry's layout and the entry's bytes outside the three values.
    The bytes outside the values hold every name and every length, including the lengths of the
    values, so all fields begin and end where the full parse of the earlier header found them.
    The layout must be part of the key: cut by the layout of another header, the same bytes can
    stand around values of other lengths, and a value would swallow the field behind it.
    Headers in which one of the three occurs twice are not learned, nor are signed ones: no two
    of them have the same bytes between the values.
    The memo is bounded in entries and in the bytes of an entry.

Hot path
    ``SendMemo.find`` runs once per send in the ROCKETMQ serialization; budget 0.9 us, against
    2.8 us of a full parse: bench/micro/bench_header.py.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from cometmq.remoting.commands.send import SendMessageV2

ENTRIES_MAX: Final = 4096
HEAD_BYTES_MAX: Final = 2048
LAYOUTS_MAX: Final = 4  # headers of one length whose values lie at different places

_FIELDS: Final = [field.encode_name for field in msgspec.structs.fields(SendMessageV2)]
_QUEUE_ID: Final = _FIELDS.index("e")
_BORN_TIMESTAMP: Final = _FIELDS.index("g")
_PROPERTIES: Final = _FIELDS.index("i")
_QUEUE_ID_DIGITS_MAX: Final = 9  # every number of that length fits 32 bits
_TIMESTAMP_DIGITS_MAX: Final = 18  # and of that length 64 bits
_SIGNATURE_ENTRY: Final = b"\x00\x09Signature"

Layout = tuple[int, int, int, int, int, int]
"""Where queue id, born timestamp and properties begin and end."""


Known = dict[tuple[bytes, bytes, bytes, bytes], list[Any]]
"""Headers of one layout by their bytes before, between and after the three values."""


class SendMemo:
    """The headers of sends seen before, without their three changing values."""

    __slots__ = ("_count", "_layouts")

    def __init__(self) -> None:
        """Start empty."""
        self._layouts: dict[int, list[tuple[int, int, int, int, int, int, Known]]] = {}
        self._count = 0

    def find(self, head: bytes, position: int) -> SendMessageV2 | None:
        """Return the typed header whose ext fields fill ``head`` from ``position``, if known."""
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
        """Remember a header that was parsed in full, if its three values are usual ones."""
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
        """Return the headers of a size and a layout; the oldest layout makes room for a new one."""
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
    """Return where the three values lie in a sound header, None if they are not as usual."""
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
    """Yield name of every entry, and where its value begins and ends."""
    while position < len(head):
        name_end = position + 2 + int.from_bytes(head[position : position + 2], "big")
        start = name_end + 4
        end = start + int.from_bytes(head[name_end:start], "big")
        yield head[position + 2 : name_end].decode("utf-8", "replace"), start, end
        position = end
