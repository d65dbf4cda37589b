# SPDX-License-Identifier: Apache-2.0
"""The native lane renews queue locks only as long as handlers would."""

import asyncio
import json
import tempfile
from typing import Any

import pytest

from cometmq.broker.clients.queue_locks import LOCK_LIFE_MS
from cometmq.broker.native import IS_BUILT
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.header import decode_header
from cometmq.testing.broker.scripted import ScriptedBroker, frames_of
from cometmq.testing.broker.scripts import frame

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")


def lock_frame(client: str, queue_id: int, opaque: int) -> bytes:
    body = {
        "clientId": client, "consumerGroup": "g",
        "mqSet": [{"brokerName": "b", "queueId": queue_id, "topic": "Orders"}],
    }  # fmt: skip
    return frame(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(body).encode(), opaque=opaque)


class Locking:
    """Sends requests for locks, and counts those that reach the lock table through a handler."""

    def __init__(self, root: str, **options: Any) -> None:
        self.broker = ScriptedBroker(storePathRootDir=root, brokerIP1="10.1.2.3", **options)
        self.peer, self.wire = self.broker.connect()
        self.handled = 0
        self.opaque = 0
        locks = self.broker.broker.clients.locks
        self._lock = locks.lock
        locks.lock = self.lock  # type: ignore[method-assign]

    def lock(self, *arguments: Any, **options: Any) -> Any:
        self.handled += 1
        return self._lock(*arguments, **options)

    async def ask(self, client: str, queue_id: int) -> tuple[bool, int]:
        """Return whether the lock was granted, and how often a handler was called."""
        before, self.opaque = self.handled, self.opaque + 1
        self.wire.sent.clear()
        self.peer.data_received(lock_frame(client, queue_id, self.opaque))
        await self.broker.settle()
        ((serialization, head, body),) = frames_of(bytes(self.wire.sent))
        answer = decode_header(serialization, head)
        assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, self.opaque)
        return b'"queueId"' in body, self.handled - before


def test_renewals_are_native_until_a_lock_changes_hands():
    async def main(root: str) -> None:
        locking = Locking(root)
        clock = locking.broker.clock
        assert await locking.ask("one", 0) == (True, 1)
        clock.advance(LOCK_LIFE_MS)
        assert await locking.ask("one", 0) == (True, 0)
        clock.advance(LOCK_LIFE_MS)
        assert await locking.ask("two", 0) == (False, 1)  # the native renewal counted
        assert await locking.ask("one", 0) == (True, 0)
        assert await locking.ask("two", 1) == (True, 1)
        assert await locking.ask("one", 0) == (True, 1)
        assert await locking.ask("one", 0) == (True, 0)
        clock.advance(LOCK_LIFE_MS + 1)
        assert await locking.ask("two", 0) == (True, 1)
        assert await locking.ask("one", 0) == (False, 1)

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


def test_a_lock_released_in_the_same_chunk_is_not_renewed():
    async def main(root: str) -> None:
        locking = Locking(root)
        await locking.ask("one", 0)
        renewal = lock_frame("one", 0, 7)
        release = lock_frame("one", 0, 8).replace(b'"code":41', b'"code":42')
        locking.peer.data_received(renewal + release + renewal)
        await locking.broker.settle()
        assert locking.handled == 2
        assert locking.broker.broker.clients.locks.count == 1

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


def test_handlers_serve_all_requests_for_locks_in_a_broker_group():
    async def main(root: str) -> None:
        locking = Locking(root, groupRecord="file:///nowhere")
        assert await locking.ask("one", 0) == (True, 1)
        assert await locking.ask("one", 0) == (True, 1)

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))
