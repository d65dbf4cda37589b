# SPDX-License-Identifier: Apache-2.0
"""The messages of a run are stored as if each had been put separately."""

import errno
from collections import Counter
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.remoting.message.new_message import NewMessage, encode_record, record_size
from cometmq.remoting.message.record_layout import BLANK_BYTES_MIN
from cometmq.store.index.index_format import KeyedRows
from cometmq.store.results import PutDone, PutResult, PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.store.writing.runs import CreateQueue, PlacedRun, Queues
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk


class Source:
    """Holds messages, one per request, and encodes them with the store's encoder."""

    def __init__(self, done: PutDone | None = None) -> None:
        self.messages: list[NewMessage] = []
        self.done = done
        self.results: list[tuple[int, PutStatus]] = []
        self.place_count = 0

    def place(  # see RunSource
        self,
        first: int,
        count: int,
        offset: int,
        file_end: int,
        store_timestamp: int,
        queues: Queues,
        create: CreateQueue,
    ) -> PlacedRun:
        self.place_count += 1
        entries: dict[int, tuple[Any, bytes, int]] = {}
        records: list[bytes] = []
        groups: list[tuple[bool, PutDone, int]] = []
        keys = KeyedRows()
        for number in range(first, first + count):
            message = self.messages[number]
            size = record_size(message)
            if offset + size + BLANK_BYTES_MIN > file_end:
                break
            queue = queues.get((message.topic, message.queue_id))
            queue = queue or create(message.topic, message.queue_id)
            _, data, done = entries.setdefault(id(queue), (queue, b"", 0))
            record = encode_record(message, queue.next_offset + done, offset, store_timestamp)
            entry = offset.to_bytes(8, "big") + size.to_bytes(4, "big")
            entry += message.tag_code.to_bytes(8, "big", signed=True)
            entries[id(queue)] = queue, data + entry, done + 1
            keys.rows += [(message.topic, key, offset, store_timestamp) for key in message.keys]
            groups.append((message.wait, partial(self.note, number), 1))
            records.append(record)
            offset += size
        return len(records), len(records), b"".join(records), list(entries.values()), keys, groups

    def note(self, number: int, result: PutResult) -> None:
        self.results.append((number, result.status))
        if self.done is not None:
            self.done(result)

    def refuse(self, first: int, count: int, result: PutResult) -> None:
        for number in range(first, first + count):
            self.note(number, result)

    def release(self) -> None:
        self.messages.clear()


def contents(rig: StoreRig, disk: MemoryDisk) -> dict[str, bytes]:
    rig.store.close()
    return {path: bytes(data) for path, data in disk.contents.items()}


sends = st.builds(
    make_message,
    topic=st.sampled_from(["T", "U"]),
    queue_id=st.integers(0, 2),
    body=st.binary(max_size=400),
    tags=st.sampled_from([None, "a"]),
    keys=st.sampled_from([None, "k1 k2"]),
    unique_key=st.sampled_from([None, "0A"]),
    wait=st.booleans(),
)
commits = st.lists(
    st.lists(st.tuples(sends, st.sampled_from(["run", "run", "other", "single", "unit", "long"])))
)


@settings(deadline=None)
@given(commits, st.sampled_from([None, 1, 500]))
def test_messages_of_runs_are_stored_like_single_ones(commits, bytes_max):
    """`bytes_max` splits the commits of the runs."""
    statuses: dict[bool, list[PutStatus]] = {True: [], False: []}
    stored: dict[bool, dict[str, bytes]] = {}
    for has_runs in (True, False):
        noted = statuses[has_runs]

        def done(result: PutResult, noted: list[PutStatus] = noted) -> None:
            noted.append(result.status)

        disk, sources = MemoryDisk(), {"run": Source(done), "other": Source(done)}
        rig = StoreRig(disk, small_settings())
        for puts in commits:
            rig.clock.advance(1_500)
            for message, kind in puts:
                if kind == "unit":
                    rig.store.writer.put_batch([message, message], done)
                elif kind == "long":  # only the encoder detects this
                    rig.store.writer.put(make_message(sys_flag=1 << 40), done)
                elif kind in sources and has_runs:
                    source = sources[kind]
                    source.messages.append(message)
                    rig.store.writer.put_run(source, len(source.messages) - 1, 1, len(message.body))
                else:
                    rig.store.writer.put(message, done)
            appender = rig.store.writer.appender
            while appender.staged_count:
                before = appender.staged_count
                rig.store.writer.commit(bytes_max=bytes_max if has_runs else None)
                assert appender.staged_count < before
            assert not appender.staged_bytes
            assert not any(source.messages for source in sources.values())
        rig.work()
        stored[has_runs] = contents(rig, disk)
    assert stored[True] == stored[False]
    if bytes_max is None:
        assert statuses[True] == statuses[False]
    else:  # refusals are the first answers of each commit
        assert Counter(statuses[True]) == Counter(statuses[False])


def test_requests_that_follow_one_another_are_placed_at_once():
    source, rig = Source(), StoreRig(MemoryDisk())
    for number in range(5):
        source.messages.append(make_message())
        rig.store.writer.put_run(source, number, 1, 5)
    rig.store.writer.commit()
    assert source.place_count == 1
    assert source.results == [(number, PutStatus.PUT_OK) for number in range(5)]
    assert rig.store.reader.max_offset("T", 0) == 5


def test_a_commit_of_some_puts_leaves_the_others_in_their_order():
    source, rig = Source(), StoreRig(MemoryDisk())
    results: list[PutResult] = []
    source.messages += [make_message(body=bytes(900)) for _ in range(4)]
    writer, appender = rig.store.writer, rig.store.writer.appender
    writer.put_run(source, 0, 2, 2 << 20)
    writer.put_run(source, 2, 2, 1_800)  # behind a long run
    writer.put(make_message(body=bytes(900)), results.append)
    writer.commit(bytes_max=1)
    assert [number for number, _ in source.results] == [0, 1]
    assert (appender.staged_count, appender.staged_bytes, len(source.messages)) == (3, 2_700, 4)
    writer.commit(bytes_max=1_801)
    assert [number for number, _ in source.results] == [0, 1, 2, 3]
    assert (appender.staged_count, source.messages, len(results)) == (0, [], 1)
    assert [rig.entry("T", 0, number).physical_offset for number in range(5)] == sorted(
        {rig.entry("T", 0, number).physical_offset for number in range(5)}
    )


class BatchSource(Source):
    """Holds the messages of one batch that waits, and of one request that does not."""

    def place(self, *place: Any) -> PlacedRun:
        count, message_count, *rest, _ = super().place(*place)
        groups = [(False, partial(self.note, 0), 1), (True, partial(self.note, 1), 1)]
        return count, message_count, *rest, groups  # type: ignore[return-value]


def test_all_messages_of_a_batch_in_a_run_wait():
    rig = StoreRig(MemoryDisk(), small_settings(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    source = BatchSource()
    source.messages += [make_message() for _ in range(5)]
    rig.store.writer.put_run(source, 0, 5, 25)
    rig.store.writer.commit()
    assert len(rig.store.upkeep.pending) == 1
    rig.flush()
    assert rig.store.upkeep.pending.take_answered()[0] == 4


def test_a_run_is_refused_and_taken_back_when_the_disk_fails():
    disk, source = MemoryDisk(), Source()
    rig = StoreRig(disk)
    disk.fault = lambda operation, _: errno.ENOSPC if operation == "write" else 0
    source.messages += [make_message(), make_message()]
    rig.store.writer.put_run(source, 0, 2, 10)
    rig.store.writer.commit()
    assert source.results == [(n, PutStatus.SERVICE_NOT_AVAILABLE) for n in range(2)]
    assert rig.store.reader.max_offset("T", 0) == 0
    disk.fault = None
    rig.work()
    source.messages.append(make_message())
    rig.store.writer.put_run(source, 0, 1, 5)
    rig.store.writer.commit()
    assert source.results[2:] == [(0, PutStatus.PUT_OK)]
    assert rig.entry("T", 0, 0).physical_offset == 0


def test_pending_requests_of_a_run_are_counted_one_by_one():
    disk, source = MemoryDisk(), Source()
    rig = StoreRig(disk)
    rig.store.writer.needs_replicas = True
    source.messages += [make_message(), make_message(wait=False), make_message()]
    rig.store.writer.put_run(source, 0, 3, 15)
    rig.store.writer.commit()
    assert source.results == [(1, PutStatus.PUT_OK)]
    assert len(rig.store.upkeep.pending) == 2
    rig.store.writer.note_replicated(rig.store.commit_log.end)
    assert sorted(source.results) == [(number, PutStatus.PUT_OK) for number in range(3)]
    assert len(rig.store.upkeep.pending) == 0
