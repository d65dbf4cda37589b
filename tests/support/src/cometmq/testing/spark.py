# SPDX-License-Identifier: Apache-2.0
"""Topics of numbered messages, runs of `cometmq-lag`, and a Pushgateway for tests."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Request
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.names import AUTO_CREATE_TOPIC
from cometmq.spark.cluster.connection import BrokerConnection, LinkSettings, accepted
from cometmq.spark.cluster.metadata import Metadata
from cometmq.spark.cluster.topics import MASTER_ID, NameServers
from cometmq.spark.errors import OffsetMissing, TopicMissing
from cometmq.spark.options.definitions import parse
from cometmq.spark.options.offsets_json import Queue

BORN_MS: Final = 1_700_000_000_000
_BATCH_COUNT: Final = 500
_IN_QUEUES_S: Final = 60.0
_POLL_S: Final = 0.02

LAG: Final = Path(sys.executable).with_name("cometmq-lag")

Make = Callable[[Queue, int], BatchItem]


def run_lag(*words: object) -> tuple[int, str, list[str]]:
    """Run a command of `cometmq-lag`; return its status, output, and the lines of its errors."""
    command = [str(LAG), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert "\tat " not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr.splitlines()


class Gateway(ThreadingHTTPServer):
    """A Prometheus Pushgateway that records requests; it rejects them if the test requires it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _GatewayHandler)
        self.requests: list[tuple[str, str, str]] = []
        self.answer = 202

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _GatewayHandler(BaseHTTPRequestHandler):
    server: Gateway

    def _take(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size).decode()
        self.server.requests.append((self.command, self.path, body))
        self.send_response(self.server.answer)
        self.end_headers()
        if self.server.answer >= 400:
            self.wfile.write(b"pushed metrics are invalid")

    do_PUT = do_DELETE = _take  # noqa: N815  # the names that http.server looks for

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""


def numbered(queue: Queue, number: int) -> BatchItem:
    """Build a message whose body contains its queue and its number."""
    key = f"{queue.broker_name}-{queue.queue_id}-{number}"
    body = f"{key}:".ljust(100, "x").encode()
    return BatchItem(0, body, f"TAGS\x01t{number % 3}\x02KEYS\x01{key}\x02UNIQ_KEY\x01{key}")


def fill(
    name_server: str, topic: str, count: int, *, first: int = 0, make: Make = numbered
) -> list[Queue]:
    """Send `count` messages to each queue of a topic, numbered from `first`; return the queues.

    Waits until all can be read: RocketMQ dispatches messages to queues after it has answered.
    """
    with NameServers(parse({"nameServer": name_server})) as names:
        route = names.route(topic)
    if route is None:
        raise TopicMissing(f"topic `{topic}` does not exist")
    before = count_messages(name_server, topic)
    for name, addresses in route.brokers.items():
        own = [queue for queue in route.write_queues if queue.broker_name == name]
        with BrokerConnection(addresses[MASTER_ID], LinkSettings(30_000)) as connection:
            for queue in own:
                _send(connection, queue, range(first, first + count), make)
    wait_for_messages(name_server, topic, before + count * len(route.write_queues))
    return list(route.write_queues)


def wait_for_messages(name_server: str, topic: str, count: int) -> None:
    """Wait until the queues of a topic have received `count` messages in total."""
    pause = threading.Event()
    deadline = time.monotonic() + _IN_QUEUES_S
    while (found := count_messages(name_server, topic)) < count:
        if time.monotonic() > deadline:
            raise OffsetMissing(f"topic `{topic}` holds {found} messages, not {count}")
        pause.wait(_POLL_S)


def count_messages(name_server: str, topic: str) -> int:
    with Metadata(parse({"nameServer": name_server, "subscribe": topic})) as metadata:
        return sum(end for _, end in metadata.ends(metadata.queues()).values())


def _send(connection: BrokerConnection, queue: Queue, numbers: range, make: Make) -> None:
    requests = []
    for start in range(0, len(numbers), _BATCH_COUNT):
        part = numbers[start : start + _BATCH_COUNT]
        header = SendMessageV2(
            producer_group="PID_FILL",
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=BORN_MS,
            flag=0,
            properties="WAIT\x01true",
            batch=True,
        )
        items = [make(queue, number) for number in part]
        requests.append(Request(RequestCode.SEND_BATCH_MESSAGE, header, join_batch(items)))
    # Sequentially: a Java broker may store concurrent requests of a connection in any order.
    for request in requests:
        accepted(connection.invoke_all([request])[0])
