# SPDX-License-Identifier: Apache-2.0
"""Reads and rewrites the account files. Calls block: use a worker thread.

All files are read together, and accounts are returned only if every file is valid. Before a change
is written, its result is validated together with the other files. A file is replaced atomically, so
a crash leaves either the old or the new version.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.log import Log
from cometmq.remoting.settled import Settled
from cometmq.runtime.acl.accounts import Account, Accounts
from cometmq.runtime.acl.addresses import Addresses
from cometmq.runtime.acl.documents import Document
from cometmq.runtime.acl.errors import AclError, AclFileError
from cometmq.runtime.files import link_target
from cometmq.store.json_config import TEMPORARY_SUFFIX, OsFiles
from cometmq.store.layout import FOREIGN

TOOLS_FILE: Final = "tools.yml"
"""The admin tools' own key file; it may be in the folder, but is not an account file."""

DOUBTS_SHOWN_MAX: Final = 16
"""Maximum number of misspelt keys and words that one event names."""


class AclFiles:
    """The account files: `plain_acl.yml`, and every `*.yml` in the folder `acl` next to it."""

    def __init__(
        self,
        path: Path,
        *,
        clock_ms: Callable[[], int],
        log: Log,
        files: OsFiles | None = None,
    ) -> None:
        """`files` lets tests inject disk failures."""
        self.path = path
        self.folder = path.parent / "acl"
        self._clock_ms = clock_ms
        self._log = log
        self._files = files or OsFiles()
        self._texts: Settled[Mapping[Path, bytes] | None] = Settled(None)
        self._filled: frozenset[Path] = frozenset()  # the files in use that are not blank
        self._owners: Mapping[str, Path] = {}
        self._versions: Mapping[Path, DataVersion] = {}
        self._doubted: Mapping[str, tuple[bytes, Sequence[str]]] = {}

    def load(self) -> Accounts:
        """Read all files; raise AclFileError if any of them cannot be used."""
        texts = self._read()
        self._texts.used = texts
        accounts = self._parse_all(texts)
        self._filled = _filled(texts)
        self._warn(accounts, texts, is_by_hand=True)
        return accounts

    def reload(self) -> Accounts | None:
        """Read the files again; return the accounts if changed files are now used, otherwise None.

        Changed files are used once two successive calls find the same content: a half-written file
        may be valid, but lack accounts. A file that has become blank is not used at all: programs
        leave such files behind when the disk is full.
        """
        try:
            texts = self._read()
            if not self._texts.take(texts):
                return None
            self._check_filled(texts)
        except AclFileError:
            self._texts.used = None  # so that the next read that succeeds ends the fault
            raise
        return self.load()

    def put_account(self, config: AclAccount) -> Accounts:
        """Add an account to plain_acl.yml, or change an existing account in its own file."""
        path = self._owner(config.access_key) or self.path
        return self._change(path, lambda document: document.put_account(config))

    def delete_account(self, access_key: str) -> Accounts | None:
        """Delete an account; return None if it does not exist."""
        path = self._owner(access_key)
        if path is None:
            return None
        return self._change(path, lambda document: document.remove_account(access_key))

    def set_white_addresses(self, texts: Sequence[str], path: str | None) -> Accounts | None:
        """Replace a file's white addresses; return None if the file is unknown."""
        chosen = Path(path) if path else self.path
        if chosen != self.path and chosen not in self._read():
            return None
        return self._change(chosen, lambda document: document.set_white_addresses(texts))

    def _at_rest(self) -> dict[Path, bytes]:
        """Return the content of the files; raise AclFileError if one has just changed, because
        another program may still be writing it, or has become blank.
        """
        texts, used = self._read(), self._texts.used
        if used is not None and texts != used:
            moving = next(it for it in sorted({*texts, *used}) if texts.get(it) != used.get(it))
            raise AclFileError(
                moving, f"{moving} has just been changed by another program: try again in 2 seconds"
            )
        self._check_filled(texts)
        return texts

    def _check_filled(self, texts: Mapping[Path, bytes]) -> None:
        """Raise AclFileError if a file has lost its whole content."""
        blank = next((it for it in sorted(self._filled) if not texts.get(it, b"x").strip()), None)
        if blank is not None:
            raise AclFileError(
                blank,
                f"{blank} has become empty, and its accounts stay valid until the next start: "
                "restore it, or delete it to remove them",
            )

    def _owner(self, access_key: str) -> Path | None:
        self._parse_all(self._at_rest())
        return self._owners.get(access_key)

    def _read(self) -> dict[Path, bytes]:
        texts = {}
        for path in (*self._folder_files(), self.path):
            data = self._read_file(path)
            if data is not None:
                texts[path] = data
        return texts

    def _folder_files(self) -> list[Path]:
        names = {*self.folder.rglob("*.yml"), *self.folder.rglob("*.yaml")}
        return sorted(
            path
            for path in names
            if path.name != TOOLS_FILE and path != self.path and not self._is_hidden(path)
        )

    def _is_hidden(self, path: Path) -> bool:
        """Return whether an editor, a desktop or Kubernetes has made a file beside the others."""
        return any(part.startswith(FOREIGN) for part in path.relative_to(self.folder).parts)

    def _read_file(self, path: Path) -> bytes | None:
        try:
            return self._files.read(path)
        except OSError as error:
            raise AclFileError(path, f"{path}: {error.strerror}") from error

    def _parse_all(self, texts: Mapping[Path, bytes]) -> Accounts:
        accounts: list[Account] = []
        white: list[Addresses] = []
        owners: dict[str, Path] = {}
        versions: dict[Path, DataVersion] = {}
        doubts: dict[str, Sequence[str]] = {}
        for path, data in texts.items():
            if not data.strip():
                continue
            try:
                content = Document(str(data, "utf-8")).read()
            except ValueError as error:
                raise AclFileError(path, f"{path}: {error}") from error
            white += content.white_addresses
            versions[path] = content.version or DataVersion(0, self._clock_ms())
            if content.doubts:
                doubts[str(path)] = content.doubts
            for account in content.accounts:
                if account.access_key in owners:
                    self._log.warning(
                        "account.repeated", account=account.access_key, file=str(path)
                    )
                    continue
                owners[account.access_key] = path
                accounts.append(account)
        self._owners, self._versions = owners, versions
        return Accounts(
            accounts,
            white,
            version=versions.get(self.path) or DataVersion(0, self._clock_ms()),
            versions={str(path): version for path, version in versions.items()},
            doubts=doubts,
        )

    def _warn(self, accounts: Accounts, texts: Mapping[Path, bytes], *, is_by_hand: bool) -> None:
        """Log the misspelt keys and words of each file, once per version that was edited by hand.

        When an administrator's request rewrites a file, words that were already in it are not
        logged again.
        """
        data = {str(path): text for path, text in texts.items()}
        before = self._doubted
        self._doubted = {path: (data[path], found) for path, found in accounts.doubts.items()}
        for path, (text, found) in self._doubted.items():
            known = before.get(path, (b"", ()))
            if known[0] == text if is_by_hand else known[1] == found:
                continue
            more = [f"and {len(found) - DOUBTS_SHOWN_MAX} more"] * (len(found) > DOUBTS_SHOWN_MAX)
            self._log.warning(
                "accounts.misspelt", file=path, found=[*found[:DOUBTS_SHOWN_MAX], *more]
            )

    def _change(self, path: Path, edit: Callable[[Document], None]) -> Accounts:
        """Rewrite a file, provided that all files are valid together with its new content."""
        texts = self._at_rest()
        self._parse_all(texts)
        try:
            document = Document(str(texts.get(path, b""), "utf-8"))
            edit(document)
        except ValueError as error:
            raise AclError(f"{path}: {error}") from error
        old = self._versions.get(path) or DataVersion()
        data = document.text(old.next_version(self._clock_ms())).encode()
        changed = {**texts, path: data}
        accounts = self._parse_all(changed)
        self._warn(accounts, changed, is_by_hand=False)
        self._write(path, data)
        self._texts.used = changed
        self._filled = _filled(changed)
        return accounts

    def _write(self, path: Path, data: bytes) -> None:
        target = link_target(path)
        new = target.with_name(target.name + TEMPORARY_SUFFIX)
        try:
            new.parent.mkdir(parents=True, exist_ok=True)
            new.touch(mode=0o600)  # it contains secrets
            self._files.write(new, data)
            if target.exists():
                shutil.copymode(target, new)
            self._files.replace(new, target)
        except OSError as error:
            raise AclFileError(path, f"{path} cannot be saved: {error.strerror}") from error


def _filled(texts: Mapping[Path, bytes]) -> frozenset[Path]:
    return frozenset(path for path, data in texts.items() if data.strip())
