# SPDX-License-Identifier: Apache-2.0

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.handlers import HANDLERS, maintenance
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.commands.table import NoHeader
from cometmq.store.results import PutResult, PutStatus
from cometmq.testing.broker import FakePeer, expected_answer, memory_broker, replay
from cometmq.testing.broker.replay import answered_exchanges, name_of, serve
from cometmq.testing.broker.stored import ask, call_with, stored_broker
from cometmq.testing.remoting.golden import Exchange

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with stored_broker(tmp_path, autoDeleteUnusedStats="true") as broker:
        yield broker


def send(broker: Broker, topic: str) -> None:
    ask(broker, call_with(310, SendMessageV2("P", topic, "TBW102", 4, 0, 0, 0, 0, ""), b"body"))


def order(code: Code) -> Call[Any]:
    return Call(code, NoHeader(), peer=FakePeer())


@pytest.mark.parametrize(
    "exchange",
    [
        *answered_exchanges(GOLDEN, "306-*"),
        *answered_exchanges(GOLDEN, "316-*"),
        *answered_exchanges(GOLDEN, "329-*"),
    ],
    ids=name_of,
)
async def test_captured_clean_ups(broker: Broker, exchange: Exchange) -> None:
    handler = HANDLERS[int(exchange.name[:3])]
    assert await replay(broker, exchange, handler) == expected_answer(exchange)


async def test_queues_of_unknown_topics_are_deleted(broker: Broker) -> None:
    send(broker, "Known")
    send(broker, "Unknown")
    send(broker, "TBW102")
    broker.tables.topics.table.pop("Unknown")

    await serve(broker, order(Code.CLEAN_UNUSED_TOPIC), maintenance.clean_unused_topic)

    assert broker.store.reader.topics() == {"Known", "TBW102"}
    assert broker.stats.topics.keys() == {"Known", "TBW102"}


async def test_a_slave_gets_deletions_only_with_its_masters_log(broker: Broker) -> None:
    send(broker, "T")
    broker.tables.topics.table.pop("T")  # not copied from the master yet
    broker.role.is_master = False

    await serve(broker, order(Code.CLEAN_UNUSED_TOPIC), maintenance.clean_unused_topic)

    assert broker.store.reader.topics() == {"T"}


async def test_a_demotion_ends_the_deletions(broker: Broker) -> None:
    really_delete = broker.driver.delete_topic

    def delete(topic: str) -> Any:
        stored = really_delete(topic)
        broker.role.is_master = False
        return stored

    _leave_unknown(broker, "A", "B")
    broker.driver.delete_topic = delete  # type: ignore[method-assign]
    await serve(broker, order(Code.CLEAN_UNUSED_TOPIC), maintenance.clean_unused_topic)

    assert broker.store.reader.topics() == {"B"}, "only the new master may delete it"


async def test_a_deletion_that_fails_ends_the_deletions(broker: Broker) -> None:
    _leave_unknown(broker, "A", "B")
    asked: list[str] = []

    def delete(topic: str) -> Any:
        asked.append(topic)
        stored = asyncio.get_running_loop().create_future()
        stored.set_result(PutResult(PutStatus.FLUSH_SLAVE_TIMEOUT))
        return stored

    broker.driver.delete_topic = delete  # type: ignore[method-assign]
    broker.store.writer.needs_replicas = True
    answer = await serve(broker, order(Code.CLEAN_UNUSED_TOPIC), maintenance.clean_unused_topic)

    assert asked == ["A"]
    assert answer.code == 1
    assert "has not reached all copies" in str(answer.remark)


def _leave_unknown(broker: Broker, *topics: str) -> None:
    for topic in topics:
        send(broker, topic)
        broker.tables.topics.table.pop(topic)


async def test_statistics_of_deleted_topics_stay_by_default(tmp_path: Path) -> None:
    async with stored_broker(tmp_path) as broker:
        send(broker, "Unknown")
        broker.tables.topics.table.pop("Unknown")

        await serve(broker, order(Code.CLEAN_UNUSED_TOPIC), maintenance.clean_unused_topic)

        assert broker.store.reader.topics() == set()
        assert broker.stats.topics.keys() == {"Unknown"}


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "305-*"), ids=name_of)
async def test_captured_system_topics(exchange: Exchange) -> None:
    expected = json.loads(expected_answer(exchange).body)["topicList"]
    name = "broker-b" if "broker-b" in expected else "broker-a"
    broker = memory_broker(brokerName=name)

    answer = await replay(broker, exchange, maintenance.get_system_topic_list)

    assert (answer.code, answer.remark, answer.ext) == (0, None, {})
    assert json.loads(answer.body) == {"topicList": sorted(expected)}


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "301-*"), ids=name_of)
async def test_captured_registration_of_filter_servers(exchange: Exchange) -> None:
    answer = await replay(memory_broker(), exchange, maintenance.register_filter_server)

    assert answer == expected_answer(exchange)


@pytest.mark.parametrize("code", [13, 22, 23, 27, 209, 210, 211, 212, 213, 214, 302])
def test_codes_that_a_4_9_4_broker_refuses_are_not_served(code: int) -> None:
    """The capture shows the refusals; the dispatcher answers a code without a handler with 3."""
    answers = [expected_answer(one) for one in answered_exchanges(GOLDEN, f"{code:03d}-*")]

    assert answers
    assert {answer.code for answer in answers} == {3}
    assert code not in HANDLERS


def test_clean_ups_are_answered_at_once(broker: Broker) -> None:
    assert ask(broker, order(Code.CLEAN_EXPIRED_CONSUMEQUEUE)) == Reply()
    assert ask(broker, order(Code.DELETE_EXPIRED_COMMITLOG)) == Reply()
