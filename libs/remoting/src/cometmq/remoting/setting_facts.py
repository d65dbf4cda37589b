# SPDX-License-Identifier: Apache-2.0
"""Facts that a setting can declare with its type: `Annotated[type, facts..., "description"]`.

msgspec enforces the bounds; `runtime/settings/fields.py` reads the other facts.
"""

from typing import Annotated, Final

from msgspec import Meta

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]

MUTABLE: Final = Meta(extra={"mutable": True})
"""The value may change while the program runs."""
INEFFECTIVE: Final = Meta(extra={"ineffective": True})
"""The setting is accepted but has no effect; its description gives the reason."""
GUARD: Final = Meta(extra={"guard": True})
"""The setting protects the program from its peers, so a mistyped name is refused, not ignored."""
SECRET: Final = Meta(extra={"secret": True})
"""The value is never printed, logged or reported."""

PATH: Final = Meta(extra={"path": True})
"""The value is a path; `~` at its beginning is a home folder."""


def form(words: str) -> Meta:
    """Describe the values that a `pattern` allows, in words that can follow "must be"."""
    return Meta(extra={"form": words})


def variable(name: str) -> Meta:
    """Name a second environment variable that gives the value."""
    return Meta(extra={"env": name})
