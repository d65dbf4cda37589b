# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

from msgspec import structs

from cometmq.broker.clients.producers import Client
from cometmq.broker.delays.parking import Reason
from cometmq.broker.exposition.metrics import collectors
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.transport.stats import TransportStats
from cometmq.runtime.incremental import finish
from cometmq.runtime.metrics import Registry
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.broker import FakePeer
from cometmq.testing.broker.stored import ask, call_with, stored_broker
from cometmq.testing.runtime.pages import render

LABELS = 'broker="broker-a",cluster="PeersCluster"'


async def test_a_scrape_shows_messages_lag_and_refusals(tmp_path: Path) -> None:
    async with stored_broker(tmp_path) as broker:
        registry = Registry(has_process_metrics=False)
        for source in collectors(broker, TransportStats):
            registry.add(source)
        for _ in range(3):
            ask(broker, call_with(310, SendMessageV2("P", "T", "TBW102", 4, 1, 0, 0, 0), b"x"))
        broker.tables.offsets.commit("G", "T", 1, 1)
        for number, tags in enumerate("AB"):
            data = ConsumerData(
                group_name="G", subscription_data_set=[SubscriptionData(topic="T", sub_string=tags)]
            )
            broker.clients.consumers.register(data, Client(FakePeer(), f"c{number}", 0, 401, 0))
        broker.store.write_state.set(Refusal.DISK_FULL, holds=True)
        ask(broker, call_with(310, SendMessageV2("P", "T", "TBW102", 4, 1, 0, 0, 0), b"x"))
        broker.driver.reads.deadlines.expired_count = 7

        text = render(finish(registry.collect()))

    lines = text.splitlines()
    for line in (
        f"cometmq_put_messages_total{{{LABELS}}} 3.0",
        f'cometmq_topic_put_messages_total{{{LABELS},topic="T"}} 3.0',
        f'cometmq_group_lag_messages{{{LABELS},group="G",topic="T"}} 2.0',
        f'cometmq_group_mismatched_subscriptions{{{LABELS},group="G"}} 2.0',
        f'cometmq_refused_requests_total{{{LABELS},code="310",response="14"}} 1.0',
        f"cometmq_reads_expired_total{{{LABELS}}} 7.0",
        f"cometmq_store_writable{{{LABELS}}} 0.0",
        f'cometmq_store_refusal{{{LABELS},reason="disk-full"}} 1.0',
    ):
        assert line in lines, text


async def test_a_scrape_shows_parked_and_stranded_messages(tmp_path: Path) -> None:
    async with stored_broker(tmp_path) as broker:
        registry = Registry(has_process_metrics=False)
        for source in collectors(broker, TransportStats):
            registry.add(source)
        for _ in range(3):
            ask(broker, call_with(310, SendMessageV2("P", "T", "TBW102", 4, 1, 0, 0, 0), b"x"))
        broker.tables.offsets.commit("G", "T", 1, 1)
        config = broker.tables.topics.table["T"]
        broker.tables.topics.put(structs.replace(config, read_queue_nums=1, write_queue_nums=1))
        broker.deferred.parking.counts[Reason.TOO_LARGE] = 4
        text = render(finish(registry.collect()))
    assert f'cometmq_stranded_messages{{{LABELS},group="G",topic="T"}} 2.0' in text
    assert f'cometmq_parked_messages_total{{{LABELS},reason="too_large"}} 4.0' in text
