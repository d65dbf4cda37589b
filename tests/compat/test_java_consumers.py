# SPDX-License-Identifier: Apache-2.0
"""Features of Java consumers beyond delivery: retries, dead letters, sharing, progress, pulls."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.peers.clients.javaclient import IPV6, IPV6_ID_CHARS, JavaClient, MqAdmin
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import contents, create_topic, named, received, sent
from cometmq.peers.java import JavaCluster
from cometmq.peers.loopback import ipv6_loopback
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import wait_for_dispatch, wait_for_messages, wait_for_offsets

pytestmark = [pytest.mark.compat, pytest.mark.first]

COUNT = 40
SHARE_TIMEOUT_S = 120
FAR_FUTURE = "20990101000000"


def _send(java: ClientProgram, cluster: Cluster, topic: str, **options: object) -> dict[str, str]:
    """Send some messages, wait until they are in their queues, and return their contents."""
    options = {"count": COUNT, **options}
    printed = java.run("send", namesrv=cluster.namesrv_addr, topic=topic, **options)
    wait_for_dispatch(cluster)
    return sent(printed)


@pytest.mark.parametrize(
    "consumer",
    [
        "java-4",
        pytest.param("java-5", marks=pytest.mark.slow),
        pytest.param("cpp", marks=pytest.mark.slow),
        pytest.param("node", marks=pytest.mark.slow),
    ],
)
def test_a_refused_message_comes_back(
    cluster: Cluster,
    clients: dict[str, ClientProgram],
    java: ClientProgram,
    topic: str,
    group: str,
    consumer: str,
) -> None:
    """A refused message is sent back (36), delayed for 10 s, and delivered from the retry topic.

    The C++ client also sends back, unprocessed, the messages it pulled together with a refused one.
    """
    wanted = _send(java, cluster, topic, count=3)

    printed = clients[consumer].run(
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=topic,
        group=group,
        count=len(wanted),
        fail_first=1,
    )

    accepted, refused = named(printed, "received"), named(printed, "refused")
    assert received(printed) == wanted
    assert refused
    assert contents(refused).items() <= wanted.items()
    assert {event["topic"] for event in accepted} == {topic}
    assert {int(event["reconsume_times"]) for event in accepted} == {1}


@pytest.mark.parametrize("start", ["CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP"])
def test_a_new_group_gets_all_messages_of_a_young_topic(
    cluster: Cluster, java: ClientProgram, topic: str, group: str, start: str
) -> None:
    """Messages are sent before the group exists: both brokers answer code 14 with offset 0."""
    wanted = _send(java, cluster, topic)

    printed = java.run(
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=topic,
        group=group,
        count=len(wanted),
        **{"from": start, "moment": FAR_FUTURE},
    )

    assert received(printed) == wanted


@pytest.mark.slow
def test_a_message_refused_too_often_becomes_a_dead_letter(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    wanted = _send(java, cluster, topic, count=2)
    with java.start(
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=topic,
        group=group,
        fail_first=99,
        max_reconsume_times=1,
    ) as consumer:
        consumer.wait_for("refused", 2 * len(wanted))
        # The client counts the refusal before it sends the message back, so stop it only
        # afterwards.
        wait_for_messages(cluster, f"%DLQ%{group}", len(wanted), queue_count=1)
        consumer.stop()
    # The dead-letter topic is created write-only, so make it readable.
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, f"%DLQ%{group}", queue_count=1)

    printed = java.run(
        "consume",
        namesrv=cluster.namesrv_addr,
        topic=f"%DLQ%{group}",
        group=f"{group}Dead",
        count=len(wanted),
    )

    assert received(printed) == wanted


@pytest.mark.parametrize("command", ["lite-pull", "pull"])
@pytest.mark.parametrize("version", ["java-4", "java-5"])
def test_pull_consumers(
    cluster: Cluster,
    clients: dict[str, ClientProgram],
    java: ClientProgram,
    topic: str,
    group: str,
    version: str,
    command: str,
) -> None:
    """The 5.x client pulls with code 361, which Java 4.9.4 does not know."""
    if (version, command) == ("java-5", "lite-pull") and isinstance(cluster, JavaCluster):
        version = "java-4"
    wanted = _send(java, cluster, topic)

    printed = clients[version].run(
        command, namesrv=cluster.namesrv_addr, topic=topic, group=group, count=COUNT
    )

    assert received(printed) == wanted


def test_progress_survives_a_consumer(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    options = {"namesrv": cluster.namesrv_addr, "topic": topic, "group": group, "count": COUNT}
    first = _send(java, cluster, topic, key="first")
    assert received(java.run("consume", **options)) == first
    wait_for_offsets(cluster, topic, group, COUNT)
    second = _send(java, cluster, topic, key="second")

    assert received(java.run("consume", **options)) == second


def test_two_consumers_share_a_topic(
    cluster: Cluster, clients: dict[str, ClientProgram], java: ClientProgram, topic: str, group: str
) -> None:
    """Each member is notified of the other (40) and takes half of the queues until one leaves."""
    options = {
        "namesrv": cluster.namesrv_addr,
        "topic": topic,
        "group": group,
        "count": 10_000,
        "timeout_s": 900,
    }
    with (
        java.start("consume", **options) as first,
        clients["java-5"].start("consume", **options) as second,
    ):
        first.wait_for("started")
        second.wait_for("started")
        wanted: dict[str, str] = {}

        def both_get_some() -> bool:
            wanted.update(_send(java, cluster, topic, key=f"shared{len(wanted)}"))
            return bool(first.events("received") and second.events("received"))

        def by_both() -> dict[str, str]:
            return contents([*first.events("received"), *second.events("received")])

        wait_until(both_get_some, SHARE_TIMEOUT_S, "messages at both")
        second.kill()
        wanted.update(_send(java, cluster, topic, key="after"))
        wait_until(lambda: len(by_both()) >= len(wanted), SHARE_TIMEOUT_S, "all messages")
        assert by_both() == wanted


def test_every_broadcasting_consumer_gets_everything(
    cluster: Cluster, java: ClientProgram, topic: str, group: str, tmp_path: Path
) -> None:
    """The group has two members, each of which keeps its offsets in a file."""
    options = {"namesrv": cluster.namesrv_addr, "topic": topic, "group": group, "count": COUNT}
    first, second = (
        JavaClient(
            tmp_path / name,
            properties={
                "rocketmq.client.name": name,
                "rocketmq.client.localOffsetStoreDir": str(tmp_path / name / "offsets"),
            },
        )
        for name in ("first", "second")
    )
    wanted = _send(java, cluster, topic, key="before")
    with (
        first.start("consume", model="BROADCASTING", **options) as one,
        second.start("consume", model="BROADCASTING", **options) as other,
    ):
        assert received(one.finish()) == wanted
        assert received(other.finish()) == wanted

    later = _send(java, cluster, topic, key="later")
    for member in (first, second):
        assert received(member.run("consume", model="BROADCASTING", **options)) == later


def test_namespaces_are_apart(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    """Topics and groups of the same name are independent with and without a namespace."""
    namespace = "Compat-Space"
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, f"{namespace}%{topic}")
    consume = {"namesrv": cluster.namesrv_addr, "topic": topic, "group": group, "count": COUNT}
    outside = _send(java, cluster, topic, key="outside")
    inside = _send(java, cluster, topic, key="inside", namespace=namespace)

    printed = java.run("consume", namespace=namespace, **consume)

    assert received(printed) == inside
    assert {event["topic"] for event in named(printed, "received")} == {topic}
    assert received(java.run("consume", **consume)) == outside


@pytest.fixture(params=["comet", pytest.param("java", marks=pytest.mark.slow)])
def cluster_of_ipv6(
    request: pytest.FixtureRequest, maker: Callable[[str], type[Cluster]], tmp_path: Path
) -> Iterator[Cluster]:
    """A broker whose name and routed address use IPv6; the test runs in its network."""
    options: dict[str, Any] = {"properties": IPV6} if request.param == "java" else {}
    with (
        ipv6_loopback(),
        maker(request.param)(tmp_path / "ipv6", {"brokerIP1": "::1"}, **options) as cluster,
    ):
        yield cluster


def test_java_clients_over_ipv6(cluster_of_ipv6: Cluster, tmp_path: Path) -> None:
    java, namesrv = JavaClient(tmp_path, properties=IPV6), ipv6(cluster_of_ipv6.namesrv_addr)
    create_topic(cluster_of_ipv6.namesrv_addr, cluster_of_ipv6.broker_addrs, "LongHosts")
    server = {"namesrv": namesrv, "topic": "LongHosts"}

    messages = named(java.run("send", count=COUNT, **server), "sent")
    wait_for_dispatch(cluster_of_ipv6)
    consumed = java.run("consume", group="LongHostsGroup", count=COUNT, **server)
    by_id = java.run("view", ids=",".join(e["offset_msg_id"] for e in messages), **server)
    with MqAdmin(namesrv, properties=IPV6) as mqadmin:
        shown = mqadmin.run("queryMsgById", "-i", messages[0]["offset_msg_id"]).output

    assert received(consumed) == sent(messages)
    assert received(by_id) == sent(messages)
    assert {len(event["offset_msg_id"]) for event in messages} == {IPV6_ID_CHARS}
    port = cluster_of_ipv6.broker_addrs[0].rpartition(":")[2]
    assert re.search(r"^Born Host: +\[0:0:0:0:0:0:0:1\]:\d+$", shown, re.MULTILINE)
    assert re.search(rf"^Store Host: +\[0:0:0:0:0:0:0:1\]:{port}$", shown, re.MULTILINE)


def ipv6(address: str) -> str:
    """Return the IPv6 loopback address with the same port."""
    return f"[::1]:{address.rpartition(':')[2]}"


def test_delayed_messages_arrive_later(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    """Delay level 2 is five seconds."""
    wanted = _send(java, cluster, topic, count=3, delay_level=2)

    printed = java.run(
        "consume", namesrv=cluster.namesrv_addr, topic=topic, group=group, count=len(wanted)
    )

    assert received(printed) == wanted
    for event in named(printed, "received"):
        waited_ms = event["stored_ms"] - event["born_ms"]
        assert 4900 <= waited_ms < 10_000


def test_a_delivery_time_of_rocketmq_5_holds(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    """Java's client of 4.9 sets the property; its broker delivers at once."""
    wanted = _send(java, cluster, topic, count=2, timer_ms=5_200)

    printed = java.run(
        "consume", namesrv=cluster.namesrv_addr, topic=topic, group=group, count=len(wanted)
    )

    assert received(printed) == wanted
    for event in named(printed, "received"):
        waited_ms = event["stored_ms"] - event["born_ms"]
        assert isinstance(cluster, JavaCluster) or 5_200 <= waited_ms < 10_000


def test_lookups(cluster: Cluster, java: ClientProgram, topic: str) -> None:
    """Messages are found by offset message id (33), by key or unique key (12), and by time (29)."""
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    printed = named(java.run("send", count=5, key="lookup", **server), "sent")
    wait_for_dispatch(cluster)
    wanted = sent(printed)

    by_id = java.run("view", ids=",".join(e["offset_msg_id"] for e in printed), **server)
    by_key = java.run("query", keys=",".join(wanted), **server)
    queues = named(java.run("queues", at=1, **server), "queue")

    assert received(by_id) == wanted
    assert received(by_key) == wanted
    assert sum(queue["max_offset"] - queue["min_offset"] for queue in queues) == len(wanted)
    assert {queue["offset_at"] for queue in queues} == {0}
