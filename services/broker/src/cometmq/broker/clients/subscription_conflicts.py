# SPDX-License-Identifier: Apache-2.0
"""The subscriptions of each member of a group, to detect differences between members (pure).

The broker keeps one subscription per group and topic: it filters for all members by the newest one,
and all members share a topic's queues, whether or not they subscribe to it. Members with different
subscriptions miss messages without an error, so the broker logs a warning.

A subscription that no member has any more is abandoned: the newest subscription of the members
replaces it, even if that has a lower version, because versions are times of the clients' clocks.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.command import Peer
from cometmq.remoting.names import ALL_TAGS

TAG: Final = "TAG"
TAG_SEPARATOR: Final = "||"
NOTHING: Final = ""
TEXT_CHARS_MAX: Final = 200  # of an expression in the log
TAGS_CHARS_MAX: Final = 10_000
"""Longest expression whose tags are sorted before they are compared, in 1 ms; one may have 1 MB."""

SubscriptionSet: TypeAlias = frozenset[tuple[str, str]]
"""(topic, expression) pairs of one member; expressions are normalized by `meaning`."""


class Mismatch(NamedTuple):
    """Two members with different subscriptions to a topic; an empty expression means none."""

    topic: str
    client_id: str
    wants: str
    other_client_id: str
    other_wants: str


class _Wish(msgspec.Struct, gc=False):
    """An expression that members have for a topic: the newest of their subscriptions with it."""

    newest: SubscriptionData
    set_count: int = 0


class MemberSubscriptions:
    """The subscriptions of each member of one group; a member without subscriptions is ignored."""

    __slots__ = ("_members", "_wishes")

    def __init__(self) -> None:
        # subscription set -> connection -> client id
        self._members: dict[SubscriptionSet, dict[Peer, str]] = {}
        # topic -> expression -> wish
        self._wishes: dict[str, dict[str, _Wish]] = {}

    @property
    def count(self) -> int:
        """The number of different subscription sets among the members that have subscriptions."""
        return len(self._members)

    def set(
        self,
        peer: Peer,
        client_id: str,
        asked: Sequence[SubscriptionData],
        pairs: Sequence[tuple[str, str]] | None = None,
    ) -> Sequence[tuple[str, str]]:
        """Note a member's subscriptions; return the topics and expressions that are abandoned now.

        `pairs` are the `subscription_pairs` of `asked`, if the caller has them.
        """
        pairs = subscription_pairs(asked) if pairs is None else pairs
        wanted = frozenset(pairs)
        members = self._members.get(wanted, {})
        self._note_versions(asked, pairs)
        if wanted and not members:
            self._members[wanted] = members
            # In the order of `asked`, in which the wishes were made: 2x as fast as in another.
            for topic, expression in dict.fromkeys(pairs):
                self._wishes[topic][expression].set_count += 1
        abandoned = () if peer in members else self.drop(peer)
        if wanted:
            members[peer] = client_id
        return abandoned

    def _note_versions(
        self, asked: Sequence[SubscriptionData], pairs: Sequence[tuple[str, str]]
    ) -> None:
        for one, (topic, expression) in zip(asked, pairs, strict=True):
            wishes = self._wishes.get(topic)
            if wishes is None:
                wishes = self._wishes[topic] = {}
            wish = wishes.get(expression)
            if wish is None:
                wishes[expression] = _Wish(one)
            elif wish.newest.sub_version < one.sub_version:
                wish.newest = one

    def drop(self, peer: Peer) -> Sequence[tuple[str, str]]:
        """Forget a member; return the topics and expressions that are abandoned now."""
        for wanted, members in self._members.items():
            if members.pop(peer, None) is None:
                continue
            if members:
                break
            del self._members[wanted]
            return [one for one in wanted if self._is_abandoned(*one)]
        return ()

    def _is_abandoned(self, topic: str, expression: str) -> bool:
        """Count one set less with an expression; after the last, forget it and return True."""
        wishes = self._wishes[topic]
        wishes[expression].set_count -= 1
        if wishes[expression].set_count:
            return False
        del wishes[expression]
        if not wishes:
            del self._wishes[topic]
        return True

    def newest(self, topic: str) -> SubscriptionData | None:
        """Return the members' subscription to a topic with the highest version, if any."""
        wishes = self._wishes.get(topic, {}).values()
        return max((wish.newest for wish in wishes), key=lambda one: one.sub_version, default=None)

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


def subscription_pairs(asked: Iterable[SubscriptionData]) -> list[tuple[str, str]]:
    """Return a member's subscriptions in comparable form; 1 to 4 us each, more for many tags."""
    return [(one.topic, meaning(one)) for one in asked]


def meaning(subscription: SubscriptionData) -> str:
    """Return a subscription's expression with its tags sorted and evenly spaced."""
    text = subscription.sub_string.strip()
    if (subscription.expression_type or TAG) != TAG:
        return f"{subscription.expression_type} {text}"
    if len(text) > TAGS_CHARS_MAX:
        return text
    tags = {tag.strip() for tag in text.split(TAG_SEPARATOR)} - {""}
    return f" {TAG_SEPARATOR} ".join(sorted(tags)) or ALL_TAGS
