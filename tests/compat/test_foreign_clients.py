# SPDX-License-Identifier: Apache-2.0
"""Unmodified third-party clients send and consume: bodies arrive unchanged."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.peers.clients.javaclient import VERSION_5, JavaClient
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.clients.rustclient import RustClient
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import Event, by_queue, create_topic, named, received, sent

pytestmark = pytest.mark.compat

CLIENTS = ("java-4", "java-5", "cpp", "node")
COUNT = 40
BODY_BYTES = 5000  # above 4096: the Java client compresses
MIXED_TOPIC = "CompatMixed"


@pytest.fixture(scope="session")
def mixed(cluster: Cluster, clients: dict[str, ClientProgram]) -> dict[str, Event]:
    """Send from every client to one topic; return the events by key."""
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, MIXED_TOPIC)
    events: dict[str, Event] = {}
    for name, client in clients.items():
        printed = client.run(
            "send",
            namesrv=cluster.namesrv_addr,
            topic=MIXED_TOPIC,
            count=COUNT,
            size=BODY_BYTES,
            key=name,
            tags="TagA,TagB",
        )
        assert len(sent(printed)) == COUNT
        events.update({event["key"]: event for event in named(printed, "sent")})
    return events


@pytest.mark.parametrize("receiver", CLIENTS)
def test_every_client_receives_the_messages_of_every_client(
    cluster: Cluster,
    clients: dict[str, ClientProgram],
    mixed: dict[str, Event],
    receiver: str,
) -> None:
    """Each of the sixteen pairs of clients agrees on bodies (by SHA-256), tags and properties."""
    printed = clients[receiver].run(
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=MIXED_TOPIC,
        group=f"CompatMixed-{receiver}",
        count=len(mixed),
    )

    arrived = {event["key"]: event for event in named(printed, "received")}
    assert received(printed) == {key: event["sha256"] for key, event in mixed.items()}
    assert {key: event["tag"] for key, event in arrived.items()} == {
        key: event["tag"] for key, event in mixed.items()
    }
    assert {event["colour"] for event in arrived.values()} == {"grün 绿"}


@pytest.mark.parametrize("receiver", CLIENTS)
def test_a_tag_selects_messages(
    cluster: Cluster,
    clients: dict[str, ClientProgram],
    mixed: dict[str, Event],
    receiver: str,
) -> None:
    wanted = {key: event["sha256"] for key, event in mixed.items() if event["tag"] == "TagB"}

    printed = clients[receiver].run(
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=MIXED_TOPIC,
        group=f"CompatTag-{receiver}",
        count=len(wanted),
        tags="TagB",
    )

    assert received(printed) == wanted


@pytest.mark.parametrize("mode", ["sync", "async", "batch", "ordered", "oneway"])
@pytest.mark.parametrize("sender", ["java-4", pytest.param("java-5", marks=pytest.mark.slow)])
def test_every_way_to_send_from_java(
    cluster: Cluster,
    clients: dict[str, ClientProgram],
    topic: str,
    group: str,
    sender: str,
    mode: str,
) -> None:
    printed = clients[sender].run(
        "send", namesrv=cluster.namesrv_addr, topic=topic, count=COUNT, mode=mode, key=mode
    )
    consumed = clients[sender].run(
        "consume", namesrv=cluster.namesrv_addr, topic=topic, group=group, count=COUNT
    )

    assert received(consumed) == sent(printed)
    if mode != "oneway":
        assert _places(named(printed, "sent")) == _places(named(consumed, "received"))


@pytest.mark.parametrize("mode", ["oneway", "ordered"])
def test_every_way_to_send_from_cpp(
    cluster: Cluster, clients: dict[str, ClientProgram], topic: str, group: str, mode: str
) -> None:
    printed = clients["cpp"].run(
        "send", namesrv=cluster.namesrv_addr, topic=topic, count=COUNT, mode=mode
    )
    consumed = clients["cpp"].run(
        "consume", namesrv=cluster.namesrv_addr, topic=topic, group=group, count=COUNT
    )

    assert received(consumed) == sent(printed)


@pytest.mark.parametrize(
    "consumer", ["java-4", pytest.param("java-5", marks=pytest.mark.slow), "cpp"]
)
def test_orderly_consumers_keep_the_order_of_each_queue(
    cluster: Cluster,
    clients: dict[str, ClientProgram],
    java: ClientProgram,
    topic: str,
    group: str,
    consumer: str,
) -> None:
    """The consumers lock their queues (codes 41, 42)."""
    printed = java.run(
        "send", namesrv=cluster.namesrv_addr, topic=topic, count=COUNT, mode="ordered"
    )
    consumed = clients[consumer].run(
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=topic,
        group=group,
        count=COUNT,
        orderly="true",
    )

    assert received(consumed) == sent(printed)
    for deliveries in by_queue(consumed).values():
        offsets = [int(event["queue_offset"]) for event in deliveries]
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("codec", [pytest.param("ZLIB", marks=pytest.mark.slow), "LZ4", "ZSTD"])
def test_every_compression_of_the_5x_client_passes_through(
    cluster: Cluster, log_dir: Path, topic: str, group: str, codec: str
) -> None:
    client = JavaClient(log_dir, VERSION_5, properties={"rocketmq.message.compressType": codec})
    printed = client.run(
        "send", namesrv=cluster.namesrv_addr, topic=topic, count=5, size=50_000, key=codec
    )
    consumed = client.run(
        "consume", namesrv=cluster.namesrv_addr, topic=topic, group=group, count=5
    )

    assert received(consumed) == sent(printed)


def _places(events: list[Event]) -> dict[str, tuple[int, int]]:
    return {event["key"]: (int(event["queue_id"]), int(event["queue_offset"])) for event in events}


@pytest.mark.slow  # its first build takes minutes
def test_the_rust_client_sends_and_consumes(
    running: Callable[[str], Cluster], log_dir: Path, fresh_name: Callable[[str], str]
) -> None:
    """It finds no route at a name server of 4.9.4, whose routes lack enableActingMaster."""
    cluster, topic, rust = running("comet"), fresh_name("CompatRust"), RustClient(log_dir)
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, topic)
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}

    messages = named(rust.run("send", count=COUNT, **server), "sent")
    arrived = named(rust.run("consume", group=f"{topic}G", count=COUNT, **server), "received")

    assert len(messages) == COUNT
    assert all("SendOk" in it["result"] for it in messages)
    assert {it["body"] for it in arrived} == {it["body"] for it in messages}
    assert {it["tag"] for it in arrived} == {"TagA"}
