# SPDX-License-Identifier: Apache-2.0
"""Headers of the requests that clients use to register with a broker and to find each other."""

import msgspec

from cometmq.remoting.integers import Int32
from cometmq.remoting.types import Header


class UnregisterClient(Header, frozen=True):
    """Remove a client from its producer or consumer group."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(Header, frozen=True):
    """Ask for the clients of a consumer group, to divide the queues among them."""

    consumer_group: str


class DisconnectClient(Header, frozen=True):
    """Close the connections of a client; its library connects again by itself."""

    client_id: str


class DisconnectClientReply(Header, frozen=True):
    """How many connections were closed."""

    count: Int32
