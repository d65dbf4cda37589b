# SPDX-License-Identifier: Apache-2.0
"""Saves a follower's progress: commits offsets to the broker and takes checkpoints of the
ledger.
"""

from pathlib import Path

from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.runtime.saves import Job, Saver
from cometmq.txn_checker.broker_link import BrokerLink
from cometmq.txn_checker.ledger import Checkpoint, Ledger


class Progress:
    def __init__(self, link: BrokerLink, saver: Saver) -> None:
        self._link = link
        self._saver = saver
        self._committed: tuple[int, int] | None = None

    def forget(self) -> None:
        """Make the next `commit` send even unchanged offsets: the broker may have lost them."""
        self._committed = None

    async def commit(self, ledger: Ledger) -> None:
        """Commit to the broker the offsets below which every transaction has ended."""
        low_water = ledger.halves.low_water
        marks = (low_water, ledger.ops.mark(low_water))
        if marks != self._committed:
            await self._link.commit(HALF_TOPIC, marks[0])
            await self._link.commit(OP_HALF_TOPIC, marks[1])
            self._committed = marks

    async def checkpoint(self, ledger: Ledger) -> None:
        """Sync the ledger's tables if anything changed."""
        if not ledger.is_changed:
            return
        done: list[Checkpoint] = []

        def begin() -> Job:
            done.append(ledger.checkpoint())
            return done[-1].sync

        await self._saver.save(Path(ledger.folder), begin)
        if done:
            ledger.note_synced(done[-1])
