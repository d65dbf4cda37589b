# SPDX-License-Identifier: Apache-2.0
"""A thread that syncs the log, whose syncs end when a test lets them."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple


class Answer(NamedTuple):
    """What the thread writes to a socket after a sync."""

    number: int
    socket: int
    data: bytes


class HeldSyncer:
    """The native thread, as `cometmq.accel.LogSyncer` behaves, on the caller's thread."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self._running: int | None = None
        self._next: int | None = None
        self._ended: list[tuple[int, float, tuple[int, int] | None]] = []
        self._ended_last = 0
        self._ends: list[int] = []
        self._is_held = True
        self._answer: Answer | None = None
        self._sent = 0
        self.sent_count = 0
        """How many answers were written here."""

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

    def answer(self, number: int, fd: int, data: bytes) -> None:
        """See `LogSyncer`."""
        assert self._answer is None
        self._answer, self._sent = Answer(number, fd, data), 0
        if number <= self._ended_last:
            self._reply(number, is_synced=True)

    def withdraw(self) -> int:
        """See `LogSyncer`."""
        self._answer = None
        sent, self._sent = self._sent, 0
        return sent

    def take(self) -> list[tuple[int, float, tuple[int, int] | None]]:
        """See `LogSyncer`."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        ended, self._ended = self._ended, []
        return ended

    @property
    def has_answer(self) -> bool:
        """Whether an answer waits for a sync."""
        return self._answer is not None

    def end(self, number: int = 0) -> None:
        """End the running sync, or the next one to begin, with an errno."""
        self._ends.append(number)
        self._step()

    def release(self) -> None:
        """Let all syncs end at once from now on."""
        self._is_held = False
        self._step()

    def _step(self) -> None:
        """Go on as far as the test allows: the next sync does not wait for the loop."""
        if self._running is None:
            self._running, self._next = self._next, None
        while self._running is not None and (self._ends or not self._is_held):
            number = self._ends.pop(0) if self._ends else 0
            self._ended_last = self._running
            self._reply(self._running, is_synced=not number)
            self._ended.append((self._running, 0.0, (0, number) if number else None))
            os.eventfd_write(self._event, 1)
            self._running, self._next = self._next, None

    def _reply(self, number: int, *, is_synced: bool) -> None:
        answer = self._answer
        if answer is not None and answer.number <= number:
            self._answer = None
            if is_synced:
                self._sent = os.write(answer.socket, answer.data)
                self.sent_count += 1
