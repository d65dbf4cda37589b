# SPDX-License-Identifier: Apache-2.0
"""The clusters that a user has named: one file for the command line and the console.

The file may contain secret keys, so it is refused if other users can read it. Changes hold a lock
on its folder, and replace the file as a whole.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from cometmq.remoting.errors import UNREADABLE_JSON, SettingsError
from cometmq.remoting.spelling import did_you_mean
from cometmq.runtime.files import link_target

VARIABLE: Final = "COMETMQ_CONTEXT"
PREVIOUS: Final = "-"
"""The name that stands for the context that was selected before, as in `cd -`."""

FILE_BYTES_MAX: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_FOR_OTHERS: Final = 0o077


class Context(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How to connect to one cluster; an empty value leaves the default."""

    namesrv: str = ""
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    credentials: str = ""
    """Path of a file with the access key and the secret, instead of the two fields."""
    tls: bool = False
    tls_config: str = ""
    namespace: str = ""

    @property
    def has_account(self) -> bool:
        """Return whether the context names an account."""
        return bool(self.access_key or self.secret_key or self.credentials)


class Contexts(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The content of the file."""

    current: str = ""
    previous: str = ""
    contexts: dict[str, Context] = {}

    def select(self, name: str) -> str:
        """Make a context the current one, and return its name; `-` stands for the previous one.

        Raise SettingsError if there is no such context.
        """
        if name == PREVIOUS:
            if not self.previous:
                raise SettingsError("no other context was in use before: name one")
            name = self.previous
        self.named(name)
        if name != self.current:
            self.previous, self.current = self.current, name
        return name

    def remove(self, name: str) -> None:
        """Remove a context; raise SettingsError if there is none of this name."""
        self.named(name)
        del self.contexts[name]
        self.current = "" if self.current == name else self.current
        self.previous = "" if self.previous == name else self.previous

    def named(self, name: str) -> Context:
        """Return a context; raise SettingsError if there is none of this name."""
        found = self.contexts.get(name)
        if found is None:
            raise SettingsError(
                f"there is no context {name}{did_you_mean(name, self.contexts)}; to see all:"
                f" cometmq context list; to make it: cometmq context add {name} -n HOST:PORT"
            )
        return found


def contexts_path() -> Path:
    """Return the path of the file, which need not exist."""
    folder = os.getenv("XDG_CONFIG_HOME") or ""
    base = Path(folder) if folder.startswith("/") else Path.home() / ".config"
    return base / "cometmq" / "contexts.json"


def read_contexts(path: Path) -> Contexts:
    """Read the file; without it, there are no contexts.

    Raise SettingsError if others can read or change it, or if its content is wrong.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise SettingsError(f"cannot read the contexts in {path}: {error.strerror}") from error
    if mode & _FOR_OTHERS:
        raise SettingsError(
            f"{path} may contain secret keys, but other users can read it (mode"
            f" {mode & 0o777:04o}): chmod 600 {path}"
        )
    if len(data) > FILE_BYTES_MAX:
        raise SettingsError(f"{path} is larger than {FILE_BYTES_MAX:,} bytes: it has no contexts")
    try:
        found = msgspec.json.decode(data, type=Contexts)
    except UNREADABLE_JSON as error:
        raise SettingsError(
            f"{path} has no contexts: {error}; correct it, or move it away and add them again:"
            " cometmq context add"
        ) from error
    for name in found.contexts:
        check_name(name)
    return found


@contextmanager
def changed_contexts(path: Path) -> Iterator[Contexts]:
    """Yield the content of the file, and replace the file by it at the end, unless the body raises.
    Other processes wait meanwhile.
    """
    path = link_target(path)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        found = read_contexts(path)
        yield found
        _write(path, found)
    finally:
        os.close(folder)


def check_name(name: str) -> None:
    """Raise SettingsError for a name that a shell or a terminal could misread."""
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is no name of a context: give 1 to 64 letters, digits and _ . @ -, beginning"
            " with a letter or digit"
        )


def _write(path: Path, contexts: Contexts) -> None:
    data = msgspec.json.format(msgspec.json.encode(contexts), indent=2)
    fresh = path.with_name(f"{path.name}.tmp")
    try:
        fresh.unlink(missing_ok=True)  # its mode may be wrong
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> SettingsError:
    return SettingsError(f"cannot write the contexts to {path}: {error.strerror or error}")
