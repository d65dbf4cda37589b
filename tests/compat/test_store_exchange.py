# SPDX-License-Identifier: Apache-2.0
"""Each broker continues on a store that the other implementation wrote. The store files are small,
so the commit log, the consume queues and the index all roll over.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cometmq.peers.clients.javaclient import IPV6, IPV6_ID_CHARS, JavaClient
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import Cluster, Layout
from cometmq.peers.content import Event, create_topic, named, received, sent
from cometmq.peers.loopback import ipv6_loopback
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import text_of, wait_for_dispatch
from cometmq.peers.wire import call
from cometmq.store.inspection.checks import damaged_parts
from cometmq.store.inspection.inspect import open_view

pytestmark = [pytest.mark.compat, pytest.mark.first, pytest.mark.timeout(900)]

SMALL_FILES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "flushConsumerOffsetInterval": 500,
}
PLAIN, ORDERED, BATCHED, LARGE = "StorePlain", "StoreOrdered", "StoreBatched", "StoreLarge"
COUNTS = {PLAIN: 400, ORDERED: 200, BATCHED: 300, LARGE: 60}
MODES = {PLAIN: "sync", ORDERED: "ordered", BATCHED: "batch", LARGE: "sync"}
SIZES = {PLAIN: 700, ORDERED: 300, BATCHED: 300, LARGE: 30_000}
GROUP = "StoreGroup"
SAVE_TIMEOUT_S = 120
SUBSCRIPTION_GROUPS = 201
PAIRS = pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("comet", "java"),
        ("java", "comet"),
        pytest.param("java", "java", marks=pytest.mark.slow),
        pytest.param("comet", "comet", marks=pytest.mark.slow),
    ],
)
ENDS = {"clean stop": Cluster.stop, "kill -9": Cluster.kill}


@dataclass
class Written:
    """The content of a store, as reported to the clients that sent the messages."""

    messages: dict[str, list[Event]] = field(default_factory=dict)

    def add(self, topic: str, events: Sequence[Event]) -> None:
        self.messages.setdefault(topic, []).extend(named(events, "sent"))


class Exchange:
    """Brokers of both implementations, one after the other, on the same store and address."""

    def __init__(
        self,
        directory: Path,
        maker: Callable[[str], type[Cluster]],
        java: ClientProgram,
        *,
        is_ipv6: bool = False,
    ) -> None:
        """With `is_ipv6`, the records contain IPv6 addresses of brokers and clients."""
        self._directory = directory
        self._maker = maker
        self._java = java
        self._is_ipv6 = is_ipv6
        self._layout = Layout.fresh(directory, broker_count=1)
        self._clusters: list[Cluster] = []
        self.written = Written()

    def run(self, name: str) -> Cluster:
        folder = self._directory / f"{len(self._clusters)}-{name}"
        settings = SMALL_FILES | ({"brokerIP1": "::1"} if self._is_ipv6 else {})
        options: dict[str, Any] = {}
        if self._is_ipv6 and name == "java":
            options["properties"] = IPV6
        cluster = self._maker(name)(folder, settings, layout=self._layout, **options)
        self._clusters.append(cluster)
        cluster.start()
        return cluster

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.kill()

    def fill(self, cluster: Cluster, label: str) -> None:
        """Send to every topic; keys carry the label."""
        for topic, count in COUNTS.items():
            create_topic(cluster.namesrv_addr, cluster.broker_addrs, topic)
            events = self._java.run(
                "send",
                namesrv=cluster.namesrv_addr,
                topic=topic,
                count=count,
                mode=MODES[topic],
                size=SIZES[topic],
                key=f"{label}-{topic}",
                tags="TagA,TagB",
            )
            assert len(sent(events)) == count
            self.written.add(topic, events)

    def consume(self, cluster: Cluster, topic: str, count: int) -> dict[str, str]:
        return received(
            self._java.run(
                "consume", namesrv=cluster.namesrv_addr, topic=topic, group=GROUP, count=count
            )
        )

    def assert_everything_is_served(self, cluster: Cluster, *, by_key: bool = True) -> None:
        """Check every message at its position, by pull, by id and by key; offsets have no gaps.

        A Java broker that recovers after kill -9 discards index files and rebuilds only part of
        them (CometMQ rebuilds them all), so keys are not checked there.
        """
        wait_for_dispatch(cluster)
        events = [event for table in self.written.messages.values() for event in table]
        chosen = {
            topic: table[:: max(1, len(table) // 20)]
            for topic, table in self.written.messages.items()
        }
        some = [event for table in chosen.values() for event in table]
        ids = ",".join(event["offset_msg_id"] for event in some)
        keys = ",".join(f"{topic}:{event['key']}" for topic in chosen for event in chosen[topic])
        server = {"namesrv": cluster.namesrv_addr, "topic": ",".join(self.written.messages)}

        pulled = named(self._java.run("pull", group="StorePull", **server), "received")
        assert received(pulled) == sent(events)
        assert _places(pulled) == _places(events)
        assert len(pulled) == len(events)
        assert received(self._java.run("view", ids=ids, **server)) == sent(some)
        if by_key:
            assert received(self._java.run("query", keys=keys, **server)) == sent(some)


def _places(events: list[Event]) -> dict[str, tuple[int, int]]:
    return {event["key"]: (int(event["queue_id"]), int(event["queue_offset"])) for event in events}


@pytest.fixture
def exchange(
    tmp_path: Path, maker: Callable[[str], type[Cluster]], java: ClientProgram
) -> Iterator[Exchange]:
    running = Exchange(tmp_path, maker, java)
    yield running
    running.close()


@pytest.mark.parametrize("end", ["kill -9", pytest.param("clean stop", marks=pytest.mark.slow)])
@PAIRS
def test_the_reader_serves_all_that_the_writer_stored(
    exchange: Exchange, writer: str, reader: str, end: str
) -> None:
    """No acknowledged message is lost, even if the writer was killed; writing continues."""
    first = exchange.run(writer)
    exchange.fill(first, "first")
    ENDS[end](first)

    second = exchange.run(reader)
    by_key = _keeps_index(reader, end)
    exchange.assert_everything_is_served(second, by_key=by_key)
    exchange.fill(second, "second")
    exchange.assert_everything_is_served(second, by_key=by_key)


def _keeps_index(reader: str, end: str) -> bool:
    return reader == "comet" or end == "clean stop"


@pytest.mark.parametrize(("writer", "reader"), [("comet", "java"), ("java", "comet")])
def test_the_reader_serves_records_with_ipv6_addresses(
    tmp_path: Path, maker: Callable[[str], type[Cluster]], writer: str, reader: str
) -> None:
    with ipv6_loopback():
        exchange = Exchange(tmp_path, maker, JavaClient(tmp_path, properties=IPV6), is_ipv6=True)
        try:
            first = exchange.run(writer)
            exchange.fill(first, "first")
            first.stop()
            second = exchange.run(reader)
            exchange.assert_everything_is_served(second)
            exchange.fill(second, "second")
            exchange.assert_everything_is_served(second)
        finally:
            exchange.close()
    ids = {
        event["offset_msg_id"] for table in exchange.written.messages.values() for event in table
    }
    assert {len(one) for one in ids} == {IPV6_ID_CHARS}


@PAIRS
def test_progress_topics_and_groups_go_along(exchange: Exchange, writer: str, reader: str) -> None:
    """The group continues from its offsets, and its configuration and the topics are present."""
    first = exchange.run(writer)
    exchange.fill(first, "first")
    count = COUNTS[ORDERED]
    assert len(exchange.consume(first, ORDERED, count)) == count
    wait_until(lambda: _saved_progress(first) == count, SAVE_TIMEOUT_S, "progress saved")
    first.stop()

    second = exchange.run(reader)
    exchange.fill(second, "second")
    assert exchange.consume(second, ORDERED, count) == sent(
        exchange.written.messages[ORDERED][count:]
    )
    groups = call(second.broker_addrs[0], SUBSCRIPTION_GROUPS).body.decode()
    assert f'"groupName":"{GROUP}"' in groups


@pytest.mark.slow
def test_progress_at_a_java_broker_wins_over_the_journal_of_a_killed_broker(
    exchange: Exchange,
) -> None:
    """After kill -9 of our broker, a Java broker uses the store, so our journal becomes stale."""
    count = COUNTS[ORDERED]
    owners = {"comet": "kill -9", "java": "clean stop"}
    for turn, (name, end) in enumerate(owners.items()):
        cluster = exchange.run(name)
        exchange.fill(cluster, f"turn{turn}")
        assert exchange.consume(cluster, ORDERED, count) == sent(
            exchange.written.messages[ORDERED][turn * count :]
        )
        consumed = (turn + 1) * count
        wait_until(lambda: _saved_progress(cluster) == consumed, SAVE_TIMEOUT_S, "progress saved")  # noqa: B023
        ENDS[end](cluster)
    third = exchange.run("comet")
    exchange.fill(third, "third")
    assert exchange.consume(third, ORDERED, count) == sent(
        exchange.written.messages[ORDERED][2 * count :]
    )


def _saved_progress(cluster: Cluster) -> int:
    text = text_of(cluster.store_dir / "config" / "consumerOffset.json")
    _, found, rest = text.partition(f'"{ORDERED}@{GROUP}":')
    table = rest.partition("{")[2].partition("}")[0]
    return sum(int(pair.partition(":")[2]) for pair in table.split(",")) if found else -1


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_store_goes_there_and_back_twice(exchange: Exchange, end: str) -> None:
    """Five brokers own the store in turn; each finds all earlier messages and adds its own.

    Java does not maintain the checksums of the log; what it has written must not count as damage.
    """
    for turn, name in enumerate(["comet", "java", "comet", "java", "comet"]):
        cluster = exchange.run(name)
        if turn > 0:
            exchange.assert_everything_is_served(cluster, by_key=_keeps_index(name, end))
        exchange.fill(cluster, f"turn{turn}")
        ENDS[end](cluster)
        view = open_view(str(cluster.store_dir))
        view.measure_queues(view.files.end)
        assert damaged_parts(view, view.files.end) == []


@pytest.mark.slow
@PAIRS
def test_a_delayed_message_is_delivered_by_the_next_owner(
    exchange: Exchange, java: ClientProgram, writer: str, reader: str
) -> None:
    """Level 4 is thirty seconds, so the writer has stopped before the message is due."""
    first = exchange.run(writer)
    create_topic(first.namesrv_addr, first.broker_addrs, PLAIN)
    server = {"namesrv": first.namesrv_addr, "topic": PLAIN}
    wanted = sent(java.run("send", count=3, key="late", delay_level=4, **server))
    first.stop()

    exchange.run(reader)
    printed = java.run("consume", group=GROUP, count=len(wanted), **server)

    assert received(printed) == wanted
