# SPDX-License-Identifier: Apache-2.0
"""The load counts a send as acknowledged only if all in-sync copies have stored it."""

from types import SimpleNamespace
from typing import Any, cast

from cometmq.client import SendStatus
from cometmq.peers.ha.load import Load
from cometmq.remoting.errors import CometError


class Producer:
    """Answers sends with the given outcomes in turn; the last one ends the load."""

    def __init__(self, load, outcomes):
        self._load, self._outcomes = load, iter(outcomes)
        self._left = len(outcomes)

    async def send(self, message, *_rest):
        self._left -= 1
        self._load._is_sending = self._left > 0
        outcome = next(self._outcomes)
        if isinstance(outcome, CometError):
            raise outcome
        queue = SimpleNamespace(queue_id=0)
        return SimpleNamespace(status=outcome, queue=queue, queue_offset=int(message.body))

    send_ordered = send


async def test_only_stored_by_all_copies_in_sync_counts_as_acknowledged():
    load = Load("127.0.0.1:1")
    outcomes = [
        SendStatus.SEND_OK,
        SendStatus.FLUSH_SLAVE_TIMEOUT,
        CometError("no master"),
        SendStatus.SEND_OK,
    ]
    await load._send(cast("Any", Producer(load, outcomes)), 0)
    assert sorted(load.ledger.acknowledged) == [0, 3]
    assert {number: text for number, (_, text) in load.ledger.failed.items()} == {
        1: "FLUSH_SLAVE_TIMEOUT", 2: "no master",
    }  # fmt: skip
    assert not load.ledger.pending
