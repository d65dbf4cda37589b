# SPDX-License-Identifier: Apache-2.0
"""Plans an import: the effect of each row, before anything is changed (pure)."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET

from cometmq.client.errors import InvalidArgument
from cometmq.client.message import check_group, check_topic
from cometmq.insight.definitions.form import (
    AccountEntry,
    AddressesEntry,
    Definitions,
    Entry,
    GroupEntry,
    TopicEntry,
    name_of,
)
from cometmq.insight.definitions.state import State, is_reserved_group
from cometmq.insight.words import command, counted
from cometmq.remoting.bodies.topic_config import queue_excess

NAMESRV: Final = "name servers"
"""The `broker` of rows that are stored on name servers."""


class Kind(StrEnum):
    """The kinds of definitions, in the order in which they are imported."""

    TOPIC = "topic"
    ORDER = "order"
    GROUP = "group"
    ACCOUNT = "account"
    ADDRESSES = "addresses"


class Fate(StrEnum):
    """The effect that an import would have on a row."""

    CREATED = "created"
    CHANGED = "changed"
    EQUAL = "equal"
    REFUSED = "refused"


class Difference(msgspec.Struct, frozen=True):
    """A setting that changes; `before` is None if the topic, group or account is new."""

    setting: str
    before: Any
    after: Any

    @property
    def text(self) -> str:
        """Return the change in one phrase."""
        return f"{self.setting} {_shown(self.before)} -> {_shown(self.after)}"


class Row(msgspec.Struct, frozen=True):
    """One definition at one broker, or at the name servers."""

    kind: Kind
    name: str
    place: str
    fate: Fate
    differences: Sequence[Difference] = ()
    reason: str = ""
    """Why the row is refused; empty if it is not."""
    after: Entry | str | None = None
    needs_secret: bool = False
    """Whether the change needs the secret key of its account."""

    @property
    def is_change(self) -> bool:
        """Whether the import would create or change something."""
        return self.fate in {Fate.CREATED, Fate.CHANGED}

    @property
    def text(self) -> str:
        """Return what changes, or why nothing does."""
        if self.fate is Fate.CREATED and isinstance(self.after, Entry):
            return described(self.after)
        return self.reason or "; ".join(it.text for it in self.differences)


class Plan(msgspec.Struct, frozen=True):
    """A row per definition in the file, and the number of definitions outside it."""

    rows: Sequence[Row]
    untouched: int
    """Number of definitions of the cluster that are not in the file, and are left unchanged."""

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of rows of each fate."""
        found = Counter(row.fate for row in self.rows)
        return {fate.value: found[fate] for fate in Fate}

    @property
    def changes(self) -> list[Row]:
        """Return the rows that change something."""
        return [row for row in self.rows if row.is_change]

    @property
    def refused(self) -> list[Row]:
        """Return the rows that cannot be imported."""
        return [row for row in self.rows if row.fate is Fate.REFUSED]

    @property
    def lacking(self) -> list[str]:
        """Return the accounts whose secret key is needed."""
        return sorted({row.name for row in self.changes if row.needs_secret})

    @property
    def sentence(self) -> str:
        """Return the counts in one sentence."""
        found = ", ".join(f"{count:,} {fate}" for fate, count in self.counts.items())
        rest = f"; {counted(self.untouched, 'definition')} of the cluster not in the file: kept"
        return found + (rest if self.untouched else "")


def plan(state: State, wanted: Definitions) -> Plan:
    """Compare a file with a cluster."""
    rows = [
        *_usable(state, [*_rows(state, Kind.TOPIC, wanted.topics, state.topics)]),
        *_order_rows(state, wanted),
        *_rows(state, Kind.GROUP, wanted.groups, state.groups),
        *_rows(state, Kind.ACCOUNT, wanted.accounts, state.accounts),
        *_rows(state, Kind.ADDRESSES, wanted.addresses, state.addresses),
    ]
    named = {(row.kind, row.name, row.place) for row in rows}
    own = [
        *((Kind.TOPIC, name, broker) for broker, its in state.topics.items() for name in its),
        *((Kind.GROUP, name, broker) for broker, its in state.groups.items() for name in its),
        *((Kind.ACCOUNT, name, broker) for broker, its in state.accounts.items() for name in its),
        *((Kind.ORDER, name, NAMESRV) for name in state.order_config),
    ]
    return Plan(rows, sum(it not in named for it in own))


def _rows(
    state: State,
    kind: Kind,
    entries: Sequence[Entry],
    tables: Mapping[str, Mapping[str, Entry]],
) -> Iterator[Row]:
    for entry in entries:
        name = name_of(entry)
        plain = msgspec.structs.replace(entry, brokers=UNSET)
        if isinstance(plain, AccountEntry):
            plain = msgspec.structs.replace(
                plain,
                topic_perms=tuple(sorted(plain.topic_perms)),
                group_perms=tuple(sorted(plain.group_perms)),
            )
        for broker in sorted(state.masters) if entry.brokers is UNSET else entry.brokers:
            before = tables.get(broker, {}).get(name)
            if before == plain:
                yield Row(kind, name, broker, Fate.EQUAL, after=plain)
            elif reason := _refusal(state, broker, before, plain):
                yield Row(kind, name, broker, Fate.REFUSED, _between(before, plain), reason, plain)
            else:
                fate = Fate.CREATED if before is None else Fate.CHANGED
                needs = kind is Kind.ACCOUNT and (broker, name) not in state.secrets
                yield Row(
                    kind, name, broker, fate, _between(before, plain), after=plain,
                    needs_secret=needs,
                )  # fmt: skip


def _usable(state: State, rows: Sequence[Row]) -> Iterator[Row]:
    """Refuse the rows that give a topic more queues, on all brokers together, than clients
    accept.
    """
    counts: dict[str, dict[str, int]] = {row.name: {} for row in rows if row.is_change}
    for broker, topics in state.topics.items():
        for name in counts.keys() & topics.keys():
            counts[name][broker] = _queue_count(topics[name])
    before = {name: sum(of_topic.values()) for name, of_topic in counts.items()}
    for row in rows:
        if row.is_change:
            counts[row.name][row.place] = _queue_count(row.after)
    for row in rows:
        count = sum(counts.get(row.name, {}).values())
        reason = queue_excess(row.name, count)
        if row.is_change and reason and count > before[row.name]:
            yield msgspec.structs.replace(row, fate=Fate.REFUSED, reason=reason)
        else:
            yield row


def _queue_count(topic: Entry | str | None) -> int:
    assert isinstance(topic, TopicEntry)
    return max(topic.read_queue_nums, topic.write_queue_nums)


def _order_rows(state: State, wanted: Definitions) -> Iterator[Row]:
    for name, config in sorted(wanted.order_config.items()):
        before = state.order_config.get(name)
        fate = Fate.CREATED if before is None else Fate.CHANGED
        change = [Difference("orderConfig", before, config)]
        if before == config:
            yield Row(Kind.ORDER, name, NAMESRV, Fate.EQUAL, after=config)
        elif reason := _unchosen(check_topic, name):
            yield Row(Kind.ORDER, name, NAMESRV, Fate.REFUSED, change, reason, config)
        else:
            yield Row(Kind.ORDER, name, NAMESRV, fate, change, after=config)


def _refusal(state: State, broker: str, before: Entry | None, after: Entry) -> str:
    """Return why an entry cannot be imported; empty if it can."""
    if broker not in state.masters:
        return f"this cluster has no broker {broker}; it has {', '.join(sorted(state.masters))}"
    match after:
        case TopicEntry():
            own = before if isinstance(before, TopicEntry) else None
            return _topic_refusal(state, own, after)
        case GroupEntry():
            return _unchosen(check_group, after.group_name) or _group_refusal(after)
        case AccountEntry() | AddressesEntry():
            if broker in state.silent:
                return f"the broker does not tell its accounts: {state.silent[broker]}"
            return _cleared(before, after) if isinstance(after, AccountEntry) else ""
        case _:
            raise AssertionError(after)


def _topic_refusal(state: State, before: TopicEntry | None, after: TopicEntry) -> str:
    name = after.topic_name
    if before is None and (reason := _unchosen(check_topic, name)):
        return reason
    if state.is_reserved_topic(name):
        return "servers create this topic themselves"
    if before is not None and after.read_queue_nums < before.read_queue_nums:
        return (
            f"consumers would lose queues ({before.read_queue_nums} ->"
            f" {after.read_queue_nums}): lower them with {command('topic alter', name)}"
        )
    if after.write_queue_nums > after.read_queue_nums:
        return (
            f"producers would send to {after.write_queue_nums} queues, and consumers read"
            f" {after.read_queue_nums}: raise readQueueNums"
        )
    return ""


def _unchosen(check: Callable[[str], None], name: str) -> str:
    """Return why clients may not choose a name; empty if they may."""
    try:
        check(name)
    except InvalidArgument as error:
        return str(error)
    return ""


def _group_refusal(after: GroupEntry) -> str:
    if is_reserved_group(after.group_name):
        return "servers and tools create this group themselves"
    for name in ("retry_max_times", "retry_queue_nums", "broker_id"):
        if getattr(after, name) < 0:
            return f"{_camel(name)} must not be negative"
    return ""


def _cleared(before: Entry | None, after: AccountEntry) -> str:
    """Return the rights that the file would remove from an account; requests can replace rights,
    but not remove them.
    """
    if not isinstance(before, AccountEntry):
        return ""
    for name in ("topic_perms", "group_perms", "white_remote_address"):
        if getattr(before, name) and not getattr(after, name):
            return (
                f"RocketMQ's requests cannot clear {_camel(name)}: delete the account first"
                f" ({command('mqadmin deleteAccessConfig', options=('-a', after.access_key))})"
            )
    return ""


def _between(before: Entry | None, after: Entry) -> list[Difference]:
    if before is None:
        return []
    return [
        Difference(_camel(name), getattr(before, name), getattr(after, name))
        for name in after.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    ]


def described(entry: Entry) -> str:
    """Return the settings of an entry in a few words."""
    match entry:
        case TopicEntry():
            kind = ", ordered" if entry.order else ""
            counts = f"{entry.read_queue_nums}/{entry.write_queue_nums}"
            return f"{counts} queues, perm {entry.perm}{kind}"
        case GroupEntry():
            state = "" if entry.consume_enable else ", may not consume"
            return f"retryMaxTimes {entry.retry_max_times}{state}"
        case AccountEntry():
            rights = [*entry.topic_perms, *entry.group_perms]
            named = f"; {', '.join(rights)}" if rights else ""
            who = "administrator; " if entry.admin else ""
            white = entry.white_remote_address
            open_to = f"; all rights without a signature from {white}" if white.strip() else ""
            return (
                f"{who}topics {entry.default_topic_perm}, groups {entry.default_group_perm}{named}"
                f"{open_to}"
            )
        case AddressesEntry():
            return ", ".join(entry.global_white_addrs) or "none"
        case _:
            raise AssertionError(entry)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "nothing" if value is None else str(value)
