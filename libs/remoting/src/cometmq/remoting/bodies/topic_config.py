# SPDX-License-Identifier: Apache-2.0
"""Topics and consumer groups as brokers store, register and exchange them.

Members that exist only in 5.x default to UNSET instead of None, so the encoder need not remove
nulls: encoding a table of ten thousand topics takes 5 ms instead of 70 ms.
"""

import struct
import zlib
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.spelling import SpelledFields

QUEUES_MAX: Final = 16_384
"""Queues of one topic, at one broker, as brokers create it, and at all of them together: clients
refuse a route of more, because checking it takes 13 ms of processor time, and a consumer keeps a
reader for each queue.
"""
_LENGTH: Final = struct.Struct(">i")
_ZLIB_LEVEL: Final = 9  # the level that brokers use


def queue_excess(topic: str, count: int) -> str:
    """Return why clients refuse a topic of `count` queues at all brokers; empty if they use it."""
    if count <= QUEUES_MAX:
        return ""
    return (
        f"the topic {topic} would have {count:,} queues at all brokers, and clients refuse more"
        f" than {QUEUES_MAX:,}: give it fewer queues, or fewer brokers"
    )


class DataVersion(msgspec.Struct, gc=False, rename="camel"):
    """A table's version, compared by `counter` and `timestamp`. 5.x adds `state_version`."""

    counter: Int64 = 0
    timestamp: Int64 = 0
    state_version: Int64 | UnsetType = UNSET

    def next_version(self, now_ms: int) -> "DataVersion":
        """Return the version after a change at `now_ms`; its counter is higher by one."""
        return DataVersion(self.counter + 1, now_ms, self.state_version)


class TopicConfig(msgspec.Struct, gc=False, rename="camel", metaclass=SpelledFields):
    """One topic of a broker; `attributes` was added in 5.x."""

    order: bool = False
    perm: Int32 = 6
    read_queue_nums: Int32 = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str = ""
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16
    attributes: dict[str, str] | UnsetType = UNSET

    @property
    def attributes_text(self) -> str:
        """The attributes as in `message.type=FIFO,reserve.time=3`; usually empty."""
        return ",".join(f"{key}={value}" for key, value in (self.attributes or {}).items())


class TopicConfigTable(msgspec.Struct, gc=False, rename="camel"):
    """All topics of a broker: the body of GET_ALL_TOPIC_CONFIG, and the content of topics.json."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = {}


class CreateTopicList(msgspec.Struct, gc=False, rename="camel"):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST; the keys of the attributes begin with `+` or `-`."""

    topic_config_list: list[TopicConfig]


class SubscriptionGroupConfig(msgspec.Struct, gc=False, rename="camel", metaclass=SpelledFields):
    """One consumer group of a broker; members that default to UNSET were added in 5.x."""

    broker_id: Int64 = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    group_name: str = ""
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    which_broker_when_consume_slowly: Int64 = 1
    attributes: dict[str, str] | UnsetType = UNSET
    consume_message_orderly: bool | UnsetType = UNSET
    consume_timeout_minute: Int32 | UnsetType = UNSET
    retry_policy: Any = msgspec.field(default=UNSET, name="groupRetryPolicy")
    sys_flag: Int32 | UnsetType = msgspec.field(default=UNSET, name="groupSysFlag")
    subscription_data_set: Any = UNSET


class SubscriptionGroupList(msgspec.Struct, gc=False, rename="camel"):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig]


class SubscriptionGroupTable(msgspec.Struct, gc=False, rename="camel"):
    """All consumer groups of a broker; also the content of subscriptionGroup.json."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class RegisterBrokerBody(msgspec.Struct, gc=False, rename="camel"):
    """Body of REGISTER_BROKER."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(
        default_factory=TopicConfigTable
    )


def encode_register_body(body: RegisterBrokerBody, *, compressed: bool) -> bytes:
    """Return the body as JSON or in the compressed form.

    As in Java, the compressed form omits `order` and `topicSysFlag` of the topics. Name
    servers read both forms with `registrations.decode_registration`.
    """
    if not compressed:
        return encode_json(body)
    table = body.topic_config_serialize_wrapper
    parts = [encode_json(table.data_version)]
    lines = [
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} "
        f"{topic.perm} {topic.topic_filter_type}".encode()
        for topic in table.topic_config_table.values()
    ]
    data = b"".join(
        [
            *_with_lengths(parts),
            _LENGTH.pack(len(lines)),
            *_with_lengths(lines),
            *_with_lengths([encode_json(body.filter_server_list)]),
        ]
    )
    return zlib.compress(data, _ZLIB_LEVEL)


def _with_lengths(parts: list[bytes]) -> list[bytes]:
    return [_LENGTH.pack(len(part)) + part for part in parts]
