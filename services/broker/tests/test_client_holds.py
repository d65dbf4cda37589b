# SPDX-License-Identifier: Apache-2.0
"""No work on many clients at once holds the loop for more than 20 ms."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.broker.clients.producers import CLIENT_SILENCE_MS, Client
from cometmq.broker.clients.queue_locks import LOCK_LIFE_MS
from cometmq.broker.handlers.clients import (
    accounts_changed,
    connection_closed,
    expire_clients,
    heart_beat,
)
from cometmq.remoting.bodies.heartbeat import ConsumerData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.command import OK, Call
from cometmq.remoting.commands.table import NoHeader
from cometmq.testing.broker.holds import longest_hold
from cometmq.testing.broker.scripted import ScriptedBroker
from cometmq.testing.remoting.peer import FakePeer

from .holding import check, consumer, json_of, run_broker, subscriptions

CLIENT_COUNT, GROUPS_OF_CLIENT, LOCK_COUNT, GROUPS_OF_ONE = 4_000, 5, 100_000, 10_000


class Fallen:
    """Access control whose accounts have lost all rights."""

    @property
    def control(self) -> "Fallen":
        return self

    def may_stay(self, *_: Any, **__: Any) -> bool:
        return False


def join(broker: ScriptedBroker, number: int, group_count: int) -> FakePeer:
    """Register a client as consumer and producer of many groups."""
    peer = FakePeer(f"10.0.{number // 250}.{number % 250}:1")
    beat = json_of(
        clientID=f"c{number}",
        consumerDataSet=[consumer(f"g{k}", subscriptions(1)) for k in range(group_count)],
        producerDataSet=[{"groupName": f"p{k}"} for k in range(group_count)],
    )
    assert heart_beat(broker.broker, Call(34, NoHeader(), body=beat, peer=peer)) == OK
    return peer


def end_of_one(broker: ScriptedBroker) -> Callable[[], None]:
    peer = FakePeer("10.9.9.9:1")
    client = Client(peer, "one", 0, 401, seen_ms=0)
    for number in range(GROUPS_OF_ONE):
        data = ConsumerData(group_name=f"g{number}")
        broker.broker.clients.consumers.register(data, client)
        broker.broker.clients.producers.register(f"p{number}", client)
    return lambda: connection_closed(broker.broker, peer)


def silence(broker: ScriptedBroker) -> Callable[[], None]:
    for number in range(CLIENT_COUNT):
        join(broker, number, GROUPS_OF_CLIENT)
    broker.clock.advance(CLIENT_SILENCE_MS + 1)
    return lambda: expire_clients(broker.broker)


def revocation(broker: ScriptedBroker) -> Callable[[], None]:
    for number in range(CLIENT_COUNT):
        join(broker, number, GROUPS_OF_CLIENT)
    fallen: Any = Fallen()
    return lambda: accounts_changed(broker.broker, fallen, fallen)


def expiry_of_locks(broker: ScriptedBroker) -> Callable[[], None]:
    locks, now_ms = broker.broker.clients.locks, broker.clock.monotonic_ms()
    wanted = [MessageQueue("T", "b", number) for number in range(LOCK_COUNT)]
    locks.lock("g", "c", wanted, now_ms=now_ms)
    broker.clock.advance(LOCK_LIFE_MS + 1)
    return lambda: expire_clients(broker.broker)


@pytest.mark.parametrize("prepare", [end_of_one, silence, revocation, expiry_of_locks])
def test_work_on_many_clients_holds_the_loop_for_a_bounded_time(
    prepare: Callable[[ScriptedBroker], Callable[[], None]],
) -> None:
    async def run(broker: ScriptedBroker) -> float:
        begin, whole = prepare(broker), broker.broker
        with longest_hold() as holds:
            holds.measure(begin)
            while whole.pending.later:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        clients = whole.clients
        left = clients.consumers.client_count, clients.producers.client_count
        assert (*left, clients.registered.count, clients.locks.count) == (0, 0, 0, 0)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: run(broker))

    run_broker(False, work)
