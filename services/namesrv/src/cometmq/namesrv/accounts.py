# SPDX-License-Identifier: Apache-2.0
"""Access control of a name server: every change requires an administrator's account.

The file is RocketMQ's plain_acl.yml, as brokers read it. Requests that only read, such as those of
clients for routes, need no account.

Compatibility: RocketMQ's name servers know no accounts, and its brokers sign no registrations, so
`aclEnable` is off by default.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.remoting.command import Call
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.table import PUBLIC, Service
from cometmq.remoting.errors import ServerError, SettingsError
from cometmq.remoting.settled import Settled
from cometmq.remoting.signature import ACCESS_KEY
from cometmq.runtime.acl import errors
from cometmq.runtime.acl.accounts import Account
from cometmq.runtime.acl.addresses import Addresses
from cometmq.runtime.acl.documents import Document

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
CHANGES: Final = frozenset(
    code
    for code, command in COMMANDS.items()
    if Service.NAMESRV in command.services and command.access is not PUBLIC
)
"""Codes of the requests that need an account: all that change something."""


class Accounts:
    """The accounts in a file. `refresh` reloads them; it and the constructor read the disk."""

    def __init__(self, path: Path, setting: str = "aclFile") -> None:
        """Read the file; raise SettingsError if it cannot be used."""
        self._path = path
        self._setting = setting
        self._content = Settled(self._read())
        self._accounts: Mapping[str, Account] = {}
        self._white: tuple[Addresses, ...] = ()
        self._use(self._content.used)
        self.refused_count = 0

    def check(self, _context: object, call: Call[Any]) -> None:
        """Raise ServerError if a change comes neither from an administrator nor from an address on
        the file's white list.
        """
        if call.code not in CHANGES:
            return
        host = call.peer.host
        if any(addresses.matches(host) for addresses in self._white):
            return
        try:
            self._check_account(call, host)
        except ServerError:
            self.refused_count += 1
            raise

    def refresh(self) -> bool:
        """Read the file again; return whether changed content came into use.

        Changed content is used once two successive calls find it, because the first may read a
        half-written file. Content that cannot be used raises SettingsError once, and the previous
        accounts stay valid.
        """
        if not self._content.take(self._read()):
            return False
        self._use(self._content.used)
        return True

    def _check_account(self, call: Call[Any], host: bytes) -> None:
        ext = call.ext
        key = ext.get(ACCESS_KEY)
        if key is None:
            raise errors.no_access_key()
        account = self._accounts.get(key)
        if account is None:
            raise errors.unknown_access_key(key)
        if not account.white_addresses.matches(host) and not account.signer.has_signed(
            ext, call.body
        ):
            raise errors.wrong_signature(key)
        if not account.is_admin:
            raise errors.not_admin(call.code, key)

    def _read(self) -> bytes | str:
        """Return the content of the file as bytes, or as str the reason why it cannot be read."""
        try:
            with self._path.open("rb") as file:
                return file.read(FILE_BYTES_MAX)
        except OSError as error:
            return error.strerror or str(error)

    def _use(self, content: bytes | str) -> None:
        shown = f"{self._setting}={self._path}"
        if isinstance(content, str):
            raise SettingsError(f"{shown}: {content}")
        try:
            found = Document(str(content, "utf-8")).read()
        except ValueError as error:
            raise SettingsError(f"{shown}: {error}") from error
        if not any(one.is_admin for one in found.accounts) and not found.white_addresses:
            raise SettingsError(
                f"{shown}: no account is an administrator, so no broker could register"
            )
        self._accounts = {one.access_key: one for one in reversed(found.accounts)}
        self._white = tuple(found.white_addresses)
