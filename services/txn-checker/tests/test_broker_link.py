# SPDX-License-Identifier: Apache-2.0
"""How the checker reads a broker's answers and the messages in its queues."""

from typing import Any

import pytest

from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Response
from cometmq.remoting.commands.offsets import GetMaxOffsetReply, QueryConsumerOffsetReply
from cometmq.remoting.errors import ServerError, SystemBusy
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.remoting.names import HALF_TOPIC
from cometmq.txn_checker.broker_link import (
    MISSING_MAX,
    BrokerLink,
    Pulled,
    ended_by,
    half_of,
)
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.tables import COUNT_MAX, NO_IMMUNITY

HOST = bytes(8)


def record(offset: int = 0, body: bytes = b"", **properties: str) -> MessageRecord:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    message = NewMessage(HALF_TOPIC, 0, 0, 0, 0, HOST, HOST, body, text)
    return decode_record(encode_record(message, offset, offset * 100, 7_999))


def link_that(answers: Any) -> BrokerLink:
    async def invoke(code: int, *_: Any, **__: Any) -> Any:
        answer = answers(Code(code))
        if isinstance(answer, Exception):
            raise answer
        return Response(code=0, ext={}, body=b"", header=answer)

    return BrokerLink(invoke, TxnCheckerSettings())


@pytest.mark.parametrize(
    ("immunity", "expected"),
    [("30", 30), ("-1", NO_IMMUNITY), ("", NO_IMMUNITY), ("x", NO_IMMUNITY), ("9" * 30_000, 65534)],
)
def test_the_immunity_tolerates_any_property_value(immunity: str, expected: int) -> None:
    half = half_of(record(CHECK_IMMUNITY_TIME_IN_SECONDS=immunity))
    assert half.immunity_s == expected
    assert half.entry()


def test_check_counts_of_java_brokers_are_bounded() -> None:
    assert half_of(record(TRANSACTION_CHECK_TIMES="9" * 5_000)).check_count == COUNT_MAX
    assert half_of(record(TRANSACTION_CHECK_TIMES="3")).check_count == 3


def test_an_op_message_names_offsets() -> None:
    assert ended_by(record(body=b"1, 2,x," + b"9" * 5_000, TAGS="d")) == [1, 2]
    assert ended_by(record(body=b"1", TAGS="e")) == []


def test_lost_messages_are_counted() -> None:
    pulled = Pulled([record(3), record(5)], next_offset=8, min_offset=0, max_offset=9)
    found = [one and one.queue_offset for one in pulled.in_order(2)]
    assert found == [None, 3, None, 5, None, None]
    assert list(pulled.in_order(8)) == []


def test_a_large_gap_takes_several_reads() -> None:
    far = 3 * MISSING_MAX + 10
    pulled = Pulled([record(far)], next_offset=far + 1, min_offset=0, max_offset=far + 1)
    position = reads = 0
    found: list[MessageRecord | None] = []
    while position <= far:
        reads += 1
        part = list(pulled.in_order(position))
        assert len(part) <= MISSING_MAX + 1
        position += len(part)
        found += part
    assert reads == 4
    assert [index for index, one in enumerate(found) if one is not None] == [far]


async def test_a_committed_offset_is_capped_at_the_end_of_the_queue() -> None:
    """The broker's offset file may be newer than the log that survived a power loss."""
    answers = {
        Code.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetReply(100),
        Code.GET_MAX_OFFSET: GetMaxOffsetReply(90),
    }
    assert await link_that(answers.__getitem__).examined(HALF_TOPIC) == 90


async def test_a_refused_check_is_an_answer() -> None:
    link = link_that(lambda _: ServerError("the disk says no"))
    asked = await link.ask(1, 2)
    assert (asked.is_open, asked.producer, asked.refusal) == (True, "", "the disk says no")
    assert await link.set_aside(1, 2) == "the disk says no"


async def test_a_half_message_that_is_gone_is_closed() -> None:
    link = link_that(lambda _: ServerError("Find prepared transaction message failed"))
    assert await link.ask(1, 2) == (False, None, None)
    assert await link.set_aside(1, 2) is None


async def test_a_busy_broker_ends_the_round() -> None:
    with pytest.raises(SystemBusy):
        await link_that(lambda _: SystemBusy("too much")).ask(1, 2)
