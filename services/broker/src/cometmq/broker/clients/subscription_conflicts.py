# SPDX-License-Identifier: Apache-2.0
"""The subscriptions of each member of a group, to detect differences between members (pure).

The broker keeps one subscription per group: it filters for all members by the newest heartbeat, and
all members share a topic's queues, whether or not they subscribe to it. Members with different
subscriptions miss messages without an error, so the broker logs a warning.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.command import Peer
from cometmq.remoting.names import ALL_TAGS

TAG: Final = "TAG"
TAG_SEPARATOR: Final = "||"
NOTHING: Final = ""
TEXT_CHARS_MAX: Final = 200  # of an expression in the log
TAGS_CHARS_MAX: Final = 10_000
"""Length of tags that are compared in any order: 1 ms. An expression may have 1 MB."""

SubscriptionSet: TypeAlias = frozenset[tuple[str, str]]
"""(topic, expression) pairs; expressions with the same meaning are equal."""


class Mismatch(NamedTuple):
    """Two members with different subscriptions to a topic; an empty expression means no
    subscription.
    """

    topic: str
    client_id: str
    wants: str
    other_client_id: str
    other_wants: str


class MemberSubscriptions:
    """The subscriptions of each member of one group; a member without subscriptions is ignored."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        # subscription set -> connection -> client id
        self._members: dict[SubscriptionSet, dict[Peer, str]] = {}

    @property
    def count(self) -> int:
        """The number of different subscription sets among the members that have subscriptions."""
        return len(self._members)

    def set(self, peer: Peer, client_id: str, subscriptions: SubscriptionSet) -> None:
        if self._members.get(subscriptions, {}).get(peer) == client_id:
            return
        self.drop(peer)
        if subscriptions:
            self._members.setdefault(subscriptions, {})[peer] = client_id

    def drop(self, peer: Peer) -> None:
        for subscriptions, members in self._members.items():
            if members.pop(peer, None) is not None:
                if not members:
                    del self._members[subscriptions]
                return

    def mismatch(self) -> Mismatch | None:
        """Return two members with different subscriptions, or None if all are equal."""
        if len(self._members) < 2:
            return None
        (first, members), (other, other_members) = list(self._members.items())[:2]
        topic = min(topic for topic, _ in first ^ other)
        return Mismatch(
            topic,
            next(iter(members.values())),
            dict(first).get(topic, NOTHING)[:TEXT_CHARS_MAX],
            next(iter(other_members.values())),
            dict(other).get(topic, NOTHING)[:TEXT_CHARS_MAX],
        )


def subscription_set(asked: Iterable[SubscriptionData]) -> SubscriptionSet:
    """Return what subscriptions mean, in 1 to 4 us for each, and more for many tags."""
    return frozenset((one.topic, _meaning(one)) for one in asked)


def _meaning(subscription: SubscriptionData) -> str:
    """Normalize an expression, so that the order and spacing of its tags do not matter."""
    text = subscription.sub_string.strip()
    if (subscription.expression_type or TAG) != TAG:
        return f"{subscription.expression_type} {text}"
    if len(text) > TAGS_CHARS_MAX:
        return text
    tags = {tag.strip() for tag in text.split(TAG_SEPARATOR)} - {""}
    return f" {TAG_SEPARATOR} ".join(sorted(tags)) or ALL_TAGS
