# SPDX-License-Identifier: Apache-2.0
"""Find the key that each entry of an index file must stand for.

Entries and the keys of the log's records are the same sequence, except that

- entries whose records have expired have no key,
- a key may have several entries, if a program crashed and indexed a record again,
- keys have no entry if indexing was turned off. The next intact entry shows where it goes on.
- tags have an entry behind the keys of their record if RocketMQ 5 has indexed it.

An entry that belongs to no record stands in the place of the next key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cometmq.store.index.index_format import Entry
from cometmq.store.upkeep.log_keys import KeyRow, LogKeys


class Matching:
    """Matches the entries of one file with keys, part by part."""

    def __init__(self) -> None:
        self._expired_offset = 0
        self._begin()

    def _begin(self) -> None:
        self._rows: list[KeyRow | None] = []
        # Since the last match:
        self._odd: list[int] = []  # places that are wrong if keys are missing there
        self._taken: list[int] = []  # places of entries without a record
        self._shift: _Shift | None = None

    def match(
        self, entries: Sequence[Entry], keys: LogKeys, *, has_more: bool
    ) -> list[KeyRow | None]:
        """Return the key that each entry must stand for; None if that cannot be known.

        `has_more` says that other entries follow; odd ones at the end are then left to the next
        part, which shows what follows them. At the end of a file, they stand for the next keys.
        """
        self._begin()
        for at, entry in enumerate(entries):
            key = keys.peek()
            if key is not None and entry[:2] == key[:2]:
                keys.drop_next(is_match=True)
                self._odd, self._taken = [], []
                self._take(key)
                continue
            if (tag := keys.take_tag(entry)) is not None:
                self._take(tag)
                continue
            if key is None:
                break
            row = keys.find(entry[0], entry[1])
            newer = None if row is None or keys.has_passed(row) else row
            if newer is not None and (at if self._shift is None else self._shift.begin):
                has_more = True
                break
            if newer is not None and _has_between(entries[at + 1 :], key, newer):
                row = newer = None  # older entries follow, so these bytes belong elsewhere
            if newer is not None:
                self._skip(newer, keys)
            else:
                self._take_odd(entry[1], keys, has_record=row is not None)
        if not has_more and keys.is_begun:
            self._fill(keys.take(len(self._odd)))
        shift = self._shift
        if has_more and shift is not None and shift.begin:
            del self._rows[shift.begin :]
            keys.put_back(shift.keys)
        return self._rows

    def _take(self, key: KeyRow) -> None:
        """Give the next key to this place."""
        self._rows.append(key)
        if self._shift is not None:
            self._shift.keys.append(key)

    def _take_odd(self, offset: int, keys: LogKeys, *, has_record: bool) -> None:
        """Take an entry whose record at `offset` is older than the next key, has expired, or never
        existed.
        """
        at = len(self._rows)
        if not has_record and self._expired_offset <= offset < keys.files.first:
            self._expired_offset, self._odd, self._shift = offset, [], None
            self._rows.append(None)
        elif not has_record and keys.is_begun:
            key = keys.peek()
            assert key is not None
            keys.drop_next()
            self._taken.append(at)
            self._take(key)
        else:
            self._odd.append(at)
            self._rows.append(None)
            self._shift = self._shift or _Shift(at)
            self._shift.odd_count += 1
            self._end_shift()

    def _skip(self, row: KeyRow, keys: LogKeys) -> None:
        """Take an entry that belongs to a later key, because the keys before it have no entry."""
        at = len(self._rows)
        skipped = keys.skip_to(row)
        filled_count = self._fill(skipped)
        self._odd, self._taken = [], []
        self._rows.append(row)
        self._shift = self._shift or _Shift(at)
        self._shift.keys += [*skipped, row]
        self._shift.odd_count -= filled_count
        self._shift.skipped_count += len(skipped) - filled_count
        self._end_shift()

    def _fill(self, skipped: Sequence[KeyRow]) -> int:
        """Put keys that have no entry into the last odd places, and keep all keys in order; return
        the number of these places.
        """
        places = self._odd[max(0, len(self._odd) - len(skipped)) :]
        if places:
            missing = [*(self._rows[at] for at in self._taken), *skipped]
            for at, key in zip(sorted(self._taken + places), missing, strict=False):
                self._rows[at] = key
        return len(places)

    def _end_shift(self) -> None:
        """Put all keys in order when there is a place for each of them."""
        shift = self._shift
        if shift is not None and shift.odd_count == shift.skipped_count:
            self._rows[shift.begin :] = shift.keys
            self._shift = None


@dataclass(slots=True)
class _Shift:
    """Entries that may stand in wrong places, since the first one that did not fit the next key.

    If a block of entries is overwritten with a part of itself, some of its entries fit the keys
    again, and others have no key. It is recognised by its end: as many keys were skipped as places
    have no key.
    """

    begin: int
    """The place of the first entry, in its part."""
    keys: list[KeyRow] = field(default_factory=list)
    """All keys since then, in order."""
    odd_count: int = 0
    """Number of places without a key."""
    skipped_count: int = 0
    """Number of keys without a place."""


def _has_between(entries: Sequence[Entry], first: KeyRow, end: KeyRow) -> bool:
    """Return whether any entry belongs to a record from `first` on, but before `end`."""
    return any(first.offset <= entry[1] < end.offset for entry in entries)
