# SPDX-License-Identifier: Apache-2.0
"""Integer types for headers and bodies, with the bounds of Java's int and long.

Because of the bounds, the decoder rejects numbers that could not be packed later.
"""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_LONG_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = len(str(_LONG_MAX))


def whole(text: str | bytes) -> int | None:
    """Return the number in a peer's text of ASCII digits; None for other texts, and above a Java
    long.

    `int` is not enough: it reads the digits of all scripts, and raises ValueError above 4,300
    digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        return None
    number = int(text)
    return number if number <= _LONG_MAX else None
