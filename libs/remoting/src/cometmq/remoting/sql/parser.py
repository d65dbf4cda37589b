# SPDX-License-Identifier: Apache-2.0
"""The grammar of SQL92 filters, and a parser that ends where RocketMQ's ends.

Compatibility: this is RocketMQ 4.9.4's precedence with its quirks (NOT and signs bind tighter than
any comparison, comparisons may be chained, IN accepts only strings), plus the operators that 5.x
added: CONTAINS, STARTSWITH, ENDSWITH. Terminals have the names that appear in error messages. An
expression ends before the first token that cannot continue it, and the rest is ignored
(`a > 5 foo` is `a > 5`). Error messages are RocketMQ's, and list the tokens that its parser would
have accepted.

Importing this module takes 45 ms, nearly all of it for Lark.
"""

from collections.abc import Collection, Generator, Mapping
from functools import cache
from typing import Any, Final, NoReturn, TypeVar

from lark import Lark
from lark import Token as Leaf
from lark.exceptions import UnexpectedToken
from lark.lexer import Lexer
from lark.parsers.lalr_interactive_parser import InteractiveParser

from cometmq.remoting.sql.errors import SqlError, escaped, syntax_error
from cometmq.remoting.sql.lexer import END, LATER_KEYWORDS, SYMBOLS, Token, place, tokens

T = TypeVar("T")

PART_TOKENS: Final = 64
"""Tokens parsed per step, which takes about 0.4 ms."""

GRAMMAR: Final = r"""
?start: or_expression

?or_expression: and_expression
    | or_expression OR and_expression -> either

?and_expression: equality
    | and_expression AND equality -> both

?equality: comparison
    | equality EQUAL comparison -> equal
    | equality UNEQUAL comparison -> unequal
    | equality IS NULL -> is_null
    | equality IS NOT NULL -> is_not_null

?comparison: unary
    | comparison (GREATER | GREATER_EQUAL | LESS | LESS_EQUAL) unary -> compare
    | comparison BETWEEN unary AND unary -> between
    | comparison NOT BETWEEN unary AND unary -> not_between
    | comparison IN texts -> within
    | comparison NOT IN texts -> not_within
    | comparison (CONTAINS | STARTSWITH | ENDSWITH) STRING_LITERAL -> search
    | comparison NOT (CONTAINS | STARTSWITH | ENDSWITH) STRING_LITERAL -> not_search

texts: "(" STRING_LITERAL ("," STRING_LITERAL)* ")"

?unary: primary
    | "+" unary -> plus
    | "-" unary -> minus
    | NOT unary -> invert

?primary: "(" or_expression ")"
    | STRING_LITERAL -> text
    | DECIMAL_LITERAL -> whole
    | FLOATING_POINT_LITERAL -> floating
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | ID -> name

%declare NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH
%declare DECIMAL_LITERAL FLOATING_POINT_LITERAL STRING_LITERAL ID
%declare EQUAL UNEQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL
"""

_WORDS: Final = ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS")
_LITERALS: Final = ("DECIMAL_LITERAL", "FLOATING_POINT_LITERAL", "STRING_LITERAL", "ID")

SHOWN: Final[Mapping[str, str]] = {
    **{name: f'"{name}"' for name in (*_WORDS, "CONTAINS", "STARTSWITH", "ENDSWITH")},
    **{name: f"<{name}>" for name in _LITERALS},
    **{name: f'"{symbol}"' for symbol, name in SYMBOLS.items()},
}
"""The names of terminals in error messages, in the order in which they are listed."""

_AFTER_NOT: Final = ("BETWEEN", "IN", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")


class FedTokens(Lexer):
    """A placeholder for the lexer that Lark requires; `feed` itself passes the tokens to the
    parser.
    """

    def __init__(self, _: Any) -> None: ...

    def lex(self, *_: Any) -> NoReturn:
        """Fail, because nothing calls it."""
        raise AssertionError("tokens are fed")


@cache
def parser_of(transformer: Any = None) -> Lark:
    """Return a parser, whose transformer makes a node when a grammar rule is complete."""
    return Lark(GRAMMAR, parser="lalr", lexer=FedTokens, transformer=transformer)


def parsing(text: str, grammar: Lark) -> Generator[None, None, tuple[Any, Token]]:
    """Parse an expression, and yield after each step; return its node, and the first token that is
    ignored: of kind END if there is none. Raise SqlError for a syntax error.
    """
    parser = grammar.parse_interactive()
    last = yield from _feed(parser, text)
    try:
        return parser.copy(deepcopy_values=False).feed_eof(), last  # type: ignore[no-untyped-call]
    except UnexpectedToken as error:
        raise _unexpected(text, parser, last, _accepted(grammar.parse_interactive())) from error


def end_of(parts: Generator[None, None, T]) -> T:
    """Return the result of a parse, without a pause between its steps."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            found: T = end.value
            return found


def _feed(parser: InteractiveParser, text: str) -> Generator[None, None, Token]:
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
    text: str, parser: InteractiveParser, token: Token, operands: Collection[str]
) -> SqlError:
    """Return the error for a token that the grammar does not allow at its position; `operands` are
    the tokens that may begin one.
    """
    expected = _accepted(parser)
    stack = parser.parser_state.value_stack
    kinds = [leaf.type if isinstance(leaf, Leaf) else "" for leaf in stack]
    wanted = [kind for kind in SHOWN if kind in expected]
    if "PLUS" in kinds:  # RocketMQ looks ahead of a plus and blames it for the next token
        token = _blamed_token(stack[kinds.index("PLUS")])
        wanted = [kind for kind in SHOWN if kind in operands]
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


def _accepted(parser: InteractiveParser) -> set[str]:
    accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]  # of lark
    return accepted
