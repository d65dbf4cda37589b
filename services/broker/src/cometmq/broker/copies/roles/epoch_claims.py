# SPDX-License-Identifier: Apache-2.0
"""Epochs that followers, masters and other brokers name: reasons to read the record, nothing more.

Only the record decides which epoch is the newest. The first claim is checked at once; while claims
continue, the record is read at most once per `PAUSE_MS`, whatever they name and however many
arrive. A claim that the record does not confirm changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.remoting.log import Log

PAUSE_MS: Final = 1_000
"""Minimum interval between reads that claims cause. Members are fenced before a deleted record is
created again, so a claim counts as unconfirmed only after a second read.
"""

REPORT_MS: Final = 60_000
"""Minimum interval between warnings."""


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
        """`check` reads the record if a claimed epoch is later than this member's; `recorded`
        returns the epoch in the record when it was last read.
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
        """Check the highest claim, or one for the second time; return it after the pause."""
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
