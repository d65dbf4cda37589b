# SPDX-License-Identifier: Apache-2.0
"""Runs a master and its slave behind one interface, in either implementation.

CometMQ's pair is a group of two copies with an elector and a record in a file; every send waits
until both copies have it. RocketMQ's pair is a SYNC_MASTER and a SLAVE. Without `is_sync`, sends
do not wait for a slave that is down (`minInSync=1`, ASYNC_MASTER).
"""

import abc
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from macro.native import BenchError, FirstAnswer
from macro.parent import PARENT, PARENT_PROGRAM
from macro.servers import BROKER_CONF, JAVA_HEAP, Server
from macro.setups import PLAIN, Setup

from cometmq.peers.cluster import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    BrokerPlace,
    Cluster,
    Layout,
    write_properties,
)
from cometmq.peers.comet import PROGRAM, CometCluster
from cometmq.peers.java import JavaCluster
from cometmq.peers.ports import HOST, free_broker_port, free_port
from cometmq.peers.processes import LOG_TAIL_CHARS, Child, KilledOnExit, wait_until
from cometmq.peers.wire import call

NAME: Final = "broker-a"  # of both brokers; the generator's default
COPIES: Final = 2
RUNTIME_INFO: Final = 28
STATUS_TIMEOUT_S: Final = 60.0


class Pair(KilledOnExit):
    """A name server, a master and its slave; leaving the context kills all processes."""

    def __init__(self, directory: Path, members: Sequence[Cluster]) -> None:
        self.directory = directory
        self.setup = PLAIN
        self._members = list(members)

    def apply(self, setup: Setup) -> None:
        """Configure a pair that has not been started."""
        self.setup = setup
        for member in self._members:
            setup.apply(member)

    @property
    def master(self) -> Cluster:
        return self._members[0]

    @property
    def slave(self) -> Cluster:
        return self._members[1]

    @property
    def slave_pid(self) -> int:
        return self.slave.brokers[NAME].pid

    @abc.abstractmethod
    def start(self) -> None:
        """Start all processes; return once the slave is connected and sends are accepted."""

    def stop_slave(self) -> None:
        self.slave.stop_broker()

    def start_slave(self) -> None:
        self.slave.start_broker()

    def logs(self) -> str:
        """Return the ends of all logs, because the stores are deleted after a failure."""
        paths = sorted(path for path in self.directory.rglob("*.log") if path.stat().st_size)
        tails = (path.read_text(errors="replace")[-LOG_TAIL_CHARS:] for path in paths)
        return "\n".join(f"== {path} ==\n{tail}" for path, tail in zip(paths, tails, strict=True))

    def kill(self) -> None:
        for member in self._members:
            member.kill()


class JavaPair(Pair):
    """RocketMQ's master and slave, both with a G1 heap of 4 GB."""

    def __init__(self, directory: Path, *, is_sync: bool) -> None:
        role = "SYNC_MASTER" if is_sync else "ASYNC_MASTER"
        confs: tuple[dict[str, object], ...] = (
            {"brokerRole": role}, {"brokerRole": "SLAVE", "brokerId": 1}
        )  # fmt: skip
        port = free_port()
        members = [
            JavaCluster(
                directory / str(number), {**BROKER_CONF, **conf},
                layout=_layout(directory, port, number), heap=JAVA_HEAP,
            )
            for number, conf in enumerate(confs)
        ]  # fmt: skip
        super().__init__(directory, members)

    def start(self) -> None:
        self.master.start_namesrv()
        self.master.start_broker()
        self.slave.directory.mkdir(parents=True, exist_ok=True)
        self.slave.start_broker()
        _await_first_send(self)  # a SYNC_MASTER refuses until its slave follows


class GroupMember(CometCluster):
    """A broker of a group: the elector decides when it registers with the name server."""

    def __init__(self, *arguments: Any, prefix: Sequence[str] = (), **options: Any) -> None:
        """`prefix` is put before the broker's command, for example to run a profiler."""
        super().__init__(*arguments, **options)
        self._prefix = list(prefix)

    def _broker_command(self, conf_path: Path) -> list[str]:
        return [*self._prefix, *super()._broker_command(conf_path)]

    def _await_broker(self, place: BrokerPlace) -> None:
        self.brokers[place.name].wait_for_log("broker.ready", START_TIMEOUT_S)


class CometPair(Pair):
    """A CometMQ group of two copies with one elector and a record in a file."""

    def __init__(
        self,
        directory: Path,
        *,
        is_sync: bool,
        extra: Mapping[str, object] | None = None,
        prefixes: Sequence[Sequence[str]] = ((), ()),
        program: Path = PROGRAM,
    ) -> None:
        self._program = str(program)
        layouts = [_layout(directory, namesrv, n) for namesrv in (free_port(),) for n in (0, 1)]
        ports = [layout.brokers[0].port for layout in layouts]
        controls = [free_port() for _ in range(COPIES)]
        shared = {
            "brokerName": NAME,
            "groupRecord": f"file:{directory}/record/{NAME}.json",
            "minInSync": COPIES if is_sync else 1,
        }
        self._elector_conf = {**shared, "controlMembers": _members(controls)}
        self._elector: Child | None = None
        members = [
            GroupMember(
                directory / str(number),
                {
                    **BROKER_CONF, **shared, **(extra or {}), "brokerId": number,
                    "controlPort": controls[number], "groupMembers": _members(ports),
                },
                layout=layout, prefix=prefix,
            )
            for number, (layout, prefix) in enumerate(zip(layouts, prefixes, strict=True))
        ]  # fmt: skip
        for member in members:
            member.program = program
        super().__init__(directory, members)

    @property
    def _elector_path(self) -> Path:
        return self.directory / "elector.conf"

    def start(self) -> None:
        first, second = self._members
        first.start_namesrv()
        second.directory.mkdir(parents=True, exist_ok=True)
        first.start_broker()
        second.start_broker()
        write_properties(self._elector_path, self._elector_conf)
        command = [self._program, "elector", "-c", str(self._elector_path)]
        log_path = self.directory / "elector.log"
        self._elector = Child("elector", command, log_path=log_path)
        self._elector.wait_until(self._is_complete, START_TIMEOUT_S, "both copies in sync")
        if self._status()["master"] == 1:
            self._members.reverse()
        _await_first_send(self)

    def kill(self) -> None:
        if self._elector is not None:
            self._elector.kill()
        super().kill()

    def stop(self) -> None:
        """Stop the elector, then the slave and the master, so that profilers write their files."""
        assert self._elector is not None
        self._elector.stop(STOP_TIMEOUT_S)
        for member in (self.slave, self.master):
            member.stop()

    def _is_complete(self) -> bool:
        return [one["state"] for one in self._status().get("members", ())] == ["ok"] * COPIES

    def _status(self) -> dict[str, Any]:
        done = subprocess.run(
            [self._program, "ha", "status", "-c", str(self._elector_path), "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=STATUS_TIMEOUT_S,
            check=False,
        )
        try:
            status: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise BenchError(f"cometmq ha status: {done.stderr.decode().strip()}") from None
        return status


def _await_first_send(pair: Pair) -> None:
    port = pair.master.layout.brokers[0].port
    options = pair.setup.generator_options
    with FirstAnswer("first-send", port, timeout=START_TIMEOUT_S, **options) as first:
        first.accepted_s()


def _layout(directory: Path, namesrv_port: int, number: int) -> Layout:
    place = BrokerPlace(NAME, free_broker_port(), directory / str(number) / "store")
    return Layout(namesrv_port, (place,))


def _members(ports: Sequence[int]) -> str:
    return ";".join(f"{number}={HOST}:{port}" for number, port in enumerate(ports))


PAIRS: Final[dict[str, Callable[[Path, bool], Pair]]] = {
    "comet": lambda directory, is_sync: CometPair(directory, is_sync=is_sync),
    "python": lambda directory, is_sync: CometPair(
        directory, is_sync=is_sync, extra={"nativeLaneEnable": False}
    ),
    PARENT: lambda directory, is_sync: CometPair(
        directory, is_sync=is_sync, program=PARENT_PROGRAM
    ),
    "java": lambda directory, is_sync: JavaPair(directory, is_sync=is_sync),
}


class PairServer(Server):
    """A pair under load; the processor times of both brokers are added up."""

    def __init__(self, name: str, pair: Pair, serialization: str) -> None:
        super().__init__(name, pair.master, serialization, pair.setup)
        self.pair = pair

    @property
    def pids(self) -> list[int]:
        members = (self.pair.master, self.pair.slave)
        return [one.brokers[NAME].pid for one in members if NAME in one.brokers]


def log_end(cluster: Cluster) -> int:
    """Return where a broker's log ends, or -1 while the broker is not responding."""
    try:
        answer = call(cluster.broker_addrs[0], RUNTIME_INFO)
    except OSError:
        return -1
    if answer.code != 0:
        return -1
    return int(json.loads(answer.body)["table"].get("commitLogMaxOffset", "-1"))


def await_equal_logs(pair: Pair, timeout_s: float) -> None:
    """Wait until the slave has the master's whole log; nothing may be sent meanwhile."""
    wait_until(
        lambda: 0 < log_end(pair.master) == log_end(pair.slave),
        timeout_s,
        "the slave to have the master's log",
    )
