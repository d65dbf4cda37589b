# SPDX-License-Identifier: Apache-2.0
"""What a setting can declare beside its type, in `Annotated[type, facts..., "description"]`.

msgspec enforces the bounds; `runtime/settings/fields.py` reads the other facts.
"""

from typing import Annotated, Final

from msgspec import Meta

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]

MUTABLE: Final = Meta(extra={"mutable": True})
"""May change while the program runs."""
INEFFECTIVE: Final = Meta(extra={"ineffective": True})
"""Accepted, but without effect; the description gives the reason."""
GUARD: Final = Meta(extra={"guard": True})
"""Protects the program from its peers; a mistyped name is refused."""
SECRET: Final = Meta(extra={"secret": True})
"""Never shown."""


def form(words: str) -> Meta:
    """Describe the values that a `pattern` allows, in words that can follow "must be"."""
    return Meta(extra={"form": words})


def variable(name: str) -> Meta:
    """Name a second environment variable that gives the value."""
    return Meta(extra={"env": name})
