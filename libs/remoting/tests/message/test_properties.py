# SPDX-License-Identifier: Apache-2.0
"""Property text is parsed as Java parses it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.message.properties import (
    append_property,
    index_keys,
    join_properties,
    parse_properties,
    property_value,
    render_properties,
    without_property,
)
from cometmq.testing.remoting.strategies import property_maps

RAW_TEXTS = st.text(st.sampled_from("ab\x01\x02"), max_size=24)


def java_parse(text: str) -> dict[str, str]:
    """Parse the text with a transcription of the Java parser's loop."""
    found: dict[str, str] = {}
    index = 0
    while index < len(text):
        end = text.find("\x02", index)
        end = len(text) if end < 0 else end
        if end - index >= 3:
            separator = text.find("\x01", index)
            if index < separator < end - 1:
                found[text[index:separator]] = text[separator + 1 : end]
        index = end + 1
    return found


@given(RAW_TEXTS)
def test_any_text_is_parsed_as_java_does(text: str) -> None:
    assert parse_properties(text) == java_parse(text)


@given(RAW_TEXTS, st.sampled_from(["a", "b", "ab"]))
def test_one_value_is_found_as_the_full_parse_finds_it(text: str, key: str) -> None:
    assert property_value(text, key) == parse_properties(text).get(key)


@given(RAW_TEXTS, st.sampled_from(["a", "b", "ab"]))
def test_a_removed_property_is_gone_and_the_others_stay(text: str, key: str) -> None:
    expected = parse_properties(text)
    expected.pop(key, None)
    assert parse_properties(without_property(text, key)) == expected


@given(property_maps())
def test_rendered_properties_are_parsed_to_the_same(properties: dict[str, str]) -> None:
    assert parse_properties(render_properties(properties)) == properties


@pytest.mark.parametrize("text", ["", "a\x011", "a\x011\x02"])
def test_append_needs_no_care_for_the_separator(text: str) -> None:
    expected = parse_properties(text) | {"CLUSTER": "c"}
    assert parse_properties(append_property(text, "CLUSTER", "c")) == expected


def test_batch_properties_are_joined_with_one_separator() -> None:
    assert join_properties("a\x011", "b\x012") == "a\x011\x02b\x012"
    assert join_properties("a\x011\x02", "b\x012") == "a\x011\x02b\x012"
    assert join_properties("", "b\x012") == "b\x012"


def test_index_keys_begin_with_the_unique_key_and_skip_blanks() -> None:
    assert index_keys("U", "k1  k2 ") == ("U", "k1", "k2")
    assert index_keys(None, None) == ()
