# SPDX-License-Identifier: Apache-2.0
"""Runs many consumers in one process, each with its own connection and a held pull."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import msgspec

from cometmq.peers.broker.client import Client
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands.pull import PullMessage

TOPIC: Final = "crowd"
SUB_VERSION: Final = 1
HOLD_MS: Final = 15_000
HEARTBEAT_S: Final = 30.0
CONNECTING_MAX: Final = 32
ANSWER_S: Final = 60.0
_COMMIT, _HOLD = 1, 2
_ANSWERS: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)


class Progress(msgspec.Struct, frozen=True):
    positions: list[int]
    pull_count: int
    errors: list[str]


class Listener:
    def __init__(self, address: str, group: str, queue_id: int) -> None:
        self.position = 0
        self.pull_count = 0
        self._group = group
        self._queue_id = queue_id
        self._client = Client(address)

    async def greet(self) -> None:
        wanted = SubscriptionData(topic=TOPIC, sub_string="*", sub_version=SUB_VERSION)
        data = ConsumerData(group_name=self._group, subscription_data_set=[wanted])
        name = f"{self._group}@{self._queue_id}"
        body = encode_json(Heartbeat(client_id=name, consumer_data_set=[data]))
        await self._client.ask(RequestCode.HEART_BEAT, body=body)

    async def read(self) -> None:
        while True:
            header = PullMessage(
                self._group, TOPIC, self._queue_id, self.position, 32, _COMMIT | _HOLD,
                self.position, HOLD_MS, SUB_VERSION,
            )  # fmt: skip
            answer = await self._client.ask(RequestCode.PULL_MESSAGE, header, ok=_ANSWERS)
            self.pull_count += 1
            assert answer.header.next_begin_offset >= self.position, answer
            self.position = answer.header.next_begin_offset


class Audience:
    def __init__(self, address: str, groups: range) -> None:
        self.errors: list[str] = []
        self._listeners = [Listener(address, f"crowd-{g}", g_q) for g in groups for g_q in (0, 1)]
        self._room = asyncio.Semaphore(CONNECTING_MAX)

    async def run(self, pipe: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for listener in self._listeners:
                group.create_task(self._work(listener))
            group.create_task(self._keep_greeting())
            while True:
                await asyncio.to_thread(pipe.recv)
                positions = [one.position for one in self._listeners]
                pulls = sum(one.pull_count for one in self._listeners)
                pipe.send(Progress(positions, pulls, self.errors))

    async def _work(self, listener: Listener) -> None:
        try:
            async with self._room:
                await listener.greet()
            await listener.read()
        except Exception as error:  # noqa: BLE001  # any error is a finding
            self.errors.append(repr(error))

    async def _keep_greeting(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for listener in self._listeners:
                await listener.greet()


def _run(address: str, groups: range, pipe: Any) -> None:
    asyncio.run(_start(address, groups, pipe))


async def _start(address: str, groups: range, pipe: Any) -> None:
    await Audience(address, groups).run(pipe)


class Crowd:
    def __init__(self, pipes: list[Any]) -> None:
        self._pipes = pipes

    async def progress(self) -> Progress:
        return await asyncio.to_thread(self._ask)

    def _ask(self) -> Progress:
        for pipe in self._pipes:
            pipe.send(None)
        answers: list[Progress] = []
        for pipe in self._pipes:
            assert pipe.poll(ANSWER_S), "a process of consumers does not answer"
            answers.append(pipe.recv())
        return Progress(
            [position for answer in answers for position in answer.positions],
            sum(answer.pull_count for answer in answers),
            [error for answer in answers for error in answer.errors],
        )


@contextmanager
def listening(address: str, *, group_count: int, process_count: int) -> Iterator[Crowd]:
    context = multiprocessing.get_context("spawn")
    share = group_count // process_count
    pipes = []
    with ExitStack() as stack:
        for number in range(process_count):
            ours, theirs = context.Pipe()
            groups = range(number * share, (number + 1) * share)
            process = context.Process(target=_run, args=(address, groups, theirs), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            pipes.append(ours)
        yield Crowd(pipes)
