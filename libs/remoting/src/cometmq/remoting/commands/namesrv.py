# SPDX-License-Identifier: Apache-2.0
"""Headers of the name server's requests."""

import msgspec

from cometmq.remoting.integers import Int32, Int64


class PutKvConfig(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Set one value in a namespace."""

    namespace: str
    key: str
    value: str


class GetKvConfig(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Read one value from a namespace."""

    namespace: str
    key: str


class GetKvConfigReply(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The value found."""

    value: str | None = None


class DeleteKvConfig(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Delete one value from a namespace."""

    namespace: str
    key: str


class RegisterBroker(msgspec.Struct, frozen=True, gc=False, rename="camel"):
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


class RegisterBrokerReply(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The addresses that a slave uses to find its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBroker(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Remove a broker from the routes; members of a group with a key add a proof."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    group_epoch: Int64 | None = None
    group_proof: str | None = None


class GetRouteinfoByTopic(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask which brokers hold a topic."""

    topic: str
    accept_standard_json_only: bool = False


class WipeWritePermOfBroker(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Remove the write permission from all topics of a broker."""

    broker_name: str


class WipeWritePermOfBrokerReply(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The number of topics that lost the permission."""

    wipe_topic_count: Int32


class AddWritePermOfBroker(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Restore write permission on all topics of a broker."""

    broker_name: str


class AddWritePermOfBrokerReply(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The number of topics that regained the permission."""

    add_topic_count: Int32


class DeleteTopicInNamesrv(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Remove a topic from the routes of one cluster or of all clusters."""

    topic: str
    cluster_name: str | None = None


class GetKvlistByNamespace(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Read all values in a namespace."""

    namespace: str


class GetTopicsByCluster(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask for the topics of a cluster."""

    cluster: str


class QueryDataVersion(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask whether the name server has the current version of the broker's topics."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionReply(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Whether the broker must register again."""

    changed: bool
