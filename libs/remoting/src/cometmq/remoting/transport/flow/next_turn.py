# SPDX-License-Identifier: Apache-2.0
"""Work that waits for the next turn of the loop; does no I/O itself."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol


class Abortable(Protocol):
    """A connection that `NextTurn` ends if serving it fails."""

    def abort(self) -> None:
        """Close the connection immediately; unsent output is lost."""


class NextTurn(ABC):
    """Runs its work once in the next turn of the loop, however often it was scheduled."""

    __slots__ = ("_is_scheduled", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_scheduled = False

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        self._run()

    @abstractmethod
    def _run(self) -> None:
        """Do a limited part of the work; schedule the rest."""

    def _guard(self, peer: Abortable, step: Callable[[], None], fault: str) -> None:
        """Serve a connection; if that fails, report the fault and end the connection."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  # the other connections must get their turn
            self._loop.call_exception_handler({"message": fault, "exception": error})
            peer.abort()
