# SPDX-License-Identifier: Apache-2.0
"""Metrics under the names and labels of rocketmq-exporter, so that its dashboards show data.

Compatibility: all are gauges, as in the exporter. The exporter queries all brokers and adds up the
lag of a group (`group_diff` and similar metrics). Here each broker reports only its own queues,
with the labels `cluster` and `broker`, so such a query needs a `sum`. Left out are the metrics that
need answers from clients (`client_*`) or have unbounded labels (`group_count`), which
`cometmq exporter` shows, and those that rocketmq-exporter declares but never fills
(`group_consume_tps`, `group_consume_total_offset`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.exposition.figures import Figures, GroupLag, groups_of, slave_lags, topics_of
from cometmq.broker.statistics.counters import BrokerStats, Source
from cometmq.broker.statistics.rates import WINDOWS_S
from cometmq.broker.statistics.windows import MINUTE
from cometmq.broker.storing.disk_figures import DiskFigures
from cometmq.remoting.bodies.stats import StatsItem
from cometmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.runtime.metrics import Family, Row, labelled_gauge

Rows = Callable[[Figures], Iterable[Row]]

_TOPIC: Final = ("topic",)
_GROUP: Final = ("topic", "group")
_BROKER: Final = ("brokerIP",)
_DIFF: Final = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_MODELS: Final = {"BROADCASTING": "0", "CLUSTERING": "1"}  # the ordinals of Java's enumeration


def _minute(stats: BrokerStats, source: Source, name: str) -> StatsItem:
    """Return the growth of a figure over the last minute."""
    stats.sources.catch_up(source)
    if source.windows is None:
        return StatsItem()
    return source.windows.item(MINUTE, source.FIGURES.index(name), None)


def _is_plain(topic: str) -> bool:
    return not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _of_broker(name: str) -> Rows:
    def rows(figures: Figures) -> Iterable[Row]:
        broker = figures.broker
        item = _minute(broker.stats, broker.stats, name)
        return [((broker.process.address,), item.tps)]

    return rows


def _of_topics(name: str) -> Rows:
    def rows(figures: Figures) -> Iterable[Row]:
        stats = figures.broker.stats
        for topic, source in topics_of(figures.broker):
            if _is_plain(topic):
                yield (topic,), _minute(stats, source, name).tps

    return rows


def _of_groups(name: str, value: Callable[[StatsItem], float] = lambda item: item.tps) -> Rows:
    def rows(figures: Figures) -> Iterable[Row]:
        stats = figures.broker.stats
        for key, source in groups_of(figures.broker):
            yield key, value(_minute(stats, source, name))

    return rows


def _ends(prefix: str) -> Rows:
    """Return the ends of the topics with this prefix; without one, of all other topics."""

    def rows(figures: Figures) -> Iterable[Row]:
        for topic, end in figures.topics:
            if topic.startswith(prefix) if prefix else _is_plain(topic):
                yield (topic.removeprefix(DLQ_PREFIX),), end

    return rows


def _diffs(is_shown: Callable[[str], bool]) -> Rows:
    def rows(figures: Figures) -> Iterable[Row]:
        consumers = figures.broker.clients.consumers
        for one in figures.groups:
            if is_shown(one.topic):
                group = consumers.group(one.group)
                count = 0 if group is None else len(group.clients)
                model = "CLUSTERING" if group is None else group.message_model
                labels = one.group, one.topic, str(count), _MODELS.get(model, "1")
                yield labels, one.lag

    return rows


def _of_lags(value: Callable[[GroupLag], float | None]) -> Rows:
    def rows(figures: Figures) -> Iterable[Row]:
        for one in figures.groups:
            number = value(one)
            if number is not None and _is_plain(one.topic):
                yield (one.topic, one.group), number

    return rows


_TABLE: Final[tuple[tuple[str, tuple[str, ...], Rows, str], ...]] = (
    ("broker_tps", _BROKER, _of_broker("put_count"), "Messages stored per second."),
    ("broker_qps", _BROKER, _of_broker("get_count"), "Messages delivered per second."),
    ("broker_commitlog_diff", _BROKER, lambda f: slave_lags(f.broker),
     "Log bytes that a slave lacks."),
    ("producer_tps", _TOPIC, _of_topics("put_count"), "Messages stored per second."),
    ("producer_message_size", _TOPIC, _of_topics("put_bytes"), "Bytes stored per second."),
    ("producer_offset", _TOPIC, _ends(""), "Sum of the queues' end offsets."),
    ("topic_retry_offset", _TOPIC, _ends(RETRY_PREFIX),
     "Sum of the end offsets of a retry topic's queues."),
    ("topic_dlq_offset", ("group",), _ends(DLQ_PREFIX),
     "Sum of the end offsets of a group's dead-letter queues."),
    ("producer_count", ("group",),
     lambda f: [((name,), len(all_)) for name, all_ in f.broker.clients.producers.groups()],
     "Connected producers."),
    ("consumer_tps", _GROUP, _of_groups("get_count"), "Messages delivered per second."),
    ("consumer_message_size", _GROUP, _of_groups("get_bytes"), "Bytes delivered per second."),
    ("send_back_nums", _GROUP, _of_groups("send_back_count", lambda item: item.sum),
     "Messages sent back in the last minute."),
    ("consumer_offset", _GROUP, _of_lags(lambda one: one.consumed),
     "Sum of the committed offsets."),
    ("group_get_latency_by_storetime", _GROUP, _of_lags(lambda one: one.lag_ms),
     "Age in milliseconds of the oldest message not yet consumed."),
    ("group_diff", _DIFF, _diffs(_is_plain), "Messages not yet consumed."),
    ("group_retrydiff", _DIFF, _diffs(lambda topic: topic.startswith(RETRY_PREFIX)),
     "Retried messages not yet consumed."),
    ("group_dlqdiff", _DIFF, _diffs(lambda topic: topic.startswith(DLQ_PREFIX)),
     "Dead letters that the group itself has not consumed."),
)  # fmt: skip
FAMILIES: Final = tuple(
    labelled_gauge(f"rocketmq_{name}", text, labels, rows) for name, labels, rows, text in _TABLE
)

_PLAIN: Final = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "put_message_average_size": "putMessageAverageSize",
    "put_message_size_total": "putMessageSizeTotal",
    "putmessage_times_total": "putMessageTimesTotal",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "put_latency_99": "putLatency99",
    "put_latency_999": "putLatency999",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "commitlog_minoffset": "commitLogMinOffset",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
}
"""Suffix of the metric name -> key in the table of code 28."""

_TPS: Final = {
    "put_tps": "putTps",
    "gettotal_tps": "getTotalTps",
    "getfound_tps": "getFoundTps",
    "getmiss_tps": "getMissTps",
    "gettransfered_tps": "getTransferedTps",
}
_PUT_TIMES: Final = (
    ("0ms", "<=0ms"), ("0to10ms", "0~10ms"), ("10to50ms", "10~50ms"), ("50to100ms", "50~100ms"),
    ("100to200ms", "100~200ms"), ("200to500ms", "200~500ms"), ("500to1s", "500ms~1s"),
    ("1to2s", "1~2s"), ("2to3s", "2~3s"), ("3to4s", "3~4s"), ("4to5s", "4~5s"),
    ("5to10s", "5~10s"), ("10stomore", "10s~"),
)  # fmt: skip
_RUNTIME: Final = ("brokerIP", "brokerHost", "des", "boottime", "broker_version")


def _runtime(suffix: str, meaning: str, value: Callable[[Figures], float]) -> Family[Figures]:
    def rows(figures: Figures) -> Iterable[Row]:
        table = figures.runtime
        if table:  # empty until the disk has been read for the first time
            address, boot = figures.broker.process.address, table["bootTimestamp"]
            version = table["brokerVersionDesc"], boot, table["brokerVersion"]
            yield (address, "", *version), value(figures)

    return labelled_gauge(f"rocketmq_brokeruntime_{suffix}", meaning, _RUNTIME, rows)


def _keyed(suffix: str, key: str) -> Family[Figures]:
    return _runtime(suffix, f"`{key}` of code 28.", lambda f: float(f.runtime[key]))


def _tps(suffix: str, key: str, window: int) -> Family[Figures]:
    seconds = WINDOWS_S[window]
    text = f"`{key}` of code 28, over {seconds} s."
    return _runtime(f"{suffix}{seconds}", text, lambda f: float(f.runtime[key].split(" ")[window]))


def _put_time(suffix: str, name: str) -> Family[Figures]:
    text = f"Puts of the last minute that took {name}."
    return _runtime(
        f"pmdt_{suffix}", text, lambda f: f.broker.driver.sends.put_times.classes()[name]
    )


def _unflushed(figures: Figures) -> float:
    stats = figures.broker.store.stats()
    return max(0, stats.max_offset - stats.flushed_offset)


def _disk(figures: Figures) -> DiskFigures:
    assert figures.disk is not None, "the runtime table is empty without disk figures"
    return figures.disk


RUNTIME_FAMILIES: Final[tuple[Family[Figures], ...]] = (
    *(_keyed(suffix, key) for suffix, key in _PLAIN.items()),
    *(_tps(suffix, key, n) for suffix, key in _TPS.items() for n in range(len(WINDOWS_S))),
    *(_put_time(suffix, name) for suffix, name in _PUT_TIMES),
    _runtime("remain_howmanydata_toflush", "Log bytes not yet synced.", _unflushed),
    _runtime(
        "commitlogdir_capacity_free", "Free bytes on the disk.", lambda f: _disk(f).free_bytes
    ),
    _runtime("commitlogdir_capacity_total", "Size of the disk.", lambda f: _disk(f).total_bytes),
)


def tables(broker: Broker) -> list[tuple[Sequence[Family[Figures]], dict[str, str]]]:
    """Return the tables of families, each with the labels that all of its families have."""
    cluster = {"cluster": broker.settings.broker_cluster_name}
    return [
        (FAMILIES, {**cluster, "broker": broker.settings.broker_name}),
        (RUNTIME_FAMILIES, cluster),
    ]
