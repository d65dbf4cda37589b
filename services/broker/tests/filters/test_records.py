# SPDX-License-Identifier: Apache-2.0

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.filters import records
from cometmq.broker.filters.records import NAMES_MAX, VERDICT_BYTES_MAX, reader, sql_record_filter
from cometmq.broker.filters.sql import SqlFilter, compile_sql
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import parse_properties
from cometmq.remoting.message.record import property_bytes


def record(properties: str, *, host: bytes = bytes(8), body: bytes = b"body") -> bytes:
    message = NewMessage(
        topic="T",
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=host,
        store_host=bytes(8),
        body=body,
        properties=properties,
    )
    return encode_record(message, 0, 0, 2)


@given(st.text("abc\x01\x02", max_size=30))
def test_many_properties_equal_those_of_a_full_parse(text: str) -> None:
    names = ["a", "ab", "c", *(f"x{number}" for number in range(NAMES_MAX))]
    found = parse_properties(text)
    assert reader(names)(text.encode()) == [found.get(name) for name in names]


@given(st.integers(0, 120), st.integers(0, 255))
def test_a_damaged_record_raises_nothing(at: int, value: int) -> None:
    stored = bytearray(record("a\x01x\x02b\x01y", body=b"body" * 10))
    stored[at % len(stored)] = value
    assert isinstance(property_bytes(bytes(stored)), bytes)
    assert property_bytes(bytes(stored[:at])) in bytes(stored)


def counted(expression: str) -> tuple[SqlFilter, list[Any]]:
    """Return a filter, and a list that records the values of each of its calls."""
    sql, asked = SqlFilter(expression), []
    judge = sql.matches_values

    def note(values):
        asked.append(list(values))
        return judge(values)

    sql.matches_values = note
    return sql, asked


def test_verdicts_about_long_values_are_not_cached() -> None:
    sql, asked = counted("a CONTAINS 'y'")
    wanted = sql_record_filter(sql)
    for _ in range(2):
        assert not wanted.matches(record("a\x01" + "x" * (VERDICT_BYTES_MAX + 1)))
    assert len(asked) == 2


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "VERDICTS_MAX", 4)
    wanted = sql_record_filter(SqlFilter("a >= 5"))
    for number in [*range(10), *range(10)]:
        assert wanted.matches(record(f"a\x01{number}")) is (number >= 5)
        assert len(records._verdicts) <= 4


EXPRESSIONS = ["a > 5", "a > 6", "a = '6'", "b IS NULL", "a > 5 AND b = 'x'", "b = 'x' OR a = 7"]
VALUES = st.sampled_from(["", "5", "6", "7", "x", "y" * VERDICT_BYTES_MAX])


def test_cached_verdicts_equal_those_of_the_expression() -> None:
    asked = 0
    judged: list[object] = []

    @given(st.lists(st.tuples(st.sampled_from(EXPRESSIONS), VALUES, VALUES), max_size=40))
    def check(looks: list[tuple[str, str, str]]) -> None:
        nonlocal asked
        for expression, a, b in looks:
            asked += 1
            text = f"b\x01{b}\x02a\x01{a}"
            said = sql_record_filter(compile_sql(expression)).matches(record(text))
            assert said is SqlFilter(expression).matches(parse_properties(text))

    with pytest.MonkeyPatch.context() as patch:
        judge = records._judge
        patch.setattr(records, "_judge", lambda *args: (judged.append(args), judge(*args))[1])
        check()

    assert len(judged) < asked * 3 // 4


@pytest.mark.parametrize(("comparisons", "count"), [(1, 16), (8, 8), (64, 1), (300, 1)])
def test_one_read_tests_fewer_records_the_more_an_expression_compares(
    comparisons: int, count: int
) -> None:
    text = " OR ".join(f"p = '{number}'" for number in range(comparisons))
    assert sql_record_filter(compile_sql(text)).block.count_max == count


def test_a_test_of_long_values_pauses_often() -> None:
    """A property of 32 KB that is searched 90 times, each time for another text."""
    text = " OR ".join(f"p CONTAINS '{'a' * (50 + number % 30)}{number}b'" for number in range(90))
    stored = record(f"p\x01{'a' * 32_000}")
    test, pauses = sql_record_filter(compile_sql(text)).tester(), 0
    while (verdict := test(stored)) is None:
        pauses += 1
    assert verdict is False
    assert pauses > 10
