# SPDX-License-Identifier: Apache-2.0
"""Connects a thousand clients in five hundred groups to one broker, with misbehaving peers.

A good client is measured with only the crowd, then while other peers never read, vanish without
closing, or flood the broker, and finally with only the crowd again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.load import audience
from tests.load.audience import Crowd
from tests.load.nuisances import (
    BIG_TOPIC,
    FLOOD_TOPIC,
    QUIET_TOPIC,
    disturbing,
    flood,
    stall,
    vanish,
)
from tests.load.probe import TOPIC, Probe, Times, probing
from tests.load.reporting import Findings, say

from cometmq.peers.broker.child import BrokerChild, until
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.facts import FILES, Facts, LagWindow

GROUP_COUNT: Final = 500
CONNECTION_COUNT: Final = 2 * GROUP_COUNT
PROCESS_COUNT: Final = 2
STALLED_COUNT: Final = 16
VANISHED_COUNT: Final = 50
BIG_COUNT: Final = 512
BIG_BODY: Final = b"b" * 16_384
FEED_PAUSE_S: Final = 0.25
"""Each message is delivered to all groups: four per second make two thousand deliveries."""
IDLE_S: Final = 20
STALL_S: Final = 30
SETTLE_S: Final = 60
SETTINGS: Final = {**FILES, "serverChannelMaxIdleTimeSeconds": str(IDLE_S)}
CONNECTION_KIB_MAX: Final = 64.0
"""Memory of one connection with its group, filter and held pull."""
GREEDY_COUNT: Final = 50
UNSENT_BYTES_MAX: Final = (128 << 20) * 5 // 4
"""writeBufferTotalBytes, and the quarter above it that the broker drains slowly."""
DRAIN_S: Final = 10
"""The broker closes connections above that bound after 0.5 s, checking once per second."""
PEER_MIB_MAX: Final = 5.0
"""Unsent answers of one connection: writeBufferHighBytes, 4 MiB, plus the answer that exceeds it.
Peers that connect at once may all reach it before the first of them is closed."""
REST_MIB_MAX: Final = 96.0
LAG_P99_MS_MAX: Final = 250.0
DEPARTURE_LAG_MS_MAX: Final = 1_000.0
LAG_RATIO_MAX: Final = 4.0
"""For machines too busy for the limits above: limit relative to the lag with only the crowd."""
GOOD_RATIO_MAX: Final = 5.0
FLOOD_RATIO_MAX: Final = 10.0
GOOD_P99_MS_MIN: Final = 20.0
"""Shorter times are noise, so ratios use at least this time as their base."""


class CrowdRun:
    """One run, whose windows last `seconds` each."""

    def __init__(self, folder: Path, *, seconds: float) -> None:
        self._broker = BrokerChild(folder, **SETTINGS)
        self._seconds = seconds
        self._facts = Facts(self._broker)
        self._findings = Findings()
        self._fed = [0, 0]
        self._lags_ms: list[float] = []

    async def run(self) -> Findings:
        with ExitStack() as stack:
            stack.callback(self._broker.kill)
            await self._broker.start()
            await self._prepare()
            empty_mib = self._facts.memory_mib()
            probe = stack.enter_context(probing(self._broker.address))
            with audience.listening(
                self._broker.address, group_count=GROUP_COUNT, process_count=PROCESS_COUNT
            ) as crowd:
                await self._with_crowd(crowd, probe, empty_mib)
                before = await self._facts.metrics()
            await self._judge_departure(before)
        return self._findings

    async def _with_crowd(self, crowd: Crowd, probe: Probe, empty_mib: float) -> None:
        await until(self._is_complete, SETTLE_S)
        crowd_mib = self._facts.memory_mib()
        self._judge_memory("the crowd", crowd_mib - empty_mib, self._crowd_mib_max())
        async with asyncio.TaskGroup() as group:
            feeding = group.create_task(self._feed())
            await self._windows(probe)
            feeding.cancel()
        self._judge_memory(
            "everything, at most",
            self._facts.memory_mib("VmHWM") - empty_mib,
            self._crowd_mib_max() + GREEDY_COUNT * PEER_MIB_MAX + REST_MIB_MAX,
        )
        await self._judge_crowd(crowd)

    async def _prepare(self) -> None:
        async with Client(self._broker.address) as client:
            for topic in (BIG_TOPIC, FLOOD_TOPIC, QUIET_TOPIC, TOPIC):
                await client.create_topic(topic, 1)
            await client.create_topic(audience.TOPIC, 2)
            await client.create_group("READER", 1)
            for _ in range(BIG_COUNT):
                await client.send(BIG_TOPIC, 0, BIG_BODY)

    async def _is_complete(self) -> bool:
        now = await self._facts.metrics()
        return (
            now["cometmq_consumer_groups"] == GROUP_COUNT
            and now["cometmq_consumer_clients"] == CONNECTION_COUNT
            and now["cometmq_held_pulls"] == CONNECTION_COUNT
        )

    async def _feed(self) -> None:
        async with Client(self._broker.address) as client:
            while True:
                for queue_id in (0, 1):
                    await client.send(audience.TOPIC, queue_id, b"for all")
                    self._fed[queue_id] += 1
                    await asyncio.sleep(FEED_PAUSE_S)

    # -- the windows --------------------------------------------------------------------------

    async def _windows(self, probe: Probe) -> None:
        address = self._broker.address
        alone = await self._window("alone", probe)
        before = await self._facts.metrics()
        with (
            disturbing(stall, address, STALLED_COUNT),
            disturbing(vanish, address, VANISHED_COUNT),
        ):
            begin = time.monotonic()
            beside = await self._window("beside silent peers", probe)
            with disturbing(flood, address, 1):
                flooded = await self._window("beside a flood too", probe)
            await self._are_closed(before, begin)
        with disturbing(stall, address, GREEDY_COUNT):
            greedy = await self._window(f"beside {GREEDY_COUNT} that never read", probe)
            await self._judge_budget(before)
        again = await self._window("alone again", probe)
        best = min(alone.p99, again.p99)
        self._judge_ratio("silent peers", beside.p99, best, GOOD_RATIO_MAX)
        self._judge_ratio("a flood", flooded.p99, best, FLOOD_RATIO_MAX)
        self._judge_ratio(f"{GREEDY_COUNT} that never read", greedy.p99, best, GOOD_RATIO_MAX)

    async def _judge_budget(self, before: dict[str, float]) -> None:
        name = "cometmq_connections_paused_total"
        paused = (await self._facts.metrics())[name] - before[name]
        say(f"crowd: paused {paused:.0f} times for the budget of unsent answers")
        if not paused:
            self._findings.add("crowd: no connection was paused for the budget of unsent answers")

        async def is_drained() -> bool:
            return await self._unsent_bytes() <= UNSENT_BYTES_MAX

        is_done = await _within(is_drained, DRAIN_S)
        mib, mib_max = await self._unsent_bytes() / (1 << 20), UNSENT_BYTES_MAX >> 20
        say(f"crowd: unsent answers of peers that never read: {mib:.0f} MiB, bound {mib_max}")
        if not is_done:
            self._findings.add(f"crowd: {mib:.0f} MiB of answers are unsent, more than {mib_max}")

    async def _unsent_bytes(self) -> float:
        return (await self._facts.metrics())["cometmq_connection_unsent_bytes"]

    async def _window(self, name: str, probe: Probe) -> Times:
        before = await self._facts.metrics()
        times = Times.of(await probe.measure(self._seconds))
        after = await self._facts.metrics()
        lag_ms = LagWindow(before, after).quantile_ms(0.99)
        put = after["cometmq_put_messages_total"] - before["cometmq_put_messages_total"]
        got = after["cometmq_get_messages_total"] - before["cometmq_get_messages_total"]
        say(
            f"crowd: {name}: {times}; loop lag p99 <= {lag_ms:.0f} ms, "
            f"{put / self._seconds:.0f} stored and {got / self._seconds:.0f} delivered a second, "
            f"{self._facts.memory_mib():.0f} MiB"
        )
        self._lags_ms.append(lag_ms)
        lag_ms_max = max(LAG_P99_MS_MAX, self._lags_ms[0] * LAG_RATIO_MAX)
        if lag_ms > lag_ms_max:
            self._findings.add(f"crowd: the loop lagged by {lag_ms:.0f} ms {name}")
        return times

    async def _are_closed(self, before: dict[str, float], begin: float) -> None:
        name = "cometmq_connections_closed_total"

        async def closed() -> dict[str, float]:
            now = await self._facts.metrics()
            kinds = ("stalled", "idle", "overflow", "budget", "protocol")
            return {kind: now[f"{name}:{kind}"] - before[f"{name}:{kind}"] for kind in kinds}

        async def are_closed() -> bool:
            found = await closed()
            return found["stalled"] >= STALLED_COUNT and found["idle"] >= VANISHED_COUNT

        limit_s = STALL_S + SETTLE_S - (time.monotonic() - begin)
        is_done = await _within(are_closed, limit_s)
        found = await closed()
        say(f"crowd: closed after {time.monotonic() - begin:.0f} s: {found}")
        if not is_done:
            self._findings.add(f"crowd: silent peers are still connected: closed {found}")

    # -- the verdict --------------------------------------------------------------------------

    @staticmethod
    def _crowd_mib_max() -> float:
        return CONNECTION_COUNT * CONNECTION_KIB_MAX / 1024

    def _judge_memory(self, name: str, mib: float, mib_max: float) -> None:
        say(f"crowd: memory for {name}: {mib:.0f} MiB, bound {mib_max:.0f}")
        if mib > mib_max:
            self._findings.add(f"crowd: {name} took {mib:.0f} MiB, more than {mib_max:.0f}")

    def _judge_ratio(self, name: str, p99: float, best: float, ratio_max: float) -> None:
        say(f"crowd: p99 beside {name}: {p99 / best:.2f} times that without")
        if p99 > max(best, GOOD_P99_MS_MIN) * ratio_max:
            self._findings.add(f"crowd: beside {name} p99 is {p99:.1f} ms, without {best:.1f} ms")

    async def _judge_crowd(self, crowd: Crowd) -> None:
        async def have_all() -> bool:
            now = await crowd.progress()
            return now.positions == self._fed * GROUP_COUNT

        is_done = await _within(have_all, SETTLE_S)
        now = await crowd.progress()
        say(f"crowd: {sum(self._fed)} messages for {GROUP_COUNT} groups by {now.pull_count} pulls")
        self._findings.add_all(f"crowd: {error}" for error in now.errors)
        if not is_done:
            behind = sum(
                a != b for a, b in zip(now.positions, self._fed * GROUP_COUNT, strict=True)
            )
            self._findings.add(f"crowd: {behind} of {CONNECTION_COUNT} consumers miss messages")

    async def _judge_departure(self, before: dict[str, float]) -> None:
        """Check that a thousand connections that end at once leave no state and block nothing."""
        begin = time.monotonic()

        async def is_forgotten() -> bool:
            now = await self._facts.metrics()
            return not (now["cometmq_consumer_clients"] or now["cometmq_held_pulls"])

        is_done = await _within(is_forgotten, SETTLE_S)
        lag_ms = LagWindow(before, await self._facts.metrics()).quantile_ms(1)
        say(
            f"crowd: state dropped {time.monotonic() - begin:.1f} s after its departure, "
            f"loop lag at most {lag_ms:.0f} ms"
        )
        lag_ms_max = max(DEPARTURE_LAG_MS_MAX, self._lags_ms[0] * LAG_RATIO_MAX)
        if not is_done or lag_ms > lag_ms_max:
            self._findings.add(f"crowd: departure: forgotten {is_done}, loop lag {lag_ms:.0f} ms")


async def _within(holds: Callable[[], Awaitable[bool]], limit_s: float) -> bool:
    try:
        await until(holds, limit_s)
    except TimeoutError:
        return False
    return True
