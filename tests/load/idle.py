# SPDX-License-Identifier: Apache-2.0
"""Measures the processor use of an idle broker, empty and with thousands of topics and groups."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.load.reporting import Findings, say

from cometmq.peers.broker.child import BrokerChild
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.facts import FILES, Facts

TOPIC_COUNT: Final = 10_000
GROUP_COUNT: Final = 1_000
IN_FLIGHT: Final = 200
WINDOW_S: Final = 10.0
SETTLE_S: Final = 150.0
"""After traffic, the checkpoint syncs the folders of all new queues."""
EMPTY_SHARE_MAX: Final = 0.01
USED_SHARE_MAX: Final = 0.015


class IdleRun:
    def __init__(self, folder: Path) -> None:
        self._broker = BrokerChild(folder, **FILES)
        self._facts = Facts(self._broker)
        self._findings = Findings()

    async def run(self) -> Findings:
        with ExitStack() as stack:
            stack.callback(self._broker.kill)
            await self._broker.start()
            self._judge("empty", await self._share_below(EMPTY_SHARE_MAX), EMPTY_SHARE_MAX)
            await self._use()
            name = f"with {TOPIC_COUNT} topics and {GROUP_COUNT} groups"
            self._judge(name, await self._share_below(USED_SHARE_MAX), USED_SHARE_MAX)
        return self._findings

    async def _use(self) -> None:
        async with Client(self._broker.address) as client:
            for start in range(0, TOPIC_COUNT, IN_FLIGHT):
                async with asyncio.TaskGroup() as group:
                    for number in range(start, min(start + IN_FLIGHT, TOPIC_COUNT)):
                        group.create_task(_use_topic(client, number))

    async def _share_below(self, wanted: float) -> float:
        """Measure windows until the share of a core is below `wanted`; return the last share."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            begin, spent_s = time.monotonic(), self._facts.processor_s()
            await asyncio.sleep(WINDOW_S)
            share = (self._facts.processor_s() - spent_s) / (time.monotonic() - begin)
            if share < wanted or time.monotonic() > deadline:
                return share

    def _judge(self, name: str, share: float, share_max: float) -> None:
        say(f"idle: {name}: {share:.2%} of a core")
        if share >= share_max:
            self._findings.add(f"idle: {name} the broker takes {share:.2%} of a core")


async def _use_topic(client: Client, number: int) -> None:
    topic, group = f"topic-{number}", f"group-{number % GROUP_COUNT}"
    await client.send(topic, 0, b"hello")
    await client.pull(topic, 0, 0)
    await client.commit(group, topic, 0, 1)
