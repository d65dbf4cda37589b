# SPDX-License-Identifier: Apache-2.0
"""The objects that all pages and actions share: clients, history, audit log and clock."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.client.admin import AdminClient
from cometmq.console.audit import Audit
from cometmq.console.jobs import Jobs
from cometmq.console.login.accounts import ReadingRights
from cometmq.console.settings import ConsoleSettings
from cometmq.insight.findings import Findings
from cometmq.insight.model import Snapshot
from cometmq.insight.reading import ReadingAdmin
from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock

if TYPE_CHECKING:
    from cometmq.console.history.source import History


ANALYSES_MAX: Final = 2


class Desk:
    """The objects that all pages and actions share."""

    def __init__(  # noqa: PLR0913  # one parameter per part
        self,
        settings: ConsoleSettings,
        *,
        admin: AdminClient,
        reader: ReadingAdmin,
        snapshot: Callable[[], Awaitable[Snapshot]],
        renew: Callable[[], None],
        findings: Findings,
        history: "History",
        audit: Audit,
        clock: Clock,
        log: Log,
    ) -> None:
        self.settings = settings
        self.rights = ReadingRights(settings.readable_topics)
        self.admin = admin
        """The client for changes, which raises if a broker does not answer."""
        self.reader = reader
        """Creates the client of each page, which continues without brokers that do not answer."""
        self.snapshot = snapshot
        self.renew = renew
        """Called after a change, so that the next page takes a new snapshot."""
        self.findings = findings
        self.history = history
        self.audit = audit
        self.analyses = asyncio.Semaphore(ANALYSES_MAX)
        """Limits how many samples of topics are read at the same time."""
        self.jobs = Jobs(clock, log)
        self.clock = clock
        self.log = log

    @property
    def folder(self) -> str:
        """The folder of the history and the audit log, as shown in `cometmq` commands."""
        return str(Path(self.settings.store_path_root_dir).absolute())

    @property
    def prefix(self) -> str:
        """The path below which browsers see the console; empty or without a slash at its end."""
        return self.settings.prefix
