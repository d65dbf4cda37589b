# SPDX-License-Identifier: Apache-2.0
import gc
import weakref
from typing import Any

import pytest

from cometmq.remoting.message.record import decode_record
from cometmq.store.errors import LockHeld
from cometmq.store.layout import Layout
from cometmq.store.reads import finish
from cometmq.store.results import GetStatus, PutResult, PutStatus
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk


def test_a_message_is_visible_only_after_the_commit(rig):
    results: list[Any] = []
    rig.store.writer.put(make_message(body=b"one"), results.append)
    assert results == []
    assert rig.store.reader.max_offset("T", 0) == 0
    assert rig.store.reader.get_messages("T", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
    rig.store.writer.commit()
    assert results[0].status is PutStatus.PUT_OK
    assert results[0].queue_offset == 0
    assert rig.bodies() == [b"one"]


def test_answers_come_in_the_order_of_the_log(rig):
    results: list[Any] = []
    for number in range(50):
        rig.store.writer.put(make_message(queue_id=number % 3), results.append)
    rig.store.writer.commit()
    offsets = [result.physical_offset for result in results]
    assert offsets == sorted(offsets)
    assert [result.queue_offset for result in results[:6]] == [0, 0, 0, 1, 1, 1]


def test_messages_go_on_in_the_next_file_and_none_is_lost(rig):
    sent = [b"%0100d" % number for number in range(100)]
    for body in sent:
        assert rig.put(make_message(body=body)).status is PutStatus.PUT_OK
    assert rig.store.stats().commit_log_file_count > 3
    assert rig.bodies() == sent


def test_a_batch_of_one_commit_may_span_files(rig):
    results: list[Any] = []
    for number in range(100):
        rig.store.writer.put(make_message(body=b"%0100d" % number), results.append)
    rig.store.writer.commit()
    assert {result.status for result in results} == {PutStatus.PUT_OK}
    assert rig.bodies() == [b"%0100d" % number for number in range(100)]


def test_reads_go_on_in_the_next_consume_queue_file(rig):
    for number in range(25):
        rig.put(make_message(body=b"%d" % number))
    rig.work(2)
    result = rig.store.reader.get_messages("T", 0, 5, 32)
    assert result.count == 20
    assert result.next_offset == 25


def test_entries_on_disk_and_in_memory_read_as_one_queue(rig):
    for number in range(7):
        rig.put(make_message(body=b"%d" % number))
    rig.work(2)
    for number in range(7, 12):
        rig.put(make_message(body=b"%d" % number))
    assert rig.bodies() == [b"%d" % number for number in range(12)]
    assert [decode_record(r).body for r in rig.store.reader.get_messages("T", 0, 6, 2).records] == [
        b"6",
        b"7",
    ]


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_an_offset_outside_of_the_queue_is_corrected(rig, offset, status, next_offset):
    for _ in range(3):
        rig.put(make_message())
    result = rig.store.reader.get_messages("T", 0, offset, 32)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 3)


def test_looking_up_a_queue_never_makes_one(rig):
    assert rig.store.reader.get_messages("Nobody", 7, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert rig.store.reader.queue("Nobody", 7) is None
    assert rig.store.stats().queue_count == 0


def test_a_filter_skips_messages_and_says_how_far_it_looked(rig):
    for number in range(20):
        rig.put(make_message(tags="even" if number % 2 == 0 else "odd", body=b"%d" % number))
    code = make_message(tags="odd").tag_code
    result = rig.store.reader.get_messages("T", 0, 0, 5, accept=lambda tag: tag == code)
    assert [decode_record(r).body for r in result.records] == [b"1", b"3", b"5", b"7", b"9"]
    assert result.next_offset == 10
    nothing = rig.store.reader.get_messages("T", 0, 0, 5, accept=lambda _: False)
    assert (nothing.status, nothing.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 20)


def test_the_first_message_ignores_the_byte_limit(rig):
    for _ in range(3):
        rig.put(make_message(body=bytes(500)))
    assert rig.store.reader.get_messages("T", 0, 0, 32, bytes_max=10).count == 1
    assert rig.store.reader.get_messages("T", 0, 0, 32, bytes_max=1300).count == 2


def test_a_cold_read_is_loaded_elsewhere(disk, rig):
    for number in range(15):
        rig.put(make_message(body=b"%d" % number))
    rig.work(2)
    disk.is_cold = True
    result = rig.store.reader.get_messages("T", 0, 3, 5)
    assert result.is_cold
    assert result.records == []
    loaded = result.load()
    assert not loaded.is_cold
    assert [decode_record(r).body for r in loaded.records] == [b"%d" % n for n in range(3, 8)]
    assert loaded.next_offset == 8
    assert rig.store.stats().cold_get_count == 1


def test_a_batch_gets_consecutive_offsets_one_time_and_joined_ids(rig):
    results: list[PutResult] = []
    rig.put(make_message())
    rig.store.writer.put_batch([make_message(body=b"%d" % n) for n in range(3)], results.append)
    rig.store.writer.commit()
    (result,) = results
    assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 1)
    ids = result.message_id.split(",")
    assert len(ids) == 3
    records = rig.store.reader.get_messages("T", 0, 1, 32).records
    assert [decode_record(r).offset_message_id for r in records] == ids
    assert len({decode_record(r).store_timestamp for r in records}) == 1
    assert result.size == sum(map(len, records))


def test_a_batch_may_be_of_several_queues(rig):
    """Committing a transaction stores messages for several queues as a unit."""
    results: list[PutResult] = []
    rig.put(make_message("U"))
    unit = [
        make_message("T", body=b"a"),
        make_message("U", body=b"b"),
        make_message("T", body=b"c"),
    ]
    rig.store.writer.put_batch(unit, results.append)
    rig.store.writer.commit()
    assert results[0].status is PutStatus.PUT_OK
    assert rig.bodies("T") == [b"a", b"c"]
    assert rig.bodies("U")[1:] == [b"b"]
    records = (
        rig.store.reader.get_messages("T", 0, 0, 32).records
        + rig.store.reader.get_messages("U", 0, 1, 32).records
    )
    offsets = sorted(decode_record(r).physical_offset for r in records)
    assert offsets[0] == results[0].physical_offset
    assert [decode_record(r).queue_offset for r in records] == [0, 1, 1]
    assert rig.store.commit_log.end - offsets[0] == sum(map(len, records)) == results[0].size


def test_nothing_of_a_batch_is_stored_if_one_message_cannot_be(rig):
    results: list[PutResult] = []
    rig.store.writer.put_batch([make_message("T"), make_message("a/b")], results.append)
    rig.store.writer.put_batch(
        [make_message("T"), make_message("U", body=bytes(4096))], results.append
    )
    rig.store.writer.commit()
    assert [result.status for result in results] == [PutStatus.MESSAGE_ILLEGAL] * 2
    assert rig.store.commit_log.end == 0
    assert rig.put(make_message("T")).queue_offset == 0


def test_a_batch_never_spans_two_files(rig):
    while rig.store.commit_log.end < 3500:
        rig.put(make_message(body=bytes(100)))
    results: list[PutResult] = []
    rig.store.writer.put_batch([make_message(body=bytes(200)) for _ in range(5)], results.append)
    rig.store.writer.commit()
    assert results[0].physical_offset == 4096


@pytest.mark.parametrize(
    "message",
    [
        make_message(body=bytes(4096)),  # larger than a file of the log
        make_message(body=bytes(5 << 20)),
        make_message(topic="x" * 128),
        make_message(topic="ü" * 100),
        make_message(topic="a/b"),
        make_message(topic=""),
        make_message(queue_id=-1),
    ],
    ids=["file", "body", "topic chars", "topic bytes", "path", "empty", "queue"],
)
def test_what_cannot_be_stored_is_refused_and_leaves_no_trace(rig, message):
    results: list[PutResult] = []
    rig.store.writer.put(message, results.append)
    rig.store.writer.put_batch([message, message], results.append)
    rig.store.writer.commit()
    assert [result.status for result in results] == [PutStatus.MESSAGE_ILLEGAL] * 2
    assert rig.store.commit_log.end == 0
    assert rig.put(make_message()).queue_offset == 0


def test_a_field_that_only_the_encoder_can_judge_costs_no_other_message_its_place(rig):
    results: list[PutResult] = []
    bad = make_message()
    bad.flag = 1 << 40
    rig.store.writer.put(make_message(body=b"0"), results.append)
    rig.store.writer.put(bad, results.append)
    rig.store.writer.put_batch([make_message(body=b"1"), make_message(queue_id=1)], results.append)
    rig.store.writer.put_batch([make_message(), bad], results.append)
    rig.store.writer.put(make_message("a/b"), results.append)
    rig.store.writer.commit()
    statuses = [result.status for result in results]
    assert statuses.count(PutStatus.MESSAGE_ILLEGAL) == 3
    stored = [result for result in results if result.status is PutStatus.PUT_OK]
    assert [(result.physical_offset, result.queue_offset) for result in stored] == [
        (0, 0), (stored[0].size, 1),
    ]  # fmt: skip
    assert rig.store.commit_log.end == stored[0].size + stored[1].size
    assert rig.store.stats().put_count == 3


def test_the_confirm_offset_follows_every_commit_before_listeners_hear_of_it(rig):
    seen = []
    rig.store.publisher.listeners.append(
        lambda *_: seen.append(rig.store.commit_log.confirm_offset)
    )
    first = rig.put(make_message())
    second = rig.put(make_message())
    assert seen == [first.size, first.size + second.size]
    assert rig.store.commit_log.confirm_offset == rig.store.commit_log.end


def test_properties_beyond_the_length_field_are_refused(rig):
    rig.store.close()
    rig = StoreRig(MemoryDisk(), small_settings(mapped_file_size_commit_log=1 << 20))
    long = make_message(properties={"a": "ü" * 16384})
    assert rig.put(long).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert rig.put(make_message(properties={"a": "u" * 33000})).status is PutStatus.MESSAGE_ILLEGAL
    assert rig.put(make_message(properties={"a": "u" * 32765})).status is PutStatus.PUT_OK


@pytest.mark.parametrize("sys_flag", [0x4, 0xC])
def test_prepared_and_rolled_back_messages_take_no_place_in_the_queue(rig, sys_flag):
    assert rig.put(make_message(sys_flag=sys_flag)).queue_offset == 0
    assert rig.put(make_message(sys_flag=0x8)).queue_offset == 0
    assert rig.store.reader.max_offset("T", 0) == 1


def test_delayed_messages_carry_their_delivery_time(rig):
    rig.put(make_message("SCHEDULE_TOPIC_XXXX", queue_id=2, tags="A"))
    entry = rig.entry("SCHEDULE_TOPIC_XXXX", 2, 0)
    assert entry.tag_code == rig.clock.now_ms + 10_000


def test_listeners_hear_of_each_queue_after_the_answers(rig):
    heard: list[object] = []

    def arrived(queues, log_offset):
        for queue in queues:
            tag_code = queue.newest_tag_code(log_offset)
            heard.append((queue.topic, queue.queue_id, queue.max_offset, tag_code))

    rig.put(make_message(queue_id=1, tags="B"))
    rig.store.publisher.listeners.append(arrived)
    tag = make_message(tags="A").tag_code
    rig.store.writer.put(make_message(queue_id=1, tags="A"), lambda _: heard.append("answered"))
    rig.store.writer.put(make_message(queue_id=2, tags="A"), lambda _: None)
    rig.store.writer.put(make_message(queue_id=2, tags="B"), lambda _: None)
    rig.store.writer.commit()
    assert heard == ["answered", ("T", 1, 2, tag), ("T", 2, 2, None)]


def test_a_failing_answer_hides_no_message(rig):
    def fail(_):
        raise ValueError("a bug")

    rig.store.writer.put(make_message(), fail)
    with pytest.raises(ValueError, match="a bug"):
        rig.store.writer.commit()
    assert rig.store.reader.max_offset("T", 0) == 1
    rig.put(make_message())
    assert rig.store.reader.max_offset("T", 0) == 2


def test_one_commit_is_one_write(disk, rig):
    for _ in range(10):
        rig.store.writer.put(make_message(), lambda _: None)
    rig.store.writer.commit()
    path, offset, size = disk.last_write
    assert path.endswith("commitlog/00000000000000000000")
    assert (offset, size) == (0, rig.store.commit_log.end)


def test_a_second_opener_is_told_that_the_store_is_locked(disk, rig):
    with pytest.raises(LockHeld):
        StoreRig(disk)
    rig.store.close()
    StoreRig(disk).store.close()


def test_store_time_never_runs_backwards(rig):
    first = rig.put(make_message())
    rig.clock.advance(-5000)
    second = rig.put(make_message())
    assert second.store_timestamp == first.store_timestamp


def test_a_clean_stop_leaves_no_abort_file_and_no_spare_file(disk):
    rig = StoreRig(disk)
    for _ in range(30):
        rig.put(make_message(body=bytes(100)))
    rig.work(3)
    assert disk.exists("/store/abort")
    rig.store.close()
    assert not disk.exists("/store/abort")
    last = disk.names("/store/commitlog")[-1]
    assert int(last) < rig.store.commit_log.end
    again = StoreRig(disk)
    assert again.store.upkeep.recovered.was_clean
    assert again.store.upkeep.recovered.record_count == 0
    assert len(again.bodies()) == 30
    assert again.put(make_message()).queue_offset == 30


def test_deleting_a_topic_frees_its_files_and_offsets_begin_again(disk, rig):
    for number in range(30):
        rig.put(make_message("Gone", number % 2))
        rig.put(make_message("Stays"))
    rig.work(2)
    rig.store.delete_topic("Gone")
    assert rig.store.reader.max_offset("Gone", 0) == 0
    assert rig.put(make_message("Gone", 0)).queue_offset == 0
    rig.work(5)
    assert rig.store.reader.topics() == {"Gone", "Stays"}
    assert disk.names("/store/consumequeue/Gone") == ["0"]
    assert len(rig.bodies("Stays")) == 30


def create_job(rig):
    """Fill the first file until the store requests the next one; return the job that creates it."""
    while True:
        for job in rig.store.jobs(rig.clock.advance(1_000)):
            if job.name == "create-file":
                return job
            job.run()
            job.done(None)
        rig.put(make_message(body=bytes(200)))


def test_a_file_made_ahead_never_replaces_one_that_has_messages(disk, rig):
    job = create_job(rig)
    while len(rig.store.commit_log.files.files) == 1:
        rig.put(make_message(body=bytes(200)))  # faster than the worker thread
    count = rig.store.reader.max_offset("T", 0)
    job.run()
    job.done(None)
    disk.crash()

    again = StoreRig(disk)

    assert again.store.reader.max_offset("T", 0) == count
    assert [name for name in disk.contents if name.endswith(".new")] == []


def test_a_file_made_ahead_is_the_next_one(disk, rig):
    job = create_job(rig)
    job.run()
    job.done(None)
    assert disk.names("/store/commitlog") == ["00000000000000000000", "00000000000000004096"]


def test_what_a_crash_leaves_of_files_being_made_is_deleted(disk, rig):
    create_job(rig).run()
    assert [name for name in disk.contents if name.endswith(".new")]
    disk.crash()
    StoreRig(disk)
    assert [name for name in disk.contents if name.endswith(".new")] == []


def test_files_that_are_made_at_the_same_time_have_different_temporary_names():
    layout = Layout(small_settings(store_path_commit_log="/log/commitlog"))
    paths = [
        "/log/commitlog/00000000000000000000",
        layout.queue_folder("T", 1) + "/00000000000000000000",
        layout.queue_folder("T-1", 0) + "/00000000000000000000",
        layout.index + "/20261120100520118",
    ]
    temporaries = {layout.temporary(path) for path in paths}
    assert len(temporaries) == len(paths)
    assert not [path for path in temporaries if path.startswith(("/log/commitlog/", "/store/c"))]


def test_damaged_bytes_never_reach_a_reader(disk, rig):
    for number in range(4):
        rig.put(make_message(body=b"%d" % number))
    offset = rig.entry("T", 0, 1).physical_offset
    log = disk.contents["/store/commitlog/" + "0" * 20]
    log[offset : offset + 40] = bytes(40)
    first = rig.store.reader.get_messages("T", 0, 0, 32)
    assert (first.next_offset, first.count, first.damaged) == (1, 1, [])
    assert rig.settled(lambda: rig.store.reader.get_messages("T", 0, 1, 32)).damaged == [1]
    result = rig.store.reader.get_messages("T", 0, 0, 32)
    assert [decode_record(record).body for record in result.records] == [b"0", b"2", b"3"]
    assert (result.next_offset, result.count, result.damaged) == (4, 3, [1])
    assert result.bytes == sum(map(len, result.records))
    alone = rig.store.reader.get_messages("T", 0, 1, 1)
    assert (alone.status, alone.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 2)
    assert finish(rig.store.reader.read_record(offset)) is None


def test_timers_go_on_when_the_clock_is_set_back(disk, rig):
    rig.put(make_message())
    rig.work(3)
    assert rig.store.stats().checkpoint_offset == rig.store.commit_log.end
    rig.clock.advance(-100_000_000)
    rig.put(make_message())
    rig.work(3)
    assert rig.store.stats().checkpoint_offset == rig.store.commit_log.end


def test_a_store_keeps_nothing_of_a_commit_alive(rig):
    message = make_message(body=bytes(1000))
    answer = type("Answer", (), {"__call__": lambda self, result: None})()
    alive = weakref.ref(answer)
    rig.store.writer.put(message, answer)
    rig.store.writer.commit()
    del answer
    gc.collect()
    assert alive() is None
