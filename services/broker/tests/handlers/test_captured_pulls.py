# SPDX-License-Identifier: Apache-2.0
"""Captured pulls get the answers that the Java broker gave."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.message.flags import tag_code
from cometmq.testing.broker import FakePeer, expected_answer
from cometmq.testing.broker.replay import call_of
from cometmq.testing.broker.stored import ask, call_with, last_answer, stored_broker
from cometmq.testing.remoting.golden import Exchange, load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"

SUBSCRIPTION = 4  # PullSysFlag: the request carries the subscription
GOLDEN_PULLS = [one for one in load_exchanges(GOLDEN, "011-*") if one.response is not None]


@pytest.mark.parametrize("exchange", GOLDEN_PULLS, ids=lambda exchange: exchange.name)
async def test_captured_pulls(tmp_path: Path, exchange: Exchange) -> None:
    """The test brings our broker into the captured state; code, remark and ext must match."""
    expected = expected_answer(exchange)
    settings = {}
    if expected.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        settings["autoCreateSubscriptionGroup"] = "false"
    if "the broker[" in (expected.remark or ""):
        settings["brokerPermission"] = "2"
    if "SQL92" not in (expected.remark or ""):
        settings["enablePropertyFilter"] = "true"
    async with stored_broker(tmp_path, **settings) as broker:
        call = call_of(exchange.request, FakePeer())
        prepare(broker, call.header, expected)
        reply = ask(broker, call)
        if reply is None:
            broker.pending.hold.wake_all()
            broker.driver.turn.wake()
            reply = last_answer(call)

        assert reply.code == expected.code
        if "consumer:[" not in (expected.remark or ""):
            assert reply.remark == expected.remark
        if expected.ext:
            answered = {
                name: str(value) for name, value in msgspec.to_builtins(reply.header).items()
            }
            assert answered == expected.ext


def prepare(broker: Broker, header: PullMessage, expected: Any) -> None:
    """Bring topic, group, subscription and queue into the state that the answer reports."""
    remark = expected.remark or ""
    if expected.code != ResponseCode.TOPIC_NOT_EXIST:
        queue_nums = 2 if "readQueueNums:[2]" in remark else 8
        broker.tables.topics.create(header.topic, queue_nums=queue_nums)
    config = broker.tables.topics.get(header.topic)
    if "the topic[" in remark and config is not None:
        broker.tables.topics.put(msgspec.structs.replace(config, perm=2))
    if "no permission" in remark:
        broker.tables.groups.find(header.consumer_group, auto_create=True)
        broker.tables.groups.disable(header.consumer_group)
    if not header.sys_flag & SUBSCRIPTION and "group info" not in remark:
        register(broker, header, expected)
    count = int(expected.ext.get("maxOffset", 0))
    is_filtered = expected.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    for number in range(count):
        is_wanted = number == count - 1 and not is_filtered  # the scan ends with the last one
        text = f"TAGS\x01{first_tag(header) if is_wanted else 'unwanted'}"
        message = SendMessageV2("P", header.topic, "TBW102", 8, header.queue_id, 0, 0, 0, text)
        ask(broker, call_with(310, message, b"x"))


def first_tag(header: PullMessage) -> str:
    return (header.subscription or "x").split("||")[0].strip()


def register(broker: Broker, header: PullMessage, expected: Any) -> None:
    version = header.sub_version - (expected.code == ResponseCode.SUBSCRIPTION_NOT_LATEST)
    topic = "other" if "subscription not exist" in (expected.remark or "") else header.topic
    is_filtered = expected.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    subscription = SubscriptionData(
        topic=topic,
        sub_string="A" if is_filtered else "*",
        code_set=[tag_code("A")] if is_filtered else [],
        sub_version=version,
    )
    if header.expression_type == "SQL92":
        is_older = expected.code == ResponseCode.FILTER_DATA_NOT_LATEST
        subscription.expression_type = "SQL92"
        subscription.sub_string = "a > 5"
        older = msgspec.structs.replace(subscription, sub_version=version - is_older)
        broker.tables.filters.register(header.consumer_group, [older])
    data = ConsumerData(
        group_name=header.consumer_group,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    broker.clients.consumers.register(data, Client(FakePeer(), "c", 0, 401, 0))
