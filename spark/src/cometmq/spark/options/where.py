# SPDX-License-Identifier: Apache-2.0
"""The option `where`: a condition that the source itself applies, so that it reads fewer rows.

Spark's own push-down of filters is unsafe for Python sources: other queries on the same DataFrame
reuse a plan with a filter, and then silently lack rows. An option belongs to one `load()`. The
grammar is the part of Spark's SQL that the source can apply: comparisons of four columns, joined by
AND. The result is the same as that of `DataFrame.where`.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache
from typing import Any, Final, Self

import msgspec

from cometmq.spark.errors import OptionError

COLUMNS: Final = ("tags", "keys", "queue_id", "store_ts")
_GRAMMAR: Final = (
    "conditions such as tags = 'a', tags IN ('a', 'b'), keys = 'k', queue_id IN (0, 1),"
    " store_ts >= '2026-01-31 12:00:00', joined by AND"
)
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*'|\"[^\"]*\")|(?P<number>-?\d{1,19}(?!\d))|(?P<name>`?[A-Za-z_]\w*`?)"
    r"|(?P<mark><=|>=|<>|!=|==|=|<|>|\(|\)|,)|(?P<other>\S))"
)
_MS: Final = 1000
_TIME_MAX: Final = (1 << 63) - 2
"""The end of a span is one more, and a long for brokers."""


class Where(msgspec.Struct, frozen=True):
    """The rows to read; an empty condition takes all."""

    tags: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    queue_ids: tuple[int, ...] | None = None
    begin_ms: int | None = None
    """Store time of the first message."""
    end_ms: int | None = None
    """Store time after which messages are left out; exclusive."""

    @property
    def has_times(self) -> bool:
        return self.begin_ms is not None or self.end_ms is not None

    @property
    def takes_nothing(self) -> bool:
        """Whether conditions exclude each other."""
        return () in (self.tags, self.keys, self.queue_ids)

    def has_queue(self, queue_id: int) -> bool:
        return self.queue_ids is None or queue_id in self.queue_ids

    def and_values(self, column: str, values: tuple[Any, ...]) -> Self:
        name = "queue_ids" if column == "queue_id" else column
        before = getattr(self, name)
        kept = tuple(sorted({it for it in values if before is None or it in before}))
        return msgspec.structs.replace(self, **{name: kept})

    def and_begin(self, ms: int) -> Self:
        begin = ms if self.begin_ms is None else max(ms, self.begin_ms)
        return msgspec.structs.replace(self, begin_ms=begin)

    def and_end(self, ms: int) -> Self:
        end = ms if self.end_ms is None else min(ms, self.end_ms)
        return msgspec.structs.replace(self, end_ms=end)


@cache
def parse_where(text: str) -> Where:
    """Parse the option; OptionError names the part that the source cannot apply."""
    return _Parser(text).parse() if text.strip() else Where()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            (kind, match[kind])
            for match in _TOKEN.finditer(text)
            if (kind := match.lastgroup) is not None
        ]
        self._place = 0

    def parse(self) -> Where:
        found = self._condition(Where())
        while self._place < len(self._tokens):
            if not self._has_word("AND"):
                raise self._error(f"expected AND at {self._peek()[1]!r}")
            self._place += 1
            found = self._condition(found)
        return found

    def _condition(self, so_far: Where) -> Where:
        kind, name = self._next()
        column = name.strip("`").lower()
        if kind != "name" or column not in COLUMNS:
            raise self._error(
                f"{name!r} cannot be filtered at the source; filter it with DataFrame.where"
            )
        if self._has_word("IN"):
            self._place += 1
            values = self._list(self._value_of(column))
            if column == "store_ts":
                raise self._error("compare store_ts with <, <=, >=, > or BETWEEN")
            return so_far.and_values(column, values)
        if self._has_word("BETWEEN"):
            self._place += 1
            low = self._moment_or_fail(column)
            if not self._has_word("AND"):
                raise self._error("BETWEEN needs AND")
            self._place += 1
            return so_far.and_begin(math.ceil(low)).and_end(
                math.floor(self._moment_or_fail(column)) + 1
            )
        _, mark = self._next()
        return self._comparison(so_far, column, mark)

    def _comparison(self, so_far: Where, column: str, mark: str) -> Where:
        if column == "store_ts":
            ms = self._moment()
            if mark in ("=", "=="):
                return so_far.and_begin(math.ceil(ms)).and_end(math.floor(ms) + 1)
            if mark in (">", ">="):
                return so_far.and_begin(math.floor(ms) + 1 if mark == ">" else math.ceil(ms))
            if mark in ("<", "<="):
                return so_far.and_end(math.floor(ms) + 1 if mark == "<=" else math.ceil(ms))
        elif mark in ("=", "=="):
            return so_far.and_values(column, (self._value_of(column)(),))
        raise self._error(f"{column} {mark} is not supported")

    def _list(self, value: Callable[[], Any]) -> tuple[Any, ...]:
        self._expect("(")
        values = [value()]
        while self._peek()[1] == ",":
            self._place += 1
            values.append(value())
        self._expect(")")
        return tuple(values)

    def _value_of(self, column: str) -> Callable[[], Any]:
        return self._number if column == "queue_id" else self._string

    def _string(self) -> str:
        kind, text = self._next()
        if kind != "text":
            raise self._error(f"expected a text in quotes, not {text!r}")
        if "\\" in text:  # Spark's SQL would read an escape, and find other rows
            raise self._error("a text with a backslash can only be filtered with DataFrame.where")
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1]

    def _number(self) -> int:
        kind, text = self._next()
        if kind != "number":
            raise self._error(f"expected a whole number, not {text!r}")
        return int(text)

    def _moment_or_fail(self, column: str) -> Fraction:
        if column != "store_ts":
            raise self._error(f"BETWEEN is for store_ts, not for {column}")
        return self._moment()

    def _moment(self) -> Fraction:
        """Parse a time (UTC unless it has an offset) or a number of milliseconds; return
        milliseconds since 1970.
        """
        if self._has_word("TIMESTAMP"):
            self._place += 1
        kind, text = self._peek()
        if kind == "number":
            self._place += 1
            if not -_TIME_MAX <= int(text) <= _TIME_MAX:
                raise self._error(f"{text} is no time")
            return Fraction(int(text))
        text = self._string()
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise self._error(
                f"{text!r} is not a time such as '2026-01-31 12:00:00' (UTC) or a number of"
                " milliseconds since 1970"
            ) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
        return Fraction(since.days * 86_400_000 + since.seconds * _MS) + Fraction(
            since.microseconds, _MS
        )

    def _has_word(self, word: str) -> bool:
        kind, text = self._peek()
        return kind == "name" and text.upper() == word

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._place] if self._place < len(self._tokens) else ("end", "the end")

    def _next(self) -> tuple[str, str]:
        found = self._peek()
        self._place += 1
        return found

    def _expect(self, mark: str) -> None:
        _, text = self._next()
        if text != mark:
            raise self._error(f"expected {mark!r}, not {text!r}")

    def _error(self, reason: str) -> OptionError:
        return OptionError(f"option `where`={self._text!r}: {reason}; it takes {_GRAMMAR}")
