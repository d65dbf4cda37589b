# SPDX-License-Identifier: Apache-2.0
"""Repairs damaged blocks of the log with blocks of another member, over the stream between the two.

Up to the confirm offset both logs have the same bytes. A member whose block does not match its
checksum requests that block, and its store compares the answer with the checksum. Either side of a
stream may request blocks if the other side has offered in the handshake to answer. The answering
side first checks its own bytes, and sends no damaged ones.

A member requests one block at a time from one member, with pauses. After a round through all
damaged blocks it pauses for AGAIN_MS. A connection has at most one unanswered request in each
direction.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.frames import WantedBlock
from cometmq.broker.copies.streams.served import UNSENT_BYTES_MAX
from cometmq.remoting.errors import CometError, RemoteProtocolError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.worker import Worker
from cometmq.store.log.damage import DamagedRange
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep.block_repairs import Offer

AGAIN_MS: Final = 60_000
"""How long a member waits, after it has requested all damaged blocks, before it begins again.
"""

SILENT_MS: Final = 5_000
"""How long a member waits for an answer before it may send a request on another connection."""

PAUSE_MS: Final = 50


class BlockTurn:
    def __init__(self) -> None:
        self._owner: BlockExchange | None = None
        self._since_ms = 0

    def take(self, exchange: "BlockExchange", now_ms: int) -> bool:
        if self._owner is not None and now_ms - self._since_ms < SILENT_MS:
            return False
        self._owner, self._since_ms = exchange, now_ms
        return True

    def end(self, exchange: "BlockExchange") -> None:
        if self._owner is exchange:
            self._owner = None


class BlockExchange:
    def __init__(
        self,
        store: MessageStore,
        turn: BlockTurn,
        *,
        worker: Worker,
        now_ms: Callable[[], int],
        peer: str,
        log: Log,
    ) -> None:
        self._store = store
        self._turn = turn
        self._worker = worker
        self._now_ms = now_ms
        self._peer = peer
        self._log = log
        self._transport: asyncio.Transport | None = None
        self._asked: DamagedRange | None = None
        self._after = 0
        self._found_count = -1  # of the store's damage, when this round of requests began
        self._ended_ms = 0  # the last round
        self._has_ended = False
        self._has_complained = False
        self._answering = TaskSet(log)
        self._answered_s = 0.0

    def begin(self, transport: asyncio.Transport) -> None:
        """Send requests from now on, because the other side has offered to answer."""
        self._transport = transport

    def close(self) -> None:
        self._transport = None
        self._turn.end(self)

    # Asking

    def tick(self, end: int) -> None:
        """Request the next damaged block, if one is due, before `end`."""
        transport, repairs = self._transport, self._store.upkeep.scrubber.repairs
        if transport is None or self._asked is not None or not self._store.commit_log.damage:
            return
        now_ms = self._now_ms()
        if self._found_count != repairs.found_count:
            self._begin_round()
        elif self._has_ended:
            if now_ms - self._ended_ms < AGAIN_MS:
                return
            self._begin_round()
        if not self._turn.take(self, now_ms):
            return
        block = repairs.next_block(self._after, end)
        if block is None:
            self._has_ended, self._ended_ms = True, now_ms
            self._turn.end(self)
            return
        self._asked, self._after = block, block.end
        wanted = WantedBlock(block.start, block.end - block.start)
        transport.write(frames.encode(wanted))

    def _begin_round(self) -> None:
        self._found_count = self._store.upkeep.scrubber.repairs.found_count
        self._after, self._has_ended, self._has_complained = 0, False, False

    def take_block(self, body: memoryview) -> None:
        """Pass an answer to the store; raise RemoteProtocolError if it answers no request."""
        offset, data = frames.decode_block(body)
        asked = self._asked
        if asked is None or offset != asked.start or len(data) not in {0, asked.end - asked.start}:
            raise RemoteProtocolError(
                f"{len(data)} bytes of offset {offset}; {asked} was asked for"
            )
        self._asked = None
        is_offered = data and self._store.upkeep.scrubber.repairs.offer(
            Offer(asked, data, self._peer, partial(self._done, asked))
        )
        if not is_offered:
            self._turn.end(self)

    def _done(self, asked: DamagedRange, is_intact: bool) -> None:  # a callback
        self._turn.end(self)
        if not is_intact and not self._has_complained and self._transport is not None:
            self._has_complained = True
            size = asked.end - asked.start
            facts = {"physical_offset": asked.start, "size": size, "source": self._peer}
            self._log.warning("log.unrepaired", **facts)

    # Answering

    def answer(self, transport: asyncio.Transport, body: memoryview) -> None:
        """Send the requested bytes as soon as the connection accepts them.

        Raise RemoteProtocolError if the previous request has not been answered yet.
        """
        wanted = frames.decode(body, WantedBlock)
        if len(self._answering):
            raise RemoteProtocolError("a WANT_BLOCK frame before the last one was answered")
        self._answering.spawn(self._answer(transport, wanted), name="block-answer")

    async def _answer(self, transport: asyncio.Transport, wanted: WantedBlock) -> None:
        loop = asyncio.get_running_loop()
        while not transport.is_closing() and (  # noqa: ASYNC110  # there is no event for both
            loop.time() - self._answered_s < PAUSE_MS / 1000
            or transport.get_write_buffer_size() > UNSENT_BYTES_MAX
        ):
            await asyncio.sleep(PAUSE_MS / 1000)
        self._answered_s = loop.time()
        view, (offset, size), data = self._store.commit_log.view(), wanted, None
        is_whole = view.first <= offset and offset + size <= view.end
        if is_whole and offset % view.file_size + size <= view.file_size:
            with contextlib.suppress(CometError, OSError):
                data = await self._worker.submit(partial(view.read, offset, size, may_block=True))
        if not transport.is_closing():
            found = data if data is not None and len(data) == size else b""
            transport.write(frames.encode_block(offset, found))
