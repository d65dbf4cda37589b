# SPDX-License-Identifier: Apache-2.0
"""Finds out which programs are replaying a group's dead letters.

Such a program is a member of a producer group until it ends, so that every other program can ask
the brokers for it. Brokers forget it when its connection closes. A producer group leaves nothing
behind, whereas brokers would create a retry topic for a consumer group.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.scope import AdminBase
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat, ProducerData
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands.clients import UnregisterClient
from cometmq.remoting.errors import CometError
from cometmq.remoting.names import DLQ_REPLAY_GROUP, dead_letter_topic
from cometmq.remoting.transport.tasks import TaskSet

RENEW_S: Final = 30.0
"""Pause between two heartbeats; brokers forget a client after 120 s."""


@asynccontextmanager
async def announced(admin: AdminBase, group: str) -> AsyncIterator[None]:
    """Let other programs see that this one replays the group's dead letters.

    A broker that does not take the heartbeat cannot tell the others; the replay goes on.
    """
    await _announce(admin, group)
    tasks = TaskSet()
    tasks.spawn(_renew(admin, group), name="replay-announced", is_endless=True)
    try:
        yield
    finally:
        await tasks.close()
        header = UnregisterClient(admin.client_id, producer_group=_name(group))
        for master in await _masters(admin, group):
            with suppress(CometError):
                await master.invoke(Code.UNREGISTER_CLIENT, header)


async def running_replays(admin: AdminBase, group: str) -> list[str]:
    """Return the client ids of the programs that replay the group's dead letters; brokers that do
    not answer are left out.
    """
    found: set[str] = set()
    for master in await _masters(admin, group):
        with suppress(CometError):  # as if nobody is in the group
            members = await master.producer_connections(_name(group))
            found |= {it.client_id for it in members.connection_set}
    return sorted(found)


def _name(group: str) -> str:
    return f"{DLQ_REPLAY_GROUP}-{group}"


async def _announce(admin: AdminBase, group: str) -> None:
    beat = Heartbeat(client_id=admin.client_id, producer_data_set=[ProducerData(_name(group))])
    for master in await _masters(admin, group):
        with suppress(CometError):
            await master.invoke(Code.HEART_BEAT, None, encode_json(beat))


async def _renew(admin: AdminBase, group: str) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        await _announce(admin, group)


async def _masters(admin: AdminBase, group: str) -> list[BrokerAdmin]:
    try:
        return await admin.masters_of(dead_letter_topic(group))
    except CometError:
        return []
