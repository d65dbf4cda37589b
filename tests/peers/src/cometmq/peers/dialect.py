# SPDX-License-Identifier: Apache-2.0
"""Reads the JSON that Java servers write: keys may be bare numbers or whole objects.

Keys that are objects become their canonical text. Strings that hold such an object, as in strict
JSON, become the same text, so values with the same meaning compare equal.
"""

import json
from typing import Any, Final

_DECODER: Final = json.JSONDecoder()


def parse(text: str) -> Any:
    value, end = _value(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise ValueError(f"text after the value at {end}")
    return value


def _value(text: str, position: int) -> tuple[Any, int]:
    if text[position] == "{":
        return _object(text, position)
    if text[position] == "[":
        return _array(text, position)
    return _DECODER.raw_decode(text, position)


def _object(text: str, position: int) -> tuple[dict[str, Any], int]:
    """Parse an object; any value may be a key."""
    members: dict[str, Any] = {}
    position = _skip(text, position + 1)
    while text[position] != "}":
        key, position = _value(text, position)
        position = _expect(text, position, ":")
        members[_key_text(key)], position = _value(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return members, position + 1


def _array(text: str, position: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    position = _skip(text, position + 1)
    while text[position] != "]":
        item, position = _value(text, position)
        items.append(item)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return items, position + 1


def _key_text(key: Any) -> str:
    if isinstance(key, str) and key.startswith("{"):
        key = json.loads(key)
    return key if isinstance(key, str) else json.dumps(key, sort_keys=True)


def _expect(text: str, position: int, mark: str) -> int:
    position = _skip(text, position)
    if text[position] != mark:
        raise ValueError(f"{mark!r} expected at {position}")
    return _skip(text, position + 1)


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
