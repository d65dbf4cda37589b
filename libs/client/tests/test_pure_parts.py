# SPDX-License-Identifier: Apache-2.0
"""Subscriptions, routes, options, rates, identities and splitting: no sockets."""

import pytest

from cometmq.client import ClientOptions, InvalidArgument, Message, NoNamesrv, ProducerOptions
from cometmq.client.cluster.namesrv import parse_addresses
from cometmq.client.cluster.routes import as_default_route, route_of
from cometmq.client.consume.delivery.rates import ConsumeRates
from cometmq.client.consume.delivery.send_back import retry_message
from cometmq.client.identity import client_id_of, local_ip, unique_ids
from cometmq.client.listener import ConsumeResult
from cometmq.client.message import received
from cometmq.client.settings import LitePullOptions, PushOptions, checked
from cometmq.client.subscriptions import ExpressionType, subscription
from cometmq.client.transfer.outgoing import split_messages
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import BrokerData, QueueData, TopicRoute
from cometmq.remoting.message.properties import parse_properties
from cometmq.remoting.message.record import NewMessage, decode_record, encode_record


def record(topic: str, properties: str = "") -> NewMessage:
    host = b"\x7f\0\0\1\0\0\0\1"
    return NewMessage(
        topic=topic,
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=host,
        store_host=host,
        body=b"x",
        properties=properties,
        reconsume_times=1,
    )


# -- subscriptions ----------------------------------------------------------------------------


def test_tags_and_their_codes_are_named_once() -> None:
    wanted = subscription("T", " TagA || TagB||TagA ", version_ms=5)
    assert wanted.tags_set == ["TagA", "TagB"]
    assert wanted.code_set == [2598919, 2598920]
    assert (wanted.sub_version, wanted.expression_type) == (5, "TAG")


@pytest.mark.parametrize("text", ["*", "", "  "])
def test_no_tag_means_every_message(text: str) -> None:
    wanted = subscription("T", text, version_ms=0)
    assert (wanted.sub_string, wanted.tags_set) == ("*", [])


def test_a_condition_travels_as_it_is() -> None:
    wanted = subscription("T", "a > 1", ExpressionType.SQL92, version_ms=0)
    assert (wanted.sub_string, wanted.expression_type, wanted.tags_set) == ("a > 1", "SQL92", [])


# -- routes -----------------------------------------------------------------------------------

ROUTE = TopicRoute(
    broker_datas=[
        BrokerData({0: "a:1", 1: "a:2"}, "a", "c"),
        BrokerData({1: "b:2"}, "b", "c"),
    ],
    queue_datas=[
        QueueData(broker_name="b", perm=6, read_queue_nums=1, write_queue_nums=1),
        QueueData(broker_name="a", perm=6, read_queue_nums=3, write_queue_nums=2),
    ],
)


def test_sends_need_a_master_and_pulls_do_not() -> None:
    route = route_of("T", ROUTE)
    assert route.publish_queues == (MessageQueue("T", "a", 0), MessageQueue("T", "a", 1))
    assert [q.broker_name for q in route.subscribe_queues] == ["a", "a", "a", "b"]


def test_permissions_hide_queues() -> None:
    data = TopicRoute(
        broker_datas=ROUTE.broker_datas,
        queue_datas=[QueueData(broker_name="a", perm=4, read_queue_nums=1, write_queue_nums=1)],
    )
    route = route_of("T", data)
    assert route.publish_queues == ()
    assert len(route.subscribe_queues) == 1


def test_an_order_configuration_sets_the_queues_to_send_to() -> None:
    data = TopicRoute(ROUTE.broker_datas, {}, "a:3;b:1", ROUTE.queue_datas)
    queues = route_of("T", data).publish_queues
    assert [(q.broker_name, q.queue_id) for q in queues] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


def test_a_topic_to_be_created_gets_no_more_queues_than_wanted() -> None:
    queues = as_default_route("New", ROUTE, queue_nums=2).publish_queues
    assert queues == (MessageQueue("New", "a", 0), MessageQueue("New", "a", 1))


# -- options and names ------------------------------------------------------------------------


def test_a_name_server_given_beside_the_options_wins() -> None:
    assert checked(ProducerOptions(namesrv="a:1"), "b:2").namesrv == "b:2"
    assert checked(ProducerOptions(namesrv="a:1")).namesrv == "a:1"


@pytest.mark.parametrize(
    "options",
    [
        PushOptions(concurrency=0),
        PushOptions(pull_count_max=1025),
        LitePullOptions(auto_commit_interval_ms=10),
        ClientOptions(heartbeat_interval_ms=0),
    ],
)
def test_options_have_bounds(options: ClientOptions) -> None:
    with pytest.raises(InvalidArgument, match="invalid option"):
        checked(options)


def test_a_pull_is_awaited_longer_than_it_is_held() -> None:
    with pytest.raises(InvalidArgument, match="must be longer than suspend_ms"):
        PushOptions(pull_timeout_ms=10_000)


def test_name_servers_are_separated_by_semicolons() -> None:
    assert parse_addresses(" a:1; http://b:2 ;") == ["a:1", "b:2"]
    with pytest.raises(NoNamesrv):
        parse_addresses("")


def test_a_client_id_has_all_its_parts() -> None:
    options = ClientOptions(client_ip="10.0.0.1", instance_name="i", unit_name="u")
    assert client_id_of(options) == "10.0.0.1@i@u"
    assert client_id_of(options, suffix="STREAM") == "10.0.0.1@i@u@STREAM"
    assert client_id_of(ClientOptions()).startswith(local_ip() + "@")


def test_unique_keys_differ() -> None:
    first, second = unique_ids(ClientOptions()), unique_ids(ClientOptions())
    ids = {generator.next_id() for generator in (first, second) for _ in range(1000)}
    assert len(ids) == 2000
    assert {len(text) for text in ids} <= {32, 56}


# -- messages ---------------------------------------------------------------------------------


def test_batches_end_before_they_are_too_large() -> None:
    messages = [Message("T", bytes(100)) for _ in range(5)]
    sizes = [len(batch) for batch in split_messages(messages, bytes_max=500)]
    assert sizes == [2, 2, 1]
    assert [len(b) for b in split_messages([Message("T", bytes(900))], bytes_max=500)] == [1]


def test_only_messages_of_the_retry_topic_show_another_one() -> None:
    properties = "RETRY_TOPIC\x01Origin\x02UNIQ_KEY\x01ABC"
    retried = received(decode_record(encode_record(record("%RETRY%g", properties), 0, 0, 0)), "a")
    dead = received(decode_record(encode_record(record("%DLQ%g", properties), 0, 0, 0)), "a")
    assert (retried.topic, retried.queue.topic, retried.message_id) == ("Origin", "%RETRY%g", "ABC")
    assert dead.topic == "%DLQ%g"


def test_a_message_that_is_sent_anew_remembers_where_it_came_from() -> None:
    text = "KEYS\x01k\x02UNIQ_KEY\x01ABC\x02TRAN_MSG\x01true"
    message = received(decode_record(encode_record(record("T", text), 4, 0, 0)), "a")
    prepared = retry_message(message, "g", topic="T", max_reconsume_times=16)
    properties = parse_properties(prepared.properties)
    assert (prepared.topic, prepared.reconsume_times) == ("%RETRY%g", 2)
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == "ABC"
    assert properties["DELAY"] == "4"
    assert "TRAN_MSG" not in properties


# -- results and rates ------------------------------------------------------------------------


def test_results_say_how_many_and_when() -> None:
    assert ConsumeResult() == ConsumeResult.SUCCESS
    assert ConsumeResult.later(5) == ConsumeResult(0, 5)
    assert ConsumeResult.consumed(3, delay_level=2) == ConsumeResult(3, 2)
    assert ConsumeResult.DEAD_LETTER.delay_level == -1


def test_rates_cover_the_last_minute() -> None:
    now_ms = 0
    rates = ConsumeRates(lambda: now_ms)
    rates.note("T", ok=100, failed=0, ms=50)
    for _ in range(7):
        now_ms += 10_000
        rates.sample()
    rates.note("T", ok=30, failed=3, ms=40)
    status = rates.statuses()["T"]
    assert status.consume_ok_tps == pytest.approx(30 / 50)
    assert status.consume_failed_tps == pytest.approx(3 / 50)
    assert status.consume_rt == 40
    assert rates.counts() == (130, 3)


def test_pulls_have_rates_too() -> None:
    now_ms = 0
    rates = ConsumeRates(lambda: now_ms)
    rates.note_pull("T", count=32, ms=4)
    rates.note_pull("T", count=8, ms=2)
    now_ms = 2_000
    status = rates.statuses()["T"]
    assert (status.pull_tps, status.pull_rt) == (20, 3)
