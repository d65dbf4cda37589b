# SPDX-License-Identifier: Apache-2.0
"""Definitions, a backup of the settings of a cluster: the file, and the state it is written from.

The file is JSON with the names that RocketMQ's files use. An entry without `brokers` is for every
master; several entries of one name name different brokers. The file has no secret: brokers mask
them, and files are copied.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.topics import ORDER_CONFIG, order_excess
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import BrokerMissing, InvalidArgument
from cometmq.client.message import check_named
from cometmq.insight.changes.topics import is_servers_topic
from cometmq.insight.words import moment
from cometmq.remoting.bodies.acl import AclAccount, AclConfig
from cometmq.remoting.bodies.topic_config import QUEUES_MAX
from cometmq.remoting.errors import UNREADABLE_JSON, CometError, TransportError
from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.names import (
    BOOT_GROUPS,
    CLIENT_GROUPS,
    ORDER_NAMESPACE,
    is_system_group,
)

IS_OFF: Final = "access control is off (aclEnable=false)"
FORMAT: Final = "cometmq definitions"
VERSION: Final = 1
BYTES_MAX: Final = 16 << 20
_RIGHT: Final = r"\s*(DENY|PUB|SUB|PUB\|SUB|SUB\|PUB)\s*$"
QueueCount = Annotated[int, Meta(ge=0, le=QUEUES_MAX)]
Right = Annotated[str, Meta(pattern=f"^{_RIGHT}")]
NamedRight = Annotated[str, Meta(pattern=rf"^\s*[^\s=][^=]*={_RIGHT}")]


class Entry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", gc=False
):
    """The fields that all entries have."""

    brokers: tuple[str, ...] | UnsetType = UNSET
    """The brokers to which the entry applies; unset for all masters."""


class TopicEntry(Entry, frozen=True, kw_only=True, gc=False):
    """A topic and its settings."""

    topic_name: str
    read_queue_nums: QueueCount
    write_queue_nums: QueueCount
    perm: Annotated[int, Meta(ge=0, le=7)] = 6
    order: bool = False
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0


class GroupEntry(Entry, frozen=True, kw_only=True, gc=False):
    """A consumer group and its settings."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1


class AccountEntry(Entry, frozen=True, kw_only=True, gc=False):
    """An account without its secret."""

    access_key: Annotated[str, Meta(pattern=r"\S")]
    admin: bool = False
    default_topic_perm: Right = "DENY"
    default_group_perm: Right = "DENY"
    topic_perms: tuple[NamedRight, ...] = ()
    group_perms: tuple[NamedRight, ...] = ()
    white_remote_address: str = ""


class AddressesEntry(Entry, frozen=True, kw_only=True, gc=False):
    """The addresses that need no account."""

    global_white_addrs: tuple[str, ...] = ()


class Definitions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The content of a file of definitions."""

    format: str
    version: int
    exported_at: str = ""
    """When the file was written; ignored by an import."""
    namesrv: str = ""
    """The name servers of the exported cluster; ignored by an import."""
    topics: tuple[TopicEntry, ...] = ()
    order_config: dict[str, str] = {}
    """`BROKER:QUEUES;...` by ordered topic, as name servers keep it."""
    groups: tuple[GroupEntry, ...] = ()
    accounts: tuple[AccountEntry, ...] = ()
    addresses: tuple[AddressesEntry, ...] = ()


class _Head(msgspec.Struct):
    format: object = None
    version: object = None


E = TypeVar("E", bound=Entry)
Table = dict[str, dict[str, E]]
"""Entries by broker and name."""


def name_of(entry: Entry) -> str:
    """Return the name of what an entry describes; empty for the addresses."""
    match entry:
        case TopicEntry():
            return entry.topic_name
        case GroupEntry():
            return entry.group_name
        case AccountEntry():
            return entry.access_key
        case _:
            return ""


def encode(definitions: Definitions) -> bytes:
    """Return the content of a file that people can read and compare line by line."""
    return msgspec.json.format(msgspec.json.encode(definitions), indent=2) + b"\n"


def decode(data: bytes) -> Definitions:
    """Read a file; raise InvalidArgument naming its faults if it has any."""
    if len(data) > BYTES_MAX:
        raise InvalidArgument(f"the file has more than {BYTES_MAX >> 20} MiB")
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            raise InvalidArgument(
                f"this is no file of definitions: it has no format {FORMAT!r}; write one with"
                " cometmq definitions export"
            )
        if head.version != VERSION:
            raise InvalidArgument(
                f"the file has the version {str(head.version)[:40]}, and this program reads only"
                f" version {VERSION}: use the program that wrote it"
            )
        found = msgspec.json.decode(data, type=Definitions)
    except UNREADABLE_JSON as error:
        raise InvalidArgument(_explained(str(error) or "it is nested too deeply")) from error
    if fault := next(_faults(found), ""):
        raise InvalidArgument(f"the file is wrong: {fault}")
    return found


def _explained(text: str) -> str:
    if "`secretKey`" in text:
        return f"the file is wrong: {text}: secret keys do not belong into it"
    return f"the file is wrong: {text}"


def _faults(found: Definitions) -> Iterator[str]:
    for entries in (found.topics, found.groups, found.accounts, found.addresses):
        yield from _repeated(entries)
    for topic in found.topics:
        yield from _unnamed(topic.topic_name, "topic")
    for group in found.groups:
        yield from _unnamed(group.group_name, "group")
    for name, config in found.order_config.items():
        yield from _unnamed(name, "topic")
        if not ORDER_CONFIG.fullmatch(config):
            yield f"the orderConfig of {name} must be BROKER:QUEUES;BROKER:QUEUES"
        elif excess := order_excess(name, config):
            yield f"the orderConfig of {name} is too large: {excess}"


def _unnamed(name: str, kind: str) -> Iterator[str]:
    """Yield why no server can have this name; the plan refuses names that clients may not choose,
    because an export has those that peers have registered.
    """
    try:
        check_named(name, kind)
    except InvalidArgument as error:
        yield str(error)


def _repeated(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a fault for each name that several entries define for the same broker."""
    seen: dict[str, set[str] | None] = {}
    for entry in entries:
        name, brokers = name_of(entry), None if entry.brokers is UNSET else set(entry.brokers)
        if name not in seen:
            seen[name] = brokers
            continue
        others = seen[name]
        if others is None or brokers is None or others & brokers:
            yield f"{name or 'addresses'} has several entries for one broker"
        else:
            others |= brokers


# -- the state of a cluster ----------------------------------------------------------------------


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
