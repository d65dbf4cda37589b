# SPDX-License-Identifier: Apache-2.0
"""The native module on its own; the broker's tests compare a broker with and without it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.remoting.command import ConstantExt
from cometmq.remoting.header import decode_header, encode_frame
from cometmq.remoting.header_plan import sent_pieces
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.types import Serialization
from cometmq.store.index.keys import KeyedRows

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
        "body_bytes_max": 4096, "request_bytes_max": 8192, "json": list(pieces.json),
        "binary_head": pieces.binary_head, "flag": pieces.flag,
        "binary_entries": pieces.binary_entries,
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
    return lane.place(0, count, 100, 1 << 20, 1_700_000_000_000, lambda _topic, _id: Queue())


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
        done = lane.place(0, 3, 0, 2 * size + 8, 1, lambda _topic, _id: Queue())
        assert (done[0], len(done[2])) == (2, 2 * size)
    assert lane.place(0, 3, 0, 2 * size + 7, 1, lambda _topic, _id: Queue())[0] == 1


def test_impossible_arguments_raise():
    with pytest.raises(ValueError, match="IPv4 host has 20 bytes instead of 8"):
        make_lane(store_host=bytes(20))
    lane = make_lane()
    with pytest.raises(IndexError):
        place(lane, 1)
    with pytest.raises(IndexError):
        lane.unplaced(0, 1)
    assert lane.stage(send(), object(), bytes(20), 10) == []  # IPv6


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
