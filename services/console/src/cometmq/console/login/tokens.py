# SPDX-License-Identifier: Apache-2.0
"""Tokens: secrets in a file, each with a name and a role."""

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final

from cometmq.console.login.roles import User, role_of
from cometmq.remoting.errors import SettingsError

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
LENGTH_MIN: Final = 16
GENERATED: Final = "token"


class Tokens:
    """The valid tokens, by their digests."""

    def __init__(self, users: dict[str, User]) -> None:
        self._users = users

    def find(self, token: str) -> User | None:
        """Return the user of a token."""
        digest = _digest(token)
        found = None
        for known, user in self._users.items():  # all, so that the time tells nothing
            if hmac.compare_digest(known, digest):
                found = user
        return found


def read_tokens(path: Path, setting: str) -> Tokens:
    """Read lines of `name role token`; raise SettingsError for any other, without its token."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{setting}: cannot read {path}: {error}") from error
    users: dict[str, User] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        place = f"{path}:{number}"
        words = line.split()
        if len(words) != 3:
            raise SettingsError(f"{place}: give a name, a role and a token, separated by spaces")
        name, role, token = words
        is_digest = _DIGEST.fullmatch(token) is not None
        if not is_digest and len(token) < LENGTH_MIN:
            raise SettingsError(f"{place}: a token has at least {LENGTH_MIN} characters")
        digest = token if is_digest else _digest(token)
        users[digest] = User(name, role_of(role, place), "token")
    return Tokens(users)


def own_token(folder: Path) -> Path:
    """Return the file with the generated token of an admin; create it if it is missing.

    Raise OSError if it cannot be written; no part of it stays.
    """
    path = folder / GENERATED
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"# name role token\nadmin admin {secrets.token_urlsafe(24)}\n")
    except OSError:
        path.unlink()  # an empty file would be taken for the token's from now on
        raise
    return path


def _digest(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
