# SPDX-License-Identifier: Apache-2.0
"""Metrics under the names and labels of RocketMQ 5, so that its dashboards show data.

Compatibility: the broker counts batches and topics, so `message_type` is always `unspecified`, and
`rpc_latency` has neither a response code nor a result. Metrics are left out if they need a figure
for each message (`message_size`) or for messages that are being consumed
(`consumer_inflight_messages`, `consumer_ready_messages`, `consumer_queueing_latency`).
`half_messages` is left out, too: only the txn-checker knows which transactions are open
(`cometmq_txn_open`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.exposition.figures import Figures, GroupLag, groups_of, topics_of
from cometmq.broker.statistics.latencies import in_milliseconds
from cometmq.broker.transactions.transactions import Outcome
from cometmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic
from cometmq.remoting.types import Language
from cometmq.remoting.versions import version_name
from cometmq.runtime.metrics import (
    Family,
    Row,
    labelled_counter,
    labelled_gauge,
    labelled_histogram,
)
from cometmq.runtime.metrics.histogram import Buckets

Rows = Callable[[Figures], Iterable[Row]]
_Table = tuple[tuple[str, tuple[str, ...], Rows, str], ...]

_IN: Final = ("topic", "message_type", "is_system")
_OUT: Final = ("topic", "consumer_group", "is_retry", "is_system")
_MESSAGE_TYPE: Final = "unspecified"


def _flag(value: bool) -> str:  # a label's text
    return "true" if value else "false"


def _of_topics(figure: str) -> Rows:
    def rows(figures: Figures) -> Iterable[Row]:
        for topic, stats in topics_of(figures.broker):
            labels = topic, _MESSAGE_TYPE, _flag(is_system_topic(topic))
            yield labels, getattr(stats, figure)

    return rows


def _out_labels(topic: str, group: str) -> tuple[str, ...]:
    is_system = is_system_topic(topic) or is_system_group(group)
    return topic, group, _flag(topic.startswith(RETRY_PREFIX)), _flag(is_system)


def _of_groups(figure: str) -> Rows:
    def rows(figures: Figures) -> Iterable[Row]:
        for (topic, group), stats in groups_of(figures.broker):
            yield _out_labels(topic, group), getattr(stats, figure)

    return rows


def _of_lags(value: Callable[[GroupLag], float | None]) -> Rows:
    def rows(figures: Figures) -> Iterable[Row]:
        for one in figures.groups:
            number = value(one)
            if number is not None:
                yield _out_labels(one.topic, one.group), number

    return rows


def _dead(figures: Figures) -> Iterable[Row]:
    for topic, stats in topics_of(figures.broker):
        if topic.startswith(DLQ_PREFIX):
            yield (topic.removeprefix(DLQ_PREFIX), topic), stats.put_count


def _program(client: Client) -> tuple[str, str]:
    known = client.language in set(Language)
    language = Language(client.language).name.lower() if known else "other"
    return language, version_name(client.version).lower()


def _producers(figures: Figures) -> Iterable[Row]:
    clients = (
        client for _, clients in figures.broker.clients.producers.groups() for client in clients
    )
    return list(Counter(map(_program, clients)).items())


def _consumers(figures: Figures) -> Iterable[Row]:
    for group in figures.broker.clients.consumers.groups():
        mode = "push" if group.consume_type == "CONSUME_PASSIVELY" else "pull"
        for program, count in Counter(map(_program, group.clients.values())).items():
            yield (group.name, *program, mode), count


def _latencies(figures: Figures) -> Iterable[tuple[Sequence[str], Buckets]]:
    broker, sends = figures.broker, figures.broker.driver.sends
    return (
        (("remoting", "send_message_v2", "false"), in_milliseconds(sends.put_seconds)),
        (("remoting", "pull_message", "false"), in_milliseconds(broker.stats.pull_seconds)),
    )


def _waiting(figures: Figures) -> Iterable[Row]:
    driver = figures.broker.driver
    return (("send",), driver.sends.waiting_count), (("pull",), len(driver.reads))


def _storage_age(figures: Figures) -> float:
    earliest_ms = -1 if figures.disk is None else figures.disk.earliest_ms
    return 0 if earliest_ms < 0 else max(0, figures.now_ms - earliest_ms)


def _one(value: Callable[[Broker], float]) -> Rows:
    return lambda figures: (((), value(figures.broker)),)


def _ended(outcome: Outcome) -> Rows:
    return _one(lambda broker: broker.deferred.transactions.outcomes[outcome])


def _behind(value: Callable[[Broker], int]) -> Rows:
    return _one(lambda broker: max(0, broker.store.stats().max_offset - value(broker)))


_COUNTERS: Final[_Table] = (
    ("messages_in_total", _IN, _of_topics("put_count"), "Messages stored."),
    ("throughput_in_total", _IN, _of_topics("put_bytes"), "Bytes stored."),
    ("messages_out_total", _OUT, _of_groups("get_count"), "Messages delivered."),
    ("throughput_out_total", _OUT, _of_groups("get_bytes"), "Bytes delivered."),
    ("send_to_dlq_messages_total", ("consumer_group", "topic"), _dead,
     "Messages moved to a dead-letter topic."),
    ("commit_messages_total", (), _ended(Outcome.COMMITTED),
     "Half messages committed."),
    ("rollback_messages_total", (), _ended(Outcome.ROLLED_BACK),
     "Half messages rolled back."),
)  # fmt: skip
_GAUGES: Final[_Table] = (
    ("consumer_lag_messages", _OUT, _of_lags(lambda one: one.lag), "Messages not yet consumed."),
    ("consumer_lag_latency", _OUT, _of_lags(lambda one: one.lag_ms),
     "Age in milliseconds of the oldest message not yet consumed."),
    ("producer_connections", ("language", "version"), _producers, "Connected producers."),
    ("consumer_connections", ("consumer_group", "language", "version", "consume_mode"), _consumers,
     "Connected consumers."),
    ("processor_watermark", ("processor",), _waiting,
     "Waiting requests: sends waiting for the disk or a slave, pulls waiting for the disk."),
    ("broker_permission", (), _one(lambda b: b.settings.broker_permission),
     "`brokerPermission`: 2 write, 4 read."),
    ("topic_number", (), _one(lambda b: len(b.tables.topics.table)), "Topics."),
    ("consumer_group_number", (), _one(lambda b: len(b.tables.groups.table)), "Consumer groups."),
    ("storage_size", (), _behind(lambda b: b.store.stats().min_offset),
     "Size of the log in bytes."),
    ("storage_flush_behind_bytes", (), _behind(lambda b: b.store.stats().flushed_offset),
     "Log bytes not yet synced."),
    ("storage_dispatch_behind_bytes", (), _behind(lambda b: b.store.commit_log.confirm_offset),
     "Log bytes not yet visible to consumers."),
    ("storage_message_reserve_time", (), lambda f: (((), _storage_age(f)),),
     "Age in milliseconds of the oldest message."),
)  # fmt: skip
FAMILIES: Final[tuple[Family[Figures], ...]] = (
    *(
        labelled_counter(f"rocketmq_{name}", text, labels, rows)
        for name, labels, rows, text in _COUNTERS
    ),
    *(
        labelled_gauge(f"rocketmq_{name}", text, labels, rows)
        for name, labels, rows, text in _GAUGES
    ),
    labelled_histogram(
        "rocketmq_rpc_latency",
        "Duration in milliseconds of sends, and of pulls that were not held.",
        ("protocol_type", "request_code", "is_long_polling"),
        _latencies,
    ),
)


def tables(broker: Broker) -> list[tuple[Sequence[Family[Figures]], dict[str, str]]]:
    """Return one table: the families, and the labels that all of them have."""
    settings = broker.settings
    return [
        (
            FAMILIES,
            {
                "cluster": settings.broker_cluster_name,
                "node_type": "broker",
                "node_id": settings.broker_name,
            },
        )
    ]
