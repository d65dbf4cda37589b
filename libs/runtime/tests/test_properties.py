# SPDX-License-Identifier: Apache-2.0
"""Properties are parsed as java.util.Properties parses them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.runtime import properties

CASES = {
    "a=1": {"a": "1"},
    "a = 1 ": {"a": "1 "},
    "a:1\nb 2\nc": {"a": "1", "b": "2", "c": ""},
    "# note\n! note\n\n  a=1": {"a": "1"},
    "a=1\r\nb=2\rc=3": {"a": "1", "b": "2", "c": "3"},
    "a=x\\\n   y\nb=1": {"a": "xy", "b": "1"},
    "a=x\\\\\nb=1": {"a": "x\\", "b": "1"},
    "a\\ b\\==c\\:d": {"a b=": "c:d"},
    "a=\\u00e4\\t\\n": {"a": "\u00e4\t\n"},
    "a=\\ud83d\\ude00": {"a": "\U0001f600"},
    "a==b": {"a": "=b"},
    "a=1\na=2": {"a": "2"},
    "a=1 # no comment": {"a": "1 # no comment"},
    "a=x\u2028y": {"a": "x\u2028y"},
    "\ufeffa=1\r\nb=2": {"a": "1", "b": "2"},
    "\ufeff# head\na=\ufeff1": {"a": "\ufeff1"},
    "a=1\\": {"a": "1"},
    "deleteWhen=04\nbrokerIP1 = 10.0.0.1": {"deleteWhen": "04", "brokerIP1": "10.0.0.1"},
}


@pytest.mark.parametrize("text", CASES)
def test_text_reads_as_java_reads_it(text):
    assert properties.parse(text) == CASES[text]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "\\u=1", "a=\\u 123"])
def test_a_broken_unicode_escape_is_an_error_with_its_line(text):
    with pytest.raises(ValueError, match="line 2"):
        properties.parse("x=1\n" + text)


def test_the_line_number_is_that_of_the_key():
    lines = list(properties.parse_lines("# note\na=1\\\n 2\n\nb : 3\nc 4\nd"))
    assert lines == [
        ("a", "12", 2, True),
        ("b", "3", 5, True),
        ("c", "4", 6, False),
        ("d", "", 7, False),
    ]


def test_render_writes_plain_lines_for_plain_values():
    assert properties.render({"listenPort": "9876", "x": "a b/c"}) == "listenPort=9876\nx=a b/c\n"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXTS.filter(bool), TEXTS))
def test_rendered_values_parse_to_the_same(values):
    assert properties.parse(properties.render(values)) == values


@given(st.text(max_size=200))
def test_any_text_parses_or_raises_value_error(text):
    try:
        properties.parse(text)
    except ValueError as error:
        assert "escape" in str(error)  # noqa: PT017  # any text may or may not have one
