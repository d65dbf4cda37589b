# SPDX-License-Identifier: Apache-2.0
"""Errors of expressions, in the words of RocketMQ's parser.

Compatibility: clients show the text unchanged to users, with the Java class in front, and tools
search for it.
"""

from typing import Final

_PARSER: Final = "org.apache.rocketmq.filter.parser."


class SqlError(ValueError):
    """An invalid expression; the text is the remark of code 23."""


class EvaluationError(Exception):
    """Values that cannot be compared: the message does not match."""


def syntax_error(text: str) -> SqlError:
    """Return the error of an expression that breaks the grammar."""
    return SqlError(f"{_PARSER}ParseException: {text}")


def lexical_error(text: str) -> SqlError:
    """Return the error of a character that starts no token."""
    return SqlError(f"{_PARSER}TokenMgrError: Lexical error {text}")


def meaning_error(text: str) -> SqlError:
    """Return the error of an expression with operands of the wrong type."""
    return SqlError(f"java.lang.RuntimeException: {text}")


def number_error(text: str) -> SqlError:
    """Return the error of a number out of range."""
    return SqlError(f'java.lang.NumberFormatException: For input string: "{text}"')


def escaped(text: str) -> str:
    """Return a text as Java's parser shows it."""
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
