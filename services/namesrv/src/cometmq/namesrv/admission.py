# SPDX-License-Identifier: Apache-2.0
"""Refuses registrations and key-values for which the limits of `limits.py` leave no room."""

import asyncio
from typing import Any, Final, TypeVar

from cometmq.namesrv.limits import (
    ALL_FILTER_SERVERS,
    BROKER_TOPICS,
    BROKERS,
    CONNECTION_BROKERS,
    FILTER_SERVERS,
    KV_BYTES,
    KV_ENTRIES,
    NAME_CHARS,
    ROUTE_ENTRIES,
)
from cometmq.namesrv.namesrv import Namesrv
from cometmq.remoting import remarks
from cometmq.remoting.bodies.registrations import STEP_TOPICS, Registered
from cometmq.remoting.command import Call
from cometmq.remoting.commands.namesrv import PutKvConfig, RegisterBroker
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.incremental import Steps, TurnExpired
from cometmq.runtime.limits import address_peer

T = TypeVar("T")

WAIT_S_MAX: Final = 3.0
"""How long a request may wait for the turn of its long answer: a list of 20,000 topics takes 25 ms,
so the last request of a flood would wait for a minute.
"""


async def stepwise(
    namesrv: Namesrv, call: Call[Any], work: Steps[T], *, wait_s_max: float | None = None
) -> T:
    """Return the result of a long job for a request; the jobs of all addresses take turns.

    Raise SystemBusy, with nothing done, if its turn does not come in `wait_s_max`, by default
    WAIT_S_MAX.
    """
    requester = Requester(address_peer(call.peer.address), call.peer)
    began_s, jobs = asyncio.get_running_loop().time(), namesrv.incremental
    try:
        return await jobs.run(work, requester, wait_s_max or WAIT_S_MAX)
    except TurnExpired:
        waited_ms = int(1000 * (asyncio.get_running_loop().time() - began_s))
        remark = remarks.queue_timeout(in_queue=jobs.waiting_count, waited_ms=waited_ms)
        raise SystemBusy(remark) from None


def admit_registration(
    namesrv: Namesrv, call: Call[RegisterBroker], body: Registered
) -> Steps[None]:
    """Raise LimitReached if there is no room for a registration."""
    header, routes, limits = call.header, namesrv.routes, namesrv.limits
    peer = address_peer(call.peer.address)
    names = [header.cluster_name, header.broker_name, header.broker_addr, header.ha_server_addr]
    names += body.filter_servers
    limits.check(NAME_CHARS, max(map(len, names)), "a name", peer=peer)
    subject = f"the broker {header.broker_name}"
    limits.check(FILTER_SERVERS, len(body.filter_servers), subject, peer=peer)
    if body.filter_servers:
        others = routes.filter_server_count - routes.filter_server_count_of(header.broker_addr)
        count = others + len(body.filter_servers)
        limits.check(ALL_FILTER_SERVERS, count, "all brokers together", peer=peer)
    is_known = header.broker_addr in routes.live_brokers()
    if not routes.is_read(header.broker_addr, body.data_version, call.peer):
        yield from _admit_topics(namesrv, header.broker_name, body, peer)
    if not is_known:
        limits.check(CONNECTION_BROKERS, routes.count_of(call.peer) + 1, "a connection", peer=peer)
        limits.admit(BROKERS, len(routes.live_brokers()), peer)


def _admit_topics(namesrv: Namesrv, broker_name: str, body: Registered, peer: str) -> Steps[None]:
    """Raise LimitReached if a name is too long, or if a broker group or all groups together would
    have too many topics.
    """
    routes, limits = namesrv.routes, namesrv.limits
    new = chars = 0
    for number, topic in enumerate(body.topics, 1):  # decoded one at a time
        if not number % STEP_TOPICS:
            yield
        new += not routes.topics.has(broker_name, topic.topic_name)
        chars = max(chars, len(topic.topic_name))
    limits.check(NAME_CHARS, chars, "a name", peer=peer)
    count, total = routes.topics.count_of(broker_name), routes.topics.entry_count
    limits.check(BROKER_TOPICS, count + new, f"the broker group {broker_name}", peer=peer)
    bound = limits.maximum(ROUTE_ENTRIES)
    if new and total + new > bound:
        raise limits.refusal(ROUTE_ENTRIES, f"there are {total} of at most {bound}", peer)


def admit_kv(namesrv: Namesrv, call: Call[Any], header: PutKvConfig) -> None:
    """Raise LimitReached if there is no room for a key-value."""
    kv_config, limits = namesrv.kv_config, namesrv.limits
    peer = address_peer(call.peer.address)
    more = kv_config.growth(header.namespace, header.key, header.value)
    if more > 0:
        limits.admit(KV_BYTES, kv_config.size, peer, more)
    if kv_config.get(header.namespace, header.key) is None:
        limits.admit(KV_ENTRIES, kv_config.count, peer)
