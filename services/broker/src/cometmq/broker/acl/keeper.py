# SPDX-License-Identifier: Apache-2.0
"""Reloads the accounts of `AccessControl` when the account files change, and carries out requests
to change the files. A worker thread reads and writes, so the loop is not blocked.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cometmq.broker.acl.check import AccessControl
from cometmq.broker.acl.files import AclFiles
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.acl.accounts import Accounts
from cometmq.runtime.acl.errors import AclFileError
from cometmq.runtime.worker import Worker


class AclKeeper:
    """Reads and writes the files on a worker thread, which makes one change at a time."""

    def __init__(
        self, files: AclFiles, control: AccessControl, *, worker: Worker, log: Log
    ) -> None:
        self.control = control
        self._files = files
        self._worker = worker
        self._log = log
        self._polling: asyncio.Future[Accounts | None] | None = None
        self.fault: str | None = None
        """Why the files cannot be used, or None; only for the log, as it may quote secrets."""
        self.broken: Path | None = None
        """The file that cannot be used; None without a fault."""
        self.changed: Callable[[Accounts], None] = lambda _: None
        """Called with the previous accounts after each change of the accounts."""

    @property
    def gap(self) -> str | None:
        """Why every request is refused: there is no account; None if there is one."""
        if not self.control.accounts.is_empty:
            return None
        return (
            "access control is on without any account, so every request is refused: add accounts"
            f" to {self._files.path}"
        )

    @property
    def warning(self) -> str | None:
        """A warning that the next start would fail or lack accounts, because a file cannot be used;
        None if all can.
        """
        if self.broken is None:
            return None
        return (
            f"the account file {self.broken} cannot be used: the accounts read before stay valid"
            " until the next start; correct it as accounts.unreadable in the log says"
        )

    def poll(self) -> None:
        """Check whether files have changed; called by a timer."""
        if self._polling is None:
            self._polling = self._worker.submit(self._files.reload)
            self._polling.add_done_callback(self._polled)

    async def change(self, edit: Callable[[AclFiles], Accounts | None]) -> bool:
        """Change a file and use the new accounts; return False if there was nothing to change."""
        accounts = await self._worker.submit(partial(edit, self._files))
        if accounts is None:
            return False
        self._use(accounts)
        return True

    def _polled(self, done: asyncio.Future[Accounts | None]) -> None:
        self._polling = None
        error = done.exception()
        if error is None:
            accounts = done.result()
            if accounts is not None:
                self._use(accounts)
                self._log.info("accounts.reloaded", count=len(accounts.by_key))
            return
        fault = str(error) if isinstance(error, CometError) else describe(error)
        if fault != self.fault:
            self._log.error("accounts.unreadable", error=fault)
        self.fault = fault
        self.broken = error.path if isinstance(error, AclFileError) else self._files.path

    def _use(self, accounts: Accounts) -> None:
        before, self.control.accounts = self.control.accounts, accounts
        self.changed(before)
        self.fault = self.broken = None
