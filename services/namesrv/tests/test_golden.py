# SPDX-License-Identifier: Apache-2.0
"""Captured requests get the answers that a Java 4.9.4 name server gave.

Each exchange starts from the state implied by its answer: the brokers, topics and values in the
answer are registered first, under the same names and in the same order.
"""

import itertools
import json
from pathlib import Path

import pytest

from cometmq.namesrv.broker_groups import BrokerId
from cometmq.namesrv.handlers import HANDLERS
from cometmq.namesrv.route_table import Registration
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.queues import TopicList
from cometmq.remoting.bodies.route import ClusterInfo, TopicRoute
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.versions import ACTING_MASTER_ROUTE_MIN
from cometmq.runtime import properties
from cometmq.runtime.incremental import finish
from cometmq.testing.remoting.golden import load_exchanges

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden"
EXCHANGES = [
    exchange
    for exchange in load_exchanges(GOLDEN)
    if exchange.receiver == "namesrv" and exchange.request.code in HANDLERS
]
DEVIATES = {
    "318-UPDATE_NAMESRV_CONFIG:6",  # Java lets any client change file paths
}


def register(namesrv, broker, topics=(), *, version=None):
    data_version = version or DataVersion(1, 1)
    ha_address = f"{broker.address[:-1]}6"
    registration = Registration(broker, ha_address, data_version, topics, ())
    finish(namesrv.routes.registering(registration, connection=None, now_ms=0))


def register_route(namesrv, body):
    route = decode_json(TopicRoute, body)
    for group, queue in zip(route.broker_datas, route.queue_datas, strict=True):
        topic = TopicConfig(
            topic_name="?",
            perm=queue.perm,
            read_queue_nums=queue.read_queue_nums,
            write_queue_nums=queue.write_queue_nums,
            topic_sys_flag=queue.topic_sys_flag,
        )
        for broker_id, address in group.broker_addrs.items():
            broker = BrokerId(group.cluster, group.broker_name, broker_id, address)
            register(namesrv, broker, [topic])


def given_route(namesrv, exchange):
    if exchange.response.body_text:
        body = exchange.response.body_text.encode()
        register_route(namesrv, body)
        queues = namesrv.routes.topics._topics.pop("?")
        namesrv.routes.topics._topics[exchange.request.ext["topic"]] = queues


def given_cluster(namesrv, exchange):
    info = decode_json(ClusterInfo, exchange.response.body_text.encode())
    for group in info.broker_addr_table.values():
        for broker_id, address in group.broker_addrs.items():
            register(namesrv, BrokerId(group.cluster, group.broker_name, broker_id, address))


def given_topics(namesrv, exchange):
    topics = decode_json(TopicList, exchange.response.body_text.encode())
    flag = {311: 1, 312: 2, 313: 2}.get(exchange.request.code, 0)
    configs = [TopicConfig(topic_name=name, topic_sys_flag=flag) for name in topics.topic_list]
    if not configs:
        return
    cluster = exchange.request.ext.get("cluster", "C")
    register(namesrv, BrokerId(cluster, "broker-a", 0, "127.0.0.1:33035"), configs)


def given_system_topics(namesrv, exchange):
    topics = decode_json(TopicList, exchange.response.body_text.encode())
    cluster, *names = topics.topic_list
    addresses = itertools.chain([topics.broker_addr or ""], (f"127.0.0.1:{n}" for n in range(1, 9)))
    for name, address in zip(names, addresses, strict=False):
        register(namesrv, BrokerId(cluster, name, 0, address))


def given_values(namesrv, exchange):
    if exchange.response.body_text:
        table = decode_json(KVTable, exchange.response.body_text.encode()).table
        for key, value in table.items():
            namesrv.kv_config.put(exchange.request.ext["namespace"], key, value)


def given_value(namesrv, exchange):
    if exchange.response.code == 0:
        ext = exchange.request.ext
        namesrv.kv_config.put(ext["namespace"], ext["key"], exchange.response.ext["value"])


def given_topic_count(namesrv, exchange):
    (count,) = exchange.response.ext.values()
    topics = [TopicConfig(topic_name=f"T{n}") for n in range(int(count))]
    name = exchange.request.ext["brokerName"]
    register(namesrv, BrokerId("C", name, 0, "127.0.0.1:33035"), topics)


def given_version(namesrv, exchange):
    if exchange.response.body_text:
        ext = exchange.request.ext
        broker = BrokerId(ext["clusterName"], ext["brokerName"], 0, ext["brokerAddr"])
        version = decode_json(DataVersion, exchange.response.body_text.encode())
        register(namesrv, broker, version=version)


def given_master(namesrv, exchange):
    if exchange.response is None:
        return
    if "masterAddr" in exchange.response.ext:
        ext = exchange.request.ext
        master = BrokerId(
            ext["clusterName"], ext["brokerName"], 0, exchange.response.ext["masterAddr"]
        )
        register(namesrv, master)
    if exchange.response.body_text:
        table = decode_json(KVTable, exchange.response.body_text.encode()).table
        for key, value in table.items():
            namesrv.kv_config.put("ORDER_TOPIC_CONFIG", key, value)


GIVEN = {
    RequestCode.GET_KV_CONFIG: given_value,
    RequestCode.REGISTER_BROKER: given_master,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: given_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: given_cluster,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: given_topic_count,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: given_topic_count,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: given_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: given_topics,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: given_system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: given_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: given_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: given_topics,
    RequestCode.GET_KVLIST_BY_NAMESPACE: given_values,
    RequestCode.QUERY_DATA_VERSION: given_version,
}


def test_every_code_of_the_name_server_was_captured():
    captured = {exchange.request.code for exchange in EXCHANGES}
    assert captured == {code for code in HANDLERS if not RequestCode(code).is_own}


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
async def test_the_answer_is_the_captured_one(namesrv, link, exchange):
    GIVEN.get(exchange.request.code, lambda *_: None)(namesrv, exchange)
    for live in namesrv.routes.live_brokers().values():
        live.connection = link
    answers = await link.exchange(exchange.request.data)
    if exchange.oneway:
        assert answers == []
        assert exchange.request.ext["brokerAddr"] in namesrv.routes.live_brokers()
        return
    ((header, body),) = answers
    if exchange.name in DEVIATES:
        assert (header.code, header.remark) == (
            1,
            "kvConfigPath cannot be changed while the program runs",
        )
        return
    expected = exchange.response
    assert (header.code, header.remark) == (expected.code, expected.header.get("remark"))
    assert header.ext == expected.ext
    assert header.opaque == exchange.request.header["opaque"]
    if exchange.request.code == RequestCode.GET_NAMESRV_CONFIG:
        ours, theirs = properties.parse(body.decode()), properties.parse(expected.body_text)
        assert {"listenPort", "kvConfigPath", "configStorePath"} <= ours.keys() & theirs.keys()
        assert "orderMessageEnable=false\n" in body.decode()
    elif exchange.request.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS:
        assert json.loads(body) == json.loads(expected.body_text)  # members may be reordered
    else:
        text = body.decode()
        if exchange.request.header["version"] >= ACTING_MASTER_ROUTE_MIN:  # 4.9.4 leaves it out
            text = text.replace(',"enableActingMaster":false', "")
        assert text == (expected.body_text or "")


@pytest.mark.parametrize(
    "exchange",
    [e for e in EXCHANGES if e.serialization == "JSON" and e.response is not None],
    ids=lambda exchange: exchange.name,
)
async def test_an_empty_header_is_written_where_java_writes_it(namesrv, link, exchange):
    """Java clients require extFields if the command has a reply header."""
    if exchange.name in DEVIATES:
        return
    GIVEN.get(exchange.request.code, lambda *_: None)(namesrv, exchange)
    for call in link.connection.receive(exchange.request.data, 0):
        await link._serve(call)
    text = b"".join(bytes(part) for part in link.connection.out)
    if '"extFields":{}' in bytes.fromhex(exchange.response.frame).decode("latin-1"):
        assert b'"extFields":{' in text
