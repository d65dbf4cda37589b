# SPDX-License-Identifier: Apache-2.0
"""Decisions on topics and consumer groups (pure): the next changes, and what they wait for. An
entry is the topic or consumer group that an object declares.

Messages are never made unreachable: queues are removed, and topics deleted, only once every
consumer group has consumed their messages. A condition of the object tells users what a change
waits for.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final

import msgspec

from cometmq.operator.api_types.security_sections import SecretReason
from cometmq.operator.api_types.status import Condition
from cometmq.operator.api_types.topics_and_groups import (
    BrokerEntry,
    DeclaredStatus,
    Permission,
    TopicSpec,
)
from cometmq.operator.managed import dated
from cometmq.operator.topics_and_groups.item import Claim, Declared
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    TopicConfig,
    queue_excess,
)
from cometmq.remoting.message.flags import Perm

Config = TopicConfig | SubscriptionGroupConfig

PERMISSIONS: Final = {
    Permission.READ_WRITE: int(Perm.READ | Perm.WRITE),
    Permission.READ: int(Perm.READ),
    Permission.WRITE: int(Perm.WRITE),
}
SKIP_TEXT: Final = "annotate the object with cometmq.io/skip-drain=true to go on without them"
_MANAGED: Final = {
    TopicConfig: ("write_queue_nums", "read_queue_nums", "perm", "topic_sys_flag"),
    SubscriptionGroupConfig: (
        "consume_enable", "consume_broadcast_enable", "consume_from_min_enable",
        "notify_consumer_ids_changed_enable", "retry_queue_nums", "retry_max_times",
        "which_broker_when_consume_slowly",
    ),
}  # fmt: skip
"""The fields that the operator sets; it leaves all other fields of an entry unchanged."""


class Reason(StrEnum):
    """Reasons of the condition Ready."""

    AS_SPECIFIED = "AsSpecified"
    APPLYING = "Applying"
    BROKERS_UNREACHABLE = "BrokersUnreachable"
    BROKER_REFUSED = "BrokerRefused"
    DECLARED_TWICE = "DeclaredTwice"
    TOO_MANY_QUEUES = "TooManyQueues"
    QUEUES_NOT_CONSUMED = "QueuesNotConsumed"
    BACKLOG = "Backlog"
    SENDS_GO_ON = "SendsGoOn"
    MEMBERS_CONNECTED = "MembersConnected"


class Left(msgspec.Struct, frozen=True):
    """The unconsumed messages of a topic or group on one broker."""

    counts: tuple[tuple[str, int], ...] = ()
    """Messages by description, such as `group billing`; worst first."""
    end: int = 0
    """Sum of the end offsets of the queues concerned."""
    is_quiet: bool = False
    """Whether no message was stored for a while after the queues had disappeared from all routes,
    so that no producer uses an old route any more.
    """


class BrokerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One broker group as seen by a pass."""

    name: str
    config: Config | None = None
    """The entry's settings on the master; None if the master does not have the entry."""
    fault: str = ""
    """Why the settings are unknown; empty if they are known."""
    refusal: str = ""
    """Why the master refused a change in this pass."""
    left: Left | None = None
    """None if it was not requested, or is unknown."""
    left_fault: str = ""
    """Why `left` is unknown."""
    members: int = 0
    """Connected members of the consumer group."""


class Wait(msgspec.Struct, frozen=True):
    """The reason why a change has to wait."""

    reason: Reason | SecretReason
    text: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one pass, which may be made in any order, and the changes that wait."""

    puts: dict[str, Config] = {}
    """Settings to write, by broker name."""
    waits: tuple[Wait, ...] = ()
    may_delete: bool = False
    """Whether the entry may be deleted on all brokers now; then `puts` is empty."""


def wanted(item: Declared, current: Config | None) -> Config:
    """Return the settings in the spec, with the unmanaged fields of the current ones."""
    spec = item.spec
    if isinstance(spec, TopicSpec):
        base = current if isinstance(current, TopicConfig) else TopicConfig(topic_name=item.entry)
        return msgspec.structs.replace(
            base,
            write_queue_nums=spec.write_queue_nums,
            read_queue_nums=spec.read_queue_nums or spec.write_queue_nums,
            perm=PERMISSIONS[spec.permission],
            topic_sys_flag=spec.topic_sys_flag,
        )
    old = current if isinstance(current, SubscriptionGroupConfig) else None
    fields = {field: getattr(spec, field) for field in _MANAGED[SubscriptionGroupConfig]}
    return msgspec.structs.replace(old or SubscriptionGroupConfig(group_name=item.entry), **fields)


def differences(current: Config | None, target: Config) -> str:
    """Return how settings differ from the target, in RocketMQ's names; empty if they do not."""
    if current is None:
        return "missing"
    encoded = dict(zip(target.__struct_fields__, target.__struct_encode_fields__, strict=True))
    return ", ".join(
        f"{encoded[field]} is {_shown(getattr(current, field))}, not"
        f" {_shown(getattr(target, field))}"
        for field in _MANAGED[type(target)]
        if getattr(current, field) != getattr(target, field)
    )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def removed_queues(item: Declared, current: Config | None) -> range:
    """Return the ids of the queues that the spec no longer has, or of all queues if the topic is
    to be deleted.
    """
    if not isinstance(current, TopicConfig):
        return range(0)
    target = wanted(item, current)
    assert isinstance(target, TopicConfig)
    end = max(current.read_queue_nums, current.write_queue_nums)
    return range(0 if item.is_deleting else target.read_queue_nums, end)


def is_closed(item: Declared, current: TopicConfig) -> bool:
    """Return whether the routes of a topic offer producers none of the queues to be removed."""
    if item.is_deleting:
        return not current.perm & Perm.WRITE
    target = wanted(item, current)
    assert isinstance(target, TopicConfig)
    return current.write_queue_nums <= target.write_queue_nums


def needs_backlog(item: Declared, current: Config | None) -> bool:
    """Return whether a decision depends on the unconsumed messages of a broker."""
    if current is None or item.skips_drain:
        return False
    return item.is_deleting or len(removed_queues(item, current)) > 0


def plan(item: Declared, seen: Iterable[BrokerSeen]) -> Plan:
    """Return the next changes for an object that owns its entry."""
    seen = list(seen)
    unknown = [f"{one.name}: {one.fault}" for one in seen if one.fault]
    waits = [Wait(Reason.BROKERS_UNREACHABLE, "; ".join(unknown))] if unknown else []
    known = [one for one in seen if not one.fault]
    if item.is_deleting:
        return _ending(item, known, waits)
    if wait := _too_many_queues(item, seen):
        return Plan(waits=(*waits, wait))
    puts: dict[str, Config] = {}
    for one in known:
        target, wait = _target(item, one)
        if wait is not None:
            waits.append(wait)
        if differences(one.config, target):
            puts[one.name] = target
    return Plan(puts=puts, waits=tuple(waits))


def _too_many_queues(item: Declared, seen: Collection[BrokerSeen]) -> Wait | None:
    """Return why clients would refuse the topic, or None if they would use it."""
    target = wanted(item, None)
    if not isinstance(target, TopicConfig):
        return None
    count = len(seen) * max(target.read_queue_nums, target.write_queue_nums)
    reason = queue_excess(item.entry, count)
    return Wait(Reason.TOO_MANY_QUEUES, reason) if reason else None


def _target(item: Declared, one: BrokerSeen) -> tuple[Config, Wait | None]:
    """Return the settings that a broker may get now, and why they differ from the spec."""
    target = wanted(item, one.config)
    if not needs_backlog(item, one.config):
        return target, None
    assert isinstance(target, TopicConfig)
    assert isinstance(one.config, TopicConfig)
    wait = _not_consumed(item, one)
    if wait is None:
        return target, None
    # Brokers still accept sends to these queues from producers with an old route, so consumers keep
    # reading these queues until the producers have the new route.
    end = removed_queues(item, one.config).stop
    return msgspec.structs.replace(target, read_queue_nums=end), wait


def _unconsumed(one: BrokerSeen, reason: Reason, place: str) -> Wait | None:
    """Return why the messages in a place keep it from being removed; None if there are none."""
    if one.left is None:
        text = f"unconsumed messages in {place} are unknown; the operator tries again"
        return Wait(reason, f"{text}: {one.left_fault}")
    if one.left.counts:
        text = ", ".join(f"{name}: {count}" for name, count in one.left.counts[:5])
        return Wait(reason, f"unconsumed messages in {place}: {text}; {SKIP_TEXT}")
    return None


def _sends_go_on(place: str) -> Wait:
    text = f"{place} must be without new messages for a while: producers may have old routes"
    return Wait(Reason.SENDS_GO_ON, text)


def _not_consumed(item: Declared, one: BrokerSeen) -> Wait | None:
    """Return why queues cannot be removed yet, or None if they can."""
    queues = removed_queues(item, one.config)
    place = f"queues {queues.start} to {queues.stop - 1} at {one.name}"
    if wait := _unconsumed(one, Reason.QUEUES_NOT_CONSUMED, place):
        return wait
    assert isinstance(one.config, TopicConfig)
    assert one.left is not None
    is_quiet = is_closed(item, one.config) and one.left.is_quiet
    return None if is_quiet else _sends_go_on(place)


def _ending(item: Declared, known: list[BrokerSeen], waits: list[Wait]) -> Plan:
    """Return the next changes for an entry that is to be deleted."""
    present = [one for one in known if one.config is not None]
    puts: dict[str, Config] = {}
    for one in present:
        config = one.config
        if isinstance(config, TopicConfig) and not is_closed(item, config) and not item.skips_drain:
            puts[one.name] = msgspec.structs.replace(config, perm=config.perm & ~int(Perm.WRITE))
        waits += [] if item.skips_drain else _in_use(one)
    may_delete = not waits and not puts
    return Plan(puts=puts, waits=tuple(waits), may_delete=may_delete)


def _in_use(one: BrokerSeen) -> list[Wait]:
    if wait := _unconsumed(one, Reason.BACKLOG, one.name):
        return [wait]
    if one.members:
        text = f"{one.members} members of the group are connected to {one.name}: stop them"
        return [Wait(Reason.MEMBERS_CONNECTED, text)]
    is_quiet = one.left is not None and one.left.is_quiet
    return [_sends_go_on(one.name)] if isinstance(one.config, TopicConfig) and not is_quiet else []


# ---- status ----------------------------------------------------------------------------------


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a pass, as shown in the status."""

    seen: tuple[BrokerSeen, ...] = ()
    waits: tuple[Wait, ...] = ()
    owner: Claim | None = None
    """The other object that owns the entry; None if this one does."""


def status_of(item: Declared, outcome: Outcome, before: DeclaredStatus, now: str) -> DeclaredStatus:
    """Return the status; `now` is the time of the condition if its status changed."""
    reason, text = _verdict(item, outcome)
    is_ready = reason is Reason.AS_SPECIFIED
    condition = Condition(
        type="Ready",
        status="True" if is_ready else "False",
        reason=reason.value,
        message=text[:4096],
        observed_generation=item.generation,
    )
    return DeclaredStatus(
        observed_generation=item.generation,
        name=item.entry,
        owned=outcome.owner is None,
        brokers=before.brokers
        if outcome.owner is None and not outcome.seen
        else _entries(item, outcome.seen),
        conditions=dated([condition], before.conditions, now),
    )


def _entries(item: Declared, seen: Iterable[BrokerSeen]) -> list[BrokerEntry]:
    entries = []
    for one in seen:
        text = one.fault or differences(one.config, wanted(item, one.config))
        entries.append(BrokerEntry(name=one.name, current=not text, message=text[:1024]))
    return entries


def _verdict(item: Declared, outcome: Outcome) -> tuple[Reason | SecretReason, str]:
    """Return the reason and message of Ready; causes that require human action come first."""
    if outcome.owner is not None:
        kind, namespace, name = outcome.owner.key
        return Reason.DECLARED_TWICE, (
            f"{kind} {namespace}/{name} is older and declares {item.entry} too: delete one of them"
        )
    refusals = [f"{one.name}: {one.refusal}" for one in outcome.seen if one.refusal]
    if refusals:
        return Reason.BROKER_REFUSED, "; ".join(refusals)
    if outcome.waits:
        first = min(outcome.waits, key=lambda one: one.reason is not Reason.BROKERS_UNREACHABLE)
        return first.reason, "; ".join(one.text for one in outcome.waits)
    behind = [entry.name for entry in _entries(item, outcome.seen) if not entry.current]
    if behind and not item.is_deleting:
        return Reason.APPLYING, f"not as specified yet: {', '.join(behind)}"
    if item.is_deleting:
        return Reason.APPLYING, f"{item.entry} is being deleted at its brokers"
    count = len(outcome.seen)
    brokers = "one broker group has" if count == 1 else f"{count} broker groups have"
    return Reason.AS_SPECIFIED, f"{brokers} the settings of the spec"
