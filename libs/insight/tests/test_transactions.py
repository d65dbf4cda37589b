# SPDX-License-Identifier: Apache-2.0
import pytest

from cometmq.client.admin.broker_messages import HalfMessage, HalfState
from cometmq.client.message import MessageExt
from cometmq.insight.transactions import facts_of
from cometmq.remoting.bodies.queues import MessageQueue


@pytest.mark.parametrize(
    ("text", "count"), [("3", 3), ("abc", 0), ("9" * 5_000, 0), ("²", 0), ("-1", 0)]
)
def test_counts_that_a_producer_has_written_are_shown_or_left_out(text, count):
    properties = {"TRANSACTION_CHECK_TIMES": text, "REAL_QID": text, "REAL_TOPIC": "T"}
    half = HalfMessage(
        MessageExt(
            topic="RMQ_SYS_TRANS_HALF_TOPIC", body=b"x", tag=None, keys=(), properties=properties,
            message_id="A", offset_message_id="B", queue=MessageQueue("T", "b", 0), queue_offset=0,
            physical_offset=0, flag=0, sys_flag=0, reconsume_times=0, born_timestamp=0,
            born_host="127.0.0.1:1", store_timestamp=0, store_host="127.0.0.1:2",
        )
    )  # fmt: skip
    facts = facts_of(half, HalfState.OPEN)
    assert (facts["asked_by_rocketmq"], facts["queue_id"]) == (count, count)
