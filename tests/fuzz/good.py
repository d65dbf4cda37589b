# SPDX-License-Identifier: Apache-2.0
"""Well-behaved clients that check every answer they get."""

import asyncio
import time
from typing import Final

from cometmq.peers.broker.client import Client
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat, ProducerData
from cometmq.remoting.bodies.topic_config import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.namesrv import GetRouteinfoByTopic, RegisterBroker
from cometmq.remoting.message.record import decode_records

TOPIC: Final = "good-topic"
GROUP: Final = "good-group"
PAUSE_S: Final = 0.01
REGISTER_EVERY: Final = 100  # in rounds


class _GoodClient:
    """Works until `is_over` is set, and times each request."""

    def __init__(self, address: str) -> None:
        self.is_over = False
        self._address = address
        self._elapsed_ms: list[float] = []
        self._errors: list[str] = []

    async def work(self) -> None:
        """Repeat `step` until `is_over` is set or an error occurs."""
        async with Client(self._address) as client:
            await self.prepare(client)
            while not self.is_over and not self._errors:
                started = time.perf_counter()
                try:
                    await self.step(client)
                except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
                    self._errors.append(f"{type(self).__name__} after {self.count}: {error!r}")
                self._elapsed_ms.append((time.perf_counter() - started) * 1000)
                await asyncio.sleep(PAUSE_S)

    async def prepare(self, client: Client) -> None:
        """Run once before the first step."""

    async def step(self, client: Client) -> None:
        """Make one round of requests and check the answers."""

    @property
    def count(self) -> int:
        return len(self._elapsed_ms)

    def summary(self) -> str:
        times = sorted(self._elapsed_ms) or [0.0]
        return (
            f"{type(self).__name__}: {self.count} rounds, {len(self._errors)} errors, "
            f"p50 {times[len(times) // 2]:.0f} ms, p99 {times[len(times) * 99 // 100]:.0f} ms, "
            f"longest {times[-1]:.0f} ms"
        )

    def problems(self, p50_ms_max: int, ms_max: int) -> list[str]:
        """Return the errors, and the latencies that exceed their limits."""
        times = sorted(self._elapsed_ms) or [0.0]
        wrong = list(self._errors)
        if self.count < 10:
            wrong.append(f"{type(self).__name__} did {self.count} rounds only")
        if times[len(times) // 2] > p50_ms_max or times[-1] > ms_max:
            wrong.append(f"too slow: {self.summary()}")
        return wrong


class GoodBrokerClient(_GoodClient):
    """Sends a message, pulls it, commits, and queries it by key; checks each answer."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.sent: list[bytes] = []

    async def prepare(self, client: Client) -> None:
        await client.create_topic(TOPIC, 1)
        await client.create_group(GROUP, 3)
        await client.create_group("READER", 3)

    async def step(self, client: Client) -> None:
        number = len(self.sent)
        body = b"good %d" % number
        place = await client.send(TOPIC, 0, body, keys=f"good-{number}")
        self.sent.append(body)
        assert place.queue_offset == number, place
        answer = await client.pull(TOPIC, 0, number)
        (record,) = decode_records(answer.body)
        assert (record.body, record.queue_offset) == (body, number), record
        await client.commit(GROUP, TOPIC, 0, number)
        assert await client.committed(GROUP, TOPIC, 0) == number
        beat = Heartbeat(client_id="good", producer_data_set=[ProducerData(group_name="good")])
        await client.ask(RequestCode.HEART_BEAT, body=encode_json(beat))
        if number % 50 == 0:
            (found,) = await client.by_key(TOPIC, f"good-{number}")
            assert found.body == body

    async def forbid_automatic_creation(self) -> None:
        """Turn off the automatic creation of topics and groups."""
        async with Client(self._address) as client:
            await client.configure(
                autoCreateTopicEnable="false", autoCreateSubscriptionGroup="false"
            )

    async def judge(self, address: str) -> list[str]:
        async with Client(address) as client:
            _, records = await client.read_queue(TOPIC, 0)
        is_whole = [record.body for record in records] == self.sent
        return [] if is_whole else [f"{len(records)} of {len(self.sent)} messages are there"]


class GoodNamesrvClient(_GoodClient):
    """Keeps a broker registered and looks up its topic."""

    async def prepare(self, client: Client) -> None:
        await self._register(client)

    async def step(self, client: Client) -> None:
        answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteinfoByTopic(TOPIC))
        assert b"good-broker" in answer.body, answer
        if self.count % REGISTER_EVERY == REGISTER_EVERY - 1:
            await self._register(client)

    @staticmethod
    async def _register(client: Client) -> None:
        table = TopicConfigTable(topic_config_table={TOPIC: TopicConfig(topic_name=TOPIC)})
        body = RegisterBrokerBody(topic_config_serialize_wrapper=table)
        header = RegisterBroker("good-broker", "10.0.0.1:1", "good-cluster", "10.0.0.1:2", 0)
        data = encode_register_body(body, compressed=False)
        await client.ask(RequestCode.REGISTER_BROKER, header, data)
