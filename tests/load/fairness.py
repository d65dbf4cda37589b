# SPDX-License-Identifier: Apache-2.0
"""Measures the effect of the cap on requests per connection and loop iteration.

Two brokers, one of them without the cap, alternate under the same floods of one connection and of
many.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.load.nuisances import FLOOD_TOPIC, disturbing, flood
from tests.load.probe import TOPIC, Probe, Times, probing
from tests.load.reporting import Findings, say

from cometmq.peers.broker.child import BrokerChild
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.facts import FILES, Facts

UNCAPPED_BROKER: Final = "tests.load.uncapped_broker"
MANY: Final = 32
FLOODS: Final = (1, MANY)
"""The numbers of connections that flood a broker."""
LONE_P99_MS_MAX: Final = 10.0
"""Maximum p99 of a good client beside one flooding connection, with the cap."""
RATIO_MIN: Final = 1.5
"""Minimum ratio of the p99 without the cap to the p99 with it, while many connections flood."""
THROUGHPUT_MIN: Final = 0.6
"""Minimum ratio of messages stored per processor second with the cap to those without."""


class Contestant:
    def __init__(self, name: str, folder: Path, module: str = "") -> None:
        folder.mkdir(parents=True)
        self.name = name
        self.broker = BrokerChild(folder, module=module, **FILES)
        self.calm: list[Times] = []
        self.flooded: dict[int, list[Times]] = {count: [] for count in FLOODS}
        self.rates: dict[int, list[float]] = {count: [] for count in FLOODS}
        self._facts = Facts(self.broker)

    async def prepare(self) -> None:
        await self.broker.start()
        async with Client(self.broker.address) as client:
            for topic in (FLOOD_TOPIC, TOPIC):
                await client.create_topic(topic, 1)

    async def measure(self, probe: Probe, seconds: float) -> None:
        """Measure without a flood, then with each flood."""
        self.calm.append(Times.of(await probe.measure(seconds / 2)))
        for count in FLOODS:
            stored, processor_s = await self._stored(), self._facts.processor_s()
            with disturbing(flood, self.broker.address, count):
                self.flooded[count].append(Times.of(await probe.measure(seconds)))
            stored = await self._stored() - stored
            self.rates[count].append(stored / (self._facts.processor_s() - processor_s))

    def p99(self, flood_count: int) -> float:
        """The p99 of the best round, which was disturbed least by other load."""
        return min(times.p99 for times in self.flooded[flood_count])

    @property
    def rate(self) -> float:
        """Messages stored per second of processor time with many floods, in the best round."""
        return max(self.rates[MANY])

    def show(self) -> None:
        for calm in self.calm:
            say(f"fairness: {self.name}: calm {calm}")
        for count in FLOODS:
            for times, rate in zip(self.flooded[count], self.rates[count], strict=True):
                say(
                    f"fairness: {self.name}: {count} flooding: {times}, "
                    f"{rate:.0f} stored per second of processor time"
                )

    async def _stored(self) -> float:
        return (await self._facts.metrics())["cometmq_put_messages_total"]


class FairnessRun:
    def __init__(self, folder: Path, *, seconds: float, rounds: int) -> None:
        self._capped = Contestant("with the cap", folder / "capped")
        self._uncapped = Contestant("without", folder / "uncapped", UNCAPPED_BROKER)
        self._seconds = seconds
        self._rounds = rounds

    async def run(self) -> Findings:
        contestants = (self._capped, self._uncapped)
        with ExitStack() as stack:
            probes = []
            for one in contestants:
                stack.callback(one.broker.kill)
                await one.prepare()
                probes.append(stack.enter_context(probing(one.broker.address)))
            for _ in range(self._rounds):
                for one, probe in zip(contestants, probes, strict=True):
                    await one.measure(probe, self._seconds)
        for one in contestants:
            one.show()
        return self._judge()

    def _judge(self) -> Findings:
        findings = Findings()
        ratio = self._uncapped.p99(MANY) / self._capped.p99(MANY)
        throughput = self._capped.rate / self._uncapped.rate
        say(
            f"fairness: p99 is {ratio:.1f} times as long without the cap; "
            f"{throughput:.2f} of the messages are stored per processor second with it"
        )
        if (lone := self._capped.p99(1)) > LONE_P99_MS_MAX:
            findings.add(f"fairness: the p99 beside one flooding connection is {lone:.1f} ms")
        if ratio < RATIO_MIN:
            findings.add(f"fairness: p99 is only {ratio:.2f} times as long without the cap")
        if throughput < THROUGHPUT_MIN:
            findings.add(f"fairness: the cap costs too much: {throughput:.2f} of the rate")
        return findings
