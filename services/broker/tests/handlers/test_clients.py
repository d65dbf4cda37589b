# SPDX-License-Identifier: Apache-2.0

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import CLIENT_SILENCE_MS, Client
from cometmq.broker.handlers import clients
from cometmq.broker.limits import HEARTBEAT_ITEMS
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import (
    ConsumerData,
    Heartbeat,
    ProducerData,
    SubscriptionData,
)
from cometmq.remoting.command import OK, Call
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.errors import ServerError
from cometmq.remoting.transport.dispatch import InOrder
from cometmq.runtime.incremental import finish
from cometmq.runtime.limits import LimitReached
from cometmq.testing.broker import FakePeer, expected_answer, memory_broker, replay
from cometmq.testing.broker.replay import name_of
from cometmq.testing.remoting.golden import Exchange, load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"


def exchanges(pattern: str) -> list[Exchange]:
    return [
        exchange
        for exchange in load_exchanges(GOLDEN, pattern)
        if exchange.response is not None
        and "Acl" not in (exchange.response.header.get("remark") or "")
    ]


def heartbeat(
    broker: Broker,
    peer: FakePeer,
    *consumers: ConsumerData,
    producers: tuple[str, ...] = (),
    client_id: str = "c1",
) -> None:
    beat = Heartbeat(
        client_id=client_id,
        consumer_data_set=list(consumers),
        producer_data_set=[ProducerData(group) for group in producers],
    )
    call = Call(34, NoHeader(), version=401, body=encode_json(beat), peer=peer)
    clients.heart_beat(broker, call)


def consumer(group: str = "G", topic: str = "T", *, unit_mode: bool = False) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        subscription_data_set=[SubscriptionData(topic=topic, sub_string="*", sub_version=1)],
        unit_mode=unit_mode,
    )


@pytest.mark.parametrize("exchange", exchanges("034-*"), ids=name_of)
async def test_captured_heartbeats(exchange: Exchange) -> None:
    broker, peer = memory_broker(), FakePeer()

    assert await replay(broker, exchange, clients.heart_beat, peer) == expected_answer(exchange)

    said = json.loads(exchange.request.body_text or "")
    for group in said.get("producerDataSet", ()):
        (known,) = broker.clients.producers.clients(group["groupName"])
        assert (known.client_id, known.peer) == (said["clientID"], peer)


@pytest.mark.parametrize("exchange", exchanges("035-*"), ids=name_of)
async def test_captured_unregistrations(exchange: Exchange) -> None:
    broker, peer = memory_broker(), FakePeer()
    ext = exchange.request.ext
    if "consumerGroup" in ext:
        heartbeat(broker, peer, consumer(ext["consumerGroup"]))
    if "producerGroup" in ext:
        heartbeat(broker, peer, producers=(ext["producerGroup"],))

    answer = await replay(broker, exchange, clients.unregister_client, peer)

    assert answer == expected_answer(exchange)
    assert broker.clients.consumers.client_count == broker.clients.producers.client_count == 0


@pytest.mark.parametrize("exchange", exchanges("038-*"), ids=name_of)
async def test_captured_queries_of_members(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    ids = json.loads(expected.body)["consumerIdList"] if expected.body else []
    for number, client_id in enumerate(ids):
        peer = FakePeer(f"127.0.0.1:{number + 1}")
        client = Client(peer, client_id, language=0, version=401, seen_ms=0)
        broker.clients.consumers.register(consumer(exchange.request.ext["consumerGroup"]), client)

    answer = await replay(broker, exchange, clients.get_consumer_list_by_group)

    assert answer == expected


@pytest.mark.parametrize("exchange", exchanges("046-*"), ids=name_of)
async def test_captured_filter_checks_by_a_broker_without_sql(exchange: Exchange) -> None:
    """Only one of the captured brokers had SQL off; its refusal is the expected answer to all
    checks.
    """
    answer = await replay(memory_broker(), exchange, clients.check_client_config)

    assert answer.code == 1
    assert answer.remark == "The broker does not support consumer to filter message by SQL92"


def test_heartbeats_do_not_import_the_parser_on_the_loop() -> None:
    code = """if True:
        import sys
        from cometmq.broker.filters.compiling import Compiler
        from cometmq.broker.filters.sql import load_parser
        from cometmq.broker.handlers import clients
        from cometmq.testing.broker import FakePeer, memory_broker
        from cometmq.remoting.command import Call
        from cometmq.remoting.commands.table import NoHeader
        broker, done, parser = memory_broker(), [], "cometmq.broker.filters.sql.parser"
        filters = broker.tables.filters
        filters.arriving.compiler = Compiler(broker.clock.now_ms, lambda f: f(), done.append)
        beat = (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":['
            b'{"topic":"T","subString":"a > 5","expressionType":"SQL92","subVersion":1}]}]}'
        )
        clients.heart_beat(broker, Call(34, NoHeader(), body=beat, peer=FakePeer()))
        assert broker.clients.consumers.group("g").subscriptions["T"].sub_string == "a > 5"
        print(parser in sys.modules, filters.count)
        load_parser()
        done.pop()()
        print(parser in sys.modules, filters.count)
    """
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, check=True, timeout=180, capture_output=True, text=True)
    assert found.stdout.split() == ["False", "0", "True", "1"]


@pytest.mark.parametrize("exchange", exchanges("046-*"), ids=name_of)
async def test_captured_filter_checks(exchange: Exchange) -> None:
    expected = expected_answer(exchange)
    enabled = "false" if expected.code == 1 else "true"
    broker = memory_broker(enablePropertyFilter=enabled)

    answer = await replay(broker, exchange, clients.check_client_config)

    assert answer == expected


@pytest.mark.parametrize(
    "subscription", [None, {"expressionType": "TAG"}, {"expressionType": ""}, {"subString": "*"}]
)
def test_tags_are_always_supported(subscription: dict[str, str] | None) -> None:
    body = msgspec.json.encode({"clientId": "c", "group": "G", "subscriptionData": subscription})

    assert clients.check_client_config(memory_broker(), Call(46, NoHeader(), body=body)) == OK


def test_the_refusal_names_an_unknown_filter_type() -> None:
    body = b'{"subscriptionData":{"expressionType":"LUA"}}'

    with pytest.raises(ServerError, match="filter message by LUA"):
        clients.check_client_config(memory_broker(), Call(46, NoHeader(), body=body))


def test_a_heartbeat_creates_group_and_retry_topic() -> None:
    broker, peer = memory_broker(), FakePeer()

    heartbeat(broker, peer, consumer("G"), consumer("U", unit_mode=True))

    assert broker.tables.groups.get("G") is not None
    retry = broker.tables.topics.get("%RETRY%G")
    assert retry is not None
    assert (retry.read_queue_nums, retry.perm, retry.topic_sys_flag) == (1, 6, 0)
    unit = broker.tables.topics.get("%RETRY%U")
    assert unit is not None
    assert unit.topic_sys_flag == 2
    subscription = broker.clients.consumers.subscription("G", "T")
    assert subscription is not None
    assert subscription.sub_string == "*"
    assert [sent.code for sent in peer.sent] == [40, 40]


def test_without_auto_creation_an_unknown_group_consumes() -> None:
    broker = memory_broker(autoCreateSubscriptionGroup="false")

    heartbeat(broker, FakePeer(), consumer("G"))

    assert broker.tables.groups.get("G") is None
    assert broker.tables.topics.get("%RETRY%G") is None
    assert broker.clients.consumers.group("G") is not None


def test_a_group_too_long_for_a_retry_topic_still_consumes() -> None:
    broker, group = memory_broker(), "g" * 121

    heartbeat(broker, FakePeer(), consumer(group))

    assert broker.clients.consumers.group(group) is not None
    assert "%RETRY%" + group not in broker.tables.topics.table


@pytest.mark.parametrize("group", ["../../x", "nul\0", ""])
def test_a_heartbeat_with_a_dangerous_name_changes_nothing(group: str) -> None:
    broker = memory_broker()

    with pytest.raises(ServerError):
        heartbeat(broker, FakePeer(), consumer("fine"), consumer(group), producers=("P",))

    assert broker.clients.consumers.group("fine") is None
    assert broker.clients.producers.group_count == 0


def test_the_number_of_groups_of_a_client_is_bounded() -> None:
    broker = memory_broker()
    many = [consumer(f"G{number}") for number in range(broker.settings.heartbeat_groups_max + 1)]

    with pytest.raises(LimitReached, match="heartbeatGroupsMax"):
        heartbeat(broker, FakePeer(), *many)

    assert broker.tables.groups.get("G0") is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"clientID":5}', b"\xff"])
def test_a_malformed_heartbeat_is_an_error(body: bytes) -> None:
    with pytest.raises(ServerError, match="the body is not a valid Heartbeat"):
        clients.heart_beat(memory_broker(), Call(34, NoHeader(), body=body, peer=FakePeer()))


def test_a_closed_connection_leaves_and_the_others_are_notified() -> None:
    broker, one, two = memory_broker(), FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    heartbeat(broker, one, consumer(), producers=("P",))
    heartbeat(broker, two, consumer())
    two.sent.clear()

    clients.connection_closed(broker, one)

    assert len(two.sent) == 1
    assert broker.clients.producers.group_count == 0
    assert broker.clients.consumers.client_count == 1


def test_notices_can_be_switched_off() -> None:
    broker = memory_broker(notifyConsumerIdsChangedEnable="false")
    one, two = FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    heartbeat(broker, one, consumer())
    heartbeat(broker, two, consumer())

    clients.connection_closed(broker, one)

    assert two.sent == []


def test_silent_clients_are_closed() -> None:
    broker, one, two = memory_broker(), FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    heartbeat(broker, one, consumer(), producers=("P",))
    broker.clock.advance(CLIENT_SILENCE_MS)  # type: ignore[attr-defined]  # a FakeClock
    heartbeat(broker, two, consumer())
    clients.expire_clients(broker)
    assert broker.clients.consumers.client_count == 2
    broker.clock.advance(1)  # type: ignore[attr-defined]  # a FakeClock

    clients.expire_clients(broker)

    assert (one.is_open, two.is_open) == (False, True)
    assert broker.clients.producers.group_count == 0
    assert broker.clients.consumers.client_count == 1


def test_a_client_leaves_groups_that_its_heartbeat_no_longer_names() -> None:
    """Go's Shutdown of a consumer, beside a producer, does not say that it leaves."""
    broker, one, two = memory_broker(), FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    heartbeat(broker, one, consumer("G"), consumer("H"), producers=("P", "Q"))
    heartbeat(broker, two, consumer("H"))
    two.sent.clear()

    heartbeat(broker, one, consumer("G"), producers=("Q",))

    assert one.is_open
    assert broker.clients.consumers.groups_of(one) == ["G"]
    assert broker.clients.producers.groups_of(one) == ["Q"]
    assert len(two.sent) == 1, "two is told to rebalance"
    assert broker.clients.registered.count == 3


def test_a_heartbeat_without_subscriptions_ends_no_membership() -> None:
    """RocketMQ 5 sends such a heartbeat if nothing has changed."""
    broker, peer = memory_broker(), FakePeer()
    heartbeat(broker, peer, consumer("G"), producers=("P",))
    beat = Heartbeat(client_id="c1", without_sub=True)
    clients.heart_beat(broker, Call(34, NoHeader(), body=encode_json(beat), peer=peer))
    heartbeat(broker, peer, consumer("H"), client_id="c2")

    assert set(broker.clients.consumers.groups_of(peer)) == {"G", "H"}
    assert broker.clients.producers.groups_of(peer) == ["P"]


def long_heartbeat(broker: Broker, peer: FakePeer, *, last: str = "last") -> InOrder:
    groups = [f"g{number}" for number in range(clients.STEP_WEIGHT)]
    beat = Heartbeat(
        client_id="c1",
        consumer_data_set=[consumer(group) for group in groups],
        producer_data_set=[ProducerData(last)],
    )
    work = clients.heart_beat(broker, Call(34, NoHeader(), body=encode_json(beat), peer=peer))
    assert isinstance(work, InOrder)
    return work


@asynccontextmanager
async def within(broker: Broker, work: InOrder) -> AsyncIterator[None]:
    """Run the body after the first step of a heartbeat, and then the other steps."""

    async def finish() -> None:
        assert await work == OK

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(finish())
        while not broker.clients.registered.count:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        assert broker.clients.registered.count <= clients.STEP_WEIGHT / 2
        yield


async def test_long_heartbeats_that_wait_for_their_turn_are_bounded() -> None:
    """Decoded, one of 1 MiB takes 40 MB, and each connection may send one."""
    broker = memory_broker()
    waiting = broker.pending.heartbeats
    waiting.size = HEARTBEAT_ITEMS.fixed - clients.STEP_WEIGHT

    with pytest.raises(LimitReached, match="heartbeats that are being registered"):
        await long_heartbeat(broker, FakePeer())

    assert broker.clients.registered.count == 0
    waiting.size = 0
    assert await long_heartbeat(broker, FakePeer()) == OK
    assert waiting.size == 0


async def test_a_long_heartbeat_is_refused_before_its_first_step() -> None:
    broker = memory_broker()

    with pytest.raises(ServerError):
        long_heartbeat(broker, FakePeer(), last="x" * 300)

    assert broker.clients.registered.count == 0


async def test_a_long_heartbeat_registers_its_groups_in_steps() -> None:
    broker = memory_broker()

    async with within(broker, long_heartbeat(broker, FakePeer())):
        pass

    assert broker.clients.consumers.group_count == clients.STEP_WEIGHT
    assert broker.clients.producers.clients("last")


async def test_a_long_heartbeat_without_room_keeps_the_other_groups() -> None:
    broker = memory_broker(connectionRegistrationsMax="70")

    with pytest.raises(LimitReached):
        await long_heartbeat(broker, FakePeer())

    assert broker.clients.registered.count == 70


async def test_a_long_heartbeat_registers_nothing_for_a_connection_that_has_ended() -> None:
    broker, peer = memory_broker(), FakePeer()
    work = long_heartbeat(broker, peer)
    peer.is_open = False

    assert await work == OK

    assert broker.clients.registered.count == 0


async def test_a_connection_that_ends_within_a_heartbeat_leaves_no_groups() -> None:
    broker, peer = memory_broker(), FakePeer()

    async with within(broker, long_heartbeat(broker, peer)):
        peer.is_open = False
        clients.connection_closed(broker, peer)

    assert (broker.clients.registered.count, broker.clients.consumers.group_count) == (0, 0)


async def test_a_check_of_rights_within_a_heartbeat_closes_the_connection() -> None:
    broker, peer = memory_broker(), FakePeer()

    async with within(broker, long_heartbeat(broker, peer)):
        finish(broker.clients.registered.check_rights(lambda *_: True, lambda peer: peer.close()))

    assert (peer.is_open, broker.clients.registered.count) == (False, 0)
