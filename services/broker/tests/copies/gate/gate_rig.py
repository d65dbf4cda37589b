# SPDX-License-Identifier: Apache-2.0
"""A gate before handlers that record what they serve."""

import asyncio
from collections.abc import Callable
from typing import Any

from cometmq.broker.copies.gate.diversion import NOT_SERVED, Diversion, Gate
from cometmq.broker.copies.gate.permission import Permission
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Reply, Response
from cometmq.remoting.signature import FORWARDED

SEND, TOPIC = RequestCode.SEND_MESSAGE_V2, RequestCode.UPDATE_AND_CREATE_TOPIC
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
LOCK, PULL, BEAT = RequestCode.LOCK_BATCH_MQ, RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT
HEAD = b'{"code":310,"extFields":{"topic":"T","Signature":"s"}}'
FORWARDED_HEAD = b'{"code":310,"extFields":{"topic":"T","cometmqForwarded":"true"}}'
DONE = Response(int(ResponseCode.SUCCESS), None, {}, b"", "ok")


def refusal(ext: dict[str, str]) -> Response:
    return Response(int(ResponseCode.SERVICE_NOT_AVAILABLE), None, ext, b"", "a slave")


def not_served(epoch: int) -> Response:
    return refusal({NOT_SERVED: str(epoch)})


class Leader:
    """A leadership whose answers are set by the test."""

    def __init__(self) -> None:
        self.readable = self.unlogged = self.enough = True
        self.tables = 0
        self.moved = asyncio.Event()

    def may_read(self) -> bool:
        return self.readable

    def may_answer_unlogged(self) -> bool:
        return self.unlogged

    def has_enough_copies(self) -> bool:
        return self.enough

    def has_confirmed_tables(self, tables: int) -> bool:
        return self.tables >= tables

    async def progress(self) -> None:
        await self.moved.wait()


class Client:
    """A connection to the new master, with scripted outcomes."""

    def __init__(self, *outcomes: Response | Exception) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, int, bytes]] = []

    async def invoke(
        self,
        address: str,
        code: int,
        header: Any,
        body: Any,
        *,
        timeout_ms: int,
        ok: Any,
        ext: Any,
    ) -> Response:
        assert header is None
        assert ext == {"topic": "T", "Signature": "s", FORWARDED: "true"}
        self.asked.append((address, code, body))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome.code in ok
        return outcome


class Rig:
    client: Any
    leader: Any

    def __init__(self, *outcomes: Response | Exception, is_master: bool = True) -> None:
        client: Any = Client(*outcomes)
        self.client = client
        self.changes = 0
        self.may_read_copy = True
        self.now_ms = 0
        self.epochs_seen: list[int] = []
        self.served: list[bytes] = []
        self.permission = Permission(
            changes=lambda: self.changes,
            may_read_copy=lambda: self.may_read_copy,
            now_ms=self._now,
        )
        self.diversion = Diversion(
            client, self.permission, epoch_seen=self.epochs_seen.append, now_ms=self._now
        )
        self.leader = Leader()
        self.permission.confirmation = self.leader if is_master else None
        self.table = Gate(self.permission, self.diversion).guarded(
            dict.fromkeys((SEND, TOPIC, LOCK, COMMIT, PULL, BEAT), self._serve)
        )

    def _now(self) -> int:
        self.now_ms += 100
        return self.now_ms

    def _serve(self, _context: object, call: Call[Any]) -> Reply:
        self.served.append(call.body)
        return Reply(remark="served")

    def ask(self, code: int, body: bytes = b"x", *, flag: int = 0, head: bytes = HEAD) -> Any:
        call: Call[Any] = Call(code, "header", flag=flag, body=body, head=head)
        return self.table[code](None, call)

    async def until_asked(self, count: int) -> None:
        """Wait until this many requests have been forwarded."""
        await until(lambda: len(self.client.asked) >= count)

    async def until_held(self, count: int) -> None:
        await until(lambda: self.diversion.held_count == count)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # it has no event
            await asyncio.sleep(0.001)


async def turns() -> None:
    """Run all tasks until each of them waits for an event that has not happened."""
    for _ in range(100):
        await asyncio.sleep(0)
