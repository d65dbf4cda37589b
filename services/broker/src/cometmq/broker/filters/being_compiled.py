# SPDX-License-Identifier: Apache-2.0
"""Filters that are being compiled, by group and topic (pure)."""

from collections.abc import Collection

from cometmq.remoting.bodies.heartbeat import SubscriptionData


class BeingCompiled:
    """Subscriptions whose filters wait for the compiler, with their number and characters."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, SubscriptionData]] = {}
        self.count = 0
        self.chars = 0
        """The total number of characters of all topics and expressions."""

    def get(self, group: str, topic: str) -> SubscriptionData | None:
        return self._groups.get(group, {}).get(topic)

    def add(self, group: str, subscription: SubscriptionData) -> None:
        """Add a subscription; it replaces the one of the same group and topic."""
        self.remove(group, subscription.topic)
        self._groups.setdefault(group, {})[subscription.topic] = subscription
        self.count += 1
        self.chars += chars_of(subscription)

    def remove(self, group: str, topic: str) -> None:
        """Remove a subscription if it is waiting."""
        topics = self._groups.get(group, {})
        subscription = topics.pop(topic, None)
        if subscription is None:
            return
        self.count -= 1
        self.chars -= chars_of(subscription)
        if not topics:
            del self._groups[group]

    def others(self, group: str, wanted: Collection[str]) -> list[str]:
        """Return the topics with a waiting filter of the group that are not in `wanted`."""
        return [topic for topic in self._groups.get(group, ()) if topic not in wanted]


def chars_of(subscription: SubscriptionData) -> int:
    """Return how many characters a subscription adds to `BeingCompiled.chars`."""
    return len(subscription.topic) + len(subscription.sub_string)
