# SPDX-License-Identifier: Apache-2.0
"""Lets members join, leave, freeze and die at random under a constant stream of messages.

Brokers are frozen too. The cluster has three brokers, one name server and six members; each member
consumes one topic concurrently and another in order. At the end, the history of all deliveries is
judged.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

from tests.load.journal import Delivery
from tests.load.loaded_member import ORDERED_TOPIC, PLAIN_TOPIC
from tests.load.members import JavaMember, Member, OwnMember, freeze
from tests.load.reporting import Findings, say
from tests.load.verdicts import (
    ORDERLY_CAUSES,
    Cause,
    Explainer,
    by_queue,
    judge_keys,
    judge_order,
    repeats,
)

from cometmq.client import AdminClient, Message, Producer, ProducerOptions
from cometmq.peers.broker.child import until
from cometmq.peers.comet import CometCluster
from cometmq.peers.processes import Child
from cometmq.remoting.errors import CometError

MEMBER_COUNT: Final = 6
ALIVE_MIN: Final = 2
BROKER_COUNT: Final = 3
QUEUES_PER_BROKER: Final = 4
KEY_COUNT: Final = 40
SENDS_PER_S: Final = 120  # per topic
PAUSE_S: Final = (0.5, 3.0)
FREEZE_SHARE: Final = 0.3
BROKER_FREEZE_SHARE: Final = 0.1
FREEZE_S_MAX: Final = 8.0
"""Shorter than the timeouts of brokers and members, so a freeze must have no consequences."""
DRAIN_S: Final = 150
"""Longer than the lifetime of a dead member's locks, one minute, and the rebalance after it."""
ROUTE_S: Final = 30
SEND_TIMEOUT_MS: Final = 30_000
SEND_AGAIN_S: Final = 0.1
BROKER: Final = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 200_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
}


class Sent:
    """Acknowledged messages: topic and name, with the time of the acknowledgement."""

    def __init__(self) -> None:
        self.moments: dict[tuple[str, str], int] = {}
        self.failure_count = 0
        self.is_over = False

    async def send(self, namesrv: str) -> None:
        """Send to both topics until `is_over`, one message at a time per key."""
        options = ProducerOptions(send_timeout_ms=SEND_TIMEOUT_MS, retry_times=0)
        async with (
            Producer("churn-producer", namesrv, options=options) as producer,
            asyncio.TaskGroup() as group,
        ):
            for topic in (PLAIN_TOPIC, ORDERED_TOPIC):
                for key in range(KEY_COUNT):
                    group.create_task(self._send_key(producer, topic, f"key{key}"))

    async def _send_key(self, producer: Producer, topic: str, key: str) -> None:
        number = 0
        while not self.is_over:
            name = f"{key}-{number}"
            message = Message(topic, name.encode(), keys=name)
            await self._send_for_good(producer, message, key)
            self.moments[topic, name] = time.monotonic_ns()
            number += 1
            await asyncio.sleep(KEY_COUNT / SENDS_PER_S)

    async def _send_for_good(self, producer: Producer, message: Message, key: str) -> None:
        """Retry until a send succeeds, even though this may store the message more than once."""
        while True:
            try:
                if message.topic == ORDERED_TOPIC:
                    await producer.send_ordered(message, key)
                else:
                    await producer.send(message)
            except CometError:
                self.failure_count += 1
                await asyncio.sleep(SEND_AGAIN_S)
            else:
                return


class Churn:
    def __init__(
        self, folder: Path, *, seconds: float, kill_seconds: float, java_count: int, seed: int
    ) -> None:
        """Run for `seconds`; kill members only in the first `kill_seconds`.

        `java_count` of the members are Java clients.
        """
        self._folder = folder
        self._java_count = java_count
        self._seconds = seconds
        self._kill_seconds = kill_seconds
        self._random = Random(f"churn:{seed}")
        self._findings = Findings()
        self._actions: Counter[str] = Counter()
        self._sent = Sent()
        self._members: list[Member] = []

    async def run(self) -> Findings:
        with ExitStack() as stack:
            cluster = CometCluster(self._folder / "cluster", BROKER, broker_count=BROKER_COUNT)
            await asyncio.to_thread(stack.enter_context, cluster)
            await self._create_topics(cluster)
            namesrv = cluster.namesrv_addr
            for number in range(MEMBER_COUNT):
                kind = JavaMember if number < self._java_count else OwnMember
                member = kind(number + 1, self._folder, namesrv)
                self._members.append(member)
                stack.callback(member.kill)
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._sent.send(namesrv))
                await self._come_and_go(group, list(cluster.brokers.values()))
                self._sent.is_over = True
                await sending
            await self._drain()
            self._judge()
        return self._findings

    async def _create_topics(self, cluster: CometCluster) -> None:
        async with AdminClient(cluster.namesrv_addr) as admin:
            for topic in (PLAIN_TOPIC, ORDERED_TOPIC):
                await admin.create_topic(topic, queue_count=QUEUES_PER_BROKER)

                async def is_everywhere(topic: str = topic) -> bool:
                    return len(await admin.queues(topic)) == QUEUES_PER_BROKER * BROKER_COUNT

                # A key's queue depends on the number of queues, so wait until all of them are
                # known.
                await until(is_everywhere, ROUTE_S)

    async def _come_and_go(self, group: asyncio.TaskGroup, brokers: Sequence[Child]) -> None:
        for member in self._members:
            member.join()
        begin = time.monotonic()
        while (elapsed_s := time.monotonic() - begin) < self._seconds:
            await asyncio.sleep(self._random.uniform(*PAUSE_S))
            for member in self._members:
                member.look()
            if self._random.random() < BROKER_FREEZE_SHARE:
                self._actions["broker freezes"] += 1
                broker = self._random.choice(brokers)
                group.create_task(freeze([broker], self._random.uniform(0, FREEZE_S_MAX)))
            self._act(self._random.choice(self._members), group, elapsed_s)

    def _act(self, member: Member, group: asyncio.TaskGroup, elapsed_s: float) -> None:
        if member.is_leaving:
            return
        if not member.is_alive:
            action = "joins"
            member.join()
        elif sum(one.is_alive for one in self._members) <= ALIVE_MIN:
            return
        elif elapsed_s < self._kill_seconds and self._random.random() < 0.5:
            action = "killed"
            member.kill()
        elif member.is_frozen:
            return
        elif self._random.random() < FREEZE_SHARE:
            action = "freezes"
            group.create_task(member.freeze(self._random.uniform(0, FREEZE_S_MAX)))
        elif member.can_leave:
            action = "leaves"
            group.create_task(member.leave())
        else:
            return
        self._actions[action] += 1

    async def _drain(self) -> None:
        """Restart all members, and wait until all acknowledged messages are consumed."""
        for member in self._members:
            if not member.is_alive:
                member.join()
        missing = self._missing()
        deadline = time.monotonic() + DRAIN_S
        while missing and time.monotonic() < deadline:
            await asyncio.sleep(0.25)
            missing = self._missing()
            for member in self._members:
                member.look()
        for topic, name in sorted(missing)[:10]:
            self._findings.add(f"{topic}: {name} was acknowledged and never consumed")
        self._findings.add_all(p for member in self._members for p in member.problems)

    def _missing(self) -> set[tuple[str, str]]:
        done: set[tuple[str, str]] = set()
        for member in self._members:
            for reader in member.readers:
                reader.read()
                done |= reader.done
        return self._sent.moments.keys() - done

    # -- the verdict --------------------------------------------------------------------------

    def _judge(self) -> None:
        now_ns = time.monotonic_ns()
        lives = {life.member: life for m in self._members for life in m.lives_at(now_ns)}
        deliveries = [d for m in self._members for r in m.readers for d in r.deliveries]
        unknown = {(d.queue[0], d.name) for d in deliveries} - self._sent.moments.keys()
        self._findings.add_all(
            f"{topic}: {name} was consumed and never sent" for topic, name in unknown
        )
        actions = ", ".join(f"{name} {count}" for name, count in sorted(self._actions.items()))
        say(f"churn: {actions}; failed sends, repeated {self._sent.failure_count}")
        handovers = [h for m in self._members for r in m.readers for h in r.handovers()]
        explainer = Explainer(
            deliveries, lives, (one for one in handovers if one.queue[0] == ORDERED_TOPIC)
        )
        for topic in (PLAIN_TOPIC, ORDERED_TOPIC):
            of_topic = [d for d in deliveries if d.queue[0] == topic]
            queues = by_queue(of_topic)
            if topic == ORDERED_TOPIC:
                for queue in queues.values():
                    self._findings.add_all(judge_order(queue, lives))
                self._findings.add_all(judge_keys(of_topic))
            causes = self._causes(topic, queues.values(), explainer)
            self._say(topic, of_topic, causes)

    def _causes(
        self, topic: str, queues: Iterable[list[Delivery]], explainer: Explainer
    ) -> Counter[Cause]:
        """Find the cause of each redelivery; an orderly group permits only a few causes."""
        causes: Counter[Cause] = Counter()
        for queue in queues:
            for repeat in repeats(queue):
                cause = explainer.cause(repeat)
                if cause is None or (topic == ORDERED_TOPIC and cause not in ORDERLY_CAUSES):
                    before, again = repeat
                    self._findings.add(f"{topic}: redelivered ({cause}): {before} then {again}")
                if cause is not None:
                    causes[cause] += 1
        return causes

    def _say(self, topic: str, deliveries: Sequence[Delivery], causes: Counter[Cause]) -> None:
        sent = self._sent.moments
        waits_s = [
            max(0, one.begin_ns - sent[topic, one.name])
            / 1e9  # a delivery may precede the answer to the send
            for one in deliveries
            if (topic, one.name) in sent
        ]
        count = sum(1 for at, _ in sent if at == topic)
        why = ", ".join(f"{cause} {causes[cause]}" for cause in Cause)
        say(
            f"churn: {topic}: {count} sent, {len(deliveries)} delivered, "
            f"{causes.total()} redelivered ({why}); "
            f"delivered after {statistics.median(waits_s) * 1000:.0f} ms, "
            f"the last after {max(waits_s):.1f} s"
        )
