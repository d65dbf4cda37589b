# SPDX-License-Identifier: Apache-2.0
"""Does work once per turn of the event loop, even if several events ask for it."""

import asyncio
from collections.abc import Callable


class OncePerTurn:
    """Runs an action once at the end of the loop's turn, however often it is called in
    that turn.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._is_scheduled = False

    def __call__(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._action()
