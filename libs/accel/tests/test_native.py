# SPDX-License-Identifier: Apache-2.0
"""The native module on its own; the broker's tests compare a broker with and without it."""

import contextlib
import socket
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.remoting.header import decode_header
from cometmq.store.index.index_format import KeyedRows

from .native_rig import HOST, accel, make_lane, send


class Queue:
    next_offset = 5


def place(lane, count):
    return accel.LaneRuns(lane).place(
        0, count, 100, 1 << 20, 1_700_000_000_000, {}, lambda _topic, _id: Queue()
    )


@pytest.mark.parametrize("serialization", [0, 1])
def test_a_send_is_staged_placed_and_answered(serialization):
    lane, peer = make_lane(), object()
    data = send(serialization=serialization, i="KEYS\x01k1 k2")
    size = 4 + len("KEYS\x01k1 k2\x02CLUSTER\x01c") + 2 * 128  # each key counts as 128 bytes
    assert lane.stage(data, peer, HOST, 10) == [(1, size, 0, len(data))]
    count, messages, records, entries, keys, groups = place(lane, 1)
    assert (count, messages, keys.count) == (1, 1, 2)
    assert len(records) == int.from_bytes(records[:4], "big")
    ((queue, entry, entry_count),) = entries
    assert isinstance(queue, Queue)
    assert (entry_count, len(entry)) == (1, 20)
    ((waits, answers),) = groups
    assert waits
    assert answers.counts()[0] == [("T", 1, 1, len(records))]
    ((to, frames, answer_count),) = answers.encode()
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

    def __init__(self, habit=1):
        self.habit = habit


def test_rows_are_staged_if_they_hold_only_plain_sends():
    lane = make_lane()
    plain, unknown = send(), send(b="Unknown")
    chunks = [plain, plain + unknown, plain * 2, plain + plain[:9], b"", plain * 4]
    rows = [(Peer(), chunk) for chunk in chunks]
    size = lane.stage(plain, Peer(), HOST, 1)[0][1]
    lane.drop_from(0)
    rows.append((Peer(habit=2), plain))
    sockets = accel.Sockets()
    after, left, answered, (*staged, fault) = sockets.take_rows(rows, 0, None, (lane, None, 3))
    assert (after, left, answered) == (7, [rows[6], rows[1], rows[3], rows[5]], None)
    assert staged == [[rows[0], rows[2]], 3, 3 * size, [1, 2]]
    assert fault is None
    assert lane.staged_count == 3
    left = sockets.take_rows(rows[1:2], 0, None, (lane, None, 3))
    assert left == (1, rows[1:2], None, None)
    assert sockets.take_rows(rows[:1], 0) == (1, rows[:1], None, None)
    assert lane.staged_count == 3
    ((_, answers),) = place(lane, 3)[-1]
    assert [(to, count) for to, _, count in answers.encode()] == [
        (rows[0][0], 1), (rows[2][0], 2)
    ]  # fmt: skip


def test_a_delayed_send_goes_to_its_level_and_is_answered_with_its_own_queue():
    lane = make_lane()
    data = send(1, i="DELAY\x012") + send(2, i="DELAY\x0199\x02WAIT\x01false") + send(3)
    assert [count for count, *_ in lane.stage(data, object(), HOST, 10)] == [3]
    queues = {("T", 1): Queue()}
    created: dict[tuple[str, int], Queue] = {}
    _, _, records, entries, _, groups = accel.LaneRuns(lane).place(
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
    assert first.counts()[1] == [(1, 1, sizes[0])]
    assert second.counts()[1] == [(1, 1, sizes[1])]
    assert last.counts()[1] == []
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
    accel.LaneRuns(lane).release()
    assert sys.getrefcount(peer) == before


def keyed(key_count):
    """Return a send that the lane prices at about 128 bytes for each key."""
    return send(i="KEYS\x01" + " ".join("1" * key_count))


def test_a_chunk_is_staged_until_its_sends_have_a_mebibyte():
    lane, data = make_lane(), keyed(4_000) * 4
    ((count, size, *_),) = lane.stage(data, object(), HOST, 10)
    assert (count, size > 3 * 4_000 * 128, lane.staged_count) == (3, True, 3)


def test_rows_are_staged_until_their_sends_have_8_mebibytes():
    lane = make_lane()
    rows = [(Peer(), keyed(4_000)) for _ in range(20)]
    _, left, _, (staged, *_) = accel.Sockets().take_rows(rows, 0, None, (lane, None, 3))
    assert (len(staged), len(left)) == (17, 3)
    assert left == rows[17:]
    lane.drop_from(0)


def test_forgotten_topics_stay_with_what_is_staged():
    lane = make_lane()
    lane.stage(send(), object(), HOST, 10)
    lane.forget()
    assert [part[0] for part in lane.stage(send(), object(), HOST, 10)] == [0]
    lane.learn("U", 1)
    assert place(lane, 1)[5][0][1].counts()[0][0][0] == "T"
    accel.LaneRuns(lane).release()
    assert lane.staged_count == 0


def test_a_commit_may_be_placed_again_and_ends_where_the_file_does():
    lane = make_lane()
    lane.stage(send() * 3, object(), HOST, 10)
    size, runs = len(place(lane, 1)[2]), accel.LaneRuns(lane)
    for _ in range(2):
        done = runs.place(0, 3, 0, 2 * size + 8, 1, {}, lambda _topic, _id: Queue())
        assert (done[0], len(done[2])) == (2, 2 * size)
    assert runs.place(0, 3, 0, 2 * size + 7, 1, {}, lambda _topic, _id: Queue())[0] == 1


def test_impossible_arguments_raise():
    with pytest.raises(ValueError, match="a host has 8 or 20 bytes, not 16"):
        make_lane(store_host=bytes(16))
    lane = make_lane()
    with pytest.raises(IndexError):
        place(lane, 1)
    with pytest.raises(IndexError):
        accel.LaneRuns(lane).unplaced(0, 1)
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


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 1, 9])), min_size=1, max_size=9))
def test_absorbed_keys_are_linked_like_those_of_one_commit(commits):
    natives, rows, offset = [], [], 100
    for key_count, now_ms in commits:
        lane, keys = make_lane(), " ".join(f"{offset}-{at}" for at in range(key_count))
        lane.stage(send(i=f"KEYS\x01{keys}"), object(), HOST, 100)
        placed = accel.LaneRuns(lane).place(
            0, 1, offset, 1 << 20, now_ms * 1_000, {}, lambda *_: Queue()
        )
        natives.append(placed[4])
        rows.append(KeyedRows([("T", key, offset, now_ms * 1_000) for key in keys.split()]))
        offset += len(placed[2])
    linked = []
    for first, *others in (natives, rows):
        assert all(first.absorb(other) for other in others)
        slots, dirty = memoryview(bytearray(28)).cast("i"), bytearray(7)
        linked.append((first.link(0, first.count, slots, dirty, 4, 7, 500), bytes(slots), dirty))
        assert first.timestamp(first.count - 1) == commits[-1][1] * 1_000
    assert linked[0] == linked[1]


def test_keys_absorb_neither_others_nor_themselves_nor_without_end():
    def keys(count):
        lane = make_lane()
        lane.stage(b"".join(send(i=f"KEYS\x01{one}") for one in range(count)), object(), HOST, 300)
        return place(lane, count)[4]

    few, many = keys(1), keys(256)
    assert not few.absorb(KeyedRows([("T", "k", 1, 1)]))
    assert not KeyedRows([("T", "k", 1, 1)]).absorb(few)
    assert not few.absorb(few)
    assert (few.count, few.absorb(many), few.count) == (1, True, 257)
    assert (few.absorb(keys(1)), few.count) == (False, 257)


class SocketPeer:
    is_dirty = False

    def __init__(self, fd):
        self.direct_fd = fd
        self.in_flight = 5


def test_answers_are_sent_to_the_sockets_that_may_be_written():
    lane, sockets = make_lane(), accel.Sockets()
    near, far = socket.socketpair()
    full, other = socket.socketpair()
    with near, far, full, other:
        for one in (near, full):
            one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                full.send(bytes(1 << 16))
        peers = [SocketPeer(near.fileno()), SocketPeer(-1), SocketPeer(full.fileno())]
        dirty = SocketPeer(near.fileno())
        dirty.is_dirty = True
        for peer in (*peers, dirty):
            lane.stage(send() + send(2), peer, HOST, 10)
        ((_, answers),) = place(lane, 8)[5]
        encoded = {id(peer): data for peer, data, _ in answers.encode()}
        (count, sent_bytes, rest), counts = answers.send(sockets)
        assert counts == answers.counts()
        assert far.recv(1 << 16) == encoded[id(peers[0])]
        assert (count, sent_bytes) == (2, len(encoded[id(peers[0])]))
        assert [peer.in_flight for peer in peers] == [3, 5, 5]
        assert rest == [
            (peers[1], encoded[id(peers[1])], 2, False),
            (peers[2], encoded[id(peers[2])], 2, True),
            (dirty, encoded[id(dirty)], 2, False),
        ]


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
