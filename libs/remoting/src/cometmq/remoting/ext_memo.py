# SPDX-License-Identifier: Apache-2.0
"""Decode binary headers whose fields, but for a few, are those of the message before.

A producer repeats its group, topic, flags and so on in every send; only the queue, the time
and the properties change. The memo cuts a header at the changing fields and looks up the runs
of fields between them as they are, without parsing them again.

Invariants
    What the memo answers is what ``parse_ext`` and the conversion would answer. An entry begins
    with its own lengths; so bytes that equal a run of whole entries, at a place where an entry
    begins, are that run. A key holds the runs of a header that was parsed in full; the first
    begins where the ext fields begin, and each next one where the changing field before it
    ends. A run in the memo never holds one of the changing fields.
    The memo is bounded in entries and in bytes of an entry.

Hot path
    ``ExtMemo.find`` runs once per send in the ROCKETMQ serialization; budget 1.3 us against
    2.8 us of a full parse: bench/micro/bench_header.py.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

ENTRIES_MAX: Final = 1024
RUNS_BYTES_MAX: Final = 2048
_MARKER_TAIL: Final = b"\0\0"  # upper half of a length: no changing value exceeds 64 KiB

Runs = tuple[bytes, ...]


class ExtMemo:
    """The headers of one type seen before, without their changing fields."""

    __slots__ = ("_changing", "_fields", "_header_type", "_markers", "_memo")

    def __init__(self, header_type: type[msgspec.Struct], changing: tuple[str, ...]) -> None:
        """Expect the fields ``changing`` (wire names, texts or numbers) in this order."""
        fields = msgspec.structs.fields(header_type)
        names = [field.encode_name for field in fields]
        self._header_type = header_type
        self._changing = frozenset(changing)
        self._markers = tuple(
            len(name).to_bytes(2, "big") + name.encode() + _MARKER_TAIL for name in changing
        )
        # Index of the field, and how many digits it surely takes; 0 for a text.
        self._fields = tuple(
            (names.index(name), _digits_max(fields[names.index(name)].type)) for name in changing
        )
        self._memo: dict[Runs, list[Any]] = {}

    def find(self, head: bytes, position: int) -> msgspec.Struct | None:
        """Return the typed header of ext fields that reach to the end of ``head``, if known."""
        runs: list[bytes] = []
        values: list[bytes] = []
        find = head.find
        try:
            for marker in self._markers:
                at = find(marker, position)
                if at < 0:
                    return None
                runs.append(head[position:at])
                at += len(marker)
                position = at + 2 + (head[at] << 8 | head[at + 1])
                values.append(head[at + 2 : position])
        except IndexError:
            return None
        runs.append(head[position:])
        known = self._memo.get(tuple(runs))
        if known is None or position > len(head):
            return None
        row = known.copy()
        for (index, digits_max), value in zip(self._fields, values, strict=True):
            if not value:
                return None
            if not digits_max:
                row[index] = str(value, "utf-8", "replace")
            elif len(value) <= digits_max and value.isdigit():
                row[index] = int(value)
            else:
                return None
        return self._header_type(*row)

    def learn(self, head: bytes, position: int, header: msgspec.Struct) -> None:
        """Remember a header that was parsed in full, if its fields stand as expected."""
        runs: list[bytes] = []
        start = position
        for (name, end), entry_start in _entries(head, position):
            if len(runs) < len(self._markers) and name == self._expected(len(runs)):
                runs.append(head[start:entry_start])
                start = end
            elif name in self._changing:
                return
        if len(runs) < len(self._markers) or len(head) - position > RUNS_BYTES_MAX:
            return
        runs.append(head[start:])
        if len(self._memo) >= ENTRIES_MAX:
            self._memo.clear()
        self._memo[tuple(runs)] = list(msgspec.structs.astuple(header))

    def _expected(self, index: int) -> str:
        return self._markers[index][2 : -len(_MARKER_TAIL)].decode()


def _entries(head: bytes, position: int) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield name and end, then start, of every entry of ext fields that are known to be sound."""
    while position < len(head):
        start = position
        name_end = start + 2 + int.from_bytes(head[start : start + 2], "big")
        name = head[start + 2 : name_end].decode("utf-8", "replace")
        position = name_end + 4 + int.from_bytes(head[name_end : name_end + 4], "big")
        yield (name, position), start


def _digits_max(field_type: object) -> int:
    """Return how many decimal digits any number of this type may have; 0 if it is a text."""
    bounds = [m.le for m in getattr(field_type, "__metadata__", ()) if m.le is not None]
    return len(str(bounds[0])) - 1 if bounds else 0
