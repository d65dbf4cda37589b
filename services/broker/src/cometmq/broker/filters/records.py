# SPDX-License-Identifier: Apache-2.0
"""Filters that need a message's properties, and therefore test its stored record.

Hot path: `matches` runs once per message that a filtered pull tests (budget 2 us). Only the
properties that the filter uses are decoded; see bench/micro/bench_sql.py.

Compatibility: with filterSupportRetry, the messages of a retry topic are filtered by the
expressions for their original topics; a message passes if its topic has no expression.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from cometmq.broker.filters.sql import Program, SqlFilter
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import property_bytes
from cometmq.remoting.types import Buffer
from cometmq.store.queues.matching_reader import BLOCK_COUNT_MAX

_VALUE_SEPARATOR = b"\x01"
_PAIR_SEPARATOR = b"\x02"
COMPARISONS_MAX: Final = 64  # for the records of one read: about 20 us
NAMES_MAX: Final = 8
"""Above this number of properties, a full parse is faster than searching for each one."""
VERDICTS_MAX: Final = 16_384  # of all filters
VERDICT_BYTES_MAX: Final = 64
"""Maximum size of the values of one cached verdict; all verdicts together take up to 6 MB."""


class RecordFilter:
    """Tests stored records; `block_count` is the number of records to test per read."""

    __slots__ = ("block_count", "matches", "program")

    def __init__(
        self,
        matches: Callable[[Buffer], bool],
        *,
        comparison_count: int,
        program: Program | None = None,
    ) -> None:
        """`comparison_count` is the maximum number of comparisons in one test; `program`, if there
        is one, gives the same verdicts.
        """
        self.matches = matches
        self.program = program
        self.block_count = max(1, min(BLOCK_COUNT_MAX, COMPARISONS_MAX // comparison_count))


_filters: Final[WeakKeyDictionary[SqlFilter, RecordFilter]] = WeakKeyDictionary()


def sql_record_filter(sql: SqlFilter) -> RecordFilter:
    """Return the filter that applies an expression to records."""
    found = _filters.get(sql)
    if found is None:
        found = _filters[sql] = _record_filter(sql)
    return found


def _record_filter(sql: SqlFilter) -> RecordFilter:
    read = raw_reader(sql.names)
    known = _verdicts.get
    number = next(_numbers)

    def matches(record: Buffer) -> bool:
        values = read(property_bytes(record))
        verdict = known((number, *values))
        return _judge(sql, number, values) if verdict is None else verdict

    return RecordFilter(matches, comparison_count=sql.comparison_count, program=sql.program)


_numbers: Final = itertools.count()
_verdicts: Final[dict[tuple[int | bytes | None, ...], bool]] = {}
"""Caches verdicts by filter and values, since most filtered properties have few distinct values."""


def _judge(sql: SqlFilter, number: int, values: list[bytes | None]) -> bool:
    """Apply an expression to values; cache the verdict if the values are short."""
    verdict = sql.matches_values(_texts(values))
    if len(values) <= NAMES_MAX and sum(map(len, filter(None, values))) <= VERDICT_BYTES_MAX:
        if len(_verdicts) >= VERDICTS_MAX:
            _verdicts.clear()
        _verdicts[number, *values] = verdict
    return verdict


def retry_record_filter(filter_of: Callable[[str], SqlFilter | None]) -> RecordFilter:
    """Return the filter of a retry topic; `filter_of` returns the expression for a topic."""
    read_topic = reader((PropertyKey.RETRY_TOPIC.value,))

    def matches(record: Buffer) -> bool:
        text = property_bytes(record)
        topic = read_topic(text)[0]
        sql = None if topic is None else filter_of(topic)
        return sql is None or sql_record_filter(sql).matches(record)

    return RecordFilter(matches, comparison_count=COMPARISONS_MAX)


def reader(names: Sequence[str]) -> Callable[[bytes], list[str | None]]:
    """Return a function that extracts the values of some properties from encoded properties."""
    read = raw_reader(names)
    return lambda text: _texts(read(text))


def _texts(values: list[bytes | None]) -> list[str | None]:
    return [None if value is None else value.decode(errors="replace") for value in values]


def raw_reader(names: Sequence[str]) -> Callable[[bytes], list[bytes | None]]:
    """Return a function that extracts the values of some properties without decoding them."""
    if len(names) > NAMES_MAX:
        keys = [name.encode() for name in names]
        return lambda text: list(map(_all_values(text).get, keys))
    marks = [_PAIR_SEPARATOR + name.encode() + _VALUE_SEPARATOR for name in names]

    def read(text: bytes) -> list[bytes | None]:
        # If the mark is missing, rpartition returns the whole text, whose part before the first
        # separator is empty.
        text = _PAIR_SEPARATOR + text
        return [
            text.rpartition(mark)[2].partition(_PAIR_SEPARATOR)[0] or _last_filled(text, mark)
            for mark in marks
        ]

    return read


def _last_filled(text: bytes, mark: bytes) -> bytes | None:
    """Return the last non-empty value, because the last occurrence of a name counts."""
    if mark not in text:
        return None
    text, empty = text + _PAIR_SEPARATOR, mark + _PAIR_SEPARATOR
    while empty in text:  # each pass halves a run of adjacent empty values
        text = text.replace(empty, _PAIR_SEPARATOR)
    _, found, rest = text.rpartition(mark)
    return rest.partition(_PAIR_SEPARATOR)[0] if found else None


def _all_values(text: bytes) -> dict[bytes, bytes]:
    pairs = (pair.partition(_VALUE_SEPARATOR) for pair in text.split(_PAIR_SEPARATOR))
    return {name: value for name, _, value in pairs if value}
