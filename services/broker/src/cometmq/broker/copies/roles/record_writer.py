# SPDX-License-Identifier: Apache-2.0
"""Writes the record of a broker group for its master: the in-sync set, renewals and a hand-over.

One write at a time is in progress; its result is applied to the view that is current when the
answer arrives.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.copies.roles.confirmation import Confirmation
from cometmq.ha import in_sync
from cometmq.ha.port import UNKNOWN, Answer, Outcome, RecordPort, RecordUnreachable
from cometmq.ha.record import Record, RecordDamaged, Versioned
from cometmq.remoting.log import Log

RENEWALS_PER_DEADLINE: Final = 4
PAUSE_MS: Final = 200
HAND_OVER_PAUSE_MS: Final = 5


async def swap(port: RecordPort, base: Versioned, record: Record) -> Outcome:
    """Replace the record if it is still `base`; with a damaged record, the outcome is unknown."""
    try:
        return await port.replace(base, record)
    except RecordDamaged:
        return UNKNOWN


class RecordWriter:
    """Keeps the record up to date with the view of one leadership, until the leadership ends."""

    def __init__(
        self,
        confirmation: Confirmation,
        record: RecordPort,
        *,
        deposed: Callable[[], None],
        log: Log,
    ) -> None:
        """`deposed` is called when the record names a different master or epoch."""
        self._confirmation = confirmation
        self._record = record
        self._deposed = deposed
        self._log = log
        self._writing = asyncio.Lock()
        self._copies: int | None = None

    def resize(self, copies: int) -> None:
        self._copies = copies
        self._confirmation.write_wanted.set()

    def record_seen(self, found: Versioned | None) -> None:
        confirmation = self._confirmation
        is_news = found is not None and found.version != confirmation.view.base.version
        if is_news and not self._writing.locked():
            confirmation.view = msgspec.structs.replace(confirmation.view, must_read=True)
            confirmation.write_wanted.set()

    async def run(self) -> None:
        """Renew the record, update its in-sync set, and read it when the rules require that."""
        interval_ms = self._confirmation.timing.renew_deadline_ms // RENEWALS_PER_DEADLINE
        confirmation = self._confirmation
        while not confirmation.has_ended():
            confirmation.write_wanted.clear()
            is_settled = await self._write_once()
            if confirmation.has_ended():
                return
            wait_ms = interval_ms if is_settled else PAUSE_MS
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await confirmation.write_wanted.wait()
            except TimeoutError:
                continue

    async def _write_once(self) -> bool:
        """Read if required, write if necessary; return False if that must soon be tried again."""
        confirmation = self._confirmation
        async with self._writing:
            if confirmation.view.must_read and not await self._read():
                return False
            unfit = confirmation.unfit()
            record = in_sync.proposal(confirmation.view, unfit, copies=self._copies)
            if confirmation.has_ended() or record is None:
                return confirmation.has_ended()
            base, began_ms = confirmation.view.base, confirmation.now_ms()
            confirmation.adopt(in_sync.written(confirmation.view, record))
            outcome = await swap(self._record, base, record)
            if confirmation.has_ended():
                return True
            before = base.record.in_sync
            if outcome.answer is Answer.APPLIED:
                confirmation.renewed_ms = began_ms
            confirmation.adopt(in_sync.answered(confirmation.view, outcome))
            if outcome.answer is Answer.APPLIED and record.in_sync != before:
                self._log.info(
                    "in_sync.changed", epoch=record.epoch,
                    brokers=[copy.ordinal for copy in record.in_sync],
                    before=[copy.ordinal for copy in before],
                )  # fmt: skip
            return outcome.answer is Answer.APPLIED and not confirmation.view.must_read

    async def _read(self) -> bool:
        """Read the record; return whether this master may base a write on it."""
        confirmation = self._confirmation
        try:
            found = await self._record.read()
        except (RecordUnreachable, RecordDamaged):
            return False
        if confirmation.has_ended():
            return False
        if found is not None and in_sync.is_deposed(confirmation.view, found):
            self._deposed()
            return False
        confirmation.adopt(in_sync.found(confirmation.view, found))
        return not confirmation.view.must_read

    async def hand_over(
        self, target: int, *, leaves: bool, deadline_ms: int, is_ready: Callable[[], bool]
    ) -> tuple[Answer, int] | None:
        """Write the record that makes a caught-up member master; return None if nothing was
        written.

        The caller has stopped appending; `is_ready` returns whether all puts have been answered and
        the target is connected.
        """
        confirmation = self._confirmation
        while not confirmation.has_ended():
            progressed = confirmation.progressed
            async with self._writing:
                record = self._successor(target, leaves=leaves) if is_ready() else None
                if record is not None and not confirmation.is_lapsed():
                    base = confirmation.view.base
                    confirmation.adopt(in_sync.written(confirmation.view, record))
                    outcome = await swap(self._record, base, record)
                    if outcome.answer is not Answer.APPLIED and not confirmation.has_ended():
                        confirmation.view = in_sync.answered(confirmation.view, outcome)
                        confirmation.write_wanted.set()
                    return outcome.answer, record.epoch
            left_ms = deadline_ms - confirmation.now_ms()
            if left_ms <= 0:
                return None
            try:
                async with asyncio.timeout(min(left_ms, HAND_OVER_PAUSE_MS) / 1000):
                    await progressed.wait()
            except TimeoutError:
                continue
        return None

    def _successor(self, target: int, *, leaves: bool) -> Record | None:
        view = self._confirmation.view
        copy = view.base.record.member(target)
        return None if copy is None else in_sync.hand_over(view, copy, leaves=leaves)
