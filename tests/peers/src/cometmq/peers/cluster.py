# SPDX-License-Identifier: Apache-2.0
"""Runs a name server and its brokers on loopback, in either implementation (Java or CometMQ).

`JavaCluster` and `CometCluster` differ only in the commands they run and in the log line that
signals readiness. Both read the same properties files, so a `Layout` (ports, names, stores) of one
can be passed to the other: this is how tests exchange stores.
"""

import signal
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cometmq.peers.errors import PeerError
from cometmq.peers.ports import HOST, free_broker_port, free_port
from cometmq.peers.processes import Child, KilledOnExit
from cometmq.peers.wire import registered_brokers

START_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 60.0
CLUSTER_NAME: Final = "PeersCluster"


@dataclass(frozen=True)
class BrokerPlace:
    name: str
    port: int
    store_dir: Path

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


@dataclass(frozen=True)
class Layout:
    """The parts of a cluster that outlive its processes: ports, broker names, stores."""

    namesrv_port: int
    brokers: tuple[BrokerPlace, ...]

    @classmethod
    def fresh(cls, directory: Path, *, broker_count: int) -> Self:
        """Choose free ports, and store folders under `directory`."""
        names = [f"broker-{letter}" for letter in "abcdefgh"[:broker_count]]
        return cls(
            namesrv_port=free_port(),
            brokers=tuple(
                BrokerPlace(name, free_broker_port(), directory / name / "store") for name in names
            ),
        )


class Cluster(KilledOnExit):
    """One name server and its brokers.

    Leaving the context kills every process, because a Java broker takes 10 s to stop. Call `stop`
    first where a clean stop matters.
    """

    def __init__(
        self,
        directory: Path,
        broker_conf: Mapping[str, object] | None = None,
        *,
        namesrv_conf: Mapping[str, object] | None = None,
        transaction_conf: Mapping[str, object] | None = None,
        broker_count: int = 1,
        layout: Layout | None = None,
    ) -> None:
        """`transaction_conf` sets how transactions are checked; without it, CometMQ checks none."""
        self.directory = directory
        self.transaction_conf = transaction_conf
        self.layout = layout or Layout.fresh(directory, broker_count=broker_count)
        self.broker_conf = dict(broker_conf or {})
        self.namesrv_conf = dict(namesrv_conf or {})
        self.namesrv: Child | None = None
        self.brokers: dict[str, Child] = {}

    @property
    def namesrv_addr(self) -> str:
        return f"{HOST}:{self.layout.namesrv_port}"

    @property
    def broker_addrs(self) -> list[str]:
        return [place.address for place in self.layout.brokers]

    @property
    def broker_names(self) -> list[str]:
        """The names of all brokers, in the order of `broker_addrs`."""
        return [place.name for place in self.layout.brokers]

    @property
    def store_dir(self) -> Path:
        return self.layout.brokers[0].store_dir

    def start(self) -> None:
        """Start the name server, then the brokers; return once all are registered."""
        self.start_namesrv()
        for place in self.layout.brokers:
            self._launch_broker(place)
        for place in self.layout.brokers:
            self._await_broker(place)

    def start_namesrv(self) -> None:
        """Start the name server and wait until it is ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        conf_path = self.directory / "namesrv.conf"
        write_properties(conf_path, self._namesrv_properties())
        self.namesrv = Child(
            "namesrv", self._namesrv_command(conf_path), log_path=self.directory / "namesrv.log"
        )
        self.namesrv.wait_for_log(self._ready_text(), START_TIMEOUT_S)

    def start_broker(self, index: int = 0) -> None:
        """Start one broker and wait until the name server lists it."""
        place = self.layout.brokers[index]
        self._launch_broker(place)
        self._await_broker(place)

    def stop_broker(self, index: int = 0) -> int:
        """Stop one broker with SIGTERM; return its exit status."""
        return self.brokers.pop(self.layout.brokers[index].name).stop(STOP_TIMEOUT_S)

    def kill_broker(self, index: int = 0) -> int:
        """Kill one broker with SIGKILL; return its exit status."""
        return self.brokers.pop(self.layout.brokers[index].name).kill()

    def stop(self) -> None:
        """Stop the brokers, then the name server; raise an error if one had to be killed."""
        running = [child for child in self._take_children() if child.exit_status is None]
        statuses = {child.name: child.stop(STOP_TIMEOUT_S) for child in running}
        if killed := [name for name, status in statuses.items() if status == -signal.SIGKILL]:
            raise PeerError(f"did not stop within {STOP_TIMEOUT_S:.0f} s: {', '.join(killed)}")

    def kill(self) -> None:
        """Kill all processes with SIGKILL."""
        for child in self._take_children():
            child.kill()

    def _take_children(self) -> list[Child]:
        children = [*self.brokers.values(), *([self.namesrv] if self.namesrv else [])]
        self.brokers, self.namesrv = {}, None
        return children

    def _launch_broker(self, place: BrokerPlace) -> None:
        """Start a broker without waiting for it to be ready."""
        if place.name in self.brokers:
            raise PeerError(f"{place.name} runs already")
        conf_path = self.directory / f"{place.name}.conf"
        write_properties(conf_path, self._broker_properties(place))
        self.brokers[place.name] = Child(
            place.name,
            self._broker_command(conf_path),
            log_path=self.directory / f"{place.name}.log",
        )

    def _await_broker(self, place: BrokerPlace) -> None:
        """Wait until a broker logs that it is ready and appears in the name server's list."""
        child = self.brokers[place.name]
        child.wait_for_log(self._ready_text(), START_TIMEOUT_S)
        child.wait_until(
            lambda: place.name in registered_brokers(self.namesrv_addr),
            START_TIMEOUT_S,
            "registered",
        )

    def _namesrv_properties(self) -> dict[str, object]:
        return {
            "listenPort": self.layout.namesrv_port,
            "kvConfigPath": self.directory / "namesrv" / "kvConfig.json",
            "configStorePath": self.directory / "namesrv" / "namesrv.properties",
            **self.namesrv_conf,
        }

    def _broker_properties(self, place: BrokerPlace) -> dict[str, object]:
        return {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": place.name,
            "brokerId": 0,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": place.port,
            "namesrvAddr": self.namesrv_addr,
            "storePathRootDir": place.store_dir,
            "storePathCommitLog": place.store_dir / "commitlog",
            **self.broker_conf,
        }

    @abstractmethod
    def _namesrv_command(self, conf_path: Path) -> list[str]:
        """Return the command line of the name server."""

    @abstractmethod
    def _broker_command(self, conf_path: Path) -> list[str]:
        """Return the command line of a broker."""

    @abstractmethod
    def _ready_text(self) -> str:
        """Return the text that a program prints once it is ready."""


def write_properties(path: Path, values: Mapping[str, object]) -> None:
    lines = [f"{key}={_property_text(value)}" for key, value in values.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _property_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
