# SPDX-License-Identifier: Apache-2.0
"""Micro-batches end at the right offsets, with limits, new queues and lost messages; no broker is
needed.
"""

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from cometmq.spark.errors import BrokerUnreachable, DataLoss, OffsetMissing, Refused
from cometmq.spark.options.definitions import parse
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.read.stream import PATIENCE_MS, MessageStreamReader
from cometmq.spark.schemas import table_schema

A, B = Queue("T", "a", 0), Queue("T", "b", 0)
ALL = ReadAllAvailable()


class Brokers:
    """A fake `Metadata` with the ends that a test sets."""

    def __init__(self) -> None:
        self.now: dict[Queue, tuple[int, int]] = {}
        self.brokers: dict[str, dict[int, str]] = {"a": {0: "a:1"}, "b": {0: "b:1"}}
        self.away: set[str] = set()
        self.return_ms = 1 << 62
        self.committed: list[tuple[str, dict[Queue, int]]] = []
        self.registered: list[tuple[str, str]] = []
        self.refuses = False

    def queues(self, *, must_exist: bool = True) -> list[Queue]:
        return list(self.now)

    def ends(self, queues: list[Queue]) -> dict[Queue, tuple[int, int]]:
        self.find_brokers({queue.broker_name for queue in queues})
        return {queue: self.now.get(queue, (0, 0)) for queue in queues}

    def find_brokers(self, names: set[str]) -> None:
        for name in names & self.away:
            raise BrokerUnreachable(f"broker `{name}` is unreachable")

    def commit(self, group: str, offsets: dict[Queue, int]) -> None:
        self.committed.append((group, offsets))

    def register(self, group: str, names: set[str]) -> None:
        if self.refuses:
            raise Refused("NO_PERMISSION")
        self.registered += [(group, name) for name in sorted(names)]


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def debug(self, event: str, /, **facts: object) -> None:
        self.lines.append((event, facts))

    info = warning = error = debug


class Stream:
    """A stream reader on fake brokers, with a log and a clock that the test controls."""

    def __init__(self, **options: str) -> None:
        self.brokers = Brokers()
        self.log = Log()
        self.now_ms = 0
        parsed = parse({"nameServer": "n:1", "subscribe": "T", **options})
        self.reader = MessageStreamReader(
            parsed,
            table_schema(parsed),
            metadata=self.brokers,  # type: ignore[arg-type]
            clock_ms=lambda: self.now_ms,
            pause=self._pass_time,
            log=self.log,
        )

    def _pass_time(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        if self.now_ms >= self.brokers.return_ms:
            self.brokers.away.clear()

    def spans(self, start: Any, end: Any) -> list[tuple[Queue, int, int]]:
        parts = self.reader.partitions(start, end)
        return sorted((p.span.queue, p.span.start, p.span.end) for p in parts)


def at(**offsets: int) -> dict[str, Any]:
    return {"T": {name: {"0": offset} for name, offset in offsets.items()}}


def test_query_starts_at_the_end_by_default() -> None:
    for options, expected in (
        ({}, at(a=10, b=20)),
        ({"startingOffsets": "earliest"}, at(a=5, b=0)),
        ({"startingOffsets": '{"T":{"a":{"0":7},"b":{"0":-2}}}'}, at(a=7, b=0)),
        ({"startingOffsets": '{"T":{"a":{"0":7}}}'}, at(a=7, b=20)),
    ):
        stream = Stream(**options)
        stream.brokers.now = {B: (0, 20), A: (5, 10)}
        assert json.dumps(stream.reader.initialOffset()) == json.dumps(expected)


def test_start_beyond_the_end_is_not_a_recreated_topic() -> None:
    stream = Stream(startingOffsets='{"T":{"a":{"0":11},"b":{"0":-2}}}')
    stream.brokers.now = {A: (5, 10), B: (0, 20)}
    with pytest.raises(OffsetMissing, match="T a 0 ends at 10, before the start 11"):
        stream.reader.initialOffset()
    stream = Stream(startingOffsets='{"T":{"a":{"0":11}}}', failOnDataLoss="false")
    stream.brokers.now = {A: (5, 10)}
    begun = stream.reader.initialOffset()
    assert stream.reader.latestOffset(begun, ALL) == at(a=5)


def test_batch_reads_all_available_messages() -> None:
    stream = Stream()
    stream.brokers.now = {A: (0, 30), B: (0, 20)}

    end = stream.reader.latestOffset(at(a=10, b=20), ALL)

    assert end == at(a=30, b=20)
    assert stream.spans(at(a=10, b=20), end) == [(A, 10, 30)]
    assert stream.reader.reportLatestOffset() == at(a=30, b=20)


def test_limit_is_shared_between_queues() -> None:
    stream = Stream(maxOffsetsPerTrigger="30")
    stream.brokers.now = {A: (0, 100), B: (0, 50)}
    limit = stream.reader.getDefaultReadLimit()

    assert limit == ReadMaxRows(30)
    assert stream.reader.latestOffset(at(a=0, b=0), limit) == at(a=20, b=10)
    assert stream.reader.latestOffset(at(a=0, b=0), ALL) == at(a=100, b=50)
    assert Stream().reader.getDefaultReadLimit() == ALL


def test_new_queue_enters_with_its_first_offset_and_is_read_next() -> None:
    stream = Stream()
    stream.brokers.now = {A: (0, 10), B: (3, 50)}

    first = stream.reader.latestOffset(at(a=5), ALL)
    assert first == at(a=10, b=3)
    assert stream.spans(at(a=5), first) == [(A, 5, 10)]

    second = stream.reader.latestOffset(first, ALL)
    assert second == at(a=10, b=50)
    assert stream.spans(first, second) == [(B, 3, 50)]


def test_vanished_queue_keeps_its_entry() -> None:
    stream = Stream()
    stream.brokers.now = {A: (0, 10)}

    assert stream.reader.latestOffset(at(a=5, b=7), ALL) == at(a=10, b=7)


def test_available_now_ends_at_the_initial_ends() -> None:
    stream = Stream(minOffsetsPerTrigger="1000")
    stream.brokers.now = {A: (0, 10)}
    stream.reader.prepareForTriggerAvailableNow()
    stream.brokers.now = {A: (0, 99), B: (0, 5)}

    end = stream.reader.latestOffset(at(a=5), ALL)
    assert end == at(a=10)
    assert stream.reader.latestOffset(end, ALL) == end
    assert stream.reader.latestOffset(at(a=50), ALL) == at(a=50)  # a checkpoint beyond the end


def test_small_batch_waits_for_more_or_for_the_delay() -> None:
    stream = Stream(minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    stream.brokers.now = {A: (0, 5)}

    assert stream.reader.latestOffset(at(a=0), ALL) == at(a=0)
    stream.now_ms = 29_999
    assert stream.reader.latestOffset(at(a=0), ALL) == at(a=0)
    stream.now_ms = 30_000
    assert stream.reader.latestOffset(at(a=0), ALL) == at(a=5)
    stream.brokers.now = {A: (0, 14)}
    assert stream.reader.latestOffset(at(a=5), ALL) == at(a=5)
    stream.brokers.now = {A: (0, 15)}
    assert stream.reader.latestOffset(at(a=5), ALL) == at(a=15)


def test_deleted_messages_fail_before_a_task_starts() -> None:
    stream = Stream()
    stream.brokers.now = {A: (40, 100)}

    with pytest.raises(
        DataLoss, match=r"30 messages of T a 0 starting at offset 10 no longer exist"
    ):
        stream.reader.partitions(at(a=10), at(a=60))


def test_deleted_messages_are_counted_if_losses_are_allowed() -> None:
    stream = Stream(failOnDataLoss="false")
    stream.brokers.now = {A: (40, 100)}

    assert stream.spans(at(a=10), at(a=60)) == [(A, 40, 60)]
    assert stream.spans(at(a=10), at(a=30)) == []
    assert [facts["count"] for event, facts in stream.log.lines if event == "messages.lost"] == [
        30,
        20,
    ]


def test_deleted_topic_with_unread_messages_is_a_loss() -> None:
    strict, lenient = Stream(), Stream(failOnDataLoss="false")
    for stream in (strict, lenient):
        stream.brokers.now = {A: (0, 10)}

    with pytest.raises(
        DataLoss, match=r"5 messages of T b 0 starting at offset 5 were deleted with"
    ):
        strict.reader.partitions(at(a=0, b=5), at(a=10, b=10))
    assert lenient.spans(at(a=0, b=5), at(a=10, b=10)) == [(A, 0, 10)]


def test_unreachable_broker_loses_nothing() -> None:
    stream = Stream(failOnDataLoss="false")
    stream.brokers.now = {A: (0, 10)}
    stream.brokers.away = {"b"}

    with pytest.raises(BrokerUnreachable, match="broker `b` is unreachable"):
        stream.reader.partitions(at(a=0, b=5), at(a=10, b=10))


def test_a_running_query_waits_for_a_broker_that_is_restarted() -> None:
    stream = Stream()
    stream.brokers.now = {A: (0, 10)}
    for away_ms, is_back in ((PATIENCE_MS, True), (PATIENCE_MS + 1000, False)):
        for call in (
            lambda: stream.reader.latestOffset(at(a=5), ALL),
            lambda: stream.spans(at(a=5), at(a=10)),
            stream.reader.prepareForTriggerAvailableNow,
        ):
            stream.brokers.away = {"a"}
            stream.brokers.return_ms = stream.now_ms + away_ms
            if is_back:
                call()
            else:
                with pytest.raises(BrokerUnreachable):
                    call()


def test_a_query_that_begins_does_not_wait() -> None:
    stream = Stream()
    stream.brokers.now = {A: (0, 10)}
    stream.brokers.away = {"a"}

    with pytest.raises(BrokerUnreachable):
        stream.reader.initialOffset()
    assert stream.now_ms == 0


@pytest.mark.parametrize("available_now", [False, True])
def test_recreated_topic_fails_or_restarts(available_now: bool) -> None:
    strict, lenient = Stream(), Stream(failOnDataLoss="false")
    for stream in (strict, lenient):
        stream.brokers.now = {A: (2, 50)}
        if available_now:
            stream.reader.prepareForTriggerAvailableNow()

    with pytest.raises(
        DataLoss, match=r"T a 0 ends at 50, before the last read offset 1000: .* recreated"
    ):
        strict.reader.latestOffset(at(a=1000), ALL)

    end = lenient.reader.latestOffset(at(a=1000), ALL)
    assert end == at(a=2)
    assert lenient.spans(at(a=1000), end) == []
    assert lenient.reader.latestOffset(end, ALL) == at(a=50)


def test_commit_group_is_optional() -> None:
    silent, telling = Stream(), Stream(commitGroup="CID_q")
    for stream in (silent, telling):
        stream.reader.commit(at(a=7, b=8))

    assert silent.brokers.committed == []
    assert telling.brokers.committed == [("CID_q", {A: 7, B: 8})]


def test_offsets_are_committed_when_the_next_batch_is_asked_for() -> None:
    """Spark asks once more after the last batch of `availableNow`, but does not commit it."""
    stream = Stream(commitGroup="g")
    stream.brokers.now = {A: (0, 10)}

    end = stream.reader.latestOffset(at(a=5), ALL)
    assert stream.brokers.committed == [("g", {A: 5})]
    assert stream.reader.latestOffset(end, ALL) == end
    assert stream.brokers.committed == [("g", {A: 5}), ("g", {A: 10})]
    stream.reader.latestOffset(end, ALL)
    stream.reader.commit(end)  # Spark repeats it at a restart
    assert len(stream.brokers.committed) == 2
    assert stream.brokers.registered == [("g", "a"), ("g", "b")]


def test_group_that_may_not_be_created_is_committed_nevertheless() -> None:
    stream = Stream(commitGroup="g")
    stream.brokers.now, stream.brokers.refuses = {A: (0, 10)}, True

    stream.reader.latestOffset(at(a=5), ALL)
    stream.reader.latestOffset(at(a=6), ALL)

    assert [offsets for _, offsets in stream.brokers.committed] == [{A: 5}, {A: 6}]
    assert [event for event, _ in stream.log.lines] == ["group.refused"]
