# SPDX-License-Identifier: Apache-2.0
"""Appends the records that arrive from a master: only whole ones, and none before
its epoch is saved. Shows confirmed records to the readers of a slave.

To show records is to make their entries visible in the consume queues. Producers wait for a slave's
report, but not for this, so it is done after the report of a turn has been sent, or a little later.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.handshake import Welcome
from cometmq.broker.copies.streams.records import RecordStream
from cometmq.broker.copies.streams.replica import MemberReplica
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.turn import OncePerTurn
from cometmq.ha.epochs import History, epoch_of, last_epoch, reached
from cometmq.remoting.errors import CometError, RemoteProtocolError
from cometmq.remoting.types import Buffer

SHOW_DELAY_MS: Final = 5
"""How long confirmed records may wait for further ones, because showing a few records costs almost
as much as showing a hundred.
"""

SHOW_BYTES: Final = 32 << 10
"""Confirmed records of this total size do not wait: showing more at once would take too long."""


class ReceivedLog:
    """The part of the log that one connection receives, from the common point on."""

    def __init__(self, replica: MemberReplica, welcome: Welcome) -> None:
        self._replica = replica
        self._records = RecordStream(
            welcome.start,
            file_size=welcome.log.file_size,
            record_bytes_max=replica.record_bytes_max(),
            follow=replica.follow_headers(),
        )
        self._pieces: list[Buffer] = []  # not appended yet
        self._master_history = welcome.log.history
        self._next_start: int | None = None  # of the next epoch in the master's log
        self.find_next_start()

    @property
    def end(self) -> int:
        """The end of the last whole record that was received."""
        return self._records.end - self._records.held_bytes

    def find_next_start(self) -> None:
        """Look up where the next epoch of the master begins; call this when an epoch was saved."""
        newest = last_epoch(self._replica.epochs.history)
        history = self._master_history
        count = bisect_right(history, newest, key=epoch_of)
        self._next_start = history[count].start if count < len(history) else None

    def take(self, records: frames.Records) -> bool:
        """Keep records for `append`; return whether the next epoch begins at their end."""
        start = self._records.end + sum(map(len, self._pieces))
        end = records.offset + len(records.data)
        epoch = last_epoch(self._replica.epochs.history)
        if records.offset != start or records.epoch != epoch:
            raise UnfitLog(
                Unfit.OFFSET,
                f"the master sends offset {records.offset} of epoch {records.epoch}; this log ends"
                f" at {start} in epoch {epoch}",
            )
        if self._next_start is not None and end > self._next_start:
            raise RemoteProtocolError(f"bytes {start} to {end} span {self._next_start}, an epoch")
        self._pieces.append(records.data)
        return end == self._next_start

    def append(self) -> int:
        """Append the whole records that have arrived, in one write; return their size."""
        if not self._pieces:
            return 0
        pieces, self._pieces = self._pieces, []
        whole = self._records.feed(*pieces)
        if whole:
            self._replica.driver.append(self.end - len(whole), whole)
        return len(whole)

    def next_history(self) -> History:
        """Return the history with the next epoch, which begins at `end`."""
        end = self._records.end
        if self._records.held_bytes:
            raise UnfitLog(Unfit.NOT_A_RECORD, f"epoch begins at {end}, inside a record")
        return reached(self._replica.epochs.history, self._master_history, end)


class Showing:
    """Shows the records below the confirm offset of one connection."""

    def __init__(self, driver: StoreDriver, failed: Callable[[Exception], None]) -> None:
        """`failed` is called if the store cannot show the records."""
        self._driver = driver
        self._failed = failed
        self._confirmed = 0
        self._soon = OncePerTurn(self._show)
        self._later: asyncio.TimerHandle | None = None
        self._is_ended = False

    def confirm(self, offset: int) -> None:
        """Show the records up to this offset soon."""
        self._confirmed = offset
        if offset - self._driver.store.commit_log.confirm_offset >= SHOW_BYTES:
            self._soon()
        elif self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(SHOW_DELAY_MS / 1000, self._show)

    def end(self) -> None:
        """Show no records from now on."""
        self._is_ended = True

    def _show(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._is_ended:
            return
        try:
            self._driver.confirm(self._confirmed)
        except (CometError, OSError) as error:
            self._failed(error)
