# SPDX-License-Identifier: Apache-2.0
"""Admin calls against captured answers of Java servers, and against an in-memory cluster."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from cometmq.client import (
    AdminClient,
    BrokerMissing,
    ClientError,
    ClientOptions,
    InvalidArgument,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    ProducerOptions,
)
from cometmq.client.admin.broker import BrokerAdmin, parse_settings, render_settings
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.admin.removals import find_waiting, recall
from cometmq.client.clock import wall_ms
from cometmq.client.testing import MemoryCluster
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.stats import QueueTimeSpan
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.errors import QueryNotFound
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import render_properties
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.testing.remoting.golden import Exchange, load_exchanges

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden"


def fullest_successes() -> dict[int, Exchange]:
    found: dict[int, Exchange] = {}
    for exchange in load_exchanges(GOLDEN):
        answer = exchange.response
        if answer is None or answer.code:
            continue
        known = found.get(exchange.request.code)
        if known is None or len(_body(known)) < len(_body(exchange)):
            found[exchange.request.code] = exchange
    return found


def _body(exchange: Exchange) -> bytes:
    assert exchange.response is not None
    data = exchange.response.data
    head_length = int.from_bytes(data[5:8], "big")
    return data[8 + head_length :]


CAPTURED = fullest_successes()


class Replay:
    """Answers every request with the captured answer of a Java server."""

    def __init__(self) -> None:
        self.calls: list[Call[Any]] = []

    def answer(self, call: Call[Any]) -> Reply:
        self.calls.append(call)
        exchange = CAPTURED[call.code]
        assert exchange.response is not None
        return Reply(ext=exchange.response.ext, body=_body(exchange))


@pytest.fixture
async def replay() -> AsyncIterator[tuple[Replay, AdminClient, str]]:
    replay = Replay()
    handlers: dict[int, Any] = dict.fromkeys(CAPTURED, Replay.answer)
    server = Server(handlers, replay, ServerSettings(), clock_ms=wall_ms)
    address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
    async with AdminClient(address) as admin:
        yield replay, admin, address
    await server.close(drain_ms=0)


BROKER_CALLS: list[tuple[RequestCode, Callable[[BrokerAdmin], Awaitable[Any]]]] = [
    (RequestCode.GET_ALL_TOPIC_CONFIG, lambda b: b.topics()),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, lambda b: b.create_topic(TopicConfig(topic_name="T"))),
    (RequestCode.DELETE_TOPIC_IN_BROKER, lambda b: b.delete_topic("T")),
    (RequestCode.GET_TOPIC_STATS_INFO, lambda b: b.topic_stats("T")),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda b: b.groups()),
    (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        lambda b: b.create_group(SubscriptionGroupConfig(group_name="g")),
    ),
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, lambda b: b.delete_group("g", remove_offsets=True)),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, lambda b: b.consumer_ids("g")),
    (RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda b: b.consumer_connections("g")),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, lambda b: b.producer_connections("g")),
    (RequestCode.GET_CONSUME_STATS, lambda b: b.consume_stats("g", "T")),
    (RequestCode.QUERY_CONSUMER_OFFSET, lambda b: b.committed_offset("g", "T", 0)),
    (RequestCode.UPDATE_CONSUMER_OFFSET, lambda b: b.commit_offset("g", "T", 0, 5)),
    (RequestCode.GET_MIN_OFFSET, lambda b: b.min_offset("T", 0)),
    (RequestCode.GET_MAX_OFFSET, lambda b: b.max_offset("T", 0)),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda b: b.search_offset("T", 0, 1_700_000_000_000)),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, lambda b: b.earliest_store_time("T", 0)),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, lambda b: b.consumer_offsets()),
    (RequestCode.GET_ALL_DELAY_OFFSET, lambda b: b.delay_offsets()),
    (RequestCode.VIEW_MESSAGE_BY_ID, lambda b: b.message_at(0)),
    (RequestCode.QUERY_MESSAGE, lambda b: b.query("T", "k")),
    (RequestCode.GET_BROKER_RUNTIME_INFO, lambda b: b.runtime_info()),
    (RequestCode.GET_BROKER_CONFIG, lambda b: b.config()),
    (RequestCode.UPDATE_BROKER_CONFIG, lambda b: b.update_config({"a": "b"}, is_forced=True)),
    (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, lambda b: b.system_topics()),
    (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, lambda b: b.clean_expired_queues()),
    (RequestCode.CLEAN_UNUSED_TOPIC, lambda b: b.clean_unused_topics()),
    (RequestCode.DELETE_EXPIRED_COMMITLOG, lambda b: b.delete_expired_logs()),
    (RequestCode.VIEW_BROKER_STATS_DATA, lambda b: b.stats("TOPIC_PUT_NUMS", "T")),
    (RequestCode.GET_BROKER_CONSUME_STATS, lambda b: b.all_consume_stats()),
    (RequestCode.GET_ALL_PRODUCER_INFO, lambda b: b.producers()),
    (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, lambda b: b.put_account(AclAccount("Owner"))),
    (RequestCode.DELETE_ACL_CONFIG, lambda b: b.delete_account("Owner")),
    (RequestCode.GET_BROKER_CLUSTER_ACL_INFO, lambda b: b.acl_versions()),
    (RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, lambda b: b.set_white_addresses(["10.*"])),
    (RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, lambda b: b.acl_config()),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        lambda b: b.reset_offsets("T", "g", 1_700_000_000_000),
    ),
    (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, lambda b: b.member_offsets("T", "g")),
    (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, lambda b: b.groups_of("T")),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, lambda b: b.time_spans("T", "g")),
    (RequestCode.GET_CONSUMER_RUNNING_INFO, lambda b: b.running_info("g", "c")),
    (RequestCode.QUERY_CORRECTION_OFFSET, lambda b: b.correction_offsets("T", "g")),
    (RequestCode.CONSUME_MESSAGE_DIRECTLY, lambda b: b.consume_directly("g", "c", "id")),
    (RequestCode.CLONE_GROUP_OFFSET, lambda b: b.clone_offsets("g", "h", topic="T")),
    (RequestCode.QUERY_CONSUME_QUEUE, lambda b: b.queue_entries("T", 0, 0)),
    (RequestCode.RESUME_CHECK_HALF_MESSAGE, lambda b: b.resume_check("id")),
    (RequestCode.PULL_MESSAGE, lambda b: b.pull("AclTopic", 0, 0)),
]

NAMESRV_CALLS: list[tuple[RequestCode, Callable[[NamesrvAdmin], Awaitable[Any]]]] = [
    (RequestCode.GET_BROKER_CLUSTER_INFO, lambda n: n.cluster()),
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda n: n.route("T")),
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, lambda n: n.topics()),
    (RequestCode.GET_TOPICS_BY_CLUSTER, lambda n: n.topics_of("c")),
    (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, lambda n: n.system_topics()),
    (RequestCode.GET_UNIT_TOPIC_LIST, lambda n: n.unit_topics()),
    (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, lambda n: n.unit_sub_topics()),
    (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, lambda n: n.unit_sub_ununit_topics()),
    (RequestCode.DELETE_TOPIC_IN_NAMESRV, lambda n: n.delete_topic("T", cluster="c")),
    (RequestCode.WIPE_WRITE_PERM_OF_BROKER, lambda n: n.wipe_write_perm("b")),
    (RequestCode.ADD_WRITE_PERM_OF_BROKER, lambda n: n.add_write_perm("b")),
    (RequestCode.PUT_KV_CONFIG, lambda n: n.put_kv("N", "k", "v")),
    (RequestCode.GET_KV_CONFIG, lambda n: n.get_kv("N", "k")),
    (RequestCode.DELETE_KV_CONFIG, lambda n: n.delete_kv("N", "k")),
    (RequestCode.GET_KVLIST_BY_NAMESPACE, lambda n: n.kv_list("N")),
    (RequestCode.GET_NAMESRV_CONFIG, lambda n: n.config()),
    (RequestCode.UPDATE_NAMESRV_CONFIG, lambda n: n.update_config({"a": "b"}, is_forced=True)),
]

MAY_BE_EMPTY = {
    RequestCode.QUERY_MESSAGE,  # filtered by the key, which differs
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
}


def ids(calls: list[tuple[RequestCode, Any]]) -> list[str]:
    return [code.name for code, _ in calls]


def check(code: RequestCode, call: Call[Any], result: object) -> None:
    """Check that the request has Java's fields and that the answer is understood."""
    assert call.code == code
    assert call.ext.keys() <= CAPTURED[code].request.ext.keys() | OPTIONAL
    if _body(CAPTURED[code]) and code not in MAY_BE_EMPTY:
        assert result


OPTIONAL = {
    "subscription",
    "topic",
    "clusterName",
    "acceptStandardJsonOnly",
    "committed",
    "removeOffset",
    "cleanOffset",
}
"""Fields that the captured requests leave out."""


@pytest.mark.parametrize(("code", "invoke"), BROKER_CALLS, ids=ids(BROKER_CALLS))
async def test_brokers_are_asked_as_java_asks_them(
    replay: tuple[Replay, AdminClient, str],
    code: RequestCode,
    invoke: Callable[[BrokerAdmin], Awaitable[Any]],
) -> None:
    server, admin, address = replay
    result = await invoke(admin.broker(address, name="b"))
    check(code, server.calls[-1], result)


async def test_brokers_of_rocketmq_5_delete_offsets_too(
    replay: tuple[Replay, AdminClient, str],
) -> None:
    server, admin, address = replay
    await admin.broker(address, name="b").delete_group("g", remove_offsets=True)
    ext = server.calls[-1].ext
    assert (ext["removeOffset"], ext["cleanOffset"]) == ("true", "true")


@pytest.mark.parametrize(("code", "invoke"), NAMESRV_CALLS, ids=ids(NAMESRV_CALLS))
async def test_name_servers_are_asked_as_java_asks_them(
    replay: tuple[Replay, AdminClient, str],
    code: RequestCode,
    invoke: Callable[[NamesrvAdmin], Awaitable[Any]],
) -> None:
    server, admin, _ = replay
    result = await invoke(admin.namesrv)
    check(code, server.calls[-1], result)


def test_settings_are_lines() -> None:
    text = render_settings({"a": "1", "path": "C:\\x"})
    assert text == b"a=1\npath=C:\\\\x\n"
    assert parse_settings(b"# no\n a = 1 \nb=x=y\nnothing\n") == {"a": "1", "b": "x=y"}


# -- several brokers --------------------------------------------------------------------------


async def test_messages_are_found_by_both_ids(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer, AdminClient(cluster.namesrv) as admin:
        sent = await producer.send(Message("T", b"x", keys="k"))
        found = await admin.view_message(sent.offset_message_id, "T")
        assert (found.body, found.message_id) == (b"x", sent.message_id)
        assert (await admin.view_message(sent.message_id, "T")).queue == sent.queue
        assert [message.body for message in await admin.query_by_key("T", "k")] == [b"x"]
        assert await admin.query_by_key("T", "other") == []
        assert await producer.admin.query_by_key("T", "k") == await admin.query_by_key("T", "k")
        with pytest.raises(QueryNotFound):
            await admin.view_message("nonsense", "T")


async def test_a_delayed_message_that_waits_is_found_by_both_ids(cluster: MemoryCluster) -> None:
    """As in RocketMQ, it waits in one of the broker's topics; retries wait there too."""
    unique_key = "7F0000010001D3A5E11C00000000AAAA"
    cluster.create_topic("SCHEDULE_TOPIC_XXXX", queue_count=18)
    place = ""
    for topic in ("%RETRY%cg", "T"):
        properties = {"UNIQ_KEY": unique_key, "REAL_TOPIC": topic, "REAL_QID": "1", "DELAY": "3"}
        place, _ = cluster.broker.store(
            NewMessage(
                topic="SCHEDULE_TOPIC_XXXX",
                queue_id=2,
                flag=0,
                sys_flag=0,
                born_timestamp=0,
                born_host=cluster.broker.store_host,
                store_host=cluster.broker.store_host,
                body=topic.encode(),
                properties=render_properties(properties),
                keys=(unique_key,),
            )
        )
    async with Producer("pg", cluster.namesrv) as producer:
        for message_id in (unique_key, place):
            found = await producer.admin.view_message(message_id, "T")
            assert (found.topic, found.body, found.message_id) == ("T", b"T", unique_key)
            assert found.queue == MessageQueue("SCHEDULE_TOPIC_XXXX", "broker-a", 2)
        cluster.create_topic("Other")
        with pytest.raises(QueryNotFound):
            await producer.admin.view_message(unique_key, "Other")
        sent = await producer.send(Message("T", b"delivered", message_id=unique_key))
        assert (await producer.admin.view_message(unique_key, "T")).queue == sent.queue


async def test_a_query_by_key_returns_the_newest_messages(cluster: MemoryCluster) -> None:
    """A broker returns at most 64 by default, oldest first."""
    async with Producer("pg", cluster.namesrv) as producer, AdminClient(cluster.namesrv) as admin:
        for number in range(70):
            await producer.send(Message("T", b"%d" % number, keys="k"))
        found = [int(one.body) for one in await admin.query_by_key("T", "k", count_max=100)]
        assert sorted(found) == list(range(6, 70))
        (newest,) = await admin.query_by_key("T", "k", count_max=1)
        assert newest.body == b"69"


async def test_offsets_are_read_and_moved(cluster: MemoryCluster) -> None:
    queue = MessageQueue("T", "broker-a", 1)
    async with Producer("pg", cluster.namesrv) as producer, AdminClient(cluster.namesrv) as admin:
        for _ in range(3):
            await producer.send(Message("T", b"x"), queue=queue)
        assert await admin.committed_offset("g", queue) is None
        cluster.broker.young_queue_starts_at_zero = False
        assert await admin.committed_offset("g", queue) is None
        await admin.commit_offset("g", queue, 2)
        assert await admin.committed_offset("g", queue) == 2
        assert (await admin.min_offset(queue), await admin.max_offset(queue)) == (0, 3)
        moved = await admin.reset_offsets("g", "T", timestamp_ms=0)
        assert moved[queue] == 0
        assert len(moved) == 4
        assert await admin.committed_offset("g", queue) == 0


async def test_errors_name_the_missing_resource(admin: AdminClient) -> None:
    with pytest.raises(NoRoute, match="Nowhere"):
        await admin.route("Nowhere")
    with pytest.raises(BrokerMissing, match="no cluster c9; the clusters are: "):
        await admin.masters("c9")
    with pytest.raises(BrokerMissing, match="b9"):
        await admin.create_topic("New", broker_names=["b9"])
    with pytest.raises(InvalidArgument, match="illegal characters"):
        await admin.create_topic("a b")
    assert list((await admin.masters()).keys()) == ["broker-a"]


async def test_changes_are_refused_while_a_broker_has_no_master(
    admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, route = await admin.cluster(), await admin.route("T")
    for data in (*info.broker_addr_table.values(), *route.broker_datas):
        data.broker_addrs = {1: data.broker_addrs[0]}
    monkeypatch.setattr(admin, "cluster", AsyncMock(return_value=info))
    monkeypatch.setattr(admin, "route", AsyncMock(return_value=route))
    for change in (
        admin.create_topic("New"),
        admin.delete_topic("T"),
        admin.delete_group("g"),
        admin.create_group(SubscriptionGroupConfig(group_name="g")),
        admin.reset_offsets("g", "T", 0),
        admin.clone_offsets("g", "h", "T"),
    ):
        with pytest.raises(BrokerMissing, match="nothing was changed: broker-a has no master"):
            await change
    assert await admin.masters() == {}
    assert "T" in await admin.topics()


async def test_the_next_name_server_is_asked_when_one_is_gone(cluster: MemoryCluster) -> None:
    options = ClientOptions(namesrv=f"127.0.0.1:1;{cluster.namesrv}")
    for _ in range(4):
        async with AdminClient(options=options) as admin:
            assert "T" in await admin.topics()


async def test_name_servers_without_brokers_hide_none(cluster: MemoryCluster) -> None:
    """Brokers are not registered with one of the name servers; clients begin with any of them."""
    async with MemoryCluster() as empty:
        await empty.stop_broker(empty.broker)
        options = ProducerOptions(namesrv=f"{empty.namesrv};{cluster.namesrv}")
        for _ in range(4):
            async with Producer("pg", options=options) as producer:
                await producer.send(Message("T", b"x"))
            async with AdminClient(options=ClientOptions(namesrv=options.namesrv)) as admin:
                assert [*(await admin.namesrv.cluster()).broker_addr_table] == ["broker-a"]
                assert await admin.namesrv.route("Nope") is None


@pytest.mark.parametrize("topic", [None, "T"])
async def test_only_the_lag_of_a_known_group_is_read(admin: AdminClient, topic: str | None) -> None:
    with pytest.raises(InvalidArgument, match="no broker knows the consumer group nope"):
        await admin.lag("nope", topic)
    with pytest.raises(InvalidArgument, match="no broker knows the consumer group nope"):
        await admin.consume_stats("nope", topic)
    with pytest.raises(NoRoute, match="no broker has the topic Nope"):
        await admin.consume_stats("cg", "Nope")
    assert not (await admin.consume_stats("nope", topic, is_missing_ok=True)).offset_table
    await admin.create_group(SubscriptionGroupConfig(group_name="young"))
    assert await admin.lag("young", topic) == []
    await admin.commit_offset("cg", MessageQueue("T", "broker-a", 0), 0)
    assert {found.lag for found in await admin.lag("cg", topic)} == {0}


async def test_time_spans_of_an_unknown_group_are_refused(
    admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers answer for any group, with -1 as the time of the last consumed message."""
    nothing, something = (
        QueueTimeSpan(consume_time_stamp=time) for time in (-1, 1_700_000_000_000)
    )
    monkeypatch.setattr(BrokerAdmin, "time_spans", AsyncMock(return_value=[nothing]))
    with pytest.raises(InvalidArgument, match="no broker knows the consumer group nope"):
        await admin.time_spans("T", "nope")
    await admin.create_group(SubscriptionGroupConfig(group_name="young"))
    assert await admin.time_spans("T", "young") == [nothing]
    monkeypatch.setattr(BrokerAdmin, "time_spans", AsyncMock(return_value=[something]))
    assert await admin.time_spans("T", "cg") == [something]


async def test_a_rocketmq_broker_cannot_recall(admin: AdminClient) -> None:
    (master,) = (await admin.masters()).values()
    with pytest.raises(ClientError, match="is a RocketMQ broker: it cannot recall"):
        await recall(master, "T", "ID")
    with pytest.raises(ClientError, match="no delayed message of the topic T with the id ID"):
        await find_waiting(admin, [master], "T", "ID")
