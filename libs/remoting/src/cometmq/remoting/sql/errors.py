# SPDX-License-Identifier: Apache-2.0
"""Errors in expressions, in the words of RocketMQ's parser.

Compatibility: clients show the text to users unchanged, prefixed with the Java class, and tools
search for it.
"""

from typing import Final

_PARSER: Final = "org.apache.rocketmq.filter.parser."


class SqlError(ValueError):
    """The expression is invalid; the text is the remark of code 23."""

    start: int | None = None
    """The index of a character that begins no token; None for other errors."""


def syntax_error(text: str) -> SqlError:
    """Return the error for an expression that violates the grammar."""
    return SqlError(f"{_PARSER}ParseException: {text}")


def lexical_error(text: str) -> SqlError:
    """Return the error for a character that cannot start a token."""
    return SqlError(f"{_PARSER}TokenMgrError: Lexical error {text}")


def meaning_error(text: str) -> SqlError:
    """Return the error for an operand of the wrong type."""
    return SqlError(f"java.lang.RuntimeException: {text}")


def number_error(text: str) -> SqlError:
    """Return the error for a number that is out of range."""
    return SqlError(f'java.lang.NumberFormatException: For input string: "{text}"')


def escaped(text: str) -> str:
    """Return a string escaped the way Java's parser shows it."""
    return "".join(_ESCAPES.get(char) or _printable(char) for char in text)


_ESCAPES: Final = {
    "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r",
    '"': '\\"', "'": "\\'", "\\": "\\\\",
}  # fmt: skip


def _printable(char: str) -> str:
    if " " <= char <= "~":
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
