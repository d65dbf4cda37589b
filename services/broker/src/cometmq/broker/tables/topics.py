# SPDX-License-Identifier: Apache-2.0
"""Topics: their configuration, its version and its file.

Each change gives the table a new version. For each of its versions in this run, the table knows
which topics have changed since, and only these are sent to name servers.

Compatibility: topics.json has RocketMQ's format, and a first send creates a topic as in RocketMQ. A
topic's order flag follows the name server's ORDER_TOPIC_CONFIG, whatever a request contains.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from cometmq.broker.names import topic_fault
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.tables.versioned_table import VersionedTable
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.kept import decode_keeping
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig, TopicConfigTable
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_TOPIC,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    is_system_topic,
    retry_topic,
)
from cometmq.store.json_config import JsonTable

Admit: TypeAlias = Callable[[int, int, int], None]
"""Called before a topic is added, with the number of topics, of their queues, and of queues to add;
raises an error if there is no room.
"""

READ_WRITE: Final = int(Perm.READ | Perm.WRITE)
QUEUE_NUMS_MAX: Final = 16_384  # one topic of this size costs a route of 1 kB and a scan of 10 ms

_BENCHMARK_QUEUES: Final = 1024
_CLUSTER_QUEUES: Final = 16
_SCHEDULE_QUEUES: Final = 18


class Topics(VersionedTable[TopicConfigTable, TopicConfig]):
    def __init__(
        self,
        file: JsonTable[TopicConfigTable] | None = None,
        *,
        clock_ms: Callable[[], int],
        changed: Callable[[], None] = lambda: None,
        log: Log = NO_LOG,
    ) -> None:
        """Load the file; `changed` is called after each change, to save and notify name servers."""
        super().__init__(
            file,
            lambda loaded: loaded.topic_config_table,
            TopicConfig,
            clock_ms=clock_ms,
            changed=changed,
            log=log,
        )
        self.reserved: set[str] = set()
        self._queue_count: int | None = None  # unknown until it is asked for
        self._changed_at: dict[str, int] = {}
        self._all_changed_at = self.version.counter
        self._ordered_as_of: tuple[DataVersion, frozenset[str]] | None = None

    @property
    def queue_count(self) -> int:
        """The total number of queues of all topics."""
        if self._queue_count is None:
            self._queue_count = sum(map(queues_of, self.table.values()))
        return self._queue_count

    def boot(self, settings: BrokerSettings) -> None:
        """Add the topics that every broker has; existing topics keep their configuration."""
        wanted = {config.topic_name: config for config in boot_topics(settings)}
        self.reserved = reserved_names(settings)
        missing = wanted.keys() - self.table.keys()
        if not missing:
            return
        has_history = bool(self.table)
        self._queue_count = None
        for topic in missing:
            self.table[topic] = wanted[topic]
        self._note(*missing)
        if has_history:  # a name server that knows the old version must see a new one
            self.touch()

    def adopt(self, queues: Mapping[str, int]) -> None:
        """Recreate topics that have messages but no configuration (topic -> queue count).

        A RocketMQ broker that is killed between storing a topic's first message and saving the
        table leaves such a topic; without a configuration, its messages cannot be read. But a
        deleted topic may look the same, because recovery builds its queues again from the log. So
        call this only if the table may be incomplete.
        """
        for topic, queue_count in queues.items():
            is_known = topic in self.table or is_system_topic(topic)
            if is_known or topic_fault(topic) is not None:
                continue
            self._log.warning("topic.adopted", topic=topic, queues=queue_count)
            self.put(_config(topic, queue_count))

    def adopt_created(self, queues: Mapping[str, int]) -> None:
        """Recreate topics that sends have created, with at least the given number of queues."""
        template = self.table.get(AUTO_CREATE_TOPIC)
        usual = 1 if template is None else template.write_queue_nums
        self.adopt(
            {
                topic: count if topic.startswith(RETRY_PREFIX) else max(count, usual)
                for topic, count in queues.items()
            }
        )

    def create_for_send(
        self,
        topic: str,
        *,
        default_topic: str,
        queue_nums: int,
        sys_flag: int = 0,
        auto_create: bool = True,
        admit: Admit = lambda *_counts: None,
    ) -> TopicConfig | None:
        """Return the topic, created from the default topic if necessary; None if forbidden."""
        known = self.table.get(topic)
        if known is not None:
            return known
        template = self.table.get(default_topic)
        is_allowed = auto_create or default_topic != AUTO_CREATE_TOPIC
        if template is None or not is_allowed or not template.perm & Perm.INHERIT:
            self._log.warning("topic.creation_refused", topic=topic, template=default_topic)
            return None
        queue_count = max(1, min(queue_nums, template.write_queue_nums))
        admit(len(self.table), self.queue_count, queue_count)
        config = _config(
            topic, queue_count, perm=template.perm & ~int(Perm.INHERIT), sys_flag=sys_flag
        )
        config = msgspec.structs.replace(config, topic_filter_type=template.topic_filter_type)
        self.put(config)
        return config

    def create(
        self,
        topic: str,
        *,
        queue_nums: int,
        perm: int = READ_WRITE,
        sys_flag: int = 0,
        admit: Admit = lambda *_counts: None,
    ) -> TopicConfig:
        """Return the topic; if it does not exist, create it with these values.

        This is for retry, dead-letter and system topics.
        """
        known = self.table.get(topic)
        if known is not None:
            return known
        admit(len(self.table), self.queue_count, queue_nums)
        config = _config(topic, queue_nums, perm=perm, sys_flag=sys_flag)
        self.put(config)
        return config

    def create_retry(
        self,
        group: str,
        *,
        queue_nums: int,
        sys_flag: int = 0,
        admit: Admit = lambda *_counts: None,
    ) -> TopicConfig:
        """Return the retry topic of a group, with at least this number of queues.

        The topic never shrinks, because messages may wait in its queues.
        """
        count = max(1, queue_nums)
        topic = retry_topic(group)
        config = self.create(topic, queue_nums=count, sys_flag=sys_flag, admit=admit)
        if min(config.read_queue_nums, config.write_queue_nums) >= count:
            return config
        grown = msgspec.structs.replace(
            config,
            read_queue_nums=max(config.read_queue_nums, count),
            write_queue_nums=max(config.write_queue_nums, count),
        )
        self.put(grown)
        return grown

    def put(self, config: TopicConfig) -> None:
        """Add or replace a topic, but keep the order flag that the name servers set.

        Putting an identical configuration also counts as a change, because a name server may have
        dropped the topic.
        """
        old = self.table.get(config.topic_name)
        if old is not None and old.order != config.order:
            config = msgspec.structs.replace(config, order=old.order)
        self._store(config)
        self._log.info(
            "topic.updated" if old else "topic.created",
            topic=config.topic_name,
            read_queues=config.read_queue_nums,
            write_queues=config.write_queue_nums,
            perm=config.perm,
        )
        self._bump()

    def remove(self, topic: str) -> bool:
        """Delete a topic; return whether it existed."""
        if self.table.pop(topic, None) is None:
            return False
        self._queue_count = None
        self._changed_at.pop(topic, None)
        self._note(topic)
        self._log.info("topic.removed", topic=topic)
        self._bump()
        return True

    def _adopt(self, version: DataVersion) -> None:
        """Adopt the version of another broker, whose table has replaced this one.

        The caller must register all topics again with all name servers, because the changes since
        this table's earlier versions are unknown.
        """
        self._changed_at.clear()
        self._all_changed_at = version.counter
        self._ordered_as_of = self._queue_count = None
        super()._adopt(version)

    def set_ordered(self, ordered: Collection[str]) -> None:
        """Adopt the list of ordered topics from the name servers' configuration."""
        if self._ordered_as_of == (self.version, frozenset(ordered)):
            return
        stale = [
            config for topic, config in self.table.items() if config.order != (topic in ordered)
        ]
        for config in stale:
            self._store(msgspec.structs.replace(config, order=not config.order))
        if stale:
            self._bump()
        self._ordered_as_of = self.version, frozenset(ordered)

    def touch(self) -> None:
        """Mark all topics as changed, because the broker's own permission has changed."""
        self._all_changed_at = self.version.counter + 1
        self._bump()

    def changes(self, since: DataVersion | None) -> dict[str, TopicConfig]:
        """Return the topics that changed after a version; all topics if the version is unknown."""
        if since is None or since.counter < self._all_changed_at:
            return dict(self.table)
        changed = (topic for topic, count in self._changed_at.items() if count > since.counter)
        return {topic: self.table[topic] for topic in changed}

    def is_reserved(self, topic: str) -> bool:
        """Return whether administrators may not change the topic."""
        return topic in self.reserved or is_system_topic(topic)

    def without_entries(self) -> TopicConfigTable:
        return TopicConfigTable(data_version=self.version)

    def apply_changes(self, data: msgspec.Raw) -> None:
        """Apply a piece of `noted_changes`; name servers are then sent all topics."""
        super().apply_changes(data)
        self._queue_count = None
        self._all_changed_at = self.version.counter

    def _store(self, config: TopicConfig) -> None:
        """Set a configuration; the caller must call `_bump` afterwards to assign the version."""
        if self._queue_count is not None:
            old = self.table.get(config.topic_name)
            self._queue_count += queues_of(config) - (0 if old is None else queues_of(old))
        self.table[config.topic_name] = config
        self._note(config.topic_name)
        self._changed_at[config.topic_name] = self.version.counter + 1


def queues_of(config: TopicConfig) -> int:
    """Return the number of a topic's queues, whether they can be read, written or both."""
    return max(config.read_queue_nums, config.write_queue_nums)


def boot_topics(settings: BrokerSettings) -> Iterable[TopicConfig]:
    """Return the topics that a broker with these settings creates on its first start."""
    shared = READ_WRITE | Perm.INHERIT
    yield _config(SELF_TEST_TOPIC, 1)
    if settings.auto_create_topic_enable:
        yield _config(AUTO_CREATE_TOPIC, settings.default_topic_queue_nums, perm=shared)
    yield _config(BENCHMARK_TOPIC, _BENCHMARK_QUEUES)
    cluster_perm = shared if settings.cluster_topic_enable else Perm.INHERIT
    yield _config(settings.broker_cluster_name, _CLUSTER_QUEUES, perm=cluster_perm)
    broker_perm = shared if settings.broker_topic_enable else Perm.INHERIT
    yield _config(settings.broker_name, 1, perm=broker_perm)
    yield _config(OFFSET_MOVED_TOPIC, 1)
    yield _config(SCHEDULE_TOPIC, _SCHEDULE_QUEUES)
    if settings.trace_topic_enable:
        yield _config(settings.msg_trace_topic_name, 1)
    yield _config(settings.broker_cluster_name + REPLY_SUFFIX, 1)


def reserved_names(settings: BrokerSettings) -> set[str]:
    """Return the topics of this broker and cluster that administrators may not change."""
    cluster = settings.broker_cluster_name
    own = {cluster, settings.broker_name, cluster + REPLY_SUFFIX}
    return own | ({settings.msg_trace_topic_name} if settings.trace_topic_enable else set())


def topic_file(path: str | Path) -> JsonTable[TopicConfigTable]:
    return JsonTable(
        path, decode=partial(decode_keeping, TopicConfigTable, TopicConfig), encode=encode_json
    )


def _config(
    topic: str, queue_nums: int, *, perm: int = READ_WRITE, sys_flag: int = 0
) -> TopicConfig:
    return TopicConfig(
        topic_name=topic,
        read_queue_nums=queue_nums,
        write_queue_nums=queue_nums,
        perm=int(perm),
        topic_sys_flag=sys_flag,
    )
