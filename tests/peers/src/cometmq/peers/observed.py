# SPDX-License-Identifier: Apache-2.0
"""Runs a suite whose processes all serve metrics, and traffic that yields values for them.

The suite has a name server, a group of two brokers with an elector, a txn-checker, and an exporter
with a consumer that it asks.
"""

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Final

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import HOST, free_broker_port, free_port, members_at
from cometmq.peers.processes import Child, wait_until

GROUP: Final = "orders"
TOPIC: Final = "Books"
CONSUMERS: Final = "billing"
CONNECTED: Final = "audit"
"""The group of the consumer that stays connected."""
COPIES: Final = 2
SENT_COUNT: Final = 64
CONSUMED_COUNT: Final = 10
START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 60
COMMAND_TIMEOUT_S: Final = 120

_BROKER: Final = """\
brokerName={group}
brokerId={ordinal}
brokerIP1={host}
bindAddress={host}
listenPort={port}
controlPort={control}
adminHttpPort={http}
storePathRootDir={folder}/{ordinal}
mappedFileSizeCommitLog=1048576
diskSpaceCleanForciblyRatio=100
diskSpaceWarningLevelRatio=100
namesrvAddr={namesrv}
groupRecord=file:{folder}/record.json
groupMembers={members}
"""
_ELECTOR: Final = """\
brokerName={group}
groupRecord=file:{folder}/record.json
controlMembers={members}
adminHttpPort={http}
"""
_OTHER: Final = {
    "namesrv": "listenPort={port}\nbindAddress={host}\nadminHttpPort={http}\n",
    "txn-checker": "namesrvAddr={namesrv}\nstorePathRootDir={folder}/txn\nadminHttpPort={http}\n",
    "exporter": "namesrvAddr={namesrv}\ncollectInterval=1000\nadminHttpPort={http}\n",
}


class ObservedSuite:
    """All processes of the suite; `http` maps each to the address of its HTTP port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.namesrv = f"{HOST}:{self._port}"
        self._ports = [free_broker_port() for _ in range(COPIES)]
        self._controls = [free_port() for _ in range(COPIES)]
        names = ["namesrv", *(f"broker-{n}" for n in range(COPIES)), "elector", "txn-checker"]
        names.append("exporter")
        self.http = {name: f"{HOST}:{free_port()}" for name in names}
        self._children: dict[str, Child] = {}

    def start(self) -> None:
        """Start all processes, and wait until the group is complete."""
        for name in self.http:
            conf = self._folder / f"{name}.conf"
            conf.write_text(self._settings(name))
            program = name.partition("-")[0] if name.startswith("broker") else name
            command = [str(PROGRAM), program, "-c", str(conf), "--log-text"]
            log = self._folder / "logs" / f"{name}.log"
            self._children[name] = Child(name, command, log_path=log, cwd=self._folder)
            self._children[name].wait_for_log(".ready", START_TIMEOUT_S)
        wait_until(self._is_complete, START_TIMEOUT_S, "both copies in sync")

    def stop(self) -> None:
        """Stop all processes: the consumer and the elector first, so that no new master is
        elected.
        """
        first = (CONNECTED, "elector")
        for name in sorted(self._children, key=lambda name: name not in first):
            self._children.pop(name).stop(STOP_TIMEOUT_S)

    def scrape(self, name: str) -> str:
        """Return the metrics of one process."""
        with urllib.request.urlopen(f"http://{self.http[name]}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def send_and_consume(self) -> None:
        """Send messages, of which a group consumes the first few before it leaves; a consumer of
        another group stays.
        """
        count, taken = str(SENT_COUNT), str(CONSUMED_COUNT)
        self.run("produce", TOPIC, "a book", "--count", count)
        self.run("consume", TOPIC, "-g", CONSUMERS, "--from", "first", "--max", taken)
        options = ["-g", CONNECTED, "--from", "first", "-n", self.namesrv]
        command = [str(PROGRAM), "consume", TOPIC, *options]
        log = self._folder / "logs" / f"{CONNECTED}.log"
        self._children[CONNECTED] = Child(CONNECTED, command, log_path=log, cwd=self._folder)
        wait_until(self._has_figures, START_TIMEOUT_S, "the exporter shows the consumer")
        wait_until(self._has_lag, START_TIMEOUT_S, "the lag of the group is measured")

    def send(self) -> None:
        """Send more messages, so that rates are above 0."""
        self.run("produce", TOPIC, "another book", "--count", "8")

    @property
    def last_broker(self) -> str:
        """The address of the broker with the highest id."""
        return f"{HOST}:{self._ports[-1]}"

    def lag(self) -> int:
        """Return how many messages the group has not consumed, as the brokers report to clients."""
        found = json.loads(self.run("lag", CONSUMERS, "--json"))
        return int(found["lag"])

    def run(self, *words: str) -> str:
        """Run a command of the command line, and return its output."""
        done = subprocess.run(
            [str(PROGRAM), *words, "-n", self.namesrv],
            check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
        return done.stdout

    def _is_complete(self) -> bool:
        return f'cometmq_elector_in_sync{{group="{GROUP}"}} {COPIES}.0' in self.scrape("elector")

    def _has_figures(self) -> bool:
        return any(
            line.startswith("rocketmq_client_consume_ok_msg_tps{") and f'topic="{TOPIC}"' in line
            for line in self.scrape("exporter").splitlines()
        )

    def _has_lag(self) -> bool:
        row = f'cometmq_group_lag_seconds{{broker="{GROUP}"'
        return any(
            line.startswith(row) and f'group="{CONSUMERS}"' in line
            for ordinal in range(COPIES)
            for line in self.scrape(f"broker-{ordinal}").splitlines()
        )

    def _settings(self, name: str) -> str:
        ordinal = int(name[-1]) if name.startswith("broker") else 0
        is_elector = name == "elector"
        form = _ELECTOR if is_elector else _OTHER.get(name, _BROKER)
        return form.format(
            group=GROUP,
            host=HOST,
            ordinal=ordinal,
            port=self._port if name == "namesrv" else self._ports[ordinal],
            control=self._controls[ordinal],
            http=self.http[name].rpartition(":")[2],
            folder=self._folder,
            namesrv=self.namesrv,
            members=members_at(self._controls if is_elector else self._ports),
        )
