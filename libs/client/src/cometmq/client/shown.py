# SPDX-License-Identifier: Apache-2.0
"""How values look in texts: long values are shortened."""

from typing import Final

CHARS_MAX: Final = 100
_END_CHARS: Final = 20


def shown(value: object) -> str:
    """Return the repr of a value, with the middle of a long one left out.

    Otherwise, a message passed as a queue by mistake would be printed with its whole body.
    """
    text = repr(value)
    if len(text) <= CHARS_MAX:
        return text
    return f"{text[: CHARS_MAX - _END_CHARS]}... {text[-_END_CHARS:]}"
