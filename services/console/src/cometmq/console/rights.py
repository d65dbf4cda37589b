# SPDX-License-Identifier: Apache-2.0
"""The rights of accounts at each broker, and "may X do Y?", for the console and the command
line.
"""

from asyncio import TaskGroup
from collections.abc import Mapping
from typing import NamedTuple

from cometmq.client.admin import AdminClient
from cometmq.insight.definitions import IS_OFF, rights_of
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.remoting.errors import CometError
from cometmq.runtime.acl.verdict import Deed, exempt_addresses, verdict


class AccountRow(NamedTuple):
    """One account, and the brokers that know it. Its secret never leaves this module."""

    name: str
    is_admin: bool
    topic_default: str
    group_default: str
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    addresses: str
    brokers: tuple[str, ...]
    differs: bool
    """Whether brokers have different rights for it."""


class Answer(NamedTuple):
    """Whether an account may do something at one broker, and which rule decides."""

    broker: str
    is_allowed: bool | None
    """None if the broker does not return its accounts."""
    reason: str


class Told(NamedTuple):
    """The accounts of the brokers that return them, and why the others do not."""

    configs: Mapping[str, AclConfig]
    refusals: Mapping[str, str]
    """Why the other brokers do not return their accounts, by broker."""

    def rows(self) -> list[AccountRow]:
        """Return one row for each account, whichever brokers have it."""
        homes: dict[str, dict[str, AclAccount]] = {}
        for broker, config in self.configs.items():
            for it in config.plain_access_configs:
                homes.setdefault(it.access_key, {})[broker] = it
        return [_row(name, its) for name, its in sorted(homes.items())]

    @property
    def white(self) -> dict[str, list[str]]:
        """The addresses that need no account, by broker."""
        return {it: config.global_white_addrs for it, config in self.configs.items()}

    def exempt(self, who: str) -> list[str]:
        """Return the addresses from which an account may do everything at some broker."""
        found = (exempt_addresses(it, who) for it in self.configs.values())
        return sorted({address for addresses in found for address in addresses})

    def answers(self, who: str, deed: Deed, name: str) -> list[Answer]:
        """Return each broker's answer; one without access control allows everything."""
        return sorted([
            *(Answer(it, *verdict(config, who, deed, name)) for it, config in self.configs.items()),
            *(Answer(it, True if why == IS_OFF else None, why)
              for it, why in self.refusals.items()),
        ])  # fmt: skip


async def told_rights(admin: AdminClient) -> Told:
    """Ask all masters at the same time."""
    masters = await admin.masters()
    configs, refusals = {}, {}

    async def ask(name: str) -> None:
        try:
            told = await rights_of(masters[name])
        except CometError as error:
            told = str(error)
        if isinstance(told, str):
            refusals[name] = told
        else:
            configs[name] = told

    async with TaskGroup() as tasks:
        for name in masters:
            tasks.create_task(ask(name))
    return Told(dict(sorted(configs.items())), refusals)


def _row(name: str, homes: dict[str, AclAccount]) -> AccountRow:
    one = next(iter(homes.values()))
    return AccountRow(
        name, one.admin, one.default_topic_perm or "DENY", one.default_group_perm or "DENY",
        tuple(sorted(one.topic_perms or ())), tuple(sorted(one.group_perms or ())),
        one.white_remote_address or "", tuple(sorted(homes)),
        any(it != one for it in homes.values()),
    )  # fmt: skip
