# SPDX-License-Identifier: Apache-2.0
"""A broker group for administrators: its record, and connections to its members."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from cometmq.control.client import MemberClient
from cometmq.control.controlled import Report, Target
from cometmq.elector.plan import Plan, plan_of, record_of
from cometmq.elector.settings import ElectorSettings
from cometmq.ha.actions import Statuses, leads
from cometmq.ha.port import RecordPort, RecordUnreachable
from cometmq.ha.proof import KeyFile
from cometmq.ha.record import Record, RecordDamaged, Versioned
from cometmq.remoting.errors import CometError
from cometmq.remoting.transport.settings import TlsSettings

STATUS_TIMEOUT_MS: Final = 2_000
READ_TIMEOUT_MS: Final = 5_000


class GroupFailed(CometError):
    """A request of an administrator cannot be carried out; the message names the remedy."""


class OpenGroup:
    """A group's record and connections to its members, while `open_group` is entered."""

    def __init__(
        self, plan: Plan, record: RecordPort, clients: dict[int, MemberClient], place: str
    ) -> None:
        self.plan = plan
        self.record = record
        self.clients = clients
        self.place = place
        self.reports: dict[int, Report] = {}
        self.faults: dict[int, str] = {}

    @property
    def name(self) -> str:
        return self.plan.group.name

    @property
    def statuses(self) -> Statuses:
        """Return the answers to the last `ask`; members that did not answer are missing."""
        return tuple(report.status for report in self.reports.values())

    async def read(self) -> Versioned | None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_MS / 1000):
                found = await self.record.read()
        except (RecordUnreachable, RecordDamaged) as error:
            raise GroupFailed(f"{error}; check --record and the place that it names") from error
        except TimeoutError as error:
            raise GroupFailed(
                f"the record {self.place} did not answer within {READ_TIMEOUT_MS} ms"
            ) from error
        if found is not None and found.record.group != self.name:
            raise GroupFailed(
                f"the record {self.place} is that of group {found.record.group!r}, not of"
                f" {self.name!r}: correct --record or --group"
            )
        return found

    async def found(self) -> Versioned:
        found = await self.read()
        if found is None:
            raise GroupFailed(
                f"group {self.name!r} has no record in {self.place}: start an elector"
                " (cometmq elector), and see cometmq ha status"
            )
        return found

    async def ask(self) -> None:
        self.reports.clear()
        self.faults.clear()
        async with asyncio.TaskGroup() as tasks:
            for ordinal in self.clients:
                tasks.create_task(self._ask(ordinal))

    async def report_of(self, ordinal: int) -> Report:
        await self._ask(ordinal)
        if ordinal in self.faults:
            raise GroupFailed(self.faults[ordinal])
        return self.reports[ordinal]

    def has_master(self, record: Record) -> bool:
        report = self.reports.get(record.holder.ordinal)
        return report is not None and leads(report.status, record)

    async def _ask(self, ordinal: int) -> None:
        try:
            report = await self.clients[ordinal].status(timeout_ms=STATUS_TIMEOUT_MS)
        except CometError as error:
            self.reports.pop(ordinal, None)
            self.faults[ordinal] = str(error)
        else:
            self.faults.pop(ordinal, None)
            self.reports[ordinal] = report


@asynccontextmanager
async def open_group(
    settings: ElectorSettings, tls: TlsSettings, *, key_setting: str = "groupKeyFile"
) -> AsyncIterator[OpenGroup]:
    """Open the group that an elector's settings describe; connections are made as needed.

    Raise SettingsError, with the name `key_setting`, if the record's location or the key file is
    unusable.
    """
    plan = plan_of(settings)
    record, path = record_of(settings), settings.group_key_file
    keys = KeyFile(Path(path), key_setting).keys if path else ()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(record.close)
        clients: dict[int, MemberClient] = {}
        for ordinal, address in sorted(plan.addresses.items()):
            client = MemberClient(
                address,
                Target(plan.group.name, ordinal),
                tls=tls,
                tls_name=settings.control_tls_name,
                keys=lambda: keys,
            )
            stack.push_async_callback(client.close)
            clients[ordinal] = client
        yield OpenGroup(plan, record, clients, settings.group_record)
