# SPDX-License-Identifier: Apache-2.0
"""A workload like that of a normal day: 10 topics, tags, accounts, TLS, delayed messages, retries,
and two consumer groups, one of which is too slow.

The native generator sends at a fixed rate, and this module, run as a program, consumes. A sample
contains the share of requests that took the native path.
"""

import asyncio
import json
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from macro.native import SOURCES, BenchError, Program, Report
from macro.scenarios import (
    ROUND_WARMUP_S,
    SAMPLE_ATTEMPTS,
    Plan,
    Sample,
    checked,
    in_turn,
    rates,
    warm_servers,
)
from macro.servers import Server
from macro.setups import USER, Setup
from macro.workloads import MIXED

from cometmq.peers.ports import HOST

TOPIC: Final = "BENCH_mixed"
TOPICS: Final = 10
QUEUES: Final = 4
SETUP: Final = Setup(accounts=True, tls=True)
RATE: Final = 10_000
"""Messages per second: a fifth of what RocketMQ accepts with accounts on two cores."""
DELAYED_RATE: Final = RATE // 20
SENDERS: Final[Mapping[str, Any]] = {
    "topic": TOPIC, "topics": TOPICS, "queues": QUEUES, "connections": 8, "in_flight": 32,
}  # fmt: skip
RETRY_SHARE: Final = 0.05
TAGS: Final = " || ".join(f"T{digit}" for digit in range(10))
FAST, SLOW = "fast", "slow"
RETRY_TOPIC: Final = f"%RETRY%{FAST}"
PAUSES_S: Final = {FAST: 0.1, SLOW: 1.0}
"""How long a consumer of each group takes for the messages of one pull. The fast group reads its
batches in time; the slow one reads at most 32 messages a second from each queue.
"""
STOP_TIMEOUT_S: Final = 30.0

Answer: TypeAlias = tuple[int, dict[str, str], bytes]
"""Code, fields and body."""

_PREFIX: Final = struct.Struct(">II")
_PLACE: Final = struct.Struct(">I24xq")  # size of a record, and its physical offset
_PULL, _SEND_BACK, _QUERY_OFFSET = 11, 36, 14
_FOUND, _NOT_FOUND, _RETRY, _MOVED, _NO_TOPIC = 0, 19, 20, 21, 17


def run_mixed(plan: Plan) -> None:
    """Run the workload on long-running servers, in the order A B B A."""
    with warm_servers(plan, MIXED.name, plan.servers, setup=SETUP) as servers:
        for server in servers:
            assert isinstance(server, Server)
            for number in range(TOPICS):
                server.create_topic(f"{TOPIC}_{number:04d}", queues=QUEUES)
            _attempt(plan, server, seconds=ROUND_WARMUP_S)
        for number in range(plan.rounds):
            for server in in_turn(servers, number):
                assert isinstance(server, Server)
                plan.add(MIXED.name, server.name, _attempt(plan, server, seconds=plan.seconds))


def _attempt(
    plan: Plan, server: Server, *, seconds: float, attempts: int = SAMPLE_ATTEMPTS
) -> Sample:
    """Take a sample; repeat it if the server refused requests, as `scenarios.measure` does."""
    try:
        return take(server, seconds=seconds)
    except BenchError as exc:
        if attempts == 1:
            raise
        plan.say(f"  repeated, because {exc}")
        return _attempt(plan, server, seconds=seconds, attempts=attempts - 1)


def take(server: Server, *, seconds: float) -> Sample:
    """Take one sample: the latencies of sends that are not delayed, and CometMQ's native share."""
    before = path_counts(server)

    def run() -> Report:
        with (
            Consumers(server.port) as consumers,
            server.sending(rate=DELAYED_RATE, properties="TAGS=T#,DELAY=1", **SENDERS) as delayed,
            server.sending(rate=RATE - DELAYED_RATE, properties="TAGS=T#", **SENDERS) as plain,
        ):
            time.sleep(seconds)
            report = plain.report()
            others = checked(server.name, delayed.report())
            totals = consumers.totals()
        if not totals["retries"]:
            raise BenchError(f"{server.name}: {totals['messages']} messages consumed, no retries")
        report["messages_in_all"] += others["messages_in_all"]
        return report

    sample = rates(checked(server.name, server.measured(run)))
    after = path_counts(server)
    if after is not None and before is not None:
        native, slow = (now - then for now, then in zip(after, before, strict=True))
        sample["native_share"] = native / (native + slow)
    return sample


def path_counts(server: Server) -> tuple[int, int] | None:
    """Return how many requests took the native path and how many did not, since the start."""
    table = server.runtime_info()
    if "nativeRequests" not in table:
        return None
    words = [word for word in table["slowRequests"].split(",") if word]
    return int(table["nativeRequests"]), sum(int(word.partition("=")[2]) for word in words)


class Consumers(Program):
    """Runs this module as a program that consumes until its totals are requested."""

    def __init__(self, port: int) -> None:
        super().__init__([sys.executable, "-m", "macro.mixed", str(port)], cwd=SOURCES.parent)
        self._line()  # "consuming"

    def totals(self) -> dict[str, int]:
        output = self._rest("the consumers failed", said="stop\n", timeout_s=STOP_TIMEOUT_S)
        totals: dict[str, int] = json.loads(output.splitlines()[-1])
        return totals


class Member:
    """A consumer: one connection for the queues of one topic."""

    def __init__(self, group: str, topic: str, totals: dict[str, int], *, queues: int) -> None:
        self._queues = queues
        self._group = group
        self._topic = topic
        self._totals = totals
        self._pause_s = PAUSES_S[group] / (1 if topic != RETRY_TOPIC else 4)
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._opaque = 0
        self._retry_share = RETRY_SHARE if group == FAST and topic != RETRY_TOPIC else 0.0
        self._unretried = 0.0

    async def run(self, port: int) -> None:
        reader, self._writer = await asyncio.open_connection(
            HOST, port, limit=1 << 24, ssl=SETUP.client_context
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(reader))
            for queue_id in range(self._queues):
                tasks.create_task(self._consume(queue_id))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            size, word = _PREFIX.unpack(await reader.readexactly(_PREFIX.size))
            rest = await reader.readexactly(size - 4)
            header = json.loads(rest[: word & 0xFFFFFF])
            if waiting := self._open.pop(header["opaque"], None):
                waiting.set_result(
                    (header["code"], header.get("extFields") or {}, rest[word & 0xFFFFFF :])
                )

    async def _consume(self, queue_id: int) -> None:
        place = {
            "consumerGroup": self._group, "topic": self._topic, "queueId": str(queue_id),
        }  # fmt: skip
        code, fields, _ = await self._ask(_QUERY_OFFSET, place)
        offset = int(fields["offset"]) if code == _FOUND else 0
        while True:
            code, fields, body = await self._ask(
                _PULL,
                {
                    **place, "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "7",
                    "commitOffset": str(offset), "suspendTimeoutMillis": "15000",
                    "subscription": TAGS, "subVersion": "1", "expressionType": "TAG",
                },
            )  # fmt: skip
            if code == _NO_TOPIC and self._topic == RETRY_TOPIC:  # nothing was sent back yet
                await asyncio.sleep(self._pause_s)
                continue
            if code not in {_FOUND, _NOT_FOUND, _RETRY, _MOVED}:
                raise SystemExit(f"a pull was refused with code {code}")
            offset = int(fields["nextBeginOffset"])
            if code == _FOUND:
                await self._process(body)

    async def _process(self, body: bytes) -> None:
        """Send some of the messages back to the broker, to be delivered again, and wait as if all
        were processed.
        """
        at = 0
        retries: list[int] = []
        while at < len(body):
            size, physical_offset = _PLACE.unpack_from(body, at)
            at += size
            self._totals["messages"] += 1
            self._unretried += self._retry_share
            if self._unretried >= 1:
                self._unretried -= 1
                retries.append(physical_offset)
        async with asyncio.TaskGroup() as tasks:
            for physical_offset in retries:
                tasks.create_task(self._send_back(physical_offset))
            await asyncio.sleep(self._pause_s)

    async def _send_back(self, physical_offset: int) -> None:
        fields = {
            "offset": str(physical_offset), "group": self._group, "delayLevel": "1",
            "originMsgId": "0", "originTopic": self._topic, "unitMode": "false",
            "maxReconsumeTimes": "16",
        }  # fmt: skip
        code, _, _ = await self._ask(_SEND_BACK, fields)
        if code != 0:
            raise SystemExit(f"a retry was refused with code {code}")
        self._totals["retries"] += 1

    async def _ask(self, code: int, fields: Mapping[str, str]) -> Answer:
        self._opaque += 1
        header = {
            "code": code, "extFields": SETUP.signed(fields, USER), "flag": 0, "language": "JAVA",
            "opaque": self._opaque, "serializeTypeCurrentRPC": "JSON", "version": 401,
        }  # fmt: skip
        head = json.dumps(header, separators=(",", ":")).encode()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[self._opaque] = answer
        self._writer.write(_PREFIX.pack(4 + len(head), len(head)) + head)
        return await answer


async def consume(port: int) -> None:
    """Consume all topics with both groups until standard input has a line; print the totals."""
    totals = {"messages": 0, "retries": 0}
    topics = [f"{TOPIC}_{number:04d}" for number in range(TOPICS)]
    members = [
        Member(group, topic, totals, queues=QUEUES) for group in PAUSES_S for topic in topics
    ]
    members.append(Member(FAST, RETRY_TOPIC, totals, queues=1))
    print("consuming", flush=True)
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(member.run(port)) for member in members]
        await stop
        for task in running:
            task.cancel()
    print(json.dumps(totals))


if __name__ == "__main__":
    asyncio.run(consume(int(sys.argv[1])))
