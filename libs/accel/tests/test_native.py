# SPDX-License-Identifier: Apache-2.0
"""The native module on its own; the broker's tests compare a broker with and without it."""

import struct
import sys
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.remoting.command import ConstantExt
from cometmq.remoting.header import decode_header, encode_frame
from cometmq.remoting.header_plan import plain_pieces, pulled_pieces, sent_pieces
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.types import Serialization
from cometmq.store.index.keys import KeyedRows
from cometmq.store.log.damage import DamagedRange as Range

accel = pytest.importorskip("cometmq.accel", reason="cometmq-accel is built only with cargo")

HOST = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])
FIELDS = {
    "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000",
    "h": "0", "j": "0", "k": "false", "m": "false",
}  # fmt: skip


class Queue:
    next_offset = 5


def make_lane(**changes):
    pieces = sent_pieces(ConstantExt({"TRACE_ON": "100%"}), 0)
    options = {
        "store_host": HOST, "cluster": "CLUSTER\x01c", "frame_bytes_max": 1 << 20,
        "body_bytes_max": 4096, "batch_count_max": 100, "request_bytes_max": 8192,
        "json": list(pieces.json),
        "binary_head": pieces.binary_head, "flag": pieces.flag,
        "binary_entries": pieces.binary_entries, "delayed": ("Delayed", [1_000, 5_000]),
        "transactions": ("Half", "Op", "TAGS\x01d", 100), "accounts": None,
    }  # fmt: skip
    lane = accel.SendLane(**options | changes)
    lane.learn("T", 4)
    return lane


def send(opaque=1, *, serialization=0, **fields):
    return encode_frame(
        RawCommand(
            code=310, opaque=opaque, ext=FIELDS | fields, body=b"body",
            serialization=Serialization(serialization),
        )
    )  # fmt: skip


def place(lane, count):
    return lane.place(0, count, 100, 1 << 20, 1_700_000_000_000, {}, lambda _topic, _id: Queue())


@pytest.mark.parametrize("serialization", [0, 1])
def test_a_send_is_staged_placed_and_answered(serialization):
    lane, peer = make_lane(), object()
    data = send(serialization=serialization, i="KEYS\x01k1 k2")
    assert lane.stage(data, peer, HOST, 10) == [
        (1, 4 + len("KEYS\x01k1 k2\x02CLUSTER\x01c"), 0, len(data))
    ]
    count, messages, records, entries, keys, groups = place(lane, 1)
    assert (count, messages, keys.count) == (1, 1, 2)
    assert len(records) == int.from_bytes(records[:4], "big")
    ((queue, entry, entry_count),) = entries
    assert isinstance(queue, Queue)
    assert (entry_count, len(entry)) == (1, 20)
    ((waits, answers),) = groups
    assert waits
    assert answers.totals() == [("T", 1, 1, len(records))]
    ((to, frames, answer_count),) = answers.encode(lane)
    assert to is peer
    assert answer_count == 1
    head = frames[8:]
    raw = decode_header(serialization, head)
    assert (raw.code, raw.opaque, raw.is_reply) == (0, 1, True)
    assert raw.ext == {
        "msgId": "0A00000100002A9F0000000000000064", "queueId": "1", "queueOffset": "5",
        "TRACE_ON": "100%",
    }  # fmt: skip


class Peer:
    host = HOST


def test_rows_are_staged_if_they_hold_only_plain_sends():
    lane = make_lane()
    plain, unknown = send(), send(b="Unknown")
    chunks = [plain, plain + unknown, plain * 2, plain + plain[:9], b"", plain * 4]
    rows = [(Peer(), chunk) for chunk in chunks]
    size = lane.stage(plain, Peer(), HOST, 1)[0][1]
    lane.drop_from(0)
    assert lane.stage_rows(rows, 3) == (3, 3 * size, [1, -1, 2, -1, -1, -1])
    assert lane.staged_count == 3
    ((_, answers),) = place(lane, 3)[-1]
    assert [(to, count) for to, _, count in answers.encode(lane)] == [
        (rows[0][0], 1), (rows[2][0], 2)
    ]  # fmt: skip


def test_a_delayed_send_goes_to_its_level_and_is_answered_with_its_own_queue():
    lane = make_lane()
    data = send(1, i="DELAY\x012") + send(2, i="DELAY\x0199\x02WAIT\x01false") + send(3)
    assert [count for count, *_ in lane.stage(data, object(), HOST, 10)] == [3]
    queues = {("T", 1): Queue()}
    created: dict[tuple[str, int], Queue] = {}
    _, _, records, entries, _, groups = lane.place(
        0, 3, 100, 1 << 20, 7_000, queues,
        lambda topic, queue: created.setdefault((topic, queue), Queue()),
    )  # fmt: skip
    assert list(created) == [("Delayed", 1)]
    assert [queue for queue, *_ in entries] == [*created.values(), queues["T", 1]]
    assert [count for *_, count in entries] == [2, 1]
    assert [entries[0][1][at : at + 8] for at in (12, 32)] == [(12_000).to_bytes(8, "big")] * 2
    assert (
        b"DELAY\x0199\x02CLUSTER\x01c\x02WAIT\x01false\x02REAL_TOPIC\x01T\x02REAL_QID\x011"
        in records
    )
    assert [waits for waits, _ in groups] == [True, False, True]
    first, second, last = (answers for _, answers in groups)
    sizes = [int.from_bytes(entries[0][1][at : at + 4], "big") for at in (8, 28)]
    assert first.delays() == [(1, 1, sizes[0])]
    assert second.delays() == [(1, 1, sizes[1])]
    assert last.delays() == []
    assert [row[3:6] for row in (*first.rows(), *last.rows())] == [
        ("Delayed", 1, 1),
        ("T", 1, None),
    ]


def test_delays_that_python_decides_are_left_to_it():
    lane = make_lane()
    for text in ("DELAY\x01x", "DELAY\x01-1", "DELAY\x01 2", "DELAY\x0112345",
                 "DELAY\x011\x02REAL_QID\x013", "REAL_TOPIC\x01U\x02DELAY\x011"):  # fmt: skip
        ((count, *_),) = lane.stage(send(i=text), object(), HOST, 10)
        assert count == 0, text
    ((count, *_),) = lane.stage(send(i="DELAY\x010\x02REAL_QID\x013"), object(), HOST, 10)
    assert count == 1
    assert not lane.learn("Delayed", 4)
    ((count, *_),) = lane.stage(send(b="Delayed"), object(), HOST, 10)
    assert count == 0
    without = make_lane(delayed=("Delayed", []))
    ((count, *_),) = without.stage(send(i="DELAY\x011"), object(), HOST, 10)
    assert count == 0


def test_frames_that_are_no_plain_sends_are_left_to_python():
    lane = make_lane()
    plain, unknown = send(), send(b="Unknown")
    data = plain + unknown + unknown + plain + plain[:20]
    parts = lane.stage(data, object(), HOST, 10)
    assert [(count, start, end) for count, _, start, end in parts] == [
        (1, 0, len(plain)),
        (0, len(plain), len(plain) + 2 * len(unknown)),
        (1, len(plain) + 2 * len(unknown), len(data) - 20),
    ]


def test_a_connection_is_kept_only_while_its_sends_are_staged():
    lane, peer = make_lane(), object()
    before = sys.getrefcount(peer)
    lane.stage(send(b="Unknown"), peer, HOST, 10)
    assert sys.getrefcount(peer) == before
    lane.stage(send(), peer, HOST, 10)
    assert sys.getrefcount(peer) > before
    lane.release()
    assert sys.getrefcount(peer) == before


def test_forgotten_topics_stay_with_what_is_staged():
    lane = make_lane()
    lane.stage(send(), object(), HOST, 10)
    lane.forget()
    assert [part[0] for part in lane.stage(send(), object(), HOST, 10)] == [0]
    lane.learn("U", 1)
    assert place(lane, 1)[5][0][1].totals()[0][0] == "T"
    lane.release()
    assert lane.staged_count == 0


def test_a_commit_may_be_placed_again_and_ends_where_the_file_does():
    lane = make_lane()
    lane.stage(send() * 3, object(), HOST, 10)
    size = len(place(lane, 1)[2])
    for _ in range(2):
        done = lane.place(0, 3, 0, 2 * size + 8, 1, {}, lambda _topic, _id: Queue())
        assert (done[0], len(done[2])) == (2, 2 * size)
    assert lane.place(0, 3, 0, 2 * size + 7, 1, {}, lambda _topic, _id: Queue())[0] == 1


def test_impossible_arguments_raise():
    with pytest.raises(ValueError, match="a host has 8 or 20 bytes, not 16"):
        make_lane(store_host=bytes(16))
    lane = make_lane()
    with pytest.raises(IndexError):
        place(lane, 1)
    with pytest.raises(IndexError):
        lane.unplaced(0, 1)
    data = send()
    assert lane.stage(data, object(), bytes(16), 10) == [(0, 0, 0, len(data))]


keys = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


@settings(deadline=None)
@given(
    st.lists(keys, min_size=1, max_size=30),
    st.integers(1, 60),
    st.sampled_from([0, 1_699_999_990_000, 1_700_000_000_001]),
    st.data(),
)
def test_keys_are_linked_as_python_links_them(texts, slot_count, begin_ms, data):
    lane = make_lane()
    lane.stage(b"".join(send(i=f"KEYS\x01{text}") for text in texts), object(), HOST, 100)
    _, _, records, _, native, _ = place(lane, len(texts))
    size = len(records) and int.from_bytes(records[:4], "big")
    offsets, at = [], 0
    while at < len(records):
        offsets.append(100 + at)
        at += int.from_bytes(records[at : at + 4], "big")
    rows = KeyedRows(
        [("T", text, at, 1_700_000_000_000) for text, at in zip(texts, offsets, strict=True)]
    )
    assert size
    start = data.draw(st.integers(0, len(texts) - 1))
    count = data.draw(st.integers(0, len(texts) - start))
    linked = []
    for one in (native, rows):
        slots, dirty = memoryview(bytearray(4 * slot_count)).cast("i"), bytearray(slot_count)
        done = one.link(start, count, slots, dirty, 4, 7, begin_ms)
        linked.append((done, bytes(slots), dirty))
        assert one.count == len(texts)
        assert one.offset(start) == offsets[start]
        assert one.timestamp(start) == 1_700_000_000_000
    assert linked[0] == linked[1]
    assert set(rows.find("T", texts[start])) <= set(native.find("T", texts[start]))


def test_slots_of_another_kind_raise():
    lane = make_lane()
    lane.stage(send(i="KEYS\x01k"), object(), HOST, 10)
    keys = place(lane, 1)[4]
    with pytest.raises((BufferError, ValueError)):
        keys.link(0, 1, bytes(40), bytearray(4), 4, 1, 0)
    with pytest.raises(ValueError, match="writable"):
        keys.link(0, 1, memoryview(bytes(40)).cast("i"), bytearray(4), 4, 1, 0)
    with pytest.raises(ValueError, match="cannot hold"):
        keys.link(0, 9, memoryview(bytearray(40)).cast("i"), bytearray(4), 4, 1, 0)
    with pytest.raises(ValueError, match="cannot hold"):
        keys.link(0, 1, memoryview(bytearray(40)).cast("i"), bytearray(0), 4, 1, 0)


class View(NamedTuple):
    first: int
    end: int
    file_size: int
    damage: tuple[Range, ...] = ()


class PulledQueue:
    min_offset = 0
    max_offset = 3
    life = 0


class PullWorld:
    """A log of three records in one queue, and reads of it."""

    def __init__(self, **changes):
        self.queue = PulledQueue()
        self.log = b"".join(self.record(number) for number in range(3))
        self.size = len(self.log) // 3
        self.reads = []
        self.answer_to_read = lambda data: data
        pieces, plain = pulled_pieces(0, "FOUND"), plain_pieces(0)
        options = {
            "frame_bytes_max": 1 << 20, "cache_bytes": 1 << 20, "count_max": 32,
            "bytes_max": 1 << 18, "memory_bytes": 1 << 30, "json": list(pieces.json),
            "binary_head": pieces.binary_head, "flag": pieces.flag, "remark": pieces.remark,
            "names": list(pieces.names), "queues": {("T", 0): self.queue},
            "plain_json": list(plain.json), "plain_binary": list(plain.binary),
            "read_log": self.read_log, "read_entries": self.read_entries, "accounts": None,
        }  # fmt: skip
        self.lane = accel.PullLane(**options | changes)
        self.sends = make_lane()

    @staticmethod
    def record(number):
        fixed = bytearray(88)
        struct.pack_into(">ii", fixed, 0, 92, -626843481)
        struct.pack_into(">qq", fixed, 20, number, 92 * number)
        return bytes(fixed) + b"\x01T\0\0"

    def read_log(self, view, start, known, count):
        self.reads.append(("log", start + known, count - known))
        return self.answer_to_read(self.log[start + known : start + count])

    def read_entries(self, queue, offset, count):
        assert queue is self.queue
        self.reads.append(("entries", offset, count))
        numbers = range(offset, offset + count)
        return b"".join(struct.pack(">qiq", 92 * one, 92, one) for one in numbers)

    def head(self, offset=0, **changes):
        ext = {
            "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "5", "commitOffset": "1", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        return encode_frame(RawCommand(code=11, opaque=9, ext=ext | changes))

    def learn(self, **options):
        data = self.head()
        return self.lane.learn(0, data[8:], "g", "T", queue_count=1, suggested_id=0, **options)

    def stage(self, data):
        return self.sends.stage(data, object(), HOST, 9, pulls=self.lane)

    def answer(self, data, **view):
        count = -self.stage(data)[0][0]
        return self.lane.answer(
            0, count, 1 << 20, View(0, len(self.log), 1 << 20)._replace(**view), 99
        )


def test_a_pull_is_answered_with_the_records_from_its_offset_on():
    world = PullWorld()
    assert world.learn()
    assert not world.learn()
    data = world.head(1)
    frames, done, start, end, is_odd, effects = world.answer(data)
    totals, commits, renewed, left = effects
    raw = decode_header(0, frames[8 : 8 + int.from_bytes(frames[5:8], "big")])
    assert (raw.code, raw.opaque, raw.remark) == (0, 9, "FOUND")
    assert raw.ext == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3",
    }  # fmt: skip
    assert frames.endswith(world.log[92:])
    assert (done, start, end, is_odd) == (1, 0, 0, False)
    assert totals == [("T", "g", 1, 2, 184)]
    assert commits == [("g", "T", 0, 1)]
    assert renewed == []
    assert left == 99  # only filters count
    assert world.reads == [("entries", 0, 3), ("log", 0, 276)]
    assert world.answer(data)[0] == frames
    assert len(world.reads) == 2
    assert world.lane.cached_bytes == 276 + 60


def test_the_records_of_a_repeated_read_are_kept_for_other_groups():
    world = PullWorld()
    world.learn()
    data = world.head(1, maxMsgNums="2")
    first = world.answer(data)
    assert world.lane.cached_bytes == 276 + 60
    assert world.answer(data) == first
    assert world.lane.cached_bytes == 276 + 60 + 184
    assert world.answer(data) == first
    world.queue.max_offset = 9
    (frames, *_, effects) = world.answer(data)
    assert b'"maxOffset":"9"' in frames
    assert frames.endswith(world.log[92:])
    assert effects[0] == [("T", "g", 1, 2, 184)]
    assert world.answer(data, first=93)[1] == 0
    world.queue.life += 1
    assert world.answer(data)[0] == frames
    assert [kind for kind, *_ in world.reads] == ["entries", "log", "entries"]
    world.lane.clear()
    assert world.lane.cached_bytes == 0


def test_readers_that_are_unknown_or_forgotten_are_left_to_python():
    world = PullWorld()
    data = world.head()
    assert world.stage(data) == [(0, 0, 0, len(data))]
    world.learn()
    assert world.stage(data + data) == [(-2, 0, 0, 2 * len(data))]
    other = world.head(consumerGroup="other")
    assert [part[0] for part in world.stage(data + other + send() + data)] == [-1, 0, 1, -1]
    world.lane.forget()
    assert world.lane.reader_count == 0
    assert world.lane.frame(1)[1] == len(data + other + send() + data)
    done = world.lane.answer(0, 1, 1000, View(0, 276, 1 << 20), 99_999)
    assert done[:5] == (b"", 0, 0, len(data), True)
    assert world.stage(data) == [(0, 0, 0, len(data))]


@pytest.mark.parametrize("view", [
    {"damage": (Range(100, 101),)}, {"end": 275}, {"first": 92},
])  # fmt: skip
def test_what_is_not_in_order_is_left_to_python(view):
    world = PullWorld()
    world.learn()
    data = world.head()
    assert world.answer(data, **view)[:5] == (b"", 0, 0, len(data), True)
    assert world.answer(data)[1] == 1


@pytest.mark.parametrize("found", [None, b"", b"x" * 275, "text", bytes(276)])
def test_what_cannot_be_read_is_left_to_python_and_not_kept(found):
    world = PullWorld()
    world.learn()
    world.answer_to_read = lambda _: found
    assert world.answer(world.head())[1] == 0
    world.lane.clear()

    def fail(_data):
        raise OSError(5, "gone")

    world.answer_to_read = fail
    assert world.answer(world.head())[1] == 0
    world.answer_to_read = bytearray
    assert world.answer(world.head())[1] == 1


def always(answer, _data):
    return answer


def test_an_open_file_is_read_without_python(tmp_path):
    world = PullWorld()
    world.learn()
    data = world.head()
    expected = world.answer(data)[0]
    world.lane.clear()
    path = tmp_path / "log"
    path.write_bytes(b"xy" + world.log)
    with path.open("rb") as file:
        fd = file.fileno()
        world.answer_to_read = lambda _: (file, fd, 2, [])
        assert world.answer(data)[0] == expected
        world.lane.clear()
        size, crc = world.size, crc32(world.log[: world.size])
        world.answer_to_read = lambda _: (file, fd, 2, [(0, size, crc)])
        assert world.answer(data)[0] == expected
        # other checksums, too near to the end, no position, no file, and not four values
        odd: list[Any] = [
            (file, fd, 2, [(0, size, crc ^ 1)]),
            (file, fd, 2, [(0, size, crc), (size, 2 * size, crc)]),
            (file, fd, 2, [(0, 1 << 20, crc)]),
            (file, fd, 2, [(2, 1, crc)]),
            (file, fd, 3, []),
            (file, fd, -1, []),
            (file, fd, "2", []),
            (None, -1, 2, []),
            (file, fd, 2),
            (None, 2),
            (),
        ]
        for place in odd:
            world.lane.clear()
            world.answer_to_read = partial(always, place)
            assert world.answer(data)[1] == 0


def test_a_queue_that_begins_again_is_read_again():
    world = PullWorld()
    world.learn()
    world.answer(world.head())
    world.queue.life += 1
    assert world.answer(world.head())[1] == 1
    assert [kind for kind, *_ in world.reads] == ["entries", "log", "entries"]


def test_answers_stop_above_the_room_and_filters_choose():
    world = PullWorld()
    world.learn(codes=[2, 1])
    data = world.head()
    world.stage(data * 3)
    view = View(0, 276, 1 << 20)
    frames, done, start, end, is_odd, *_ = world.lane.answer(0, 3, 0, view, 99_999)
    assert (done, start, end, is_odd) == (1, len(data), 2 * len(data), False)
    assert frames.endswith(b"401}" + world.log[92:])
    assert world.lane.answer(1, 2, 1 << 20, view, 99_999)[0] == frames * 2


def test_chunks_of_several_connections_are_answered_until_one_is_not_plain():
    world = PullWorld()
    world.learn()
    pull, late, other = world.head(), world.head(99), world.head(consumerGroup="other")
    view = View(0, 276, 1 << 20)
    frames = world.answer(pull)[0]

    def answer(*chunks, first=0, count_max=3, room=1 << 20, bytes_max=1 << 20):
        rows = [(number, chunk) for number, chunk in enumerate(chunks)]
        rows, *place, effects = world.lane.answer_rows(
            rows, first, count_max, room, bytes_max, view, 99
        )
        count = sum(count for *_, count in rows)
        assert [one for _, one, _ in rows] == [frames * count for *_, count in rows]
        assert effects[0] == ([("T", "g", count, 3 * count, 276 * count)] if count else [])
        assert effects[1] == [("g", "T", 0, 1)] * count
        return [(peer, count) for peer, _, count in rows], *place

    size = len(pull)
    assert answer(pull, pull * 2) == ([(0, 1), (1, 2)], 3 * size, 2, -1)
    assert answer(pull, pull * 2, first=1) == ([(1, 2)], 2 * size, 2, -1)
    assert answer(pull, pull + late, pull) == ([(0, 1), (1, 1)], 2 * size, 1, size)
    for chunk in (pull + other, pull + pull[:9], b"", pull * 4, send(), late):
        assert answer(pull, chunk, pull) == ([(0, 1)], size, 1, 0)
    assert answer(pull, pull, bytes_max=1) == ([(0, 1)], size, 1, -1)
    assert answer(pull * 2, pull, room=1) == ([(0, 1)], size, 0, size)


def test_filters_take_no_more_steps_than_they_may():
    world = PullWorld()
    world.learn(codes=[0, 1, 2])
    data = world.head()
    view = View(0, 276, 1 << 20)
    for budget, done, found, left in ((9, 2, 6, 3), (6, 2, 6, 0), (5, 2, 5, 0), (2, 1, 2, 0)):
        world.stage(data * 2)
        answered = world.lane.answer(0, 2, 1 << 20, view, 256 * budget)
        assert (answered[1], answered[4], answered[5][3]) == (done, done < 2, 256 * left)
        assert sum(total[3] for total in answered[5][0]) == found
    for budget in (255, 0, -1):
        world.stage(data * 2)
        assert world.lane.answer(0, 2, 1 << 20, view, budget)[1:5:3] == (0, True)


@pytest.mark.parametrize("serialization", Serialization)
def test_a_request_for_locks_gets_the_answer_of_its_twin(serialization):
    world = PullWorld()
    world.learn()

    def request(body, opaque):
        command = RawCommand(code=41, opaque=opaque, body=body, serialization=serialization)
        return encode_frame(command)

    known = request(b"queues", 1)
    head = known[8 : -len(b"queues")]
    locks = [object()]
    assert world.lane.learn_renewal(int(serialization), head, b"queues", b"granted", locks)
    assert not world.lane.learn_renewal(int(serialization), head, b"queues", b"other", [])
    assert world.stage(request(b"others", 1))[0][0] == 0
    data = world.head() + request(b"queues", 70_000)
    frames, done, _, _, is_odd, (totals, _, renewed, _) = world.answer(data)
    assert (done, is_odd, len(totals)) == (2, False, 1)
    assert [id(one) for one in renewed] == [id(locks)]
    answer = frames[4 + int.from_bytes(frames[:4], "big") :]
    found = decode_header(answer[4], answer[8 : -len(b"granted")])
    assert (found.code, found.flag, found.opaque, found.ext) == (0, 1, 70_000, {})
    assert answer.endswith(b"granted")
    world.stage(data)
    world.lane.forget_renewals()
    answered = world.lane.answer(0, 2, 1 << 20, View(0, 276, 1 << 20), 99_999)
    assert (answered[1], answered[4], answered[5][2]) == (1, True, [])


def test_impossible_pulls_raise():
    world = PullWorld()
    with pytest.raises(IndexError):
        world.lane.answer(0, 1, 0, View(0, 276, 1 << 20), 99_999)
    with pytest.raises(IndexError):
        world.lane.frame(0)
    for condition in [("cast", 1), ("like", 0), ("integer", 0, "!=", 1, False)]:
        with pytest.raises((IndexError, ValueError)):
            world.learn(names=["a"], condition=condition)
    with pytest.raises(ValueError, match="more than 8"):
        world.learn(names=["a"] * 9, condition=("cast", 0))
