# SPDX-License-Identifier: Apache-2.0
"""The option `where`: a condition that the source itself applies, so that it reads fewer rows.

Spark's own push-down of filters is unsafe for Python sources: other queries on the same DataFrame
reuse a plan with a filter, and then silently lack rows. An option belongs to one `load()`. The
grammar is the part of Spark's SQL that the source can apply: comparisons of four columns, joined by
AND. The result is the same as that of `DataFrame.where`.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec

from cometmq.spark.errors import OptionError

_GRAMMAR: Final = (
    "conditions such as tags = 'a', tags IN ('a', 'b'), keys = 'k', queue_id IN (0, 1),"
    " store_ts >= '2026-01-31 12:00:00', joined by AND"
)
_VALUE: Final = r"""(?:'(?:[^']|'')*'|"[^"]*"|-?\d{1,19}(?!\d))"""
_TIME: Final = rf"(?:TIMESTAMP\s*)?{_VALUE}"
_CONDITION: Final = re.compile(
    rf"""\s*(`?)(?P<column>tags|keys|queue_id|store_ts)\b\1\s*(?:
        (?P<mark>==?|<=?|>=?)\s*(?P<value>{_TIME})
        | IN\s*\((?P<values>\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*)\)
        | BETWEEN\b\s*(?P<low>{_TIME})\s*AND\b\s*(?P<high>{_TIME})
        )\s*(?P<more>AND\b)?""",
    re.IGNORECASE | re.VERBOSE,
)
_TIME_MS_MAX: Final = (1 << 63) - 2
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


@cache
def parse_where(text: str) -> Where:
    """Parse the option; OptionError names the part that the source cannot apply."""
    values: dict[str, set[Any]] = {}
    begins: list[int] = []
    ends: list[int] = []
    place = 0
    while text.strip():
        found = _CONDITION.match(text, place)
        rest = text[place:] if found is None else text[found.end() :]
        column = "" if found is None else found["column"].lower()
        if found is None or (rest.strip() and not found["more"]):
            raise _error(text, f"{rest.strip()!r} cannot be applied: use DataFrame.where")
        try:
            if column != "store_ts":
                given = _values(column, found)
                values[column] = values.get(column, given) & given
            else:
                for mark, time in _limits(found):
                    (begins if mark.startswith(">") else ends).append(_bound_ms(mark, time))
        except ValueError as error:
            raise _error(text, str(error)) from None
        if not found["more"]:
            break
        place = found.end()
    tags, keys, queue_ids = (
        tuple(sorted(values[name])) if name in values else None
        for name in ("tags", "keys", "queue_id")
    )
    return Where(tags, keys, queue_ids, max(begins, default=None), min(ends, default=None))


def _values(column: str, found: re.Match[str]) -> set[Any]:
    if found["values"] is None and found["mark"] not in ("=", "=="):
        raise ValueError(f"{column} takes = and IN")
    literals = re.findall(_VALUE, found["values"]) if found["values"] else [found["value"]]
    if column == "queue_id":
        return {int(it) for it in literals}
    return {_text(it) for it in literals}


def _text(literal: str) -> str:
    if literal[0] not in "'\"":
        raise ValueError(f"expected a text in quotes, not {literal}")
    if "\\" in literal:  # Spark's SQL would read an escape, and find other rows
        raise ValueError("a text with a backslash can only be filtered with DataFrame.where")
    return literal[1:-1].replace("''", "'") if literal[0] == "'" else literal[1:-1]


def _limits(found: re.Match[str]) -> list[tuple[str, str]]:
    """Return comparisons of store_ts as pairs of mark and time."""
    if found["low"] is not None:
        return [(">=", found["low"]), ("<=", found["high"])]
    mark, time = found["mark"], found["value"]
    if mark is None:
        raise ValueError("compare store_ts with <, <=, >=, > or BETWEEN")
    return [(">=", time), ("<=", time)] if mark in ("=", "==") else [(mark, time)]


def _bound_ms(mark: str, literal: str) -> int:
    """Return a bound of store times in ms since 1970; those of `<` and `<=` are exclusive."""
    literal = re.sub(r"^TIMESTAMP\s*", "", literal, flags=re.IGNORECASE)
    if literal[0] in "'\"":
        moment = datetime.fromisoformat(_text(literal).strip())
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    elif abs(int(literal)) <= _TIME_MS_MAX:
        micros = int(literal) * 1000
    else:
        raise ValueError(f"{literal} is no time")
    return micros // 1000 + 1 if mark in (">", "<=") else -(-micros // 1000)


def _error(text: str, reason: str) -> OptionError:
    return OptionError(f"option `where`={text!r}: {reason}; it takes {_GRAMMAR}")
