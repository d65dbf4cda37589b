# SPDX-License-Identifier: Apache-2.0
"""Headers of the name server's requests."""

import msgspec

from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.types import Header


class PutKvConfig(Header, frozen=True):
    """Set one value in a namespace."""

    namespace: str
    key: str
    value: str


class GetKvConfig(Header, frozen=True):
    """Read one value from a namespace."""

    namespace: str
    key: str


class GetKvConfigReply(Header, frozen=True):
    """The value found."""

    value: str | None = None


class DeleteKvConfig(Header, frozen=True):
    """Delete one value from a namespace."""

    namespace: str
    key: str


class RegisterBroker(Header, frozen=True):
    """Register a broker and its topics; a `body_crc32` of 0 means that the body is not checked.

    Members of a broker group with failover add the epoch of their role, and a proof that they know
    the group's key if it has one. RocketMQ's name server ignores these fields, and RocketMQ's
    brokers do not send them.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = msgspec.field(name="bodyCrc32", default=0)
    group_epoch: Int64 | None = None
    group_proof: str | None = None


class RegisterBrokerReply(Header, frozen=True):
    """The addresses that a slave uses to find its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBroker(Header, frozen=True):
    """Remove a broker from the routes; members of a group with a key add a proof."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    group_epoch: Int64 | None = None
    group_proof: str | None = None


class GetRouteinfoByTopic(Header, frozen=True):
    """Ask which brokers hold a topic."""

    topic: str
    accept_standard_json_only: bool = False


class WipeWritePermOfBroker(Header, frozen=True):
    """Remove the write permission from all topics of a broker."""

    broker_name: str


class WipeWritePermOfBrokerReply(Header, frozen=True):
    """The number of topics that lost the permission."""

    wipe_topic_count: Int32


class AddWritePermOfBroker(Header, frozen=True):
    """Restore write permission on all topics of a broker."""

    broker_name: str


class AddWritePermOfBrokerReply(Header, frozen=True):
    """The number of topics that regained the permission."""

    add_topic_count: Int32


class DeleteTopicInNamesrv(Header, frozen=True):
    """Remove a topic from the routes of one cluster or of all clusters."""

    topic: str
    cluster_name: str | None = None


class GetKvlistByNamespace(Header, frozen=True):
    """Read all values in a namespace."""

    namespace: str


class GetTopicsByCluster(Header, frozen=True):
    """Ask for the topics of a cluster."""

    cluster: str


class QueryDataVersion(Header, frozen=True):
    """Ask whether the name server has the current version of the broker's topics."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionReply(Header, frozen=True):
    """Whether the broker must register again."""

    changed: bool
