# SPDX-License-Identifier: Apache-2.0
"""The grammar of SQL92 filters, as data.

Compatibility: this is RocketMQ 4.9.4's precedence with its quirks (NOT and signs bind tighter than
any comparison, comparisons may be chained, IN accepts only strings), plus the operators that 5.x
added: CONTAINS, STARTSWITH, ENDSWITH. Terminals have the names that appear in error messages.
"""

from collections.abc import Mapping
from typing import Final

from cometmq.remoting.sql.errors import SqlError
from cometmq.remoting.sql.lexer import SYMBOLS

CHARS_MAX: Final = 8_192
"""Maximum length of an expression; parsing an expression of this length takes 25 ms, in steps."""


def check_length(text: str) -> None:
    """Raise SqlError if an expression is too long."""
    if len(text) > CHARS_MAX:
        raise SqlError(f"an expression may have at most {CHARS_MAX} characters, not {len(text)}")


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
