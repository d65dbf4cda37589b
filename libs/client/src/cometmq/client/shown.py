# SPDX-License-Identifier: Apache-2.0
"""Formats values for error messages; long values are shortened."""

from typing import Final

CHARS_MAX: Final = 100
_END_CHARS: Final = 20


def shown(value: object) -> str:
    """Return the repr of a value, without the middle if it is long.

    Otherwise, a message passed as a queue by mistake would be printed with its whole body.
    """
    text = repr(value)
    if len(text) <= CHARS_MAX:
        return text
    return f"{text[: CHARS_MAX - _END_CHARS]}... {text[-_END_CHARS:]}"
