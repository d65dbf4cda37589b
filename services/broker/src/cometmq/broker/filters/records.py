# SPDX-License-Identifier: Apache-2.0
"""Filters that must see a message's properties: they look into its stored record.

Hot path: `matches` once per message that a filtered pull looks at (budget 2 us); only the
properties that the filter names are decoded; bench/micro/bench_sql.py.

Compatibility: with filterSupportRetry a retry topic is filtered by the expressions for the topics
that its messages came from, and a message of a topic without expression passes.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from cometmq.broker.filters.sql import CACHE_SIZE_MAX, SqlFilter
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import property_bytes
from cometmq.remoting.types import Buffer
from cometmq.store.matching_reader import BLOCK_COUNT_MAX

_VALUE_SEPARATOR = b"\x01"
_PAIR_SEPARATOR = b"\x02"


COMPARISONS_MAX: Final = 32  # for the records of one read: some 10 us


class RecordFilter:
    """Whether a stored message is wanted, and how many to look at in one go."""

    __slots__ = ("block_count", "matches")

    def __init__(self, matches: Callable[[Buffer], bool], *, comparison_count: int) -> None:
        """Take the test of one record and how many comparisons it may make."""
        self.matches = matches
        self.block_count = max(1, min(BLOCK_COUNT_MAX, COMPARISONS_MAX // comparison_count))


@lru_cache(maxsize=CACHE_SIZE_MAX)
def sql_record_filter(sql: SqlFilter) -> RecordFilter:
    """Return the filter that applies an expression to records."""
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
        return sql is None or sql.matches_values(reader(sql.names)(text))

    return RecordFilter(matches, comparison_count=COMPARISONS_MAX)


def reader(names: Sequence[str]) -> Callable[[bytes], list[str | None]]:
    """Return the function that finds the values of some properties in a property text."""
    marks = [_PAIR_SEPARATOR + name.encode() + _VALUE_SEPARATOR for name in names]

    def read(text: bytes) -> list[str | None]:
        text = _PAIR_SEPARATOR + text
        return [_value(text, mark) for mark in marks]

    return read


def _value(text: bytes, mark: bytes) -> str | None:
    """Return the last value that is not empty, as the last of equal names counts."""
    start = text.rfind(mark)
    while start >= 0:
        begin = start + len(mark)
        end = text.find(_PAIR_SEPARATOR, begin)
        value = text[begin:] if end < 0 else text[begin:end]
        if value:
            return value.decode(errors="replace")
        start = text.rfind(mark, 0, start + 1)
    return None
