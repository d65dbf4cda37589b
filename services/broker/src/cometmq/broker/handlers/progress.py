# SPDX-License-Identifier: Apache-2.0
"""Consumer progress: of one group (GET_CONSUME_STATS, 208) or of all groups
(GET_BROKER_CONSUME_STATS, 317), the groups of a topic (300), and the age of unconsumed messages
(303).

Compatibility: a topic to which a connected group no longer subscribes is left out, and the offset
in a queue without a commit is 0. Unlike RocketMQ's, the answers to 208 and 317 also have the queues
in which messages of the group wait although no member reads them (`progress.stranded_queues`), and
those to 317 and 303 the queues that are only read. Message times are strings in the broker's time
zone.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Final

from msgspec import UNSET

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.admin import stored_ms
from cometmq.broker.handlers.deferred_answers import (
    ROW_BYTES,
    found,
    look_up,
    paused,
    stepwise,
    waited_ms,
)
from cometmq.broker.progress import (
    QueueProgress,
    present_topics,
    progress_in,
    queues_of,
    stranded_queues,
)
from cometmq.broker.statistics.sampler import pull_rate
from cometmq.broker.tables.topics import queues_of as queue_total
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.large import encode_table, encode_with_lists
from cometmq.remoting.bodies.queues import GroupList, MessageQueue
from cometmq.remoting.bodies.stats import (
    BrokerConsumeStats,
    ConsumeStats,
    ConsumeTimeSpans,
    OffsetPair,
    QueueTimeSpan,
)
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.admin import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    QueryTopicConsumeByWho,
)
from cometmq.remoting.errors import ServerError, TopicNotExist
from cometmq.remoting.progress import difference, position
from cometmq.remoting.versions import PULL_OFFSET_MIN
from cometmq.runtime.incremental import Steps, TurnExpired
from cometmq.store.reads import Lookup, Pause

REPORT_MS_MIN: Final = 1_000
"""How long a report on all groups may take if it has waited as long as requests may: clients wait
for 5 s in all, and the largest report takes 1 s on an idle machine.
"""
QUEUES_MAX: Final = 60_000  # of all groups together: their answer must fit into a frame
TOTAL_DIFF_MIN: Final = -(1 << 63)  # Java reads a long; an offset may be far beyond its queue
STEP_TOPICS: Final = 5_000  # when they are only counted: about 1 ms
TURN_QUEUES_MAX: Final = 256  # without reads: about 0.5 ms
STEP_NAMES: Final = 64  # topics of a group, each with a few queues
STEP_SPANS: Final = 64  # queues whose times are formatted: about 1 ms


def get_consume_stats(broker: Broker, call: Call[GetConsumeStats]) -> None:
    """Answer with a group's progress in all of its topics, or only in the requested one."""
    group, topic = call.header.consumer_group, call.header.topic
    asked = (
        [topic]
        if topic and not topic.isspace()
        else list(broker.tables.offsets.index.topics_of(group))
    )

    def progress() -> Lookup[Reply]:
        tps, pieces, piece_bytes = 0.0, list[bytes](), 0
        table: dict[MessageQueue, OffsetPair] = {}
        for start in range(0, len(asked), STEP_NAMES):
            for name in present_topics(broker, group, asked[start : start + STEP_NAMES]):
                tps += pull_rate(broker.stats, name, group)
                held_bytes = piece_bytes + ROW_BYTES * len(table)
                queues = progress_in(broker, group, name)
                part = yield from _offsets(broker, name, queues, held_bytes, call.version)
                if part and len(table) >= TURN_QUEUES_MAX:
                    # 100,000 queues would be freed in one step of 60 ms.
                    pieces += ((yield from paused(encode_table(table), held_bytes))[1:-1], b",")
                    piece_bytes += len(pieces[-2])
                    table = {}
                    yield Pause(piece_bytes + ROW_BYTES * len(part))
                table |= part
            yield Pause(piece_bytes + ROW_BYTES * len(table))
        begin, _, end = encode_json(ConsumeStats(consume_tps=tps)).rpartition(b"{}")
        held_bytes = piece_bytes + ROW_BYTES * len(table)
        rest = yield from paused(encode_table(table), held_bytes)
        body = [begin, b"{", *pieces, rest[1:], end]
        return Reply(body=body if pieces else b"".join(body))

    look_up(broker, call, progress(), lambda reply: reply)


async def get_broker_consume_stats(broker: Broker, call: Call[GetBrokerConsumeStats]) -> None:
    """Answer with the progress of all groups, optionally only in ordered topics.

    Compatibility: RocketMQ's answer is unbounded. Here the request is refused if the answer would
    not fit in a frame, or takes too long. The requests are served one at a time, and the requesters
    take turns.
    """
    reports, deadlines = broker.pending.reports, broker.driver.reads.deadlines
    left_s = deadlines.left_s(waited_ms(broker, call))
    try:
        async with (
            asyncio.timeout(left_s + REPORT_MS_MIN / 1000),
            reports.hold(broker.admission.requester(call), left_s),
        ):
            encode = await _broker_consume_stats(broker, call)
    except (TurnExpired, TimeoutError):
        raise deadlines.expired(reports.waiting_count, waited_ms(broker, call)) from None
    broker.driver.reads.read(call, encode, lambda body: call.answer(Reply(body=body)))


async def _broker_consume_stats(
    broker: Broker, call: Call[GetBrokerConsumeStats]
) -> Callable[[], bytes]:
    """Return a function that encodes the answer, on any thread."""
    await stepwise(broker, call, _check_size(broker))
    stats = BrokerConsumeStats(broker_addr=broker.process.address)
    checked_count = 0
    for group in list(broker.tables.groups.table):
        parts: list[ConsumeStats] = []
        # An empty name stands for the group itself: there may be 50,000 without offsets.
        for topic in ("", *broker.tables.offsets.index.topics_of(group)):
            checked_count += 1
            if checked_count >= TURN_QUEUES_MAX:
                checked_count = 0
                await asyncio.sleep(0)
            config = broker.tables.topics.table.get(topic)
            if config is None or (call.header.is_order and not config.order):
                continue
            if not present_topics(broker, group, (topic,)):
                continue
            queue_count = queue_total(config)
            queues = _progress(broker, group, topic, queue_count)
            table = await found(broker, _offsets(broker, topic, queues))
            tps = pull_rate(broker.stats, topic, group)
            parts.append(ConsumeStats(consume_tps=tps, offset_table=table))
            checked_count += queue_count
        stats.consume_stats_list.append({group: parts})
        total = stats.total_diff + sum(map(_behind, parts))
        stats.total_diff = max(TOTAL_DIFF_MIN, total)
    return partial(encode_json, stats)


def _progress(broker: Broker, group: str, topic: str, count: int) -> Iterator[QueueProgress]:
    """Yield a group's progress in the first `count` queues of a topic and in stranded queues."""
    yield from queues_of(broker, group, topic, range(count))
    yield from (it for it in stranded_queues(broker, group, topic) if it.queue_id >= count)


async def query_topic_consume_by_who(broker: Broker, call: Call[QueryTopicConsumeByWho]) -> Reply:
    """Return the groups that subscribe to a topic or have offsets in it."""
    return await stepwise(broker, call, _groups_of(broker, call.header.topic))


def _groups_of(broker: Broker, topic: str) -> Steps[Reply]:
    groups = {
        group.name for group in broker.clients.consumers.groups() if topic in group.subscriptions
    }
    yield
    names = sorted(groups | broker.tables.offsets.index.groups_of(topic))
    yield
    return Reply(body=encode_json(GroupList(group_list=names)))


def query_consume_time_span(broker: Broker, call: Call[QueryConsumeTimeSpan]) -> None:
    """Answer with three store times per queue: those of its first message, of its last message, and
    of the last message that the group consumed.

    Compatibility: if the group's next message has been deleted, RocketMQ reports the time since
    1970; here the delay is the age of the oldest remaining message.
    """
    topic, group = call.header.topic, call.header.group
    config = broker.tables.topics.get(topic)
    if config is None:
        raise TopicNotExist(remarks.topic_not_exist(topic))
    queue_count = queue_total(config)

    def spans() -> Lookup[Reply]:
        found: list[QueueTimeSpan] = []
        for queue_id in range(queue_count):
            span = yield from _time_span(broker, topic, group, queue_id)
            found.append(span)
            if not len(found) % STEP_SPANS:
                yield Pause(ROW_BYTES * len(found))
        encoding = encode_with_lists(ConsumeTimeSpans(), {"consumeTimeSpanSet": found})
        return Reply(body=(yield from paused(encoding, ROW_BYTES * len(found))))

    look_up(broker, call, spans(), lambda reply: reply)


def _offsets(
    broker: Broker,
    topic: str,
    queues: Iterable[QueueProgress],
    held_bytes: int = 0,
    version: int = 0,
) -> Lookup[dict[MessageQueue, OffsetPair]]:
    """Find a group's offset in each queue of a topic, and the store time of the last message that
    the group consumed there.

    The caller holds `held_bytes` meanwhile; see `Pause`. Pulls are not recorded: a tool that reads
    the pull offset finds nothing in flight, instead of less than nothing.
    """
    name, shows_pulls = broker.settings.broker_name, version >= PULL_OFFSET_MIN
    table = {}
    for it in queues:
        queue = MessageQueue(topic, name, it.queue_id)
        committed = max(0, it.committed or 0)
        last_ms = yield from stored_ms(broker, queue, committed - 1)
        table[queue] = OffsetPair(
            broker_offset=it.end,
            consumer_offset=committed,
            last_timestamp=last_ms,
            pull_offset=committed if shows_pulls else UNSET,
        )
        if not len(table) % TURN_QUEUES_MAX:
            yield Pause(held_bytes + ROW_BYTES * len(table))
    return table


def _behind(part: ConsumeStats) -> int:
    pairs = part.offset_table.values()
    return sum(difference(pair.consumer_offset, pair.broker_offset) for pair in pairs)


def _check_size(broker: Broker) -> Steps[None]:
    count = visited = 0
    table = broker.tables.topics.table
    for group in list(broker.tables.groups.table):
        for topic in list(broker.tables.offsets.index.topics_of(group)):
            if topic in table:
                count += queue_total(table[topic])
            visited += 1
            if not visited % STEP_TOPICS:
                yield
    if count > QUEUES_MAX:
        raise ServerError(
            f"the groups have offsets in {count} queues, more than {QUEUES_MAX}: "
            "ask for one group at a time"
        )


def _time_span(broker: Broker, topic: str, group: str, queue_id: int) -> Lookup[QueueTimeSpan]:
    store = broker.store
    first, end = store.reader.min_offset(topic, queue_id), store.reader.max_offset(topic, queue_id)
    committed = broker.tables.offsets.committed(group, topic, queue_id) or 0
    oldest_ms = yield from store.reader.store_time(topic, queue_id, first)
    newest_ms = yield from store.reader.store_time(topic, queue_id, end - 1)
    consumed_ms = oldest_ms
    if committed > 0:
        consumed_ms = yield from store.reader.store_time(topic, queue_id, committed - 1)
    delay_ms = 0
    if committed < end:
        next_ms = yield from store.reader.store_time(topic, queue_id, position(committed, first))
        delay_ms = max(0, broker.clock.now_ms() - next_ms) if next_ms >= 0 else 0
    return QueueTimeSpan(
        consume_time_stamp=consumed_ms,
        consume_time_stamp_str=time_text(consumed_ms),
        delay_time=delay_ms,
        max_time_stamp=newest_ms,
        max_time_stamp_str=time_text(newest_ms),
        message_queue=MessageQueue(topic, broker.settings.broker_name, queue_id),
        min_time_stamp=oldest_ms,
        min_time_stamp_str=time_text(oldest_ms),
    )


def time_text(at_ms: int) -> str:
    """Format a time as RocketMQ does: 2026-11-20#08:20:07:407."""
    seconds, millis = divmod(at_ms, 1000)
    moment = datetime.fromtimestamp(seconds, UTC).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{millis:03d}"
