# SPDX-License-Identifier: Apache-2.0
"""The form of a file of definitions: JSON, with the names that RocketMQ's files use.

An entry without `brokers` is for every master; several entries of one name name different brokers.
The file has no secret: brokers mask them, and files are copied.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from cometmq.client.admin.topics import ORDER_CONFIG, order_excess
from cometmq.client.errors import InvalidArgument
from cometmq.client.message import check_named
from cometmq.remoting.bodies.topic_config import QUEUES_MAX
from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.remoting.integers import Int32, Int64

FORMAT: Final = "cometmq definitions"
VERSION: Final = 1
BYTES_MAX: Final = 16 << 20
PERM_MAX: Final = 7
RIGHTS: Final = frozenset({"DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB"})
FAULTS_MAX: Final = 20
"""Maximum number of faults of a file that the error names."""


class Entry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", gc=False
):
    """The fields that all entries have."""

    brokers: tuple[str, ...] | UnsetType = UNSET
    """The brokers to which the entry applies; unset for all masters."""


class TopicEntry(Entry, frozen=True, kw_only=True, gc=False):
    """A topic and its settings."""

    topic_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32 = 6
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

    access_key: str
    admin: bool = False
    default_topic_perm: str = "DENY"
    default_group_perm: str = "DENY"
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()
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
    faults = list(_faults(found))
    if faults:
        rest = len(faults) - FAULTS_MAX
        more = f"; and {rest:,} more" if rest > 0 else ""
        raise InvalidArgument(f"the file is wrong: {'; '.join(faults[:FAULTS_MAX])}{more}")
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
        yield from _out_of_bounds(topic)
    for group in found.groups:
        yield from _unnamed(group.group_name, "group")
    for account in found.accounts:
        yield from _wrong_rights(account)
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


def _out_of_bounds(topic: TopicEntry) -> Iterator[str]:
    counts = {"readQueueNums": topic.read_queue_nums, "writeQueueNums": topic.write_queue_nums}
    for what, count in counts.items():
        if not 0 <= count <= QUEUES_MAX:
            yield f"{topic.topic_name}: {what} must be between 0 and {QUEUES_MAX:,}, not {count:,}"
    if not 0 <= topic.perm <= PERM_MAX:
        yield f"{topic.topic_name}: perm must be 0 to {PERM_MAX} (4 read, 2 write)"


def _wrong_rights(account: AccountEntry) -> Iterator[str]:
    if not account.access_key.strip():
        yield "an account has an empty accessKey"
    named = [*account.topic_perms, *account.group_perms]
    rights = [account.default_topic_perm, account.default_group_perm]
    for text in named:
        name, _, right = text.partition("=")
        if not name.strip():
            yield f"{account.access_key}: {text!r} must have the form NAME=RIGHT"
        rights.append(right)
    for right in rights:
        if right.strip() not in RIGHTS:
            yield f"{account.access_key}: {right!r} is no right: give {', '.join(sorted(RIGHTS))}"


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
