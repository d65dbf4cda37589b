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
from cometmq.remoting.settled import Settled

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
LENGTH_MIN: Final = 16
GENERATED: Final = "token"
INVALID: Final = (
    "the token is not valid: give the third word of its line in the token file, after name and role"
)


class Tokens:
    """The valid tokens of a file, by digest."""

    def __init__(self, path: Path | None, setting: str = "") -> None:
        """Read the file; raise SettingsError if it cannot be used. Without a file, no token is
        valid.
        """
        self._path = path
        self._setting = setting
        self._content = Settled(self._read())
        self._users = self._parsed(self._content.used)

    def find(self, text: str) -> User | None:
        """Return the user of a token, or of its whole line in the file."""
        return self.user_of(digest_in(text))

    def user_of(self, digest: str) -> User | None:
        found = None
        for known, user in self._users.items():  # all, so that the time tells nothing
            if hmac.compare_digest(known, digest):
                found = user
        return found

    def refresh(self) -> bool:
        """Read the file again; return whether the valid tokens have changed. Blocks.

        A change takes effect once two calls in a row find the same content, because a file may be
        read while it is written. A file that cannot be used raises SettingsError once, and the
        previous tokens remain valid.
        """
        if not self._content.take(self._read()):
            return False
        users, before = self._parsed(self._content.used), self._users
        self._users = users
        return users != before

    def _read(self) -> bytes | str:
        """Return the content of the file, or why it cannot be read."""
        if self._path is None:
            return b""
        try:
            return self._path.read_bytes()
        except OSError as error:
            return str(error)

    def _parsed(self, content: bytes | str) -> dict[str, User]:
        if isinstance(content, str):
            raise SettingsError(f"{self._setting}: cannot read {self._path}: {content}")
        try:
            return parse_tokens(content.decode(), str(self._path))
        except UnicodeDecodeError as error:
            raise SettingsError(f"{self._setting}: cannot read {self._path}: {error}") from error


def parse_tokens(text: str, path: str) -> dict[str, User]:
    """Return the users by the digests of their tokens.

    Each line has `name role token`; raise SettingsError for any other, without its token.
    """
    users: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), start=1):
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
        digest = token if is_digest else digest_of(token)
        users[digest] = User(name, role_of(role, place), "token")
    return users


def digest_in(text: str) -> str:
    """Return the digest of a token that is alone, or the third word of its line in the file."""
    words = text.split()
    return digest_of(words[-1] if len(words) == 3 else text.strip())


def own_token(folder: Path) -> Path:
    """Return the file with the generated token of an admin; create it if it is missing, and the
    folder, which only this user may read.

    Raise OSError if it cannot be written; nothing is left of it then.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / GENERATED
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            # one line, so that the content of the file can be given as it is
            file.write(f"admin admin {secrets.token_urlsafe(24)}\n")
    except OSError:
        path.unlink()  # an empty file would be taken for the token's from now on
        raise
    return path


def digest_of(token: str) -> str:
    """Return the digest of a token, which a file of tokens may contain instead of the token."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
