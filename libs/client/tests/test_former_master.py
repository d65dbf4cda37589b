# SPDX-License-Identifier: Apache-2.0
"""Clients whose route names a former master, which answers but refuses requests.

Regular lookups are an hour apart, so only refusals can cause one.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client import (
    ClientOptions,
    ConsumeFrom,
    Message,
    Producer,
    ProducerOptions,
    PushOptions,
)
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.consume.queues.locks import QueueLocks
from cometmq.client.consume.queues.offsets import RemoteOffsets
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting import remarks
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import CommandError, ServiceNotAvailable, SystemBusy
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.signature import FORWARDED
from cometmq.testing.client.listening import Recorder, consumer_of

HOUR_MS = 3_600_000
DEPOSED = ServiceNotAvailable(f"{remarks.NOT_THE_MASTER} its group now")
UNCONFIRMED = SystemBusy(f"{remarks.ENDS_UNCONFIRMED}; try again")
DISK_FULL = ServiceNotAvailable("service not available now: the disk is full")


@pytest.mark.parametrize(("refusal", "is_looked_up"), [(DEPOSED, True), (DISK_FULL, False)])
async def test_a_refused_send_looks_for_the_new_master(
    cluster: MemoryCluster, lookups: list[str], refusal: CommandError, is_looked_up: bool
) -> None:
    options = ProducerOptions(poll_namesrv_interval_ms=HOUR_MS, send_timeout_ms=60_000)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
        lookups.clear()
        cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, refusal)
        await producer.send(Message("T", b"y"))
        assert ("T" in lookups) is is_looked_up


@pytest.mark.parametrize("is_forwarded", [True, False])
async def test_a_send_that_was_forwarded_looks_for_the_master(
    cluster: MemoryCluster, lookups: list[str], *, is_forwarded: bool
) -> None:
    options = ProducerOptions(poll_namesrv_interval_ms=HOUR_MS)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
        lookups.clear()
        if is_forwarded:
            cluster.broker.send_ext[FORWARDED] = "true"
        await producer.send(Message("T", b"y"))
        if is_forwarded:
            await eventually(lambda: "T" in lookups)
        await producer.send(Message("T", b"z"))
        assert ("T" in lookups) is is_forwarded


async def test_a_refused_lock_looks_for_the_new_master(
    cluster: MemoryCluster, lookups: list[str]
) -> None:
    options = ClientOptions(namesrv=cluster.namesrv, poll_namesrv_interval_ms=HOUR_MS)
    instance = await ClientInstance.acquire(options, log=NO_LOG)
    await instance.routes.find("T")
    parts: Any = SimpleNamespace(
        instance=instance, group="cg", offsets=RemoteOffsets(instance, "cg")
    )
    locks = QueueLocks(parts, lost=lambda _: None)
    lookups.clear()
    cluster.broker.fail(RequestCode.LOCK_BATCH_MQ, DEPOSED)
    assert await locks.acquire([MessageQueue("T", "broker-a", 0)]) == []
    await eventually(lambda: "T" in lookups)
    await instance.release()


async def test_a_refused_pull_looks_for_the_new_master(
    cluster: MemoryCluster, lookups: list[str]
) -> None:
    recorder = Recorder()
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, poll_namesrv_interval_ms=HOUR_MS)
    consumer = consumer_of(cluster, recorder, options=options)
    async with consumer, Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        await eventually(lambda: recorder.messages)
        lookups.clear()
        cluster.broker.fail(RequestCode.PULL_MESSAGE, UNCONFIRMED)
        for _ in range(4):  # ends the held pull of each queue, and the next one is refused
            await producer.send(Message("T", b"y"))
        await eventually(lambda: "T" in lookups)
