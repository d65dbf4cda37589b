# SPDX-License-Identifier: Apache-2.0
"""The bodies of registrations, in parts that every name server accepts.

A name server refuses frames above a limit: 16 MiB by default in RocketMQ, which a table of 50,000
topics with long names exceeds. So a table is sent in parts, one registration after the other. Name
servers keep the topics that a registration leaves out, and read the topics of each registration
whose data version differs from the last one. Each part therefore has a version of its own, and the
last one has the version of the table.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cometmq.broker.settings import BrokerSettings
from cometmq.broker.tables.topics import READ_WRITE, Topics
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import AUTO_CREATE_TOPIC

CRC_MASK: Final = 0x7FFF_FFFF  # RocketMQ clears the sign bit
PART_BYTES: Final = 1 << 20
"""Size of a part, uncompressed: about 5,000 topics, which take 3 ms to encode or decode."""
PART_BYTES_MIN: Final = 64 << 10
_TOPIC_BYTES: Final = 160  # a topic's JSON without its name, which occurs twice


class Body(NamedTuple):
    """An encoded body and its checksum."""

    data: bytes
    crc: int


class Bodies:
    """Encodes the topics for registrations."""

    def __init__(self, topics: Topics, settings: Callable[[], BrokerSettings]) -> None:
        self._topics = topics
        self._settings = settings
        self._whole: tuple[tuple[DataVersion, int, bool, bool], Body] | None = None

    def parts(
        self, since: DataVersion | None, part_bytes: int
    ) -> Sequence[Mapping[str, TopicConfig]]:
        """Return the topics that changed after a version, or all, in parts of bounded size."""
        return split(self._permitted(self._topics.changes(since)), part_bytes)

    def encoded(
        self, topics: Mapping[str, TopicConfig], version: DataVersion, *, is_whole: bool = False
    ) -> Body:
        """Encode one part; a whole table that fits into one part is encoded once per version."""
        settings = self._settings()
        key = (
            version,
            settings.broker_permission,
            settings.auto_create_topic_enable,
            settings.compressed_register,
        )
        if is_whole and self._whole is not None and self._whole[0] == key:
            return self._whole[1]
        table = TopicConfigTable(data_version=version, topic_config_table=dict(topics))
        data = encode_register_body(
            RegisterBrokerBody(topic_config_serialize_wrapper=table),
            compressed=settings.compressed_register,
        )
        body = Body(data, zlib.crc32(data) & CRC_MASK)
        if is_whole:
            self._whole = key, body
        return body

    def _permitted(self, topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
        """Return the topics with the permissions to register: each topic's is replaced by the
        broker's if the broker lacks read or write permission, and TBW102 loses INHERIT if sends do
        not create topics.

        TBW102 stays in the file of a broker that used to create topics. Without INHERIT, clients
        know before they send that they cannot create a topic; RocketMQ's brokers remove it only
        when they refuse the first send.
        """
        settings = self._settings()
        replace, perm = msgspec.structs.replace, settings.broker_permission
        if perm & READ_WRITE != READ_WRITE:
            return {topic: replace(config, perm=perm) for topic, config in topics.items()}
        permitted = dict(topics)
        template = permitted.get(AUTO_CREATE_TOPIC)
        if template is not None and not settings.auto_create_topic_enable:
            perm = template.perm & ~int(Perm.INHERIT)
            permitted[AUTO_CREATE_TOPIC] = replace(template, perm=perm)
        return permitted


def part_version(version: DataVersion, number: int) -> DataVersion:
    """Return the version of a part other than the last, unlike those of tables and parts."""
    return msgspec.structs.replace(version, timestamp=number)


def split(
    topics: Mapping[str, TopicConfig], part_bytes: int
) -> Sequence[Mapping[str, TopicConfig]]:
    """Divide topics into parts of at most this size as JSON; return at least one part."""
    parts: list[dict[str, TopicConfig]] = [{}]
    size = 0
    for name, config in topics.items():
        more = _size(name, config)
        if size + more > part_bytes and parts[-1]:
            parts.append({})
            size = 0
        parts[-1][name] = config
        size += more
    return parts


def _size(name: str, config: TopicConfig) -> int:
    """Return an upper bound of a topic's size as JSON."""
    if config.attributes or not name.isascii():
        return len(encode_json({name: config}))
    return _TOPIC_BYTES + 2 * len(name)
