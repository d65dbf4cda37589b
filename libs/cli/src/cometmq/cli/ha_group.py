# SPDX-License-Identifier: Apache-2.0
"""A broker group for the commands of `cometmq ha`: its record, and connections to its members."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from cometmq.cli.access import resolved_access, tls_config_name
from cometmq.cli.option_sets import OptionSet
from cometmq.client.errors import InvalidArgument
from cometmq.control.client import MemberClient
from cometmq.control.controlled import Report, Target
from cometmq.elector.plan import Plan, plan_of, record_of
from cometmq.elector.settings import PREFIX, ElectorSettings
from cometmq.ha.actions import Statuses
from cometmq.ha.group_key import KeyFile
from cometmq.ha.port import RecordPort, RecordUnreachable
from cometmq.ha.record import RecordDamaged, Versioned
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.runtime.settings import load
from cometmq.runtime.tls_keys import client_tls, client_tls_of_file

STATUS_TIMEOUT_MS: Final = 2_000
READ_TIMEOUT_MS: Final = 5_000


class HaFailed(CometError):
    """A command for a group cannot be carried out; the error message contains the remedy."""


class GroupOptions(OptionSet, frozen=True, kw_only=True):
    """The options that describe a group, common to the commands of `cometmq ha`."""

    config: Annotated[
        Path | None,
        typer.Option(
            "-c", "--config", help="The elector's settings file, which describes the group."
        ),
    ] = None
    group: Annotated[str, typer.Option("--group", help="Name of the broker group.")] = ""
    record: Annotated[
        str,
        typer.Option("--record", help="Location of its record: file:/PATH or etcd:HOST:PORT/KEY."),
    ] = ""
    members: Annotated[
        str,
        typer.Option("--members", help="Its brokers, as 0=HOST:CONTROLPORT;1=HOST:CONTROLPORT."),
    ] = ""
    group_key_file: Annotated[
        str,
        typer.Option(
            "--group-key-file", help="File with the group's key, if its brokers have groupKeyFile."
        ),
    ] = ""

    def settings(self) -> ElectorSettings:
        """Return the elector's settings with these options; raise InvalidArgument on errors."""
        given = {
            "brokerName": self.group,
            "groupRecord": self.record,
            "controlMembers": self.members,
            "groupKeyFile": self.group_key_file,
        }
        options = {name: value for name, value in given.items() if value}
        names = {
            "brokerName": "--group", "groupRecord": "--record", "controlMembers": "--members",
            "groupKeyFile": "--group-key-file",
        }  # fmt: skip
        try:
            settings = load(
                ElectorSettings, prefix=PREFIX, file=self.config, cli=options, options=names
            )
            plan_of(settings.value)
        except SettingsError as error:
            advice = (
                "; give --group, --record and --members, or the elector's settings file with -c"
            )
            hint = "" if self.config else advice
            raise SettingsError(f"{error}{hint}") from error
        return settings.value


class OpenGroup:
    """An open group: its record, and connections to its members."""

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
    def statuses(self) -> Statuses:
        """Return the answers of the last `ask`."""
        return tuple(report.status for report in self.reports.values())

    async def read(self) -> Versioned | None:
        """Return the record; raise HaFailed if it cannot be read."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_MS / 1000):
                found = await self.record.read()
        except (RecordUnreachable, RecordDamaged) as error:
            raise HaFailed(f"{error}; check --record and the place that it names") from error
        except TimeoutError as error:
            raise HaFailed(
                f"the record {self.place} did not answer within {READ_TIMEOUT_MS} ms"
            ) from error
        if found is not None and found.record.group != self.plan.group.name:
            raise HaFailed(
                f"the record {self.place} is that of group {found.record.group!r}, not of"
                f" {self.plan.group.name!r}: correct --record or --group"
            )
        return found

    async def found(self) -> Versioned:
        """Return the record; raise HaFailed if there is none."""
        found = await self.read()
        if found is None:
            raise HaFailed(
                f"group {self.plan.group.name!r} has no record in {self.place}: start an elector"
                " (cometmq elector), and see cometmq ha status"
            )
        return found

    async def ask(self) -> None:
        """Ask all members for their status."""
        self.reports.clear()
        self.faults.clear()
        async with asyncio.TaskGroup() as tasks:
            for ordinal in self.clients:
                tasks.create_task(self._ask(ordinal))

    async def report_of(self, ordinal: int) -> Report:
        """Return one member's answer; raise HaFailed if there is none."""
        if ordinal not in self.clients:
            known = ", ".join(map(str, self.clients))
            raise InvalidArgument(
                f"group {self.plan.group.name!r} has no broker {ordinal}; it has {known}"
            )
        await self._ask(ordinal)
        if ordinal in self.faults:
            raise HaFailed(self.faults[ordinal])
        return self.reports[ordinal]

    async def _ask(self, ordinal: int) -> None:
        try:
            report = await self.clients[ordinal].status(timeout_ms=STATUS_TIMEOUT_MS)
        except CometError as error:
            self.faults[ordinal] = str(error)
        else:
            self.reports[ordinal] = report


@asynccontextmanager
async def opened(options: GroupOptions) -> AsyncIterator[OpenGroup]:
    """Open a group; connections are made as needed."""
    settings = options.settings()
    plan = plan_of(settings)
    try:
        record, tls = record_of(settings), _tls(settings)
        path = settings.group_key_file
        keys = KeyFile(Path(path), "--group-key-file").keys if path else ()
    except SettingsError as error:
        raise InvalidArgument(str(error)) from error
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


def _tls(settings: ElectorSettings) -> TlsSettings:
    """Return the TLS settings of the --tls-config file, or else the elector's client settings."""
    access = resolved_access()
    if access.tls_config is not None:
        return client_tls_of_file(access.tls_config, tls_config_name(access.tls_config))
    return msgspec.structs.replace(
        client_tls(settings), enable=settings.tls_client.is_on or access.is_tls
    )
