# SPDX-License-Identifier: Apache-2.0
"""Bodies that list the connected clients of groups."""

import msgspec

from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.integers import Int32, Int64


class Connection(msgspec.Struct, gc=False, rename="camel"):
    """One connected client."""

    client_addr: str = ""
    client_id: str = ""
    language: str = "JAVA"
    version: Int32 = 0


class ConsumerConnections(msgspec.Struct, gc=False, rename="camel"):
    """The clients of a consumer group, and their subscriptions."""

    connection_set: list[Connection] = []
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    subscription_table: dict[str, SubscriptionData] = {}


class ProducerConnections(msgspec.Struct, gc=False, rename="camel"):
    """The clients of a producer group."""

    connection_set: list[Connection] = []


class ProducerInfo(msgspec.Struct, gc=False, rename="camel"):
    """One client of a producer group in `ProducerTable`."""

    client_id: str = ""
    language: str = "JAVA"
    last_update_timestamp: Int64 = 0
    remote_ip: str = msgspec.field(name="remoteIP", default="")
    version: Int32 = 0


class ProducerTable(msgspec.Struct, gc=False, rename="camel"):
    """The connected producers of a broker, by group."""

    data: dict[str, list[ProducerInfo]] = {}
