# SPDX-License-Identifier: Apache-2.0
"""Keeps the input of forms whose session has expired, until the user has logged in again.

Drafts stay in memory. A draft is kept only if the form has the token of the expired session, and
only the user of that session gets it back. URLs contain the id of a draft, not its text. Secrets
and tokens are not kept.
"""

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.console.login.roles import User
from cometmq.runtime.clock import Clock

LIFE_MS: Final = 30 * 60_000
ARGUMENT_CHARS_MAX: Final = 1 << 20
"""The most characters of one argument that are kept; users have longer texts in files."""
TOTAL_CHARS_MAX: Final = 4 << 20
COUNT_MAX: Final = 100
PER_USER_MAX: Final = 5
UNKEPT: Final = frozenset({"csrf", "mark", "confirm", "preview", "json", "secret", "draft"})
"""Arguments that are not part of the user's input, or are secret."""

Args = Mapping[str, list[str]]


class Draft(NamedTuple):
    """The arguments of one form."""

    args: Args
    is_whole: bool
    """Whether no argument was too long to be kept."""


class _Kept(NamedTuple):
    owner: tuple[str, str]
    path: str
    draft: Draft
    chars: int
    at_ms: int


def kept(args: Args) -> dict[str, list[str]]:
    """Return the arguments without those in UNKEPT."""
    return {name: values for name, values in args.items() if name not in UNKEPT}


class Drafts:
    """All drafts, the oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._drafts: dict[str, _Kept] = {}

    def keep(self, user: User, path: str, args: Args) -> str:
        """Keep the arguments of a form without those that are too long; return the draft's id."""
        whole = kept(args)
        short = {name: it for name, it in whole.items() if _chars(name, it) <= ARGUMENT_CHARS_MAX}
        chars = sum(_chars(name, it) for name, it in short.items())
        draft = Draft(short, len(short) == len(whole))
        owner = _owner(user)
        own = [id_ for id_, it in self._drafts.items() if it.owner == owner]
        for id_ in own[: max(0, len(own) + 1 - PER_USER_MAX)]:
            del self._drafts[id_]
        self._expire()
        while self._drafts and (
            len(self._drafts) >= COUNT_MAX
            or chars + sum(it.chars for it in self._drafts.values()) > TOTAL_CHARS_MAX
        ):
            del self._drafts[next(iter(self._drafts))]
        id_ = secrets.token_urlsafe(16)
        self._drafts[id_] = _Kept(owner, path, draft, chars, self._clock.monotonic_ms())
        return id_

    def find(self, id_: str, user: User, path: str) -> Draft | None:
        """Return the user's draft for the form at a path; None if it is not kept."""
        self._expire()
        found = self._drafts.get(id_)
        if found is None or found.owner != _owner(user) or found.path != path:
            return None
        return found.draft

    def _expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for id_ in [id_ for id_, it in self._drafts.items() if now_ms - it.at_ms >= LIFE_MS]:
            del self._drafts[id_]


def _chars(name: str, values: list[str]) -> int:
    return len(name) + sum(map(len, values))


def _owner(user: User) -> tuple[str, str]:
    return user.name, user.how  # an OpenID user may choose the name of an account
