# SPDX-License-Identifier: Apache-2.0
"""The owners of queues, as members report them."""

import asyncio
from typing import Any

from cometmq.insight import members
from cometmq.insight.members import Owners, owner_words, owners_of, silent_notes
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo, ProcessQueueInfo
from cometmq.remoting.errors import ConsumerNotOnline

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))


class Told:
    """An admin client that returns what members say, by client id."""

    def __init__(self, **said):
        self._said = said

    async def running_info(self, group, client_id):
        said = self._said[client_id]
        if said is asyncio.sleep:
            await asyncio.sleep(3_600)
        if isinstance(said, Exception):
            raise said
        return ConsumerRunningInfo(mq_table=said)


def asked(**said) -> Owners:
    admin: Any = Told(**said)
    return asyncio.run(owners_of(admin, "G", said.keys()))


def test_a_queue_that_no_member_has_is_told_from_one_that_is_not_known(monkeypatch):
    mine, given_up = ProcessQueueInfo(), ProcessQueueInfo(droped=True)
    found = asked(x={A: mine}, y={A: mine, B: mine, C: given_up})
    assert [found.of(it) for it in (A, B, C)] == [["x", "y"], ["y"], []]
    assert [owner_words(found.of(it)) for it in (A, B, C)] == ["x, y", "y", "nobody"]
    assert silent_notes(found) == []
    monkeypatch.setattr(members, "MEMBER_TIMEOUT_S", 0.01)
    for silence in (ConsumerNotOnline("gone"), asyncio.sleep):
        found = asked(x={A: mine}, y=silence)
        assert [found.of(it) for it in (A, B)] == [["x"], None]
        assert silent_notes(found) == ["1 member did not say which queues they have: y"]
    assert asked().of(A) is None
    assert owner_words(None) is None
