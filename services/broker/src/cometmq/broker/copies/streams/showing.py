# SPDX-License-Identifier: Apache-2.0
"""Shows confirmed records to the readers of a slave.

To show records is to make their entries visible in the consume queues. Producers wait for a slave's
report, but not for this, so it is done after the report of a turn has been sent, or a little later.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.turn import OncePerTurn
from cometmq.remoting.errors import CometError

SHOW_DELAY_MS: Final = 5
"""How long confirmed records may wait for further ones, because showing a few records costs almost
as much as showing a hundred.
"""

SHOW_BYTES: Final = 32 << 10
"""Confirmed records of this total size do not wait: showing more at once would take too long."""


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
