# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.handlers import topics
from cometmq.broker.tables.offsets import offset_file
from cometmq.broker.tables.subscription_groups import group_file
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
)
from cometmq.remoting.command import Call
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.commands.topics import DeleteSubscriptiongroup, GetSubscriptiongroupConfig
from cometmq.testing.broker import FakePeer, expected_answer, memory_broker, replay
from cometmq.testing.broker.replay import answered_exchanges, name_of, serve
from cometmq.testing.remoting.golden import Exchange

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"


def role_for(exchange: Exchange) -> str:
    is_slave = "from slave broker" in (expected_answer(exchange).remark or "")
    return "SLAVE" if is_slave else "ASYNC_MASTER"


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "200-*"), ids=name_of)
async def test_captured_changes_of_groups(exchange: Exchange) -> None:
    broker = memory_broker(brokerRole=role_for(exchange))

    answer = await replay(broker, exchange, topics.update_and_create_subscriptiongroup)

    assert answer == expected_answer(exchange)
    asked = decode_json(SubscriptionGroupConfig, (exchange.request.body_text or "").encode())
    assert broker.tables.groups.get(asked.group_name) == asked


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "225-*"), ids=name_of)
async def test_captured_changes_of_several_groups(exchange: Exchange) -> None:
    """A broker of 5.5 has another code for illegal names."""
    broker = memory_broker()
    asked = decode_json(SubscriptionGroupList, (exchange.request.body_text or "").encode())
    expected = expected_answer(exchange)

    answer = await replay(broker, exchange, topics.update_and_create_subscriptiongroup_list)

    stored = [broker.tables.groups.get(one.group_name) for one in asked.group_config_list]
    if expected.code:
        assert (answer.code, stored) == (1, [None, None])
        assert "item 2 of the list, 'a/b'" in (answer.remark or "")
    else:
        assert answer == expected
        assert stored == asked.group_config_list


async def test_a_list_of_groups_must_fit_as_a_whole() -> None:
    broker = memory_broker()
    broker = memory_broker(groupsMax=str(len(broker.tables.groups.table) + 1))
    broker.tables.topics.create("%RETRY%G", queue_nums=1)
    for names, code in ((("G", "H"), 26), (("G", "G"), 0)):
        groups = [SubscriptionGroupConfig(group_name=name, retry_queue_nums=2) for name in names]
        call = Call(
            225, NoHeader(), body=encode_json(SubscriptionGroupList(groups)), peer=FakePeer()
        )
        answer = await serve(broker, call, topics.update_and_create_subscriptiongroup_list)
        assert answer.code == code
        retry = broker.tables.topics.get("%RETRY%G")
        assert retry is not None
        assert retry.read_queue_nums == (1 if code else 2)


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "207-*"), ids=name_of)
async def test_captured_deletions_of_groups(exchange: Exchange) -> None:
    broker = memory_broker(brokerRole=role_for(exchange))
    group = exchange.request.ext["groupName"]
    broker.tables.groups.put(SubscriptionGroupConfig(group_name=group))
    broker.tables.offsets.commit(group, "T", 0, 5)
    broker.tables.offsets.commit("other", "T", 0, 5)

    answer = await replay(broker, exchange, topics.delete_subscriptiongroup)

    assert answer == expected_answer(exchange)
    assert broker.tables.groups.get(group) is None
    assert broker.tables.offsets.committed(group, "T", 0) is None
    assert broker.tables.offsets.committed("other", "T", 0) == 5


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "201-*"), ids=name_of)
async def test_captured_group_tables(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    table = decode_json(SubscriptionGroupTable, expected.body)
    broker.tables.groups.table = table.subscription_group_table
    broker.tables.groups.version = table.data_version

    answer = await replay(broker, exchange, topics.get_all_subscriptiongroup_config)

    assert (answer.code, answer.remark, answer.ext) == (0, None, {})
    assert json.loads(answer.body) == json.loads(expected.body)


@pytest.mark.parametrize("body", [b'{"groupName":"a/b"}', b"{}", b'{"groupName":"..x"}'])
async def test_dangerous_names_are_refused(body: bytes) -> None:
    broker = memory_broker()
    call = Call(200, NoHeader(), body=body)

    answer = await serve(broker, call, topics.update_and_create_subscriptiongroup)

    assert answer.code == 1
    assert broker.tables.groups.version.counter == 0


async def test_the_retry_topic_grows_with_the_number_of_retry_queues() -> None:
    broker = memory_broker()
    for retry_queues, expected in ((1, None), (4, 4), (2, 4)):
        body = b'{"groupName":"G","retryQueueNums":%d}' % retry_queues
        call = Call(200, NoHeader(), body=body)
        assert (await serve(broker, call, topics.update_and_create_subscriptiongroup)).code == 0
        topic = broker.tables.topics.get("%RETRY%G")
        assert (topic and topic.read_queue_nums) == expected
        broker.tables.topics.create("%RETRY%G", queue_nums=1)


@pytest.mark.parametrize("field", ["remove_offset", "clean_offset"])
async def test_a_removed_group_and_its_offsets_are_saved_before_the_answer(
    tmp_path: Path, field: str
) -> None:
    """RocketMQ 5 has another name for the field."""
    broker = memory_broker(autoDeleteUnusedStats="true")
    broker.tables.groups.file = group_file(tmp_path / "subscriptionGroup.json")
    broker.tables.offsets.file = offset_file(str(tmp_path / "consumerOffset.json"))
    broker.tables.offsets.commit("G", "T", 0, 5)
    broker.stats.group("T", "G").get_count = 5

    await topics.delete_subscriptiongroup(
        broker, Call(207, DeleteSubscriptiongroup("G", **{field: True}))
    )

    saver: Any = broker.tables.saver
    assert set(saver.saved) == {"subscriptionGroup.json", "consumerOffset.json"}
    assert saver.saved["consumerOffset.json"] == b'{"offsetTable":{}}'
    assert broker.stats.groups == {}


async def test_a_slave_refuses() -> None:
    call = Call(200, NoHeader(), body=b'{"groupName":"G"}')

    answer = await serve(
        memory_broker(brokerRole="SLAVE"), call, topics.update_and_create_subscriptiongroup
    )

    assert answer.code == 1
    assert (answer.remark or "").startswith("Can't modify topic or subscription group")


async def test_a_single_group_can_be_read() -> None:
    broker = memory_broker()
    known = Call(352, GetSubscriptiongroupConfig("TOOLS_CONSUMER"))
    unknown = Call(352, GetSubscriptiongroupConfig("G"))

    found = await serve(broker, known, topics.get_subscriptiongroup_config)
    missing = await serve(broker, unknown, topics.get_subscriptiongroup_config)

    assert json.loads(bytes(found.body))["groupName"] == "TOOLS_CONSUMER"  # type: ignore[arg-type]
    assert missing.code == 26


@pytest.mark.parametrize("queues", [-1, 16_385, 2**31 - 1])
async def test_a_group_has_no_more_retry_queues_than_a_topic_may_have(queues: int) -> None:
    """The group's retry topic gets `retryQueueNums` queues, and every scan of the topic visits all
    of them.
    """
    broker = memory_broker()
    body = json.dumps({"groupName": "G", "retryQueueNums": queues}).encode()
    call = Call(200, NoHeader(), body=body)
    answer = await serve(broker, call, topics.update_and_create_subscriptiongroup)
    assert answer.code == 1
    assert f"retryQueueNums={queues}" in (answer.remark or "")
    assert broker.tables.groups.get("G") is None
