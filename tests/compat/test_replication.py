# SPDX-License-Identifier: Apache-2.0
"""A master of one implementation and a slave of the other, on RocketMQ's replication stream.

The files of the logs are small, so slaves catch up over several of them.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import BrokerPlace, Cluster, Layout
from cometmq.peers.content import Event, create_topic, named, received, sent
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import wait_until
from cometmq.peers.wire import call

pytestmark = [pytest.mark.compat, pytest.mark.first, pytest.mark.timeout(900)]

FILE_BYTES = 1 << 18
SETTINGS = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "flushConsumerOffsetInterval": 500,
}
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}
NAME, TOPIC = "broker-a", "ReplicaTopic"
CATCH_UP_TIMEOUT_S = 120
GET_TOPICS, RUNTIME_INFO, OFFSETS, ROUTE, GROUPS = 21, 28, 43, 105, 201
PAIRS = pytest.mark.parametrize(
    ("master", "slave"),
    [
        ("comet", "java"),
        ("java", "comet"),
        pytest.param("comet", "comet", marks=pytest.mark.slow),
        pytest.param("java", "java", marks=pytest.mark.slow),
    ],
)


class Pair:
    """A name server, a master and its slave, each with its own store."""

    def __init__(
        self,
        folder: Path,
        maker: Callable[[str], type[Cluster]],
        java: ClientProgram,
    ) -> None:
        self._folder = folder
        self._maker = maker
        self._java = java
        self._port = free_port()
        self._places = {
            role: BrokerPlace(NAME, free_broker_port(), folder / role / "store")
            for role in ("master", "slave")
        }
        self._clusters: list[Cluster] = []
        self._count = 0
        self.sent: list[Event] = []

    def start(self, master: str, slave: str, **settings: object) -> tuple[Cluster, Cluster]:
        """Start a name server and a master of one implementation, then a slave of the other."""
        first = self.broker(master, "master", settings)
        first.start_namesrv()
        first.start_broker()
        second = self.broker(slave, "slave", {**settings, **SLAVE})
        second.start_broker()
        create_topic(first.namesrv_addr, first.broker_addrs, TOPIC)
        return first, second

    def broker(self, name: str, role: str, settings: Mapping[str, object]) -> Cluster:
        """Return a stopped broker with the store and the port of this role."""
        layout = Layout(self._port, (self._places[role],))
        folder = self._folder / f"{len(self._clusters)}-{name}-{role}"
        folder.mkdir()
        cluster = self._maker(name)(folder, {**SETTINGS, **settings}, layout=layout)
        self._clusters.append(cluster)
        return cluster

    @property
    def namesrv_addr(self) -> str:
        return self._clusters[0].namesrv_addr

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.kill()

    def fill(self, count: int = 400) -> None:
        """Send some messages of each size, enough for more than one file of the log."""
        for size, share in ((700, count), (60_000, count // 20)):
            self._count += 1
            events = self._java.run(
                "send", namesrv=self.namesrv_addr, topic=TOPIC, count=share, size=size,
                key=f"fill{self._count}", tags="TagA,TagB",
            )  # fmt: skip
            assert len(sent(events)) == share
            self.sent += named(events, "sent")

    def send_one(self, label: str) -> str:
        """Send a message; return the status that the producer sees."""
        events = self._java.run("send", namesrv=self.namesrv_addr, topic=TOPIC, count=1, key=label)
        (event,) = named(events, "sent")
        return str(event.get("status", "SEND_OK"))

    def consume(self, group: str, count: int) -> dict[str, str]:
        server = {"namesrv": self.namesrv_addr, "topic": TOPIC}
        return received(self._java.run("consume", group=group, count=count, **server))

    def mqadmin(self, *arguments: str) -> str:
        with MqAdmin(self.namesrv_addr) as session:
            return session.run(*arguments).output


@pytest.fixture
def pair(
    tmp_path: Path, maker: Callable[[str], type[Cluster]], java: ClientProgram
) -> Iterator[Pair]:
    running = Pair(tmp_path, maker, java)
    yield running
    running.close()


def figures(broker: Cluster) -> dict[str, str]:
    """Return the runtime figures of a broker, or an empty dict while it does not answer."""
    try:
        answer = call(broker.broker_addrs[0], RUNTIME_INFO)
    except OSError:
        return {}
    table: dict[str, str] = json.loads(answer.body)["table"] if answer.code == 0 else {}
    return table


def end_of(broker: Cluster) -> int:
    return int(figures(broker).get("commitLogMaxOffset", "-1"))


def wait_until_equal(master: Cluster, slave: Cluster) -> None:
    """Wait until the slave has the whole log and has dispatched it."""

    def is_equal() -> bool:
        end = end_of(master)
        behind = int(figures(slave).get("dispatchBehindBytes", "-1"))
        return end > 0 and end == end_of(slave) and behind == 0

    wait_until(is_equal, CATCH_UP_TIMEOUT_S, "the slave has the master's log")


def wait_for_tables(slave: Cluster, group: str) -> None:
    def has_tables() -> bool:
        address = slave.broker_addrs[0]
        wanted = {GET_TOPICS: f'"{TOPIC}"', GROUPS: f'"{group}"', OFFSETS: f'"{TOPIC}@{group}"'}
        return all(text.encode() in call(address, code).body for code, text in wanted.items())

    wait_until(has_tables, CATCH_UP_TIMEOUT_S, "the slave has the master's tables")


def wait_until_saved(master: Cluster, group: str) -> None:
    """Wait until the master has saved the group's offsets: a killed Java broker loses unsaved ones.

    Java saves them for the first time ten seconds after its start.
    """
    path = master.store_dir / "config" / "consumerOffset.json"

    def is_saved() -> bool:
        return path.exists() and f'"{TOPIC}@{group}"' in path.read_text(encoding="utf-8")

    wait_until(is_saved, CATCH_UP_TIMEOUT_S, f"the master has saved the offsets of {group}")


def log_files(broker: Cluster, end: int) -> dict[str, bytes]:
    """Return the content of the log's files by name, up to the end of the log."""
    folder = broker.store_dir / "commitlog"
    names = sorted(path.name for path in folder.iterdir() if path.name.isdigit())
    files = {name: (folder / name).read_bytes()[: max(0, end - int(name))] for name in names}
    return {name: data for name, data in files.items() if data}


def assert_equal_logs(master: Cluster, slave: Cluster) -> None:
    """Check that both logs are equal; the slave's may start later.

    A Java master sends only its last file to an empty slave.
    """
    end = end_of(master)
    theirs, ours = log_files(master, end), log_files(slave, end)
    assert len(theirs) > 8
    assert len(ours) > 4
    assert ours == {name: theirs[name] for name in ours}


def wait_until_gone(namesrv_addr: str, broker_id: int) -> None:
    def is_gone() -> bool:
        body = call(namesrv_addr, ROUTE, {"topic": TOPIC}).body.decode()
        return f"{broker_id}:" not in body.partition('"brokerAddrs":{')[2].partition("}")[0]

    wait_until(is_gone, CATCH_UP_TIMEOUT_S, f"no broker {broker_id} in the route")


@PAIRS
def test_a_slave_follows_and_serves_while_its_master_is_stopped(
    pair: Pair, master: str, slave: str
) -> None:
    """Both brokers are also killed; in the end their logs are equal, byte by byte."""
    first, second = pair.start(master, slave)
    pair.fill()
    assert pair.consume("Before", 100)
    wait_until_equal(first, second)
    second.kill_broker()
    pair.fill()
    second.start_broker()
    wait_until_equal(first, second)
    wait_until_saved(first, "Before")
    first.kill_broker()
    first.start_broker()
    pair.fill()
    wait_until_equal(first, second)
    assert_equal_logs(first, second)
    wait_for_tables(second, "Before")

    listed = pair.mqadmin("clusterList")
    assert listed.count(NAME) == 2
    shown = pair.mqadmin("brokerStatus", "-b", second.broker_addrs[0])
    assert str(end_of(first)) in shown

    first.stop_broker()
    wait_until_gone(pair.namesrv_addr, 0)
    assert pair.consume("After", len(pair.sent)) == sent(pair.sent)


@PAIRS
def test_a_store_of_a_slave_opens_as_a_master_of_the_other_maker(
    pair: Pair, master: str, slave: str
) -> None:
    first, second = pair.start(master, slave)
    pair.fill()
    wait_until_equal(first, second)
    assert pair.consume("Early", 10)
    wait_for_tables(second, "Early")
    second.stop_broker()
    first.stop_broker()

    heir = pair.broker(master, "slave", {"brokerRole": "ASYNC_MASTER", "brokerId": 0})
    heir.start_broker()
    assert pair.consume("Heirs", len(pair.sent)) == sent(pair.sent)
    pair.fill(40)
    assert pair.consume("Both", len(pair.sent)) == sent(pair.sent)


@PAIRS
def test_a_sync_master_tells_how_far_a_message_came(pair: Pair, master: str, slave: str) -> None:
    _, second = pair.start(master, slave, brokerRole="SYNC_MASTER")
    wait_until(lambda: pair.send_one("up") == "SEND_OK", CATCH_UP_TIMEOUT_S, "SEND_OK")
    pid = second.brokers[NAME].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        assert pair.send_one("frozen") == "FLUSH_SLAVE_TIMEOUT"
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: pair.send_one("thawed") == "SEND_OK", CATCH_UP_TIMEOUT_S, "SEND_OK again")
    second.kill_broker()
    wait_until(
        lambda: pair.send_one("alone") == "SLAVE_NOT_AVAILABLE", CATCH_UP_TIMEOUT_S, "no slave"
    )
    second.start_broker()
    wait_until(lambda: pair.send_one("back") == "SEND_OK", CATCH_UP_TIMEOUT_S, "SEND_OK at last")


def test_a_java_pair_is_taken_over_one_broker_after_the_other(pair: Pair) -> None:
    """Follows the guide: first the slave is replaced, then the master, each on its own store."""
    first, second = pair.start("java", "java")
    pair.fill()
    wait_until_equal(first, second)
    second.stop_broker()
    second = pair.broker("comet", "slave", SLAVE)
    second.start_broker()
    pair.fill()
    wait_until_equal(first, second)
    first.stop_broker()
    first = pair.broker("comet", "master", {})
    first.start_broker()
    pair.fill()
    wait_until_equal(first, second)
    assert_equal_logs(first, second)
    assert pair.consume("TakenOver", len(pair.sent)) == sent(pair.sent)


@pytest.mark.parametrize("heir", ["comet", "java"])
def test_a_former_master_with_messages_of_its_own_is_told_so(pair: Pair, heir: str) -> None:
    """Its log ends where a record of the new master begins, so a Java slave would follow."""
    first, second = pair.start("comet", "comet")
    pair.fill()
    wait_until_equal(first, second)
    common = end_of(second)
    second.stop_broker()
    for number in range(3):
        pair.send_one(f"lost{number}")
    end = end_of(first)
    first.stop_broker()

    new = pair.broker(heir, "slave", {"brokerRole": "ASYNC_MASTER", "brokerId": 0})
    new.start_broker()
    for number in range(3):
        pair.send_one(f"kept{number}")
    assert end_of(new) == end > common
    pair.fill()
    former = pair.broker("comet", "master", SLAVE)
    former.start_broker()
    wait_until(
        lambda: figures(former).get("replicationRefused") == "diverged",
        CATCH_UP_TIMEOUT_S,
        "the former master is told that its log is another one",
    )
    assert end_of(former) == end
