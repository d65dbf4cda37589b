# SPDX-License-Identifier: Apache-2.0
"""How values look in texts: names instead of numbers, and long values shortened."""

from enum import IntEnum
from typing import Final

CHARS_MAX: Final = 100
_END_CHARS: Final = 20
_NUMBER_TYPES: Final = frozenset("bcdoxXneEfFgG%")
"""The last characters with which a format specification asks for a number."""


class NamedNumber(IntEnum):
    """Numbers of RocketMQ that are printed by their names, and compare as numbers."""

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        """Return the name; with the type of a number, such as `:d`, return the number."""
        return format(int(self) if spec[-1:] in _NUMBER_TYPES else self.name, spec)


def shown(value: object) -> str:
    """Return the repr of a value, with the middle of a long one left out.

    Otherwise, a message passed as a queue by mistake would be printed with its whole body.
    """
    text = repr(value)
    if len(text) <= CHARS_MAX:
        return text
    return f"{text[: CHARS_MAX - _END_CHARS]}... {text[-_END_CHARS:]}"
