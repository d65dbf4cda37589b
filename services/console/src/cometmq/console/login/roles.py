# SPDX-License-Identifier: Apache-2.0
"""Roles, in ascending order, and the user of a request."""

from enum import IntEnum
from typing import Final

import msgspec

from cometmq.remoting.errors import SettingsError


class Role(IntEnum):
    """What a user may do; each role includes those below it."""

    NONE = 0
    VIEWER = 1
    """See all pages, without message bodies of topics that the account may not read."""
    OPERATOR = 2
    """Change offsets, replay dead letters, resolve transactions, disconnect clients."""
    ADMIN = 3
    """Also create, alter and delete topics and groups, change settings and accounts."""


WORDS: Final = {role.name.lower(): role for role in Role}


def role_of(word: str, place: str) -> Role:
    """Return the role of this name; raise SettingsError naming `place` if there is none."""
    role = WORDS.get(word.strip().lower())
    if role is None:
        raise SettingsError(f"{place}: {word!r} is no role; give {', '.join(WORDS)}")
    return role


class User(msgspec.Struct, frozen=True):
    """The user of a request."""

    name: str
    role: Role
    how: str
    """How the user logged in: `account`, `token`, `oidc`; empty for an anonymous user."""

    @property
    def is_anonymous(self) -> bool:
        return not self.how
