# SPDX-License-Identifier: Apache-2.0
"""Subscriptions that clients have told this broker when asked, before their first heartbeat (pure).

Consumers send their subscriptions with heartbeats, every 30 s, but not with pulls. A broker that
becomes the master within 30 s of its start has not received all heartbeats. RocketMQ's broker then
refuses pulls without a known subscription (24). This broker asks the client for its subscriptions
instead. An answer counts until the next heartbeat, and only for pulls of the same connection, which
could send the same in a heartbeat.
"""

import asyncio
from typing import Final

from cometmq.broker.clients.consumers import ConsumerGroup
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.command import Peer

TRUSTED_MS: Final = 60_000
"""How long an answer counts without a heartbeat: two intervals of heartbeats."""


class Told:
    def __init__(self) -> None:
        self.asking: dict[tuple[Peer, str], asyncio.Future[None]] = {}
        """Unanswered questions, by connection and consumer group."""
        self._groups: dict[Peer, dict[str, ConsumerGroup]] = {}

    def note(self, peer: Peer, data: ConsumerData, now_ms: int) -> None:
        self._groups.setdefault(peer, {})[data.group_name] = ConsumerGroup(
            data.group_name,
            data.consume_type,
            data.message_model,
            data.consume_from_where,
            subscriptions={one.topic: one for one in data.subscription_data_set},
            updated_ms=now_ms,
        )

    def group(self, peer: Peer, name: str, now_ms: int) -> ConsumerGroup | None:
        """Return a group as a connection has described it in the last TRUSTED_MS, if it has."""
        found = self._groups.get(peer, {}).get(name)
        return None if found is None or now_ms - found.updated_ms > TRUSTED_MS else found

    def forget(self, peer: Peer, name: str) -> None:
        """Forget what a connection told about a group, because it has registered or left it."""
        groups = self._groups.get(peer)
        if groups is not None and groups.pop(name, None) is not None and not groups:
            del self._groups[peer]

    def drop(self, peer: Peer) -> None:
        """Forget a closed connection."""
        self._groups.pop(peer, None)
