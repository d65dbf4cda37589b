# SPDX-License-Identifier: Apache-2.0
"""Compare Python clients: CometMQ's, the C++-based one and the official one for 5.x.

    make bench-clients ARGS="--count 20000 --rounds 3"

All clients use the same server: a RocketMQ 5.3.3 broker and its proxy, in one process. The first
two use the remoting protocol and connect to the broker; the third supports only gRPC and connects
to the proxy. The programs run one after another; each prints its rate and its processor time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import page
from macro.native import fill

from cometmq.peers.clients.cppclient import client_python
from cometmq.peers.clients.environments import grpc_client_python
from cometmq.peers.java.proxy import ProxyCluster
from cometmq.peers.processes import wait_until
from cometmq.peers.wire import call

BENCH: Final = Path(__file__).resolve().parent
PROGRAMS: Final = BENCH / "clients"
PAGE: Final = BENCH.parent / "docs" / "guides" / "clients-compared.md"
RUN_TIMEOUT_S: Final = 180.0
READY_TIMEOUT_S: Final = 60.0
GET_MAX_OFFSET: Final = 30
CREATE_TOPIC: Final = 17
QUEUES: Final = 4
WINDOWS: Final = (1, 64)


@dataclass(frozen=True)
class Client:
    """A client, and the form in which it is used."""

    title: str
    python: Path
    program: str
    form: str = ""


@dataclass(frozen=True)
class Figure:
    """The result of one run: messages per second, and processor time per message."""

    rate: float
    cpu_us: float


def clients() -> list[Client]:
    """Return all clients; other projects' clients are installed on first use."""
    here = Path(sys.executable)
    return [
        Client("CometMQ, uvloop", here, "comet_program.py", "uvloop"),
        Client("CometMQ, asyncio", here, "comet_program.py", "asyncio"),
        Client("CometMQ, without an event loop", here, "comet_program.py", "sync"),
        Client("rocketmq 0.4.4 (C++)", client_python(), "cpp_program.py"),
        Client("rocketmq-python-client 5.1.2 (gRPC)", grpc_client_python(), "grpc_program.py"),
    ]


class Bench:
    """Operations on a running server."""

    def __init__(self, cluster: ProxyCluster, home: Path) -> None:
        """Use a server that is already running; clients write their logs under `home`."""
        self._cluster = cluster
        self._home = home
        self._numbers = iter(range(1_000_000))

    def prepare(self, count: int) -> str:
        """Create a topic with `count` messages; return its name."""
        topic = f"CLIENTS_{next(self._numbers)}"
        address = self._cluster.layout.brokers[0].address
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        call(address, CREATE_TOPIC, fields)
        if count:
            port = self._cluster.layout.brokers[0].port
            shape = {"connections": 4, "in_flight": 32, "serialization": "json"}
            fill(port, count, topic=topic, queues=QUEUES, **shape)
            wait_until(lambda: self._length(topic) >= count, READY_TIMEOUT_S, f"{topic} readable")
        return topic

    def _length(self, topic: str) -> int:
        address = self._cluster.layout.brokers[0].address
        answers = (
            call(address, GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
            for queue_id in range(QUEUES)
        )
        return sum(int(answer.fields["offset"]) for answer in answers)

    def run(self, client: Client, command: str, topic: str, count: int, window: int = 1) -> Figure:
        """Run one client program to completion and return its figure; exit if the program fails."""
        options = {
            "--namesrv": self._cluster.namesrv_addr,
            "--endpoint": self._cluster.endpoint,
            "--topic": topic,
            "--group": f"CLIENTS_{next(self._numbers)}",
            "--count": str(count),
            "--in-flight": str(window),
            **({"--form": client.form} if client.form else {}),
        }
        words = [
            "env",
            f"HOME={self._home}",
            str(client.python),
            str(PROGRAMS / client.program),
            command,
        ]
        for name, value in options.items():
            words += [name, value]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"messages"')]
        if done.returncode or not lines:
            raise SystemExit(f"{client.title}: {command} failed: {done.stderr[-2000:]}")
        facts = json.loads(lines[-1])
        return Figure(count / facts["seconds"], facts["cpu_seconds"] / count * 1e6)


def measure(bench: Bench, count: int, rounds: int) -> Iterator[str]:
    """Yield the rows of the table as Markdown."""
    everyone = clients()
    figures: dict[tuple[str, str], list[Figure]] = {}
    for number in range(-1, rounds):  # the first round warms up the server and does not count
        turn = number % len(everyone)
        for client in everyone[turn:] + everyone[:turn]:
            for step, figure in one_round(bench, client, count):
                if number >= 0:
                    figures.setdefault((client.title, step), []).append(figure)
    steps = [*(f"send {window}" for window in WINDOWS), "consume"]
    for client in everyone:
        cells = [cell(figures[client.title, step]) for step in steps]
        yield f"| {client.title} | {' | '.join(cells)} |"


def one_round(bench: Bench, client: Client, count: int) -> Iterator[tuple[str, Figure]]:
    """Yield a client's figure for each send window, then its figure for consumption."""
    for window in WINDOWS:
        topic = bench.prepare(0)
        part = count if window > 1 else count // 5
        yield f"send {window}", bench.run(client, "send", topic, part, window)
    yield "consume", bench.run(client, "consume", bench.prepare(count), count)


def cell(rounds: list[Figure]) -> str:
    """Return the median rate and processor time of the rounds as two table cells."""
    rate = statistics.median(figure.rate for figure in rounds)
    cpu_us = statistics.median(figure.cpu_us for figure in rounds)
    return f"{rate:,.0f} | {cpu_us:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="messages of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    heads = [f"send, {window} in flight [/s] | CPU [us]" for window in WINDOWS]
    lines = [f"| client | {' | '.join(heads)} | consume [/s] | CPU [us] |"]
    lines.append("|---" * (2 * len(WINDOWS) + 3) + "|")
    with tempfile.TemporaryDirectory(prefix="cometmq-clients-") as name:
        home = Path(name) / "home"
        home.mkdir()
        with ProxyCluster(Path(name), heap="2g") as cluster:
            lines += measure(Bench(cluster, home), options.count, options.rounds)
    table = "\n".join(lines)
    print(table)
    if options.publish:
        page.replace(PAGE, "make bench-clients", table)


if __name__ == "__main__":
    main()
