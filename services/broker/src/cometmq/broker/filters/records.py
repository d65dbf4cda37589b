# SPDX-License-Identifier: Apache-2.0
"""Filters that must see a message's properties: they look into its stored record.

Hot path: `matches` once per message that a filtered pull looks at (budget 2 us); only the
properties that the filter names are decoded; bench/micro/bench_sql.py.

Compatibility: with filterSupportRetry a retry topic is filtered by the expressions for the topics
that its messages came from, and a message of a topic without expression passes.
"""

from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from cometmq.broker.filters.sql import SqlFilter
from cometmq.remoting.message.properties import PropertyKey, parse_properties
from cometmq.remoting.message.record import property_bytes
from cometmq.remoting.types import Buffer
from cometmq.store.matching_reader import BLOCK_COUNT_MAX

_VALUE_SEPARATOR = b"\x01"
_PAIR_SEPARATOR = b"\x02"


COMPARISONS_MAX: Final = 32  # for the records of one read: some 10 us
NAMES_MAX: Final = 8
"""Properties that are searched for one by one; for more of them a full parse takes less."""


class RecordFilter:
    """Whether a stored message is wanted, and how many to look at in one go."""

    __slots__ = ("block_count", "matches")

    def __init__(self, matches: Callable[[Buffer], bool], *, comparison_count: int) -> None:
        """Take the test of one record and how many comparisons it may make."""
        self.matches = matches
        self.block_count = max(1, min(BLOCK_COUNT_MAX, COMPARISONS_MAX // comparison_count))


_filters: Final[WeakKeyDictionary[SqlFilter, RecordFilter]] = WeakKeyDictionary()


def sql_record_filter(sql: SqlFilter) -> RecordFilter:
    """Return the filter that applies an expression to records."""
    found = _filters.get(sql)
    if found is None:
        found = _filters[sql] = _record_filter(sql)
    return found


def _record_filter(sql: SqlFilter) -> RecordFilter:
    read = reader(sql.names)
    matches_values = sql.matches_values
    return RecordFilter(
        lambda record: matches_values(read(property_bytes(record))),
        comparison_count=sql.comparison_count,
    )


def retry_record_filter(filter_of: Callable[[str], SqlFilter | None]) -> RecordFilter:
    """Return the filter of a retry topic; `filter_of` knows the expression for a topic."""
    read_topic = reader((PropertyKey.RETRY_TOPIC.value,))

    def matches(record: Buffer) -> bool:
        text = property_bytes(record)
        topic = read_topic(text)[0]
        sql = None if topic is None else filter_of(topic)
        return sql is None or sql_record_filter(sql).matches(record)

    return RecordFilter(matches, comparison_count=COMPARISONS_MAX)


def reader(names: Sequence[str]) -> Callable[[bytes], list[str | None]]:
    """Return the function that finds the values of some properties in a property text."""
    if len(names) > NAMES_MAX:
        return lambda text: list(map(parse_properties(text.decode(errors="replace")).get, names))
    marks = [_PAIR_SEPARATOR + name.encode() + _VALUE_SEPARATOR for name in names]

    def read(text: bytes) -> list[str | None]:
        text = _PAIR_SEPARATOR + text
        return [_value(text, mark) for mark in marks]

    return read


def _value(text: bytes, mark: bytes) -> str | None:
    """Return the last value that is not empty, as the last of equal names counts."""
    value = _last_value(text, mark)
    if value == b"":
        text, empty = text + _PAIR_SEPARATOR, mark + _PAIR_SEPARATOR
        while empty in text:  # each time half of those that follow each other
            text = text.replace(empty, _PAIR_SEPARATOR)
        value = _last_value(text, mark)
    return None if value is None else value.decode(errors="replace")


def _last_value(text: bytes, mark: bytes) -> bytes | None:
    start = text.rfind(mark)
    if start < 0:
        return None
    begin = start + len(mark)
    end = text.find(_PAIR_SEPARATOR, begin)
    return text[begin:] if end < 0 else text[begin:end]
