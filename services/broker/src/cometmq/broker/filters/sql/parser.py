# SPDX-License-Identifier: Apache-2.0
"""Parses an expression into a tree: a node is created when a grammar rule is complete.

Compatibility: as in RocketMQ, an expression ends before the first token that cannot continue it,
and the rest is ignored (`a > 5 foo` is `a > 5`). Error messages are the same as RocketMQ's, and
list the tokens that its parser would have accepted.
"""

from collections.abc import Collection, Generator
from typing import Any, Final, NoReturn

from lark import Lark, Transformer, v_args
from lark import Token as Leaf
from lark.exceptions import UnexpectedToken
from lark.lexer import Lexer
from lark.parsers.lalr_interactive_parser import InteractiveParser

from cometmq.broker.filters.sql import nodes
from cometmq.broker.filters.sql.grammar import GRAMMAR, SHOWN, check_length
from cometmq.broker.filters.sql.nodes import Node
from cometmq.remoting.sql.errors import SqlError, escaped, syntax_error
from cometmq.remoting.sql.lexer import END, LATER_KEYWORDS, Token, place, tokens

PART_TOKENS: Final = 64
"""Tokens parsed per step, which takes about 0.4 ms."""

_SYMBOLS: Final = {"GREATER": ">", "GREATER_EQUAL": ">=", "LESS": "<", "LESS_EQUAL": "<="}
_AFTER_NOT: Final = ("BETWEEN", "IN", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")


@v_args(inline=True)
class _Build(Transformer[Leaf, Node]):
    """Creates the nodes; each method is named after a grammar rule."""

    either = staticmethod(lambda left, _, right: nodes.logic("||", left, right))
    both = staticmethod(lambda left, _, right: nodes.logic("&&", left, right))
    equal = staticmethod(lambda left, _, right: nodes.equal(left, right))
    unequal = staticmethod(lambda left, _, right: nodes.invert(nodes.equal(left, right)))
    is_null = staticmethod(lambda operand, *_: nodes.is_null(operand))
    is_not_null = staticmethod(lambda operand, *_: nodes.invert(nodes.is_null(operand)))
    compare = staticmethod(
        lambda left, word, right: nodes.ordered(_SYMBOLS[word.type], left, right)
    )
    between = staticmethod(lambda value, _, low, __, high: nodes.between(value, low, high))
    not_between = staticmethod(
        lambda value, _, __, low, ___, high: nodes.not_between(value, low, high)
    )
    texts = staticmethod(lambda *texts: tuple(nodes.unquoted(leaf.value) for leaf in texts))
    within = staticmethod(lambda value, _, texts: nodes.within(value, texts, is_negated=False))
    not_within = staticmethod(
        lambda value, _, __, texts: nodes.within(value, texts, is_negated=True)
    )
    search = staticmethod(
        lambda value, word, leaf: nodes.search(
            word.type, value, nodes.unquoted(leaf.value), is_negated=False
        )
    )
    not_search = staticmethod(
        lambda value, _, word, leaf: nodes.search(
            word.type, value, nodes.unquoted(leaf.value), is_negated=True
        )
    )
    plus = staticmethod(lambda operand: operand)
    minus = staticmethod(nodes.minus)
    invert = staticmethod(lambda _, operand: nodes.invert(operand))
    text = staticmethod(lambda leaf: nodes.text(leaf.value))
    whole = staticmethod(lambda leaf: nodes.whole(leaf.value))
    floating = staticmethod(lambda leaf: nodes.floating(leaf.value))
    true = staticmethod(lambda _: nodes.Constant(True))
    false = staticmethod(lambda _: nodes.Constant(False))
    null = staticmethod(lambda _: nodes.Constant(None))
    name = staticmethod(lambda leaf: nodes.Property(leaf.value))


class FedTokens(Lexer):
    """A placeholder for the lexer that Lark requires; `feed` itself passes the tokens to the
    parser.
    """

    def __init__(self, _: Any) -> None: ...

    def lex(self, *_: Any) -> NoReturn:
        raise AssertionError("tokens are fed")


_PARSER: Final = Lark(GRAMMAR, parser="lalr", lexer=FedTokens, transformer=_Build())


def parse(text: str) -> Node:
    """Return the condition in an expression; raise SqlError if it is invalid."""
    parts = parsing(text)
    while True:
        try:
            next(parts)
        except StopIteration as end:
            node: Node = end.value
            return node


def parsing(text: str) -> Generator[None, None, Node]:
    """Parse like `parse`, but yield after each step."""
    check_length(text)
    parser = _PARSER.parse_interactive()
    last = yield from feed(parser, text)
    try:
        node: Node = parser.copy(deepcopy_values=False).feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedToken as error:
        raise _unexpected(text, parser, last, _accepted(parser)) from error
    return nodes.as_condition(node)


def feed(parser: InteractiveParser, text: str) -> Generator[None, None, Token]:
    """Feed the parser; return the first token that it does not accept."""
    for number, token in enumerate(tokens(text)):
        if number % PART_TOKENS == PART_TOKENS - 1:
            yield
        choices = parser.choices()  # type: ignore[no-untyped-call]  # of lark
        kind = token.kind
        if kind in LATER_KEYWORDS and kind not in choices:
            kind = "ID"
        if kind == END or kind not in choices:
            return token
        try:
            parser.feed_token(Leaf(kind, token.image, token.start))
        except UnexpectedToken:
            return token
    raise AssertionError("the tokens end with END")


def _unexpected(
    text: str, parser: InteractiveParser, token: Token, expected: Collection[str]
) -> SqlError:
    """Return the error for a token that the grammar does not allow at its position."""
    stack = parser.parser_state.value_stack
    kinds = [leaf.type if isinstance(leaf, Leaf) else "" for leaf in stack]
    wanted = [kind for kind in SHOWN if kind in expected]
    if "PLUS" in kinds:  # RocketMQ looks ahead of a plus and blames it for the next token
        token, wanted = _blamed_token(stack[kinds.index("PLUS")]), _operand_kinds()
    elif kinds[-1:] == ["NOT"] and "BETWEEN" in expected:  # the same for a NOT after an operand
        token, wanted = _blamed_token(stack[-1]), list(_AFTER_NOT)
    elif kinds[-1:] == ["IS"]:
        wanted = ["NOT"]
    names = [name for name in wanted if name not in LATER_KEYWORDS and name != "PLUS"]
    found, index = '"<EOF>"', len(text) - 1
    if token.kind != END:
        found, index = f'" {SHOWN[token.kind]} "{escaped(token.image)} ""', token.start
    return syntax_error(
        f"Encountered {found} at {place(text, index)}.\n"
        f"Was expecting{'' if len(names) == 1 else ' one of'}:\n"
        + "".join(f"    {SHOWN[name]} ...\n" for name in names)
        + "    "
    )


def _blamed_token(leaf: Leaf) -> Token:
    return Token(leaf.type, leaf.value, leaf.start_pos or 0)


def _operand_kinds() -> list[str]:
    accepted = _accepted(_PARSER.parse_interactive())
    return [kind for kind in SHOWN if kind in accepted]


def _accepted(parser: InteractiveParser) -> set[str]:
    accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]  # of lark
    return accepted
