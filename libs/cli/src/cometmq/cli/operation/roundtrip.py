# SPDX-License-Identifier: Apache-2.0
"""The self-test of a cluster: sends messages to each broker, reads them back, and measures the
times.

It creates a topic of its own on each broker, and deletes it even if the test fails.
"""

import asyncio
import os
from collections.abc import Sequence
from secrets import token_hex
from time import monotonic, monotonic_ns
from typing import Final

import msgspec

from cometmq.cli.connecting import with_access
from cometmq.cli.operation.checks import Item, Limits, Status
from cometmq.client import ClientOptions, Message, MessageQueue, Producer, ProducerOptions
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import ClientError, NoRoute
from cometmq.insight.words import counted
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG

PREFIX: Final = "CLI_CHECK_"
"""The prefix of the test topics. A topic that a killed process has left can be deleted."""
GROUP: Final = "CLI_CHECK"
ROUTE_S: Final = 10.0
READ_S: Final = 5.0
FIGURE: Final = "round_trip_ms"


class Times(msgspec.Struct):
    """The durations of the parts of each round trip, in ms."""

    network: list[float] = []
    send: list[float] = []
    whole: list[float] = []

    def text(self) -> str:
        """Return a sentence with the medians."""
        network, send, whole = (sorted(it) for it in (self.network, self.send, self.whole))
        return (
            f"{counted(len(whole), 'round trip')}: {_middle(whole):.1f} ms, slowest"
            f" {whole[-1]:.1f} ms; network {_middle(network):.1f} ms, send {_middle(send):.1f} ms"
        )


def _middle(values: Sequence[float]) -> float:
    return values[len(values) // 2]


async def round_trips(
    namesrv: str, names: Sequence[str], limits: Limits, *, count: int, size: int
) -> list[Item]:
    """Send `count` messages to each master, or to the masters in `names`, and read them back."""
    options = with_access(ClientOptions())
    async with AdminClient(namesrv, options=options, log=NO_LOG) as admin:
        groups = await admin.broker_groups()
        masters = {it: group[MASTER_ID] for it, group in groups.items() if MASTER_ID in group}
        items = [
            Item(name, Status.CRITICAL, "has no master" if name in groups else "is not registered")
            for name in names or groups
            if name not in masters
        ]
        if not groups:
            return [Item("cluster", Status.CRITICAL, "no broker is registered")]
        for name, master in masters.items():
            if not names or name in names:
                items.append(await _item(admin, namesrv, master, limits, count, size))
    return items


async def _item(  # all that a test needs
    admin: AdminClient, namesrv: str, master: BrokerAdmin, limits: Limits, count: int, size: int
) -> Item:
    topic = PREFIX + token_hex(8)
    times, failure = Times(), ""
    try:
        config = TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        await master.create_topic(config)
        await _routed(admin, topic)
        times = await _times(namesrv, master, topic, count, size)
    except CometError as error:
        failure = str(error)
    finally:
        left = await _left(admin, master, topic)
    if failure or left:
        return Item(master.name, Status.CRITICAL, failure or left, FIGURE)
    slowest = max(times.whole)
    return Item(master.name, limits.status(slowest), times.text(), FIGURE, slowest, limits)


async def _left(admin: AdminClient, master: BrokerAdmin, topic: str) -> str:
    """Delete the topic; on failure, return a text that names it."""
    try:
        await master.delete_topic(topic)
        await admin.namesrv.delete_topic(topic)
    except CometError as error:
        return f"the topic {topic} of this test could not be deleted: {error}"
    return ""


async def _routed(admin: AdminClient, topic: str) -> None:
    """Wait until the name servers know the topic."""
    end = monotonic() + ROUTE_S
    while True:
        try:
            await admin.route(topic)
        except NoRoute:
            if monotonic() > end:
                raise
            await asyncio.sleep(0.05)
        else:
            return


async def _times(namesrv: str, master: BrokerAdmin, topic: str, count: int, size: int) -> Times:
    """Make the round trips one after another; each body is compared with what was sent."""
    options = with_access(ProducerOptions(retry_times=0))
    queue = MessageQueue(topic, master.name, 0)
    times = Times()
    async with Producer(GROUP, namesrv, options=options, log=NO_LOG) as producer:
        for number in range(-1, count):  # the first one connects
            body = os.urandom(size)
            begin_ns = monotonic_ns()
            await master.max_offset(topic, 0)
            asked_ns = monotonic_ns()
            sent = await producer.send(Message(topic, body), queue=queue)
            sent_ns = monotonic_ns()
            if await _read(master, topic, sent.queue_offset) != body:
                raise ClientError("a message came back with another body")
            if number >= 0:
                times.network.append((asked_ns - begin_ns) / 1e6)
                times.send.append((sent_ns - asked_ns) / 1e6)
                times.whole.append((monotonic_ns() - asked_ns) / 1e6)
    return times


async def _read(master: BrokerAdmin, topic: str, offset: int) -> bytes:
    """Return the body of a message, which the broker may show a little after it was stored."""
    end = monotonic() + READ_S
    while monotonic() < end:
        found = await master.pull(topic, 0, offset, count_max=1)
        if found.messages:
            return found.messages[0].body
        await asyncio.sleep(0.001)
    raise ClientError(f"a stored message could not be read within {READ_S:g} s")
