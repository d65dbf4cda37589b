# SPDX-License-Identifier: Apache-2.0
"""The options of `cometmq ha` that describe a broker group, and the group that they open."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cometmq.cli.access import resolved_access, tls_config_name
from cometmq.cli.option_sets import OptionSet
from cometmq.client.errors import InvalidArgument
from cometmq.control.controlled import Report
from cometmq.elector.open_group import OpenGroup, open_group
from cometmq.elector.plan import plan_of
from cometmq.elector.settings import ElectorSettings
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings import load
from cometmq.runtime.tls_keys import client_tls, client_tls_of_file


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
                ElectorSettings,
                prefix=PROGRAMS["elector"].prefix,
                file=self.config,
                cli=options,
                options=names,
            )
            plan_of(settings.value)
        except SettingsError as error:
            advice = (
                "; give --group, --record and --members, or the elector's settings file with -c"
            )
            hint = "" if self.config else advice
            raise SettingsError(f"{error}{hint}") from error
        return settings.value


@asynccontextmanager
async def opened(options: GroupOptions) -> AsyncIterator[OpenGroup]:
    """Open a group; connections are made as needed."""
    settings = options.settings()
    async with AsyncExitStack() as stack:
        try:
            group = await stack.enter_async_context(
                open_group(settings, _tls(settings), key_setting="--group-key-file")
            )
        except SettingsError as error:
            raise InvalidArgument(str(error)) from error
        yield group


async def report_of(group: OpenGroup, ordinal: int) -> Report:
    """Return one member's answer; raise InvalidArgument if the group has no such member."""
    check_member(group, ordinal)
    return await group.report_of(ordinal)


def check_member(group: OpenGroup, ordinal: int) -> None:
    """Raise InvalidArgument if the group has no such member."""
    if ordinal not in group.clients:
        known = ", ".join(map(str, group.clients))
        raise InvalidArgument(f"group {group.name!r} has no broker {ordinal}; it has {known}")


def _tls(settings: ElectorSettings) -> TlsSettings:
    """Return the TLS settings of the --tls-config file, or else the elector's client settings."""
    access = resolved_access()
    if access.tls_config is not None:
        return client_tls_of_file(access.tls_config, tls_config_name(access.tls_config))
    return msgspec.structs.replace(
        client_tls(settings), enable=settings.tls_client.is_on or access.is_tls
    )
