# SPDX-License-Identifier: Apache-2.0
"""Stands for the thread that syncs the log; a test decides when each sync ends."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.broker.storing.log_syncs import Ended

if TYPE_CHECKING:
    from cometmq.accel import LentAnswers


class HeldSyncer:
    """Behaves like `cometmq.accel.LogSyncer`, but runs on the caller's thread."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._running: int | None = None
        self._next: int | None = None
        self._ended: list[Ended] = []
        self._ended_last = 0
        self._ends: list[int] = []
        self._is_held = True
        self._has_failed = False
        self._lent: list[tuple[int, LentAnswers]] = []
        self.is_waking = True
        """Whether `fileno` becomes readable when a sync ends, so that the loop notices it."""
        self.lent_count = 0
        """How many times answers were lent."""
        self.written_count = 0
        """How many times all lent answers of a sync were written."""

    def fileno(self) -> int:
        """See `LogSyncer`."""
        return self._event

    def start(self, number: int, files: Sequence[int], _folder: int | None) -> bool:
        """See `LogSyncer`."""
        for descriptor in files:
            os.fstat(descriptor)  # is open
        is_replaced, self._next = self._next is not None, number
        self._step()
        return is_replaced

    def lend(self, number: int, answers: "LentAnswers", is_all: bool) -> None:
        """See `LogSyncer`."""
        del is_all
        if number > self._ended_last and not self._has_failed:
            self._lent.append((number, answers))
            self.lent_count += 1

    def take(self) -> list[Ended]:
        """See `LogSyncer`."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        ended, self._ended = self._ended, []
        return ended

    def end(self, number: int = 0) -> None:
        """End the running sync, or the next one to begin, with this errno; 0 means success."""
        self._ends.append(number)
        self._step()

    def release(self) -> None:
        """Let all syncs end at once from now on."""
        self._is_held = False
        self._step()

    def _step(self) -> None:
        """Begin and end syncs as far as the test allows, without the loop, as the thread does."""
        if self._running is None:
            self._running, self._next = self._next, None
        while self._running is not None and (self._ends or not self._is_held):
            number = self._ends.pop(0) if self._ends else 0
            self._ended_last = self._running
            self._has_failed |= bool(number)
            self._write(self._running)
            self._ended.append((self._running, 0.0, (0, number) if number else None, 0.0))
            if self.is_waking:
                os.eventfd_write(self._event, 1)
            self._running, self._next = self._next, None

    def _write(self, number: int) -> None:
        due = [answers for one, answers in self._lent if one <= number]
        self._lent = [(one, answers) for one, answers in self._lent if one > number]
        if not self._has_failed:
            self.written_count += sum([answers.write() for answers in due])
