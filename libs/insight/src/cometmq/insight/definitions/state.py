# SPDX-License-Identifier: Apache-2.0
"""The definitions of a running cluster, read from all its masters and its name servers."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import BrokerMissing
from cometmq.insight.changes.topics import is_servers_topic
from cometmq.insight.definitions.form import (
    FORMAT,
    VERSION,
    AccountEntry,
    AddressesEntry,
    Definitions,
    E,
    Entry,
    GroupEntry,
    TopicEntry,
    name_of,
)
from cometmq.insight.words import moment
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.errors import CometError, TransportError
from cometmq.remoting.names import (
    BOOT_GROUPS,
    CLIENT_GROUPS,
    ORDER_NAMESPACE,
    is_system_group,
)

S = TypeVar("S", bound=msgspec.Struct)

IS_OFF: Final = "access control is off (aclEnable=false)"

Table = dict[str, dict[str, E]]
"""Entries by broker and name."""


class State(msgspec.Struct, frozen=True):
    """The definitions of a running cluster."""

    namesrv: str
    masters: Mapping[str, BrokerAdmin]
    reserved: frozenset[str]
    """The names of brokers and clusters; brokers create topics with these names."""
    topics: Table[TopicEntry]
    groups: Table[GroupEntry]
    accounts: Table[AccountEntry]
    addresses: Table[AddressesEntry]
    order_config: Mapping[str, str]
    silent: Mapping[str, str]
    """The brokers that did not return their accounts, with the reasons."""
    secrets: Mapping[tuple[str, str], str] = {}
    """The secret keys that brokers returned over TLS, by broker and account; never shown."""

    def is_reserved_topic(self, name: str) -> bool:
        """Return whether servers create a topic themselves."""
        return name in self.reserved or is_servers_topic(name)

    def definitions(self, *, with_accounts: bool = True) -> Definitions:
        """Return the file that describes this cluster."""
        return Definitions(
            format=FORMAT,
            version=VERSION,
            exported_at=moment(wall_ms()),
            namesrv=self.namesrv,
            topics=self._entries(self.topics),
            order_config=dict(sorted(self.order_config.items())),
            groups=self._entries(self.groups),
            accounts=self._entries(self.accounts) if with_accounts else (),
            addresses=self._entries(self.addresses) if with_accounts else (),
        )

    def _entries(self, table: Table[E]) -> tuple[E, ...]:
        """Return one entry for all brokers that agree."""
        homes: dict[E, list[str]] = {}
        for broker, entries in sorted(table.items()):
            for entry in entries.values():
                homes.setdefault(entry, []).append(broker)
        everywhere = len(self.masters)
        found = [
            entry if len(its) == everywhere else msgspec.structs.replace(entry, brokers=tuple(its))
            for entry, its in homes.items()
        ]
        return tuple(sorted(found, key=lambda it: (name_of(it), it.brokers or ())))


def is_reserved_group(name: str) -> bool:
    """Return whether servers or clients create a group themselves."""
    return is_system_group(name) or name in CLIENT_GROUPS or name in BOOT_GROUPS


async def read_state(admin: AdminClient, *, is_whole: bool = True) -> State:
    """Read the definitions of all masters.

    If `is_whole` is set, raise CometError if a master does not answer, because a file without its
    definitions would look complete. Otherwise `admin` decides what to do about such masters.
    """
    masters: dict[str, BrokerAdmin] = {}
    for name, group in (await admin.broker_groups()).items():
        if MASTER_ID in group:
            masters[name] = group[MASTER_ID]
        elif is_whole:
            raise BrokerMissing(f"{name} has no master, so its definitions are unknown: start it")
        else:
            admin.without_master(name, [slave.address for slave in group.values()])
    if not masters:
        raise BrokerMissing("no broker is registered at the name servers")
    asked = admin.ask_all if is_whole else admin.ask_each
    topics = await asked(masters.values(), lambda it: it.topics())
    groups = await asked(masters.values(), lambda it: it.groups())
    rights = await asked(masters.values(), rights_of)
    told = {it.name: config for it, config in rights if isinstance(config, AclConfig)}
    state = State(
        namesrv=";".join(admin.namesrv.addresses),
        masters=masters,
        reserved=frozenset({*masters, *(await admin.cluster()).cluster_addr_table}),
        topics={},
        groups={
            broker.name: {
                name: _entry(GroupEntry, it)
                for name, it in table.items()
                if not is_reserved_group(name)
            }
            for broker, table in groups
        },
        accounts={
            broker: {it.access_key: account_entry(it) for it in config.plain_access_configs}
            for broker, config in told.items()
        },
        addresses={
            broker: {"": AddressesEntry(global_white_addrs=tuple(config.global_white_addrs))}
            for broker, config in told.items()
        },
        order_config=await admin.namesrv.kv_list(ORDER_NAMESPACE),
        silent={it.name: reason for it, reason in rights if isinstance(reason, str)},
        secrets={
            (broker, it.access_key): it.secret_key
            for broker, config in told.items()
            for it in config.plain_access_configs
            if it.secret_key and it.secret_key.strip("*")
        },
    )
    for broker, table in topics:
        state.topics[broker.name] = {
            name: _entry(TopicEntry, it)
            for name, it in table.items()
            if not state.is_reserved_topic(name)
        }
    return state


async def rights_of(broker: BrokerAdmin) -> AclConfig | str:
    """Return a broker's accounts, or the reason as text if it does not return them.

    RocketMQ's brokers do not answer this request without access control.
    """
    try:
        if (await broker.config()).get("aclEnable") == "false":
            return IS_OFF
        return await broker.acl_config()
    except TransportError:
        raise
    except CometError as error:
        return str(error)


def _entry(kind: type[E], config: msgspec.Struct) -> E:
    names = set(config.__struct_fields__)
    own = [name for name in kind.__struct_fields__ if name in names]
    return kind(**{name: getattr(config, name) for name in own})


def account_entry(account: AclAccount) -> AccountEntry:
    """Return an account without its secret; rights that are not set deny."""
    return AccountEntry(
        access_key=account.access_key,
        admin=account.admin,
        default_topic_perm=account.default_topic_perm or "DENY",
        default_group_perm=account.default_group_perm or "DENY",
        topic_perms=tuple(sorted(account.topic_perms or ())),
        group_perms=tuple(sorted(account.group_perms or ())),
        white_remote_address=account.white_remote_address or "",
    )


def topic_config(entry: TopicEntry) -> TopicConfig:
    """Return the settings of a topic in the form that brokers accept."""
    return TopicConfig(**_own(entry))


def group_config(entry: GroupEntry) -> SubscriptionGroupConfig:
    """Return the settings of a group in the form that brokers accept."""
    return SubscriptionGroupConfig(**_own(entry))


def _own(entry: Entry) -> dict[str, Any]:
    fields = entry.__struct_fields__
    return {name: getattr(entry, name) for name in fields if name != "brokers"}
