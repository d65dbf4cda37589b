# SPDX-License-Identifier: Apache-2.0
"""The fast hash equals the plain loop for every kind of string."""

import sys
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.message.flags import (
    index_hash,
    index_hashes,
    java_hash,
    tag_code,
)

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def slow_java_hash(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) % 2**32
    return value - 2**32 if value >= 2**31 else value


def slow_index_hash(topic: str, key: str) -> int:
    value = abs(slow_java_hash(f"{topic}#{key}"))
    return 0 if value == 2**31 else value


HEX = st.text("0123456789ABCDEF", max_size=300)
ASCII = st.text(st.characters(max_codepoint=127), max_size=300)
LONG = st.builds(str.__mul__, st.text(min_size=1, max_size=9), st.integers(0, 300))
TEXTS = st.one_of(HEX, ASCII, st.text(max_size=40), LONG)


@given(TEXTS)
def test_java_hash_equals_its_slow_twin(text: str) -> None:
    assert java_hash(text) == slow_java_hash(text)
    assert tag_code(text) == slow_java_hash(text)


@given(TEXTS, TEXTS)
def test_index_hash_equals_its_slow_twin(topic: str, key: str) -> None:
    assert index_hash(topic, key) == slow_index_hash(topic, key)


@given(st.lists(st.tuples(TEXTS, st.one_of(HEX, HEX, TEXTS)), max_size=8))
def test_index_hashes_are_those_one_by_one(pairs: list[tuple[str, str]]) -> None:
    topics, keys = [topic for topic, _ in pairs], [key for _, key in pairs]
    assert index_hashes(topics, keys) == [slow_index_hash(topic, key) for topic, key in pairs]


def test_index_hashes_of_halves_of_surrogate_pairs() -> None:
    assert index_hashes(["T", "T"], ["0A", "\ud800"]) == [
        slow_index_hash("T", "0A"),
        index_hash("T", "\ud800"),
    ]


@pytest.mark.parametrize("text", ["", "0", "N", "O", "/", "_", " 1", "1_1", "polygenelubricants"])
def test_java_hash_at_the_borders_of_its_shortcuts(text: str) -> None:
    assert java_hash(text) == slow_java_hash(text)


@pytest.mark.parametrize("unit", ["k", "ä"])
def test_a_long_key_is_hashed_in_blocks(unit: str) -> None:
    """A query with a key of 60,000 characters made the event loop wait for 28 ms."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> "TraceFunction":
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        java_hash(unit * 20_000)
    finally:
        sys.settrace(before)
    assert 0 < lines < 2_000


def test_the_one_hash_without_an_absolute_value_is_zero() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    assert index_hash("polygenelubri", "") == slow_index_hash("polygenelubri", "")


def test_tag_code_without_a_tag_is_zero() -> None:
    assert tag_code(None) == 0
    assert tag_code("") == 0


def test_tag_codes_survive_more_tags_than_are_remembered() -> None:
    tags = [f"tag{number}" for number in range(5000)]
    assert [tag_code(tag) for tag in tags] == [slow_java_hash(tag) for tag in tags]
