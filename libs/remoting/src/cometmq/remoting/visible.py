# SPDX-License-Identifier: Apache-2.0
"""Texts that clients have chosen, as they may be printed on a terminal."""

from typing import Final

_CONTROLS: Final = (range(0x09), range(0x0B, 0x20), range(0x7F, 0xA0))
_TURNS: Final = (
    range(0x061C, 0x061D), range(0x200E, 0x2010), range(0x2028, 0x202F), range(0x2066, 0x206A)
)  # fmt: skip
_ESCAPES: Final = {
    **{code: f"\\x{code:02x}" for codes in _CONTROLS for code in codes},
    **{code: f"\\u{code:04x}" for codes in _TURNS for code in codes},
}
_IN_JSON: Final = {code: f"\\u{code:04x}" for code in _ESCAPES if code >= 0x7F}


def visible(text: str) -> str:
    """Return a text with its control characters written out, except for the ends of lines and tabs;
    those that turn the direction of a line or separate lines are written out, too.

    Clients choose properties, keys and names; as they are, they could move the cursor, rename the
    terminal or hide what follows.
    """
    return text.translate(_ESCAPES)


def visible_json(text: str) -> str:
    """Return a JSON document with the control characters written out that JSON does not escape."""
    return text.translate(_IN_JSON)
