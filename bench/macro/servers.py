# SPDX-License-Identifier: Apache-2.0
"""Runs the servers to compare, Java RocketMQ 4.9.4 and CometMQ, behind one interface.

Both run on loopback with their default configuration (asynchronous flush); Java has the heap that
its documentation recommends for a small machine.
"""

import abc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from macro.native import BenchError, FirstAnswer, Report, Senders, fill, loadgen, transact
from macro.parent import PARENT, PARENT_PROGRAM
from macro.process import children_cpu_seconds, cpu_seconds, machine_cpu_seconds
from macro.setups import PLAIN, Setup

from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import PROGRAM, CometCluster
from cometmq.peers.java import JavaCluster
from cometmq.peers.ports import HOST, free_broker_port, free_port
from cometmq.peers.processes import Child
from cometmq.peers.wire import Answer, Connection, call

JAVA_HEAP: Final = "4g"
STOP_TIMEOUT_S: Final = 20.0
SETTLE_TIMEOUT_S: Final = 60.0
SETTLE_STEP_S: Final = 0.25
IDLE_CPUS_MAX: Final = 0.2
BROKER_CONF: Final = {"flushDiskType": "ASYNC_FLUSH", "enablePropertyFilter": True}
GROUP: Final = "BENCH_GROUP"
HEART_BEAT: Final = 34
GET_MAX_OFFSET: Final = 30
CREATE_TOPIC: Final = 17
RUNTIME_INFO: Final = 28

Checks: TypeAlias = Mapping[str, object] | None
"""How transactions are checked; without it, CometMQ runs no txn-checker."""


def comet_cluster(directory: Path, checks: Checks = None) -> Cluster:
    """Return a cluster that runs CometMQ's name server and broker as separate processes."""
    return CometCluster(directory, BROKER_CONF, transaction_conf=checks)


def python_cluster(directory: Path, checks: Checks = None) -> Cluster:
    """Return a cluster that runs CometMQ without its native message path."""
    conf = BROKER_CONF | {"nativeLaneEnable": False}
    return CometCluster(directory, conf, transaction_conf=checks)


def parent_cluster(directory: Path, checks: Checks = None) -> Cluster:
    """Return a cluster that runs the parent's CometMQ."""
    cluster = CometCluster(directory, BROKER_CONF, transaction_conf=checks)
    cluster.program = PARENT_PROGRAM
    return cluster


def java_cluster(directory: Path, checks: Checks = None) -> Cluster:
    """Return a cluster that runs RocketMQ; the broker has a G1 heap of 4 GB."""
    return JavaCluster(directory, BROKER_CONF, heap=JAVA_HEAP, transaction_conf=checks)


CLUSTERS: Final[dict[str, Callable[[Path, Checks], Cluster]]] = {
    "comet": comet_cluster,
    "python": python_cluster,
    PARENT: parent_cluster,
    "java": java_cluster,
}


class Contestant(abc.ABC):
    """A running server that can be put under load."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abc.abstractmethod
    def broker_pid(self) -> int:
        """Return the id of the process that serves the load."""

    @property
    def pids(self) -> list[int]:
        """Return the processes whose processor time is measured."""
        return [self.broker_pid]

    @abc.abstractmethod
    def generate(self, mode: str, options: dict[str, object]) -> Report:
        """Run the generator."""

    def load(self, mode: str, **options: object) -> Report:
        """Run the generator, measured."""
        return self.measured(lambda: self.generate(mode, options))

    def measured(self, run: Callable[[], Report]) -> Report:
        """Run a load; add its duration and the CPU time of the server and of other programs."""
        os.sync()  # writes left over from the other server must not slow this one
        started_s = time.monotonic()
        cpu_before, others_before = self._cpu_seconds(), self._others_cpu_seconds()
        report = run()
        report["elapsed_s"] = time.monotonic() - started_s
        cpu = self._cpu_seconds() - cpu_before
        others = self._others_cpu_seconds() - others_before
        report["others_cpus"] = others / report["elapsed_s"]
        report["cpu_seconds_per_million"] = cpu / max(report["messages_in_all"], 1) * 1e6
        self.settle()
        return report

    def settle(self) -> None:
        """Wait until the server is idle, so that unfinished work does not affect the next sample.

        RocketMQ builds its queues after it has answered, and falls behind if there are thousands of
        them.
        """
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        used, before = IDLE_CPUS_MAX + 1, self._cpu_seconds()
        while used > IDLE_CPUS_MAX and time.monotonic() < deadline_s:
            time.sleep(SETTLE_STEP_S)
            now = self._cpu_seconds()
            used, before = (now - before) / SETTLE_STEP_S, now

    def _cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.pids))

    def _others_cpu_seconds(self) -> float:
        """Return the processor time of all programs but the server and exited generators."""
        return machine_cpu_seconds() - self._cpu_seconds() - children_cpu_seconds()


class Server(Contestant):
    """A running cluster whose broker can be put under load."""

    def __init__(
        self, name: str, cluster: Cluster, serialization: str, setup: Setup = PLAIN
    ) -> None:
        super().__init__(name)
        self.cluster = cluster
        self._setup = setup
        self._options = {"serialization": serialization, **setup.generator_options}

    @property
    def broker_pid(self) -> int:
        return self.cluster.brokers[self.cluster.broker_names[0]].pid

    @property
    def pids(self) -> list[int]:
        checker = self.cluster.txn_checker if isinstance(self.cluster, CometCluster) else None
        return [self.broker_pid, *([checker.pid] if checker else [])]

    @property
    def port(self) -> int:
        return self.cluster.layout.brokers[0].port

    def generate(self, mode: str, options: dict[str, object]) -> Report:
        if mode == "transact":
            return transact(self.port, **options)
        return loadgen(mode, self.port, **self._options, **options)

    def sending(self, *, rate: int, **options: object) -> Senders:
        """Start a generator that sends at a given rate until its report is requested."""
        return Senders(self.port, rate=rate, **self._options, **options)

    def create_topic(self, topic: str, *, queues: int) -> None:
        """Create a topic with `queues` read queues and the same number of write queues."""
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues),
            "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        self._call(CREATE_TOPIC, fields)

    def _call(self, code: int, fields: dict[str, str]) -> Answer:
        answer = call(f"{HOST}:{self.port}", code, self._setup.signed(fields))
        if answer.code != 0:
            raise BenchError(f"{self.name}: {code} refused: {answer.remark}")
        return answer

    def runtime_info(self) -> dict[str, str]:
        """Return the broker's statistics, as `mqadmin brokerStatus` shows them."""
        table: dict[str, str] = json.loads(self._call(RUNTIME_INFO, {}).body)["table"]
        return table

    @contextmanager
    def subscribed(self, topic: str, expression: str) -> Iterator[None]:
        """Keep a consumer with an SQL subscription connected inside the context."""
        with Connection(f"{HOST}:{self.port}") as connection:
            answer = connection.call(HEART_BEAT, body=heartbeat(topic, expression))
            if answer.code != 0:
                raise BenchError(f"{self.name}: subscription refused: {answer.remark}")
            yield

    def length(self, topic: str, *, queues: int) -> int:
        """Return the number of messages in all queues of a topic."""
        fields = ({"topic": topic, "queueId": str(queue_id)} for queue_id in range(queues))
        return sum(int(self._call(GET_MAX_OFFSET, each).fields["offset"]) for each in fields)

    def fill(self, count: int, **options: object) -> None:
        fill(self.port, count, **self._options, **options)

    def restart_after_kill(self, **options: object) -> float:
        """Kill and restart the broker; return how many seconds pass until it answers a pull."""
        self.cluster.kill_broker()
        with FirstAnswer("first-pull", self.port, **self._options, **options) as first:
            started_s = time.monotonic()
            self.cluster.start_broker()
            return first.accepted_s() - started_s


def heartbeat(topic: str, expression: str) -> bytes:
    """Return the heartbeat that a Java push consumer with an SQL subscription sends."""
    subscription = {
        "classFilterMode": False, "codeSet": [], "expressionType": "SQL92",
        "subString": expression, "subVersion": 1, "tagsSet": [], "topic": topic,
    }  # fmt: skip
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
        "groupName": GROUP, "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription], "unitMode": False,
    }  # fmt: skip
    body = {"clientID": "bench", "consumerDataSet": [consumer], "producerDataSet": []}
    return json.dumps(body).encode()


@contextmanager
def running(
    name: str,
    directory: Path,
    serialization: str,
    checks: Checks = None,
    setup: Setup = PLAIN,
) -> Iterator[Server]:
    """Start a server; stop its processes on leaving the context."""
    prepared = CLUSTERS[name](directory, checks)
    setup.apply(prepared)
    with prepared as cluster:
        yield Server(name, cluster, serialization, setup)


def start_seconds(name: str, directory: Path, serialization: str) -> float:
    """Return the seconds from a start on an empty store to the first accepted message.

    A message is accepted once the name server has a route and the broker answers with code 0.
    """
    return _STARTS[name](directory, serialization)


def _start_java(directory: Path, serialization: str) -> float:
    """Start the name server and, once it is ready, the broker, as the guide describes."""
    cluster = java_cluster(directory)
    namesrv_port, port = cluster.layout.namesrv_port, cluster.layout.brokers[0].port
    with FirstAnswer(
        "first-send", port, namesrv_port=namesrv_port, serialization=serialization
    ) as first:
        started_s = time.monotonic()
        with cluster:
            return first.accepted_s() - started_s


def _start_comet(
    directory: Path, serialization: str, *options: str, program: Path = PROGRAM
) -> float:
    """Start `cometmq standalone`, which runs both servers in one process."""
    namesrv_port, port = free_port(), free_broker_port()
    command = [
        str(program), "standalone", "--data", str(directory / "data"),
        "--namesrv-port", str(namesrv_port), "--broker-port", str(port), "--http-port", "0",
        *options,
    ]  # fmt: skip
    with FirstAnswer(
        "first-send", port, namesrv_port=namesrv_port, serialization=serialization
    ) as first:
        started_s = time.monotonic()
        child = Child("standalone", command, log_path=directory / "standalone.log")
        try:
            return first.accepted_s() - started_s
        except BenchError as exc:
            raise BenchError(f"{exc}\n{child.log()[-2000:]}") from exc
        finally:
            child.stop(STOP_TIMEOUT_S)


def _start_watched(directory: Path, serialization: str) -> float:
    return _start_comet(directory, serialization, "--console-port", "0")


_STARTS: Final[dict[str, Callable[[Path, str], float]]] = {
    "comet": _start_comet,
    "watched": _start_watched,
    PARENT: partial(_start_comet, program=PARENT_PROGRAM),
    "python": _start_comet,  # start-up does not depend on the native path
    "java": _start_java,
}
