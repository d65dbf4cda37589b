# SPDX-License-Identifier: Apache-2.0
"""Metrics of topics and groups, also under the names of rocketmq-exporter and RocketMQ 5."""

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from cometmq.broker.clients.producers import Client
from cometmq.broker.exposition import rocketmq5_metrics as native
from cometmq.broker.exposition import rocketmq_exporter_metrics as exporter
from cometmq.broker.exposition.metrics import collectors
from cometmq.broker.timers import measure_lags, watch_disk
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.transport.stats import TransportStats
from cometmq.runtime.incremental import finish
from cometmq.runtime.metrics import Registry
from cometmq.testing.broker import FakePeer
from cometmq.testing.broker.stored import ask, call_with, stored_broker
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.runtime.pages import render

LEFT_OUT = {
    "client_consume_fail_msg_count", "client_consume_fail_msg_tps", "client_consume_ok_msg_tps",
    "client_consume_rt", "client_consumer_pull_rt", "client_consumer_pull_tps",
    "group_consume_total_offset", "group_consume_tps", "group_count",
}  # fmt: skip
EXPORTER_NAMES = Path(__file__).with_name("exporter_names.txt").read_text().split()


def send(broker, topic="T", count=1):
    for _ in range(count):
        ask(broker, call_with(310, SendMessageV2("P", topic, "TBW102", 4, 1, 0, 0, 0), b"x"))


async def samples_of(broker):
    """Measure, scrape, and return (labels, value) pairs by name."""
    measure_lags(broker)
    measure_lags(broker)
    watch_disk(broker)
    await broker.driver.drain()
    registry = Registry(has_process_metrics=False)
    for source in collectors(broker, TransportStats):
        registry.add(source)
    text = render(finish(registry.collect()))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    families = list(text_string_to_metric_families(text))
    opened = openmetrics(render(finish(registry.collect()), "application/openmetrics-text"))
    assert [(it.name, it.type) for it in opened] == [(it.name, it.type) for it in families]
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(found, name, **labels):
    (one,) = [number for have, number in found[name] if labels.items() <= have.items()]
    return one


async def test_a_lag_has_messages_and_an_age_under_all_names(tmp_path):
    async with stored_broker(tmp_path) as broker:
        broker.measured.is_observed = True
        send(broker, count=3)
        broker.tables.offsets.commit("G", "T", 1, 1)
        broker.tables.offsets.commit("DONE", "T", 1, 3)
        broker.tables.topics.create("%RETRY%G", queue_nums=1)
        broker.tables.offsets.commit("G", "%RETRY%G", 0, 0)
        clock = broker.clock
        assert isinstance(clock, FakeClock)
        clock.advance(2_500)
        found = await samples_of(broker)
    at = {"topic": "T", "group": "G"}
    assert value(found, "cometmq_group_lag_messages", **at) == 2
    assert value(found, "cometmq_group_lag_seconds", **at) == 2.5
    assert value(found, "cometmq_group_lag_seconds", topic="T", group="DONE") == 0
    assert value(found, "rocketmq_group_get_latency_by_storetime", **at) == 2500
    assert value(found, "rocketmq_consumer_offset", **at) == 1
    assert value(found, "rocketmq_group_diff", **at, msgModel="1") == 2
    native_at = {"topic": "T", "consumer_group": "G", "is_retry": "false", "is_system": "false"}
    assert value(found, "rocketmq_consumer_lag_messages", **native_at) == 2
    assert value(found, "rocketmq_consumer_lag_latency", **native_at) == 2500
    assert value(found, "rocketmq_group_retrydiff", group="G") == 0


@pytest.mark.parametrize(("role", "is_shown"), [("ASYNC_MASTER", True), ("SLAVE", False)])
async def test_only_masters_show_lags_because_slaves_have_the_same_messages(
    tmp_path, role, is_shown
):
    names = {
        "cometmq_group_lag_messages", "rocketmq_group_diff", "rocketmq_producer_offset",
        "rocketmq_consumer_lag_messages",
    }  # fmt: skip
    async with stored_broker(tmp_path, brokerRole=role) as broker:
        broker.tables.topics.create("T", queue_nums=4)
        broker.tables.offsets.commit("G", "T", 1, 1)
        found = await samples_of(broker)
    assert names & found.keys() == (names if is_shown else set())


async def test_sends_and_clients_show_under_all_names(tmp_path):
    async with stored_broker(tmp_path) as broker:
        broker.measured.is_observed = True
        send(broker, count=5)
        broker.clients.producers.register("P", Client(FakePeer(), "p", 0, 401, 0))
        data = ConsumerData(group_name="G", subscription_data_set=[SubscriptionData(topic="T")])
        broker.clients.consumers.register(data, Client(FakePeer(), "c", 0, 401, 0))
        found = await samples_of(broker)
    assert value(found, "rocketmq_producer_offset", topic="T") == 5
    assert value(found, "rocketmq_producer_count", group="P") == 1
    assert value(found, "rocketmq_messages_in_total", topic="T", is_system="false") == 5
    assert value(found, "rocketmq_producer_connections", language="java", version="v4_9_4") == 1
    assert value(found, "rocketmq_consumer_connections", consumer_group="G") == 1
    assert value(found, "cometmq_group_members", group="G") == 1
    assert value(found, "cometmq_send_seconds_count") == 5
    assert value(found, "rocketmq_rpc_latency_count", request_code="send_message_v2") == 5
    assert value(found, "rocketmq_brokeruntime_msg_put_total_today_now", broker_version="401") == 5
    assert value(found, "rocketmq_brokeruntime_commitlogdir_capacity_total") > 0
    assert value(found, "rocketmq_storage_size") > 0


async def test_deleted_topics_and_groups_have_no_series(tmp_path):
    """RocketMQ keeps their statistics, so requests such as 315 still find them."""
    async with stored_broker(tmp_path) as broker:
        broker.measured.is_observed = True
        for topic in ("Kept", "Gone", "%DLQ%Gone"):
            send(broker, topic)
            for group in ("kept", "gone"):
                broker.tables.groups.find(group, auto_create=True)
                broker.stats.count_get(topic, group, 1, 100)
        before = await samples_of(broker)
        broker.tables.topics.remove("Gone")
        broker.tables.topics.remove("%DLQ%Gone")
        broker.tables.groups.remove("gone")
        after = await samples_of(broker)
        assert {"Gone", "%DLQ%Gone"} <= broker.stats.topics.keys()
    assert _named(before) == {"Kept", "Gone", "%DLQ%Gone", "kept", "gone"}
    assert _named(after) == {"Kept", "kept"}


def _named(found):
    """Return the values of all labels that name a topic or group of the test."""
    own = {"Kept", "Gone", "%DLQ%Gone", "kept", "gone"}
    labels = [labels for samples in found.values() for labels, _ in samples]
    return own & {text for one in labels for text in one.values()}


async def test_the_other_names_can_be_switched_off(tmp_path):
    off = {"metricsExporterNames": "false", "metricsNativeNames": "false"}
    async with stored_broker(tmp_path, **off) as broker:
        broker.measured.is_observed = True
        found = await samples_of(broker)
    assert [name for name in found if name.startswith("rocketmq_")] == []


async def test_a_metric_shows_a_bounded_number_of_topics_and_groups(tmp_path):
    async with stored_broker(tmp_path, metricsRowsMax="3") as broker:
        broker.measured.is_observed = True
        broker.tables.topics.create("T", queue_nums=4)
        for number in range(5):
            broker.tables.offsets.commit(f"G{number}", "T", 0, 0)
        found = await samples_of(broker)
    shown = [labels["group"] for labels, _ in found["cometmq_group_lag_messages"]]
    assert shown == ["G0", "G1", "G2"]
    assert value(found, "cometmq_metrics_dropped_rows") >= 2


def test_every_name_of_the_exporter_is_declared_or_known_to_be_left_out():
    families = (*exporter.FAMILIES, *exporter.RUNTIME_FAMILIES)
    declared = [family.name.removeprefix("rocketmq_") for family in families]
    assert len(EXPORTER_NAMES) == 89
    assert sorted(declared) == sorted(set(EXPORTER_NAMES) - LEFT_OUT)


def test_no_name_is_declared_twice():
    families = (*exporter.FAMILIES, *exporter.RUNTIME_FAMILIES, *native.FAMILIES)
    names = [family.name for family in families]
    assert len(names) == len(set(names))
