# SPDX-License-Identifier: Apache-2.0
"""Escapes texts that peers choose, so that they cannot control the terminal that prints them, or
become more than one word of a command that a user copies.
"""

from collections.abc import Sequence
from typing import Final

_CONTROLS: Final = (range(0x09), range(0x0B, 0x20), range(0x7F, 0xA0))
_TURNS: Final = (
    range(0x061C, 0x061D), range(0x200E, 0x2010), range(0x2028, 0x202F), range(0x2066, 0x206A)
)  # fmt: skip
_SURROGATES: Final = (range(0xD800, 0xE000),)
"""Bytes of arguments and paths that are not UTF-8; no stream can encode them."""
_ESCAPES: Final = {
    **{code: f"\\x{code:02x}" for codes in _CONTROLS for code in codes},
    **{code: f"\\u{code:04x}" for codes in _TURNS + _SURROGATES for code in codes},
}
_IN_JSON: Final = {code: f"\\u{code:04x}" for code in _ESCAPES if code >= 0x7F}


def is_utf8(text: str) -> bool:
    """Return whether a text has no lone surrogate, which Python makes of other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def visible(text: str) -> str:
    """Replace the control characters by escapes such as `\\x1b`, except tabs and newlines.

    Characters that separate lines or change the direction of writing are replaced, too. Clients
    choose properties, keys and names; unescaped, these could move the cursor, rename the terminal
    or hide the text behind them.
    """
    return text if text.isprintable() else text.translate(_ESCAPES)


def visible_line(text: str) -> str:
    """Escape newlines, too: a client id with one could otherwise add a line of its own, with
    advice, to what a command says.
    """
    return visible(text).replace("\n", "\\n")


def visible_json(text: str) -> str:
    """Escape the control characters of a JSON document that JSON itself leaves as they are."""
    return text.translate(_IN_JSON)


def command(verb: str, *names: str, options: Sequence[str] = ()) -> str:
    """Return a command line to copy: `cometmq group reset billing Orders --to first`.

    Peers choose names such as `$(id)` and `--yes`, so each name is quoted as one word for a shell,
    and never read as an option.
    """
    from shlex import quote  # noqa: PLC0415  # most commands of the CLI copy none

    arguments, given = [quote(it) for it in names], [quote(it) for it in options]
    if any(it.startswith("-") for it in names):
        return " ".join(["cometmq", verb, *given, "--", *arguments])
    return " ".join(["cometmq", verb, *arguments, *given])
