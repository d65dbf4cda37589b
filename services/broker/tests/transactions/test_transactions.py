# SPDX-License-Identifier: Apache-2.0

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.transactions.transactions import (
    EndedHalves,
    Transactions,
    committed,
    ended_offsets,
    op,
    prepare,
    real_place,
)
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.record import MessageRecord, decode_record

# Written by a Java 4.9.4 broker: a half message, its committed message, and its op message.
HALF = bytes.fromhex(
    "000000c6daa320a77b5a41210000000000000007000000000000000000000000000002bd00000000000001a1f7b9"
    "e1bc0a0000020000c350000001a1f7b9e1bc0a00000100002a9f0000000000000000000000000000000468616c66"
    "18524d515f5359535f5452414e535f48414c465f544f504943004f5245414c5f544f5049430154025452414e5f4d"
    "5347017472756502554e49515f4b4559015548025047524f55500170670257414954017472756502544147530154"
    "616741025245414c5f5149440132"
)
COMMITTED = bytes.fromhex(
    "000000afdaa320a77b5a412100000002000000070000000000000000000000000000038300000008000001a1f7b9"
    "e1bc0a0000020000c350000001a1f7b9e1cd0a00000100002a9f0000000000000000000002bd0000000468616c66"
    "0154004f5245414c5f544f5049430154025452414e5f4d5347017472756502554e49515f4b455901554802504752"
    "4f55500170670257414954017472756502544147530154616741025245414c5f5149440132"
)
OP = bytes.fromhex(
    "00000087daa320a774dbdf2100000000000000000000000000000000000000000000043200000000000001a1f7b9"
    "e1d67f000001000078bf000001a1f7b9e1d87f000001000078bf00000000000000000000000000000001301b524d"
    "515f5359535f5452414e535f4f505f48414c465f544f504943001057414954017472756502544147530164"
)


def stored_as(message: NewMessage, model: MessageRecord) -> bytes:
    return encode_record(message, model.queue_offset, model.physical_offset, model.store_timestamp)


def test_a_committed_record_is_javas() -> None:
    half, model = decode_record(HALF), decode_record(COMMITTED)
    assert stored_as(committed(half, ("T", 2), host=model.store_host), model) == COMMITTED


def test_an_op_record_is_javas() -> None:
    half, model = decode_record(HALF), decode_record(OP)
    message = op(half, host=model.store_host, now_ms=model.born_timestamp)
    assert stored_as(message, model) == OP
    assert message.tag_code == 100


def test_a_half_record_equals_javas() -> None:
    """Only the order of properties differs: in Java it is the order of a hash table."""
    model = decode_record(HALF)
    message = decode_record(COMMITTED).to_new_message()
    message.sys_flag |= 0x4
    message.prepared_offset = 0
    message.properties = "TRAN_MSG\x01true\x02UNIQ_KEY\x01UH\x02PGROUP\x01pg\x02TAGS\x01TagA"

    prepare(message, wait="true")

    half = decode_record(stored_as(message, model))
    assert half.properties == model.properties
    assert (half.topic, half.queue_id, half.sys_flag) == (model.topic, 0, 0)
    assert (half.flag, half.body, half.size) == (model.flag, model.body, model.size)


def test_a_half_message_is_never_delayed_and_its_place_cannot_be_forged() -> None:
    message = decode_record(COMMITTED).to_new_message()
    message.properties = "DELAY\x013\x02REAL_TOPIC\x01Other\x02REAL_QID\x019\x02TRAN_MSG\x01true"
    prepare(message, wait=None)
    assert message.properties == "TRAN_MSG\x01true\x02REAL_TOPIC\x01T\x02REAL_QID\x012"


def test_op_messages_of_rocketmq_5_name_several_half_messages() -> None:
    assert list(ended_offsets(b"17")) == [17]
    assert list(ended_offsets(b"1,2,,30,")) == [1, 2, 30]
    assert list(ended_offsets(b"x,-4,\xff," + b"9" * 5_000)) == []


def test_a_half_message_with_a_queue_that_is_no_number_has_no_place() -> None:
    half = decode_record(HALF)
    assert real_place(half) == ("T", 2)
    for queue_id in ("9" * 5_000, "²", ""):
        forged = half.to_new_message()
        forged.properties = forged.properties.replace("REAL_QID\x012", f"REAL_QID\x01{queue_id}")
        assert real_place(decode_record(encode_record(forged, 0, 0, 0))) is None


@given(st.lists(st.tuples(st.sampled_from(["add", "forget"]), st.integers(0, 400)), max_size=60))
def test_ended_half_messages_are_never_invented(steps: list[tuple[str, int]]) -> None:
    """The cache may lose an end, but must never invent one."""
    ended = EndedHalves(bits_max=64)
    added: set[int] = set()
    for what, offset in steps:
        if what == "add":
            ended.add(offset)
            added.add(offset)
        else:
            ended.forget_below(offset)
        assert {one for one in range(401) if one in ended} <= added


def test_ends_are_kept_until_they_are_examined() -> None:
    ended = EndedHalves(bits_max=1 << 10)
    for offset in (*range(200, 300), *range(199, 99, -1)):
        ended.add(offset)
    assert all(offset in ended for offset in range(100, 300))
    assert 99 not in ended
    assert 300 not in ended
    ended.forget_below(200)
    assert all(offset in ended for offset in range(200, 300))
    assert 150 not in ended


def test_memory_for_ends_is_bounded() -> None:
    ended = EndedHalves(bits_max=1 << 10)
    for offset in range(5_000):
        ended.add(offset)
    assert 4_999 in ended
    assert 4_999 - 900 in ended
    assert 3_000 not in ended
    ended.add(1 << 60)
    assert 1 << 60 in ended
    assert 4_999 not in ended


def test_a_restart_forgets_ends_that_may_be_cut_off() -> None:
    transactions = Transactions()
    transactions.recall([7])
    recent = transactions.recent

    transactions.restart()

    assert 7 not in transactions.ended
    assert transactions.recent is recent  # other objects refer to it
    assert len(recent) == 0
