# SPDX-License-Identifier: Apache-2.0
r"""Java `.properties` text: the format of RocketMQ's configuration files and config bodies.

Layout: one `key=value` (or `key: value`, `key value`) per line; `#` and `!` start a comment. A
backslash escapes the next character, or continues the line if it is the last character; `\uXXXX`
is a UTF-16 code unit. The only possible syntax error is a malformed `\u` escape. A byte order mark,
which Windows editors write, is skipped; Java takes it for a part of the first key.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

BYTE_ORDER_MARK = "\ufeff"
_BLANK = " \t\f"
_UNESCAPE = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
_IN_VALUES = str.maketrans(_ESCAPE)
_IN_KEYS = str.maketrans(_ESCAPE | {character: f"\\{character}" for character in " =:#!"})


class Property(NamedTuple):
    """One key with its value."""

    key: str
    value: str
    line: int
    """The number of the line where it begins."""
    has_sign: bool
    """Whether `=` or `:` separates key and value; without one, any line of prose is a valid
    property.
    """


def parse(text: str) -> dict[str, str]:
    r"""Parse the text; if a key is repeated, the last value wins.

    Raise ValueError for a malformed `\u` escape.
    """
    return {it.key: it.value for it in parse_lines(text)}


def parse_lines(text: str) -> Iterator[Property]:
    """Yield each key with its value."""
    for line, number in _logical_lines(text.removeprefix(BYTE_ORDER_MARK)):
        key_end, value_start = _split(line)
        yield Property(
            _unescape(line[:key_end], number),
            _unescape(line[value_start:], number),
            number,
            line[key_end:value_start].strip(_BLANK) != "",
        )


def render(values: Mapping[str, str]) -> str:
    """Return one escaped `key=value` line per pair, in a form that Java reads back unchanged."""
    return "".join(
        f"{key.translate(_IN_KEYS)}={_escape_value(value)}\n" for key, value in values.items()
    )


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Join continued lines; skip blank lines and comments."""
    joined, first = "", 0
    for number, raw in enumerate(_natural_lines(text), start=1):
        line = raw.lstrip(_BLANK)
        if not first:
            if not line or line[0] in "#!":
                continue
            first = number
        joined += line
        if _ends_in_open_backslash(line):
            joined = joined[:-1]
            continue
        yield joined, first
        joined, first = "", 0
    if first:
        yield joined, first


def _natural_lines(text: str) -> list[str]:
    # not splitlines(): it also splits at U+2028, form feed and others, which Java does not
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _ends_in_open_backslash(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[int, int]:
    """Return the positions where the key ends and the value begins."""
    key_end = len(line)
    escaped = False
    for position, character in enumerate(line):
        if not escaped and character in "=: \t\f":
            key_end = position
            break
        escaped = character == "\\" and not escaped
    start = key_end
    while start < len(line) and line[start] in _BLANK:
        start += 1
    if start < len(line) and line[start] in "=:":
        start += 1
        while start < len(line) and line[start] in _BLANK:
            start += 1
    return key_end, start


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            out.append(character)
            continue
        escaped = text[position]
        position += 1
        if escaped == "u":
            out.append(_unit(text[position : position + 4], line_number))
            position += 4
        else:
            out.append(_UNESCAPE.get(escaped, escaped))
    return _join_surrogates("".join(out))


def _unit(digits: str, line_number: int) -> str:
    if len(digits) != 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        raise ValueError(f"line {line_number}: malformed \\uxxxx escape")
    return chr(int(digits, 16))


def _join_surrogates(text: str) -> str:
    """Combine surrogate pairs into characters; a lone surrogate becomes U+FFFD."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escape_value(value: str) -> str:
    escaped = value.translate(_IN_VALUES)
    return "\\" + escaped if escaped[:1] == " " else escaped
