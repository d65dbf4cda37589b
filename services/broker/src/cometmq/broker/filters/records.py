# SPDX-License-Identifier: Apache-2.0
"""Filters that need a message's properties, and therefore test its stored record.

Hot path: a test runs once per message that a filtered pull examines (budget 2 us). Only the
properties that the filter uses are decoded; see bench/micro/bench_sql.py.

A test never blocks the loop for more than a few milliseconds, whatever the expression and the
record are: each long value is parsed once (`LongText`), and a test that searches long values pauses
after TEST_STEPS.

Compatibility: with filterSupportRetry, the messages of a retry topic are filtered by the
expressions for their original topics; a message passes if its topic has no expression.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from cometmq.broker.filters.sql import Program, SqlFilter
from cometmq.broker.filters.sql.values import LONG_CHARS_MIN, Allowance, LongText, Paused
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import property_bytes
from cometmq.remoting.types import Buffer
from cometmq.store.queues.matching_reader import (
    BLOCK_BYTES_MAX,
    BLOCK_COUNT_MAX,
    BlockSize,
    RecordTest,
)

_VALUE_SEPARATOR = b"\x01"
_PAIR_SEPARATOR = b"\x02"
COMPARISONS_MAX: Final = 64  # for the records of one read: about 20 us
NAMES_MAX: Final = 8
"""Above this number of used properties, parsing all is faster than searching for each."""
VERDICTS_MAX: Final = 16_384  # of all filters
VERDICT_BYTES_MAX: Final = 64
"""Maximum size of the values of a cached verdict; all verdicts take up to 6 MB."""


TEST_STEPS: Final = 500_000
"""Steps in long values after which a test pauses, about 1 ms; one search takes up to 0.4 ms."""
PARSED_BYTES_MAX: Final = 8 << 10
"""Bytes per read if properties are parsed in full, which takes up to 0.1 us per byte."""

Values: TypeAlias = list[str | None]


class RecordFilter:
    """Tests stored records: a verdict is whether one matches; `block` bounds one read."""

    __slots__ = ("begin", "block", "program")

    def __init__(
        self,
        begin: "Callable[[Buffer], bool | _Test]",
        *,
        comparison_count: int,
        name_count: int = 1,
        program: Program | None = None,
    ) -> None:
        """`begin` returns the verdict on a record, or a test that has paused. `comparison_count` is
        the maximum number of comparisons in one test. `program` is the expression for native code.
        """
        self.begin = begin
        self.program = program
        self.block = BlockSize(
            max(1, min(BLOCK_COUNT_MAX, COMPARISONS_MAX // comparison_count)),
            BLOCK_BYTES_MAX if name_count <= NAMES_MAX else PARSED_BYTES_MAX,
        )

    def matches(self, record: Buffer) -> bool:
        """Return the verdict on a record; resume its test without delay whenever it pauses."""
        verdict = self.begin(record)
        while not isinstance(verdict, bool):
            verdict = verdict.resume()
        return verdict

    def tester(self) -> RecordTest:
        """Return a function that tests the records of one search."""
        begin = self.begin
        paused: _Test | None = None

        def test(record: Buffer) -> bool | None:
            nonlocal paused
            verdict = begin(record) if paused is None else paused.resume()
            if isinstance(verdict, bool):
                paused = None
                return verdict
            paused = verdict
            return None

        return test


_filters: Final[WeakKeyDictionary[SqlFilter, RecordFilter]] = WeakKeyDictionary()


def sql_record_filter(sql: SqlFilter) -> RecordFilter:
    """Return the filter that applies an expression to records."""
    found = _filters.get(sql)
    if found is None:
        found = _filters[sql] = RecordFilter(
            _beginner(sql),
            comparison_count=sql.comparison_count,
            name_count=len(sql.names),
            program=sql.program,
        )
    return found


def _beginner(sql: SqlFilter) -> "Callable[[Buffer], bool | _Test]":
    read = raw_reader(sql.names)
    known = _verdicts.get
    number = next(_numbers)

    def begin(record: Buffer) -> "bool | _Test":
        values = read(property_bytes(record))
        verdict = known((number, *values))
        return _judge(sql, number, values) if verdict is None else verdict

    return begin


class _Test:
    """The paused test of one record with long values."""

    __slots__ = ("_allowance", "_sql", "_values")

    def __init__(self, sql: SqlFilter, values: list[bytes | None]) -> None:
        self._sql = sql
        self._allowance = Allowance(0)
        self._values = _texts(values, self._allowance)

    def resume(self) -> "bool | _Test":
        """Return the verdict, or the test itself if it has paused again."""
        self._allowance.steps = TEST_STEPS
        try:
            return self._sql.matches_values(self._values)
        except Paused:
            return self


_numbers: Final = itertools.count()
_verdicts: Final[dict[tuple[int | bytes | None, ...], bool]] = {}
"""A cache of verdicts by filter and values; most filtered properties have few distinct values."""


def _judge(sql: SqlFilter, number: int, values: list[bytes | None]) -> bool | _Test:
    """Apply an expression to values; cache the verdict if the values are short."""
    size = sum(map(len, filter(None, values)))
    if size >= LONG_CHARS_MIN:
        return _Test(sql, values).resume()
    verdict = sql.matches_values(_texts(values))
    if len(values) <= NAMES_MAX and size <= VERDICT_BYTES_MAX:
        if len(_verdicts) >= VERDICTS_MAX:
            _verdicts.clear()
        _verdicts[number, *values] = verdict
    return verdict


def retry_record_filter(filter_of: Callable[[str], SqlFilter | None]) -> RecordFilter:
    """Return the filter of a retry topic; `filter_of` returns the expression for a topic."""
    read_topic = reader((PropertyKey.RETRY_TOPIC.value,))

    def begin(record: Buffer) -> bool | _Test:
        text = property_bytes(record)
        topic = read_topic(text)[0]
        sql = None if topic is None else filter_of(topic)
        return sql is None or sql_record_filter(sql).begin(record)

    return RecordFilter(begin, comparison_count=COMPARISONS_MAX)


def reader(names: Sequence[str]) -> Callable[[bytes], Values]:
    """Return a function that extracts the values of some properties from encoded properties."""
    read = raw_reader(names)
    return lambda text: _texts(read(text))


def _texts(values: list[bytes | None], allowance: Allowance | None = None) -> Values:
    texts = [None if value is None else value.decode(errors="replace") for value in values]
    if allowance is None:
        return texts
    return [
        LongText(text, allowance) if text is not None and len(text) >= LONG_CHARS_MIN else text
        for text in texts
    ]


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
