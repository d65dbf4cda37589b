# SPDX-License-Identifier: Apache-2.0
"""Connected consumers by group: their connections and subscriptions (pure).

Invariants: a group is in the table as long as it has a connection. Each change of a group's members
or topics is reported once to `changed`, before the call that caused the change returns; `changed`
notifies all members, so that they rebalance.

Compatibility: as in RocketMQ, the newest heartbeat sets the group's model and topics, a
subscription is replaced by one with a higher subVersion, and members are not notified if such
replacements are the only change. A subVersion is the time of a client's clock, so in RocketMQ the
subscription of a client whose clock was ahead stays in force after that client has left. Here it is
replaced as soon as no member has it any more.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from cometmq.broker.clients.producers import Client, Memberships
from cometmq.broker.clients.subscription_conflicts import MemberSubscriptions, meaning
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Peer
from cometmq.remoting.commands.callbacks import NotifyConsumerIdsChanged
from cometmq.remoting.log import NO_LOG, Log
from cometmq.runtime.incremental import Steps

MISMATCH_INTERVAL_MS: Final = 60_000  # between two warnings about one group
DEAD_DOUBLE_MS: Final = 45_000
"""A connection counts as dead if another connection of its client was heard this much later: it has
missed a heartbeat.
"""
STEP_HINTS: Final = 200  # 2 ms


class ConsumerGroup(msgspec.Struct):
    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    clients: dict[Peer, Client] = {}
    subscriptions: dict[str, SubscriptionData] = {}
    subscribed_ms: dict[str, int] = {}  # topic -> monotonic time of its first subscription
    updated_ms: int = 0
    member_subscriptions: MemberSubscriptions = msgspec.field(default_factory=MemberSubscriptions)
    mismatch_logged_ms: int | None = None

    def peers(self) -> list[Peer]:
        return list(self.clients)

    def client_ids(self) -> list[str]:
        """Return the client ids of all members, one per connection, because consumers divide the
        queues among the ids in this list.

        A dead connection (DEAD_DOUBLE_MS) is left out: its client would be listed twice, and nobody
        would read the queues of the second entry.
        """
        heard_ms: dict[str, int] = {}
        for client in self.clients.values():
            client_id = client.client_id
            heard_ms[client_id] = max(client.seen_ms, heard_ms.get(client_id, client.seen_ms))
        return [
            client.client_id
            for client in self.clients.values()
            if heard_ms[client.client_id] - client.seen_ms <= DEAD_DOUBLE_MS
        ]


Changed: TypeAlias = Callable[[ConsumerGroup], None]
Replaced: TypeAlias = Callable[[str, Collection[SubscriptionData]], None]


class Consumers(Memberships):
    def __init__(
        self,
        *,
        changed: Changed,
        emptied: Callable[[str], None] = lambda _: None,
        replaced: Replaced = lambda _, __: None,
        log: Log = NO_LOG,
    ) -> None:
        """`changed` is called with a group whose members or topics changed, `emptied` with the name
        of a removed group, and `replaced` with a group's name and its subscriptions when one of
        them was replaced because the last member that had it left.
        """
        super().__init__()
        self._emptied = emptied
        self._replaced = replaced
        self.version = 0
        """Changes whenever groups, message models or subscriptions change, for caches of pulls."""
        self._groups: dict[str, ConsumerGroup] = {}
        self._changed = changed
        self._log = log

    def register(
        self,
        data: ConsumerData,
        client: Client,
        *,
        notify: bool = True,
        pairs: Sequence[tuple[str, str]] | None = None,
    ) -> bool:
        """Merge one group of a heartbeat; return whether its members or topics changed.

        `pairs` are the `subscription_pairs` of its subscriptions, if the caller has them.
        """
        group = self._groups.get(data.group_name)
        if group is None:
            group = ConsumerGroup(
                data.group_name,
                data.consume_type,
                data.message_model,
                data.consume_from_where,
                self._members.setdefault(data.group_name, {}),
            )
            self._groups[data.group_name] = group
            self.version += 1
        if group.message_model != data.message_model:
            self.version += 1
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        group.updated_ms = client.seen_ms
        has_new_member = self._join(group.name, client) is None
        asked = data.subscription_data_set
        has_new_topics, has_newer = _merge_subscriptions(group, asked)
        members = group.member_subscriptions
        abandoned = members.set(client.peer, client.client_id, asked, pairs)
        has_others = _follow_members(group, abandoned)
        self.version += has_new_topics or has_newer or has_others
        if group.member_subscriptions.count > 1:
            self._warn_of_mismatch(group)
        if has_new_member:
            self._log.info(
                "consumer.joined",
                group=group.name,
                client_id=client.client_id,
                peer=client.peer.address,
            )
        is_changed = has_new_member or has_new_topics
        if is_changed and notify:
            self._changed(group)
        return is_changed

    def unregister(self, name: str, peer: Peer, *, notify: bool = True) -> None:
        """Remove a connection from a group, and the group if that was its last connection."""
        client = self._leave(name, peer)
        if client is None:
            return
        group = self._groups[name]
        abandoned = group.member_subscriptions.drop(peer)
        self._log.info("consumer.left", group=name, client_id=client.client_id, peer=peer.address)
        if not group.clients:
            del self._groups[name]
            self.version += 1
            self._emptied(name)
            return
        if _follow_members(group, abandoned):
            self.version += 1
            self._replaced(name, group.subscriptions.values())
        if notify:
            self._changed(group)

    def hint(self) -> Steps[None]:
        """Tell every consumer to rebalance. A rebalance calls the master, and a consumer whose call
        is not answered closes the connection.
        """
        for count, peer in enumerate(list(self._joined)):
            if count and not count % STEP_HINTS:
                yield
            if names := self._joined.get(peer):
                notify_member(peer, min(names))

    def group(self, name: str) -> ConsumerGroup | None:
        return self._groups.get(name)

    def groups(self) -> Sequence[ConsumerGroup]:
        return list(self._groups.values())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return a connected group's subscription to a topic; None if there is none."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def _warn_of_mismatch(self, group: ConsumerGroup) -> None:
        """Warn, at times, that members have different subscriptions and so miss messages."""
        logged_ms = group.mismatch_logged_ms
        if logged_ms is not None and group.updated_ms - logged_ms < MISMATCH_INTERVAL_MS:
            return
        mismatch = group.member_subscriptions.mismatch()
        if mismatch is not None:
            group.mismatch_logged_ms = group.updated_ms
            self._log.warning("subscription.mismatched", group=group.name, **mismatch._asdict())


def notify_member(peer: Peer, group: str) -> None:
    """Send a member the request to rebalance (code 40), later if its connection is congested."""
    peer.send(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChanged(consumer_group=group)
    )


def _merge_subscriptions(
    group: ConsumerGroup, asked: Iterable[SubscriptionData]
) -> tuple[bool, bool]:
    """Add newer subscriptions and remove absent ones.

    Return whether the set of topics changed, and whether a subscription was replaced.
    """
    known = group.subscriptions
    wanted = {subscription.topic: subscription for subscription in asked}
    is_changed, is_newer = wanted.keys() != known.keys(), False
    for topic in known.keys() - wanted.keys():
        del known[topic]
        del group.subscribed_ms[topic]
    for topic, subscription in wanted.items():
        old = known.get(topic)
        if old is None:
            group.subscribed_ms[topic] = group.updated_ms
        elif subscription.sub_version <= old.sub_version:
            continue
        known[topic] = subscription
        is_newer = True
    return is_changed, is_newer


def _follow_members(group: ConsumerGroup, abandoned: Iterable[tuple[str, str]]) -> bool:
    """Replace subscriptions that no member has any more by the newest of the members', even if it
    has a lower version; return whether one was replaced.
    """
    is_changed = False
    for topic, expression in abandoned:
        current = group.subscriptions.get(topic)
        if current is None or meaning(current) != expression:
            continue
        newest = group.member_subscriptions.newest(topic)
        if newest is not None:
            group.subscriptions[topic] = newest
            is_changed = True
    return is_changed
