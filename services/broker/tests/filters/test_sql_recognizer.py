# SPDX-License-Identifier: Apache-2.0
"""The client's recognizer ends conditions where the broker's parser does, and warns if needed."""

import json
import re
from collections.abc import Generator
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import UnexpectedToken

from cometmq.broker.filters.sql.grammar import GRAMMAR
from cometmq.broker.filters.sql.parser import FedTokens, feed
from cometmq.client.errors import InvalidArgument
from cometmq.client.subscriptions.sql_doubts import doubt_of_condition
from cometmq.client.subscriptions.sql_syntax import read_tokens
from cometmq.remoting.sql.errors import SqlError
from cometmq.remoting.sql.lexer import Token

from .slow_sql import conditions

LINES = (Path(__file__).parent / "data" / "java_answers.jsonl").read_text().splitlines()
RECORDED = [json.loads(line)["sql"] for line in LINES]
WORDS = [
    *("a", "price", "'x'", "5", "2.5", "TRUE", "NULL", "=", "<>", ">", ">=", "<", "<="),
    *("(", ")", ",", "+", "-", "AND", "OR", "NOT", "IS", "IN", "BETWEEN", "CONTAINS"),
    *("STARTSWITH", "LIKE", "#", "--", "/**/"),
]
SYNTAX = Lark(GRAMMAR, parser="lalr", lexer=FedTokens)
texts = st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)
cut_texts = st.builds("{} {}".format, conditions.map(lambda one: one.text), texts)


def end_for_client(text: str) -> int | None:
    try:
        return read_tokens(text)[1].start
    except InvalidArgument:
        return None


def whole(parts: Generator[None, None, Token]) -> Token:
    while True:
        try:
            next(parts)
        except StopIteration as end:
            token: Token = end.value
            return token


def end_for_broker(text: str) -> int | None:
    """Parse with the broker's grammar, without checking values; return where the condition ends."""
    parser = SYNTAX.parse_interactive()
    try:
        token = whole(feed(parser, text))
    except SqlError:
        return None
    try:
        parser.feed_eof()
    except UnexpectedToken:
        return None
    return token.start


def test_recorded_conditions_end_at_the_same_token() -> None:
    ends = {text: (end_for_client(text), end_for_broker(text)) for text in RECORDED}
    assert {text: end for text, end in ends.items() if end[0] != end[1]} == {}
    assert len(ends) > 300


@given(texts | cut_texts)
@example("a BETWEEN ( 5 ) AND 6 + 1")
@example("a IS NULL > 5")
@example("contains CONTAINS 'x' contains")
def test_any_condition_ends_at_the_same_token(text: str) -> None:
    assert end_for_client(text) == end_for_broker(text)


@given(texts | cut_texts)
def test_exactly_the_conditions_that_are_cut_off_are_reported_so(text: str) -> None:
    """A comment cut off at the end is harmless, even though it lacks the required line end."""
    end = end_for_broker(text)
    is_cut = end is not None and re.fullmatch(r"(--[^\n\r]*)?", text[end:]) is None
    doubt = "" if end is None else doubt_of_condition(text)
    assert is_cut == ("ignore everything" in doubt or "LIKE does not exist" in doubt)
