# SPDX-License-Identifier: Apache-2.0
"""Checks claims of later epochs, which other brokers make, against the record.

A claim is an epoch that a follower, a master or another broker has named. It only causes a read of
the record, which alone decides which epoch is the newest. The first claim is checked at once; after
that, the record is read at most once per `PAUSE_MS`, however many claims arrive. A claim that the
record does not confirm changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.remoting.log import Log

PAUSE_MS: Final = 1_000
"""Minimum interval between reads that claims cause. A claim counts as unconfirmed only after a
second read: before a deleted record is created again, members are fenced in its epoch, and may name
it.
"""

REPORT_MS: Final = 60_000
"""Minimum interval between warnings about unconfirmed claims."""


class EpochClaims:
    """The claims that have not been checked yet; `run` checks them."""

    def __init__(
        self,
        *,
        check: Callable[[int], None],
        recorded: Callable[[], int],
        log: Log,
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        """`check` causes a read of the record if the claimed epoch is later than this member's;
        `recorded` returns the epoch in the record when it was last read.
        """
        self._check = check
        self._recorded = recorded
        self._log = log
        self._sleep = sleep
        self._highest = 0
        self._is_waiting = asyncio.Event()
        self._reported_s: float | None = None

    def note(self, epoch: int) -> None:
        """Check a claim, now or when the pause is over."""
        self._highest = max(self._highest, epoch)
        self._is_waiting.set()

    async def run(self) -> None:
        """Check claims until cancelled."""
        while True:
            await self._is_waiting.wait()
            claimed = await self._checked(0)
            if claimed > self._recorded():
                claimed = await self._checked(claimed)
                if claimed > self._recorded():
                    self._report(claimed)

    async def _checked(self, again: int) -> int:
        """Check the highest new claim or, if it is higher, the claim `again` a second time; return
        the checked epoch after the pause.
        """
        claimed, self._highest = max(self._highest, again), 0
        self._is_waiting.clear()
        self._check(claimed)
        await self._sleep(PAUSE_MS / 1000)
        return claimed

    def _report(self, claimed: int) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._reported_s is None or now_s - self._reported_s >= REPORT_MS / 1000:
            self._reported_s = now_s
            self._log.warning(
                "member.epoch_unrecorded", claimed=claimed, recorded=self._recorded(),
                action="find out who names an epoch that the record does not have; protect"
                " haListenPort with groupKeyFile",
            )  # fmt: skip
