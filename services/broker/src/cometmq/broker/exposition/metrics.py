# SPDX-License-Identifier: Apache-2.0
"""The metric families of a broker, computed from its counters at each scrape.

There is a tuple of families for each source of values: the broker (`FAMILIES`), its role and slaves
(`REPLICATION_FAMILIES`), the store (`STORE_FAMILIES`), and the figures with a row for each topic or
group (`FIGURE_FAMILIES`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.unfit import Unfit
from cometmq.broker.exposition import rocketmq5_metrics, rocketmq_exporter_metrics
from cometmq.broker.exposition.figures import (
    FigureCollector,
    Figures,
    groups_of,
    slave_lags,
    topics_of,
)
from cometmq.broker.transactions.transactions import Outcome
from cometmq.remoting.names import SCHEDULE_GROUP, SCHEDULE_TOPIC
from cometmq.remoting.transport.stats import TransportStats
from cometmq.runtime.limits import LIMIT_TABLE_FAMILIES
from cometmq.runtime.metrics import (
    Family,
    MetricSource,
    Row,
    RowLimit,
    StatsCollector,
    counter,
    gauge,
    histogram,
    labelled_counter,
    labelled_gauge,
)
from cometmq.runtime.metrics.transport import TRANSPORT_FAMILIES
from cometmq.store.results import StoreStats


def _slow_requests(broker: Broker) -> Iterable[Row]:
    counts = broker.measured.detours.counts
    return [((str(int(code)), reason.value), count) for (code, reason), count in counts.items()]


def _refused_requests(broker: Broker) -> Iterable[Row]:
    counts = broker.admission.refused.counts
    return [((str(int(code)), str(int(found))), n) for (code, found), n in counts.items()]


def _delayed(broker: Broker) -> Iterable[Row]:
    """Yield a row for each level that has ever been used."""
    counts = broker.deferred.delays.waiting.counts()
    return [((str(level),), count) for level, count in counts.items()]


def _mismatches(broker: Broker) -> Iterable[Row]:
    """Yield a row for each group whose members have different subscriptions."""
    counts = (
        (group.name, group.member_subscriptions.count)
        for group in broker.clients.consumers.groups()
    )
    return [((name,), count) for name, count in counts if count > 1]


FAMILIES: Final[tuple[Family[Broker], ...]] = (
    counter("cometmq_put_messages_total", "Messages stored.", lambda b: b.stats.put_count),
    counter("cometmq_put_bytes_total", "Bytes stored.", lambda b: b.stats.put_bytes),
    counter("cometmq_put_failed_total", "Sends refused.", lambda b: b.stats.put_failed_count),
    counter("cometmq_get_messages_total", "Messages delivered.", lambda b: b.stats.get_count),
    counter("cometmq_get_bytes_total", "Bytes delivered.", lambda b: b.stats.get_bytes),
    counter("cometmq_pull_found_total", "Pulls with messages.", lambda b: b.stats.found_count),
    counter("cometmq_pull_missed_total", "Pulls without messages.", lambda b: b.stats.miss_count),
    counter("cometmq_cold_reads_total", "Reads from disk.", lambda b: b.stats.cold_read_count),
    counter("cometmq_reads_expired_total",
        "Reads, searches and long answers refused because they waited longer than readWaitMills.",
        lambda b: b.driver.reads.deadlines.expired_count),
    labelled_counter("cometmq_refused_requests_total",
        "Requests refused, by request code and response code.", ("code", "response"),
        _refused_requests),
    counter("cometmq_busy_total", "Requests refused as busy.", lambda b: b.stats.busy_count),
    counter("cometmq_send_backs_total", "Messages sent back.", lambda b: b.stats.send_back_count),
    counter("cometmq_delayed_delivered_total", "Delayed messages delivered.",
        lambda b: b.deferred.delays.counts.delivered),
    counter("cometmq_delayed_moved_total", "Timed messages that moved to another delay level.",
        lambda b: b.deferred.delays.counts.moved),
    counter("cometmq_delayed_recalled_total",
        "Delayed messages not delivered, because of a recall.",
        lambda b: b.deferred.delays.counts.recalled),
    labelled_counter("cometmq_parked_messages_total",
        "Messages that were acknowledged, but could not be stored where they belong.", ("reason",),
        lambda b: (((reason,), n) for reason, n in b.deferred.parking.counts.items())),
    counter("cometmq_half_messages_total", "Half messages stored.",
        lambda b: b.deferred.transactions.prepared_count),
    counter("cometmq_transactions_committed_total", "Half messages committed.",
        lambda b: b.deferred.transactions.outcomes[Outcome.COMMITTED]),
    counter("cometmq_transactions_rolled_back_total", "Half messages rolled back.",
        lambda b: b.deferred.transactions.outcomes[Outcome.ROLLED_BACK]),
    counter("cometmq_transactions_set_aside_total",
        "Half messages set aside because no producer could end their transactions.",
        lambda b: b.deferred.transactions.outcomes[Outcome.SET_ASIDE]),
    counter("cometmq_transactions_repeated_total",
        "Requests to end a transaction that had already ended.",
        lambda b: b.deferred.transactions.repeated_count),
    counter("cometmq_transaction_checks_total", "Transaction checks sent to producers.",
        lambda b: b.deferred.transactions.asked_count),
    counter("cometmq_transaction_checks_unsent_total",
        "Transaction checks not sent because no producer was connected.",
        lambda b: b.deferred.transactions.unasked_count),
    counter("cometmq_commits_total", "Turns with a commit.", lambda b: b.driver.commit_count),
    counter("cometmq_config_save_failed_total", "Failed attempts to save the configuration tables.",
        lambda b: b.tables.saver.failed_count),
    counter("cometmq_journal_bytes_total", "Bytes written to the journal of the tables.",
        lambda b: b.tables.journal.files.byte_count if b.tables.journal else 0),
    gauge("cometmq_journal_files_bytes", "Size of the journal files.",
        lambda b: b.tables.journal.size_bytes if b.tables.journal else 0),
    counter("cometmq_journal_failed_total", "Failed writes and syncs of the journal of the tables.",
        lambda b: b.tables.journal.files.failed_count if b.tables.journal else 0),
    counter("cometmq_acl_refused_total", "Requests refused by access control.",
        lambda b: b.admission.acl.control.refused_count if b.admission.acl else 0),
    gauge("cometmq_acl_files_broken", "1 while changed account files cannot be used.",
        lambda b: int(b.admission.acl is not None and b.admission.acl.fault is not None)),
    gauge("cometmq_native_lane", "1 while plain sends and pulls take the native path.",
        lambda b: int(b.lane is not None)),
    counter("cometmq_native_sends_total",
        "Sends, and requests that end a transaction, that took the native path.",
        lambda b: b.lane.request_count if b.lane else 0),
    counter("cometmq_native_pulls_total", "Pulls that took the native path.",
        lambda b: b.lane.pull_count if b.lane else 0),
    labelled_counter("cometmq_slow_requests_total",
        "Requests that did not take the native path although the broker has one, by code and "
        "reason.", ("code", "reason"), _slow_requests),
    gauge("cometmq_held_pulls", "Pulls currently held.", lambda b: b.pending.hold.count),
    gauge("cometmq_waiting_puts", "Sends waiting for a flush or a slave.",
        lambda b: b.driver.sends.waiting_count),
    gauge("cometmq_topics", "Topics.", lambda b: len(b.tables.topics.table)),
    gauge("cometmq_groups", "Consumer groups.", lambda b: len(b.tables.groups.table)),
    gauge("cometmq_producer_clients", "Connected producers.",
        lambda b: b.clients.producers.client_count),
    gauge("cometmq_consumer_clients", "Connected consumers.",
        lambda b: b.clients.consumers.client_count),
    gauge("cometmq_producer_groups", "Producer groups with a connected member.",
        lambda b: b.clients.producers.group_count),
    gauge("cometmq_consumer_groups", "Consumer groups with a connected member.",
        lambda b: b.clients.consumers.group_count),
    labelled_gauge("cometmq_group_mismatched_subscriptions",
        "Number of different subscriptions in a group whose members disagree.", ("group",),
        _mismatches),
    gauge("cometmq_queue_locks", "Queues locked by orderly consumers.",
        lambda b: b.clients.locks.count),
    gauge("cometmq_namesrv_registered", "Name servers that list this broker.",
        lambda b: b.registration.up_count),
    labelled_counter("cometmq_topic_put_messages_total", "Messages stored.", ("topic",),
        lambda b: (((topic,), it.put_count) for topic, it in topics_of(b))),
    labelled_counter("cometmq_topic_put_bytes_total", "Bytes stored.", ("topic",),
        lambda b: (((topic,), it.put_bytes) for topic, it in topics_of(b))),
    labelled_counter("cometmq_group_get_messages_total", "Messages delivered.", ("topic", "group"),
        lambda b: ((key, it.get_count) for key, it in groups_of(b))),
    labelled_counter("cometmq_group_get_bytes_total", "Bytes delivered.", ("topic", "group"),
        lambda b: ((key, it.get_bytes) for key, it in groups_of(b))),
    labelled_gauge("cometmq_delay_backlog_messages",
        "Delayed messages not yet delivered, without recalled ones.", ("level",), _delayed),
    histogram("cometmq_send_seconds",
        "Time from a put to its answer; all messages in a commit are counted with the time of the "
        "oldest one.", lambda b: b.driver.sends.put_seconds),
    histogram("cometmq_pull_seconds",
        "Duration of pulls that were not held; for native pulls, one chunk in eight is timed and "
        "stands for the rest.", lambda b: b.stats.pull_seconds),
    histogram("cometmq_store_sync_seconds", "Duration of a sync of the log.",
        lambda b: b.driver.sends.sync_seconds),
)  # fmt: skip


def _members(figures: Figures) -> Iterable[Row]:
    """Yield a row for every group, so that alerts notice groups that have lost all members."""
    consumers = figures.broker.clients.consumers
    counts = dict.fromkeys(figures.broker.tables.groups.table, 0)
    counts |= {group.name: len(group.clients) for group in consumers.groups()}
    return [((name,), count) for name, count in counts.items()]


def _stranded(figures: Figures) -> Iterable[Row]:
    """Yield a row for each group and topic, and all delay levels, with unread messages."""
    for row in figures.groups:
        if row.stranded:
            yield (row.topic, row.group), row.stranded
    levels = figures.broker.deferred.delays.waiting.stranded()
    if levels and not figures.broker.role.is_slave:
        yield (SCHEDULE_TOPIC, SCHEDULE_GROUP), sum(levels.values())


FIGURE_FAMILIES: Final[tuple[Family[Figures], ...]] = (
    labelled_gauge("cometmq_group_lag_messages", "Messages not yet consumed.", ("topic", "group"),
        lambda f: (((g.topic, g.group), g.lag) for g in f.groups)),
    labelled_gauge(
        "cometmq_group_lag_seconds", "Age of the oldest message not yet consumed.",
        ("topic", "group"),
        lambda f: (
            ((g.topic, g.group), g.lag_ms / 1000) for g in f.groups if g.lag_ms is not None
        ),
    ),
    labelled_gauge("cometmq_stranded_messages",
        "Messages that nobody reads: in queues beyond readQueueNums, and in delay levels that "
        "messageDelayLevel lacks.", ("topic", "group"), _stranded),
    labelled_gauge("cometmq_group_members", "Connected members of a consumer group.", ("group",),
        _members),
)  # fmt: skip

LIMIT_FAMILIES: Final[tuple[Family[Sequence[RowLimit]], ...]] = (
    gauge("cometmq_metrics_dropped_rows",
        "Rows left out of this scrape because they exceed metricsRowsMax.",
        lambda limits: sum(limit.dropped_count for limit in limits)),
)  # fmt: skip


def _refusals(broker: Broker) -> Iterable[Row]:
    counts = broker.replication.slaves.refused_counts
    return [((reason.value,), count) for reason, count in counts.items()]


def _unfit(broker: Broker) -> Iterable[Row]:
    """Yield a row for every reason, so that alerts can rely on all series from the start."""
    current = broker.replication.following.unfit
    return [((reason.value,), int(reason is current)) for reason in Unfit]


REPLICATION_FAMILIES: Final[tuple[Family[Broker], ...]] = (
    gauge("cometmq_broker_is_slave", "1 on a slave.", lambda b: b.role.is_slave),
    gauge("cometmq_slaves", "Slaves following this broker.",
        lambda b: len(b.replication.slaves.following())),
    labelled_gauge("cometmq_slave_lag_bytes",
        "Log bytes that the slaves on a host have not acknowledged.", ("slave",), slave_lags),
    labelled_counter("cometmq_slave_refused_total", "Connections refused on the port for slaves.",
        ("reason",), _refusals),
    counter("cometmq_slave_sent_bytes_total", "Log bytes sent to slaves.",
        lambda b: b.replication.slaves.sent_bytes),
    gauge("cometmq_replica_following", "1 while a slave follows its master.",
        lambda b: b.replication.following.state is FollowState.FOLLOWING),
    labelled_gauge("cometmq_replica_unfit",
        "1 for the reason why a slave cannot follow its master.", ("reason",), _unfit),
    gauge("cometmq_replica_behind_bytes",
        "Bytes of the master's log that a slave lacked when it last asked.",
        lambda b: b.replication.following.behind_bytes(b.store.commit_log.confirm_offset)),
    counter("cometmq_replica_received_bytes_total", "Log bytes that a slave has copied.",
        lambda b: b.replication.following.received_bytes),
    counter("cometmq_replica_connects_total", "Connections made by a slave to its master.",
        lambda b: b.replication.following.connect_count),
    counter("cometmq_replica_copies_failed_total", "Failed attempts to copy the master's tables.",
        lambda b: b.replication.following.table_failed_count),
)  # fmt: skip

STORE_FAMILIES: Final[tuple[Family[StoreStats], ...]] = (
    gauge("cometmq_store_writable", "1 while the store accepts messages.", lambda s: s.is_writable),
    labelled_gauge("cometmq_store_refusal", "1 for each reason why messages are refused.",
        ("reason",), lambda s: [((reason,), 1) for reason in s.refusals]),
    counter("cometmq_store_commits_total", "Writes to the log.", lambda s: s.commit_count),
    counter("cometmq_store_flushes_total", "Syncs of the log.", lambda s: s.flush_count),
    gauge("cometmq_store_min_offset_bytes", "Start of the log.", lambda s: s.min_offset),
    gauge("cometmq_store_max_offset_bytes", "End of the log.", lambda s: s.max_offset),
    gauge("cometmq_store_flushed_offset_bytes", "End of the flushed part of the log.",
        lambda s: s.flushed_offset),
    gauge("cometmq_store_checkpoint_offset_bytes", "Offset at which the next recovery would start.",
        lambda s: s.checkpoint_offset),
    gauge("cometmq_store_queues", "Consume queues.", lambda s: s.queue_count),
    gauge("cometmq_store_index_files", "Index files.", lambda s: s.index_file_count),
    gauge("cometmq_store_log_files", "Commit log files.", lambda s: s.commit_log_file_count),
    gauge("cometmq_store_disk_used_ratio", "Fraction of the disk in use.",
        lambda s: s.disk_used_percent / 100),
    counter("cometmq_store_scrubbed_bytes_total", "Bytes of the log compared with their checksums.",
        lambda s: s.scrubbed_bytes),
    gauge("cometmq_store_damaged_bytes", "Bytes of the log known to be damaged.",
        lambda s: s.damaged_bytes),
    counter("cometmq_store_left_out_messages_total",
        "Messages that readers did not get because they, or their queue entries, are damaged; each "
        "counts once.", lambda s: s.left_out_count),
    counter("cometmq_store_repaired_entries_total",
        "Damaged queue entries that were written again.", lambda s: s.repaired_entry_count),
    counter("cometmq_store_rebuilt_index_files_total",
        "Damaged files of the index that were rebuilt.", lambda s: s.repaired_index_count),
    counter("cometmq_store_repaired_blocks_total",
        "Damaged blocks of the log that were replaced by the bytes of another member of the broker "
        "group.", lambda s: s.repaired_block_count),
    gauge("cometmq_store_damaged_messages",
        "Messages in damaged parts of the log, which are not delivered.",
        lambda s: s.damaged_message_count),
)  # fmt: skip


def labels(broker: Broker) -> dict[str, str]:
    """Return the labels that all families of a broker have."""
    settings = broker.settings
    return {"cluster": settings.broker_cluster_name, "broker": settings.broker_name}


def collectors(broker: Broker, transport: Callable[[], TransportStats]) -> list[MetricSource]:
    """Return the sources of all families; those with rows per topic share one row limit."""
    common, settings = labels(broker), broker.settings
    limits = [RowLimit(settings.metrics_rows_max) for _ in range(2)]
    tables: list[tuple[Sequence[Family[Figures]], dict[str, str]]] = [(FIGURE_FAMILIES, common)]
    if settings.metrics_exporter_names:
        tables += rocketmq_exporter_metrics.tables(broker)
    if settings.metrics_native_names:
        tables += rocketmq5_metrics.tables(broker)
    return [
        StatsCollector(FAMILIES, lambda: broker, common, limits[0]),
        FigureCollector(broker, tables, limits[1]),
        StatsCollector(LIMIT_FAMILIES, lambda: limits, common),
        StatsCollector(LIMIT_TABLE_FAMILIES, lambda: broker.admission.limits, {"server": "broker"}),
        StatsCollector(REPLICATION_FAMILIES, lambda: broker, common),
        StatsCollector(STORE_FAMILIES, broker.store.stats, common),
        StatsCollector(TRANSPORT_FAMILIES, transport, {"server": "broker"}),
    ]
